"""The window of a stream: `[RANGE 1 HOUR SLIDE 1 SECOND]` and the other clauses in brackets.

Idea: the clause is a small language with its own parser, which reads it into pure data. Brackets
are found among the tokens, blanked out of the text that sqlglot parses, and read for the table that
they follow.

    window    = RANGE interval [SLIDE (interval | number ROWS)]
              | [PARTITION BY column, ...] ROWS number [SLIDE (number [ROWS] | interval)]
              | PARTITION BY column, ... ROWS number RANGE interval [SLIDE number [ROWS]]
              | TUMBLE interval | CUMULATE interval STEP interval | SESSION interval
              | NOW | [RANGE | ROWS] UNBOUNDED
    interval  = [INTERVAL] (number unit ... | 'number' unit | 'number unit ...')

Invariants:
1. Without SLIDE there is a result per event (`test_without_a_slide_every_event_gives_a_result`).
2. Intervals are parsed as by `core.units` (`test_intervals_read_as_everywhere_else`).

References: A. Arasu, S. Babu, J. Widom. The CQL continuous query language, VLDB Journal 2006.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from sqlglot import Token, TokenType, exp

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan, guess
from icestream.core.times import Micros
from icestream.core.units import format_interval, parse_interval
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.sql.relations.tree import NOW, TimeWindow
from icestream.sql.statements.tokens import Text

#: windows on a grid, sessions, windows that move with rows; None for all rows there are
BracketWindow = TimeWindow | Frame | None

_LEXEME = re.compile(
    r"(?P<gap>\s+|--[^\n]*|/\*.*?\*/)|(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<name>`(?:[^`]|``)*`)|(?P<string>'[^']*')|(?P<sign>.)",
    re.DOTALL,
)
_KINDS = (
    "RANGE", "ROWS", "PARTITION BY", "TUMBLE", "CUMULATE", "SESSION", "NOW", "UNBOUNDED",
)  # fmt: skip
_EXAMPLE = "write for example [RANGE 1 HOUR SLIDE 1 MINUTE] or [ROWS 100]"
_INSTEAD = {
    "HOP": "hopping windows are written [RANGE size SLIDE step]",
    "SLIDING": "sliding windows are written [RANGE size SLIDE step]",
    "TUMBLING": "tumbling windows are written [TUMBLE size]",
}


@dataclass(frozen=True)
class _Lexeme:
    kind: str
    text: str
    place: TextSpan

    def says(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words


@dataclass(frozen=True)
class Brackets:
    """What brackets say."""

    window: BracketWindow
    place: TextSpan
    #: columns of PARTITION BY, and their places
    partition: tuple[str, ...] = ()
    places: tuple[TextSpan, ...] = ()


def read_brackets(text: Text, place: TextSpan) -> Brackets:
    """Read the window in brackets at a place."""
    return _Parser(text, place).window()


def parse_statement(text: Text) -> exp.Expr:
    """Parse a statement; tables have the places of their brackets."""
    found = list(_bracketed(text))
    words = [
        text.place_of(token)
        for token, after in pairwise(text.tokens)
        if token.token_type is TokenType.TABLE and after.token_type is not TokenType.L_PAREN
    ]
    tree = text.parse([*words, *(TextSpan(each.start - 1, each.end + 1) for each in found)])
    tables = {each.this.meta.get("start", -1): each for each in tree.find_all(exp.Table)}
    for place in found:
        before = [start for start in tables if start < place.start]
        if not before:
            raise text.error(place, _AFTER_A_NAME)
        tables[max(before)].meta[BRACKETS] = place
    return tree


def _bracketed(text: Text) -> Iterator[TextSpan]:
    """Yield the insides of the brackets that follow tables in FROM."""
    #: for each open parenthesis, whether a SELECT was seen and whether tables are being named
    depths = [[True, False]]
    opened: Token | None = None
    before: Token | None = None
    for token in text.tokens:
        kind, named = token.token_type, depths[-1]
        if opened is not None:
            if kind is TokenType.R_BRACKET:
                yield TextSpan(opened.end + 1, token.start)
                opened = None
        elif kind is TokenType.L_PAREN:
            depths.append([False, False])
        elif kind is TokenType.R_PAREN:
            depths = depths[:-1] or [[True, False]]
        elif kind is TokenType.SELECT:
            named[:] = True, False
        elif kind is TokenType.FROM:
            named[1] = named[0] and (before is None or before.token_type is not TokenType.DISTINCT)
        elif kind is TokenType.JOIN:
            named[1] = named[0]
        elif kind in _AFTER_TABLES:
            named[1] = False
        elif kind is TokenType.L_BRACKET and named[1]:
            if before is not None and before.token_type is TokenType.R_PAREN:
                raise text.error(token, _AFTER_A_NAME)
            opened = token
        before = token
    if opened is not None:
        raise text.error(opened, "this bracket is never closed")


_AFTER_A_NAME = (
    "a window in brackets follows the name of a stream: write it inside of the parentheses, or "
    "CREATE VIEW and FROM its name [...]"
)
#: where a table has the place of its brackets
BRACKETS = "brackets"
_AFTER_TABLES = (
    TokenType.ON, TokenType.USING, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING,
    TokenType.ORDER_BY, TokenType.LIMIT, TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT,
    TokenType.QUALIFY,
)  # fmt: skip


class _Parser:
    """Reads lexemes from left to right."""

    def __init__(self, text: Text, place: TextSpan) -> None:
        self._text = text
        self._whole = place
        inside = text.whole[place.start : place.end]
        self._lexemes = [
            _Lexeme(
                str(m.lastgroup), m[0], TextSpan(place.start + m.start(), place.start + m.end())
            )
            for m in _LEXEME.finditer(inside)
            if m.lastgroup != "gap"
        ]
        self._next = 0

    # -- lexemes ---------------------------------------------------------------------------

    @property
    def _seen(self) -> _Lexeme:
        """Return the next lexeme; at the end, an empty one just after the last."""
        return self._ahead(0)

    def _ahead(self, count: int) -> _Lexeme:
        place = self._next + count
        if place < len(self._lexemes):
            return self._lexemes[place]
        return _Lexeme("end", "", TextSpan(self._whole.end, self._whole.end + 1))

    def _take(self) -> _Lexeme:
        lexeme = self._seen
        self._next += 1
        return lexeme

    def _took(self, *words: str) -> bool:
        """Take the next lexeme if it is one of the words."""
        if self._seen.says(*words):
            self._next += 1
            return True
        return False

    def _expect(self, words: tuple[str, ...], message: str) -> None:
        if not self._took(*words):
            raise self._wrong(self._seen, message)

    def _wrong(self, lexeme: _Lexeme, message: str) -> DefinitionError:
        return self._text.error(lexeme.place, message)

    def _since(self, start: int) -> TextSpan:
        """Return the place of the lexemes consumed since a given one."""
        return TextSpan(self._lexemes[start].place.start, self._lexemes[self._next - 1].place.end)

    # -- grammar ---------------------------------------------------------------------------

    def window(self) -> Brackets:
        found = self._kind()
        if self._seen.kind != "end":
            word = self._seen.text
            hint = guess(word, ("SLIDE", "STEP", "ROWS"))
            raise self._wrong(self._seen, f"unexpected {word!r} after the end of the window{hint}")
        return found if isinstance(found, Brackets) else Brackets(found, self._whole)

    def _kind(self) -> BracketWindow | Brackets:
        if self._took("RANGE"):
            return self._range()
        if self._took("ROWS", "ROW"):
            return self._rows("stream")
        if self._took("PARTITION"):
            return self._partitioned()
        if self._took("NOW"):
            return NOW
        if self._took("UNBOUNDED"):
            return None
        if self._took("TUMBLE"):
            size = self._interval("TUMBLE")
            return TimeWindow("tumble", size, size)
        if self._took("CUMULATE"):
            return self._cumulative()
        if self._took("SESSION"):
            gap = self._interval("SESSION")
            return TimeWindow("session", gap, gap)
        raise self._unknown_kind()

    def _unknown_kind(self) -> DefinitionError:
        word = self._seen.text
        if word.upper() in _INSTEAD:
            return self._wrong(self._seen, _INSTEAD[word.upper()])
        if self._seen.kind == "end":
            return self._wrong(self._seen, f"the window is empty: {_EXAMPLE}")
        known = ", ".join(_KINDS)
        return self._wrong(
            self._seen, f"a window begins with one of {known}; got {word!r}{guess(word, _KINDS)}"
        )

    def _range(self) -> BracketWindow:
        if self._took("UNBOUNDED"):
            return None
        length = self._interval("RANGE")
        if not self._took("SLIDE"):
            return Frame(range=length)
        start = self._next
        slide = self._slide(bare_rows=False)
        if isinstance(slide, RowsSlide):
            return Frame(range=length, slide=slide)
        if slide > length:
            longest = format_interval(length)
            raise self._text.error(
                self._since(start),
                f"windows that slide further than their range ({longest}) would miss events: "
                f"slide by {longest} or less",
            )
        return TimeWindow("tumble" if slide == length else "hop", length, slide)

    def _rows(self, partition: str) -> Frame | None:
        if self._took("UNBOUNDED"):
            return None
        count = self._count("ROWS")
        within = partition == "key" and self._took("RANGE")
        length = self._interval("RANGE") if within else None
        slides = self._took("SLIDE")
        start = self._next
        slide = self._slide(bare_rows=True) if slides else None
        if within and isinstance(slide, int):
            raise self._text.error(
                self._since(start), "rows within a RANGE slide by rows: write SLIDE 10 ROWS"
            )
        return Frame(rows=count, range=length, slide=slide, partition=partition)

    def _partitioned(self) -> Brackets:
        self._expect(("BY",), "PARTITION is followed by BY")
        names: list[str] = []
        places: list[TextSpan] = []
        while True:
            if self._seen.kind not in ("word", "name") or self._seen.says("ROWS", "RANGE"):
                raise self._wrong(
                    self._seen, "PARTITION BY is followed by columns: [PARTITION BY k ROWS 10]"
                )
            name = self._take()
            names.append(_unquoted(name.text))
            places.append(name.place)
            if self._seen.text != ",":
                break
            self._take()
        if self._seen.says("RANGE"):
            raise self._wrong(
                self._seen, "PARTITION BY is for ROWS only; for a RANGE, use GROUP BY"
            )
        self._expect(("ROWS", "ROW"), "PARTITION BY must be followed by ROWS and a number")
        return Brackets(self._rows("key"), self._whole, tuple(names), tuple(places))

    def _cumulative(self) -> TimeWindow:
        size = self._interval("CUMULATE")
        self._expect(("STEP",), "CUMULATE needs a step: [CUMULATE 1 DAY STEP 1 MINUTE]")
        start = self._next
        step = self._interval("STEP")
        if size % step:
            raise self._text.error(
                self._since(start),
                f"the step must divide the size, {format_interval(size)}, evenly",
            )
        return TimeWindow("cumulate", size, step)

    def _slide(self, *, bare_rows: bool) -> Micros | RowsSlide:
        """Read the slide after SLIDE; a number without a unit counts rows if `bare_rows`."""
        number, unit = self._seen, self._ahead(1)
        if number.kind == "number" and (unit.says("ROWS", "ROW") or unit.kind == "end"):
            if unit.kind == "end" and not bare_rows:
                raise self._wrong(
                    self._seen,
                    f"SLIDE {number.text} needs a unit: write SLIDE {number.text} SECONDS or "
                    f"SLIDE {number.text} ROWS",
                )
            count = self._count("SLIDE")
            self._took("ROWS", "ROW")
            return RowsSlide(count)
        return self._interval("SLIDE")

    def _count(self, after: str) -> int:
        number = self._seen
        if number.kind != "number" or "." in number.text or int(number.text) == 0:
            raise self._wrong(self._seen, f"{after} is followed by a number of events, 1 or more")
        self._take()
        return int(number.text)

    def _interval(self, after: str) -> Micros:
        """Read an interval with the rules of `core.units`."""
        start = self._next
        self._took("INTERVAL")
        parts: list[str] = []
        while self._seen.kind in ("number", "string"):
            quantity = self._take()
            parts.append(quantity.text.strip("'"))
            if self._seen.kind == "word" and not self._seen.says("SLIDE", "STEP", "ROWS"):
                parts.append(self._take().text)
            elif quantity.kind == "number":
                raise self._no_unit(after, quantity)
        if not parts:
            raise self._wrong(self._seen, f"{after} is followed by an interval such as 10 SECONDS")
        place = self._since(start)
        try:
            length = parse_interval(" ".join(parts))
        except DefinitionError as error:
            raise self._text.error(place, str(error)) from None
        if length <= 0:
            raise self._text.error(place, f"{after} must be positive")
        return length

    def _no_unit(self, after: str, number: _Lexeme) -> DefinitionError:
        rows = f"; a number of events is written [ROWS {number.text}]" if after == "RANGE" else ""
        return self._text.error(
            number.place,
            f"{number.text} needs a unit: write {number.text} SECONDS or MINUTES{rows}",
        )


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
