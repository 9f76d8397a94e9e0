"""The window of a stream: `[RANGE 1 HOUR SLIDE 1 SECOND]` and the other clauses in brackets.

Idea: the clause is a small language with its own parser, which reads it into pure data; the SQL
around it is read elsewhere.

    window    = RANGE interval [SLIDE (interval | number ROWS)]
              | [PARTITION BY column, ...] ROWS number [SLIDE (number [ROWS] | interval)]
              | TUMBLE interval | CUMULATE interval STEP interval | SESSION interval
    interval  = [INTERVAL] (number unit ... | 'number' unit | 'number unit ...')

Invariants:
1. Without SLIDE there is a result per event (`test_without_a_slide_every_event_gives_a_result`).
2. Intervals are parsed as by `core.units` (`test_intervals_read_as_everywhere_else`).

Limits: windows without an end (UNBOUNDED) and windows of an instant (NOW) are refused.

References: A. Arasu, S. Babu, J. Widom. The CQL continuous query language, VLDB Journal 2006.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan, guess
from icestream.core.times import Micros
from icestream.core.units import format_interval, parse_interval
from icestream.sql.statements.tokens import Text


@dataclass(frozen=True)
class RowSlide:
    """A slide of a number of events."""

    count: int


#: a slide in time or in events; None for a result per event
Slide = Micros | RowSlide | None


@dataclass(frozen=True)
class RangeWindow:
    """The events of the last `range`."""

    range: Micros
    slide: Slide = None


@dataclass(frozen=True)
class RowsWindow:
    """The last `rows` events, of each partition if there are any."""

    rows: int
    slide: Slide = None
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class CumulativeWindow:
    """Windows that grow by `step` up to `size`, then start again."""

    size: Micros
    step: Micros


@dataclass(frozen=True)
class SessionWindow:
    """Runs of events less than `gap` apart."""

    gap: Micros


Window = RangeWindow | RowsWindow | CumulativeWindow | SessionWindow

#: first result column of each kind of window on a grid or of sessions
_STRUCTS = {CumulativeWindow: "window", SessionWindow: "session_window"}


def heading(window: Window) -> str:
    """Return the name of a window's column in the result: a struct of bounds, or the instant."""
    if isinstance(window, RangeWindow) and isinstance(window.slide, int):
        return "window"
    return _STRUCTS.get(type(window), "time")


_LEXEME = re.compile(
    r"(?P<gap>\s+|--[^\n]*|/\*.*?\*/)|(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<name>`(?:[^`]|``)*`)|(?P<string>'[^']*')|(?P<sign>.)",
    re.DOTALL,
)
_KINDS = ("RANGE", "ROWS", "PARTITION BY", "TUMBLE", "CUMULATE", "SESSION")
_EXAMPLE = "write for example [RANGE 1 HOUR SLIDE 1 MINUTE] or [ROWS 100]"
_INSTEAD = {
    "UNBOUNDED": (
        "an unbounded window never closes: give it a length, for example [RANGE 7 DAYS] or "
        "[CUMULATE 1 DAY STEP 1 MINUTE] for totals since midnight"
    ),
    "NOW": (
        "a window of one instant contains one event: [ROWS 1] returns a result per event, and "
        "stream.where or withColumn need no window at all"
    ),
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
        """Return whether this is one of the words."""
        return self.kind == "word" and self.text.upper() in words


def parse_window(text: Text, place: TextSpan) -> tuple[Window, tuple[TextSpan, ...]]:
    """Parse the window clause in brackets at a place; also return places of partition columns."""
    return _Parser(text, place).window()


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

    def window(self) -> tuple[Window, tuple[TextSpan, ...]]:
        window, places = self._kind()
        if self._seen.kind != "end":
            word = self._seen.text
            hint = guess(word, ("SLIDE", "STEP", "ROWS"))
            raise self._wrong(self._seen, f"unexpected {word!r} after the end of the window{hint}")
        return window, places

    def _kind(self) -> tuple[Window, tuple[TextSpan, ...]]:
        if self._took("RANGE"):
            return self._range(), ()
        if self._took("ROWS", "ROW"):
            return self._rows(()), ()
        if self._took("PARTITION"):
            return self._partitioned()
        if self._took("TUMBLE"):
            size = self._interval("TUMBLE")
            return RangeWindow(size, size), ()
        if self._took("CUMULATE"):
            return self._cumulative(), ()
        if self._took("SESSION"):
            return SessionWindow(self._interval("SESSION")), ()
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

    def _range(self) -> RangeWindow:
        length = self._interval("RANGE")
        if not self._took("SLIDE"):
            return RangeWindow(length)
        start = self._next
        slide = self._slide(bare_rows=False)
        if isinstance(slide, int) and slide > length:
            longest = format_interval(length)
            raise self._text.error(
                self._since(start),
                f"windows that slide further than their range ({longest}) would miss events: "
                f"slide by {longest} or less",
            )
        return RangeWindow(length, slide)

    def _rows(self, partition_by: tuple[str, ...]) -> RowsWindow:
        if self._seen.says("UNBOUNDED"):
            raise self._wrong(self._seen, _INSTEAD["UNBOUNDED"])
        count = self._count("ROWS")
        slide = self._slide(bare_rows=True) if self._took("SLIDE") else None
        return RowsWindow(count, slide, partition_by)

    def _partitioned(self) -> tuple[RowsWindow, tuple[TextSpan, ...]]:
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
        return self._rows(tuple(names)), tuple(places)

    def _cumulative(self) -> CumulativeWindow:
        size = self._interval("CUMULATE")
        self._expect(("STEP",), "CUMULATE needs a step: [CUMULATE 1 DAY STEP 1 MINUTE]")
        start = self._next
        step = self._interval("STEP")
        if size % step:
            raise self._text.error(
                self._since(start),
                f"the step must divide the size, {format_interval(size)}, evenly",
            )
        return CumulativeWindow(size, step)

    def _slide(self, *, bare_rows: bool) -> Slide:
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
            return RowSlide(count)
        return self._interval("SLIDE")

    def _count(self, after: str) -> int:
        number = self._seen
        if number.kind != "number" or "." in number.text or int(number.text) == 0:
            raise self._wrong(self._seen, f"{after} is followed by a number of events, 1 or more")
        self._take()
        return int(number.text)

    def _interval(self, after: str) -> Micros:
        """Read an interval with the rules of `core.units`."""
        for word in ("UNBOUNDED", "NOW"):
            if self._seen.says(word):
                raise self._wrong(self._seen, _INSTEAD[word])
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
