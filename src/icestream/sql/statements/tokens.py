"""The text of statements, and errors that point into it.

Idea: a text is split into tokens once; a statement is a run of tokens, up to a semicolon. Positions
are always those of the whole text, because parts that a statement does not parse are blanked
instead of cut out. An error points at a place and gives its line number.

Invariants:
1. An error shows the words in question with their place in the whole text
   (`test_errors_give_the_line_in_the_whole_text`).
2. Semicolons and brackets in strings and comments separate nothing
   (`test_strings_and_comments_are_not_read_as_syntax`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, TokenError

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan, error_at
from icestream.sql.expressions.parse import misread, span_of
from icestream.sql.statements.dialect import Cql

_CLOSED_OR_OPEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|(?P<open>['"`]|/\*)""",
    re.DOTALL,
)


@dataclass(frozen=True)
class Text:
    """One statement of a text."""

    whole: str
    tokens: tuple[Token, ...]

    @property
    def place(self) -> TextSpan:
        return TextSpan(self.tokens[0].start, self.tokens[-1].end + 1)

    def error(self, where: TextSpan | exp.Expr | Token, message: str) -> DefinitionError:
        """Return an error that points at a part of the statement."""
        return error_at(self.whole, self.place_of(where), message, numbered=True)

    def place_of(self, where: TextSpan | exp.Expr | Token) -> TextSpan:
        """Return the place of something; for a call, the place of its name."""
        if isinstance(where, TextSpan):
            return where
        if isinstance(where, Token):
            return TextSpan(where.start, where.end + 1)
        return span_of(where) or self.place

    def slice(self, place: TextSpan) -> str:
        return " ".join(self.whole[place.start : place.end].split())

    def keyword(self, *words: str) -> TextSpan | None:
        """Return the place of the first of the words outside all parentheses."""
        for token, depth in with_depth(self.tokens):
            is_word = token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER)
            if depth == 0 and is_word and token.text.upper().split(" ")[0] in words:
                return self.place_of(token)
        return None

    def parse(self, blanks: Sequence[TextSpan]) -> exp.Expr:
        """Parse the statement without some parts of it."""
        own = self.place
        hidden = [TextSpan(0, own.start), *blanks, TextSpan(own.end, len(self.whole))]
        visible = self.whole
        for place in hidden:
            blank = re.sub(r"\S", " ", visible[place.start : place.end])
            visible = visible[: place.start] + blank + visible[place.end :]
        try:
            trees = [tree for tree in Cql().parse(visible) if tree is not None]
        except ParseError as error:
            place, complaint, _ = misread(error, self.whole)
            raise self.error(place, complaint) from None
        if not trees:
            raise self.error(self.place, "this is not a statement; start with SELECT")
        return trees[0]


def with_depth(tokens: Iterable[Token]) -> Iterable[tuple[Token, int]]:
    """Return tokens with their nesting depth in parentheses and brackets."""
    depth = 0
    for token in tokens:
        if token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET):
            depth -= 1
        yield token, depth
        if token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET):
            depth += 1


def statements(whole: str) -> list[Text]:
    """Split the tokens of a text into its statements."""
    try:
        tokens = Cql().tokenize(whole)
    except TokenError:
        opened = next((m for m in _CLOSED_OR_OPEN.finditer(whole) if m["open"]), None)
        start, end = opened.span() if opened else (0, 1)
        message = "this is opened but never closed"
        raise error_at(whole, TextSpan(start, end), message, numbered=True) from None
    texts: list[Text] = []
    run: list[Token] = []
    for token in tokens:
        if token.token_type is not TokenType.SEMICOLON:
            run.append(token)
        elif run:
            texts.append(Text(whole, tuple(run)))
            run = []
    if run:
        texts.append(Text(whole, tuple(run)))
    if not texts:
        msg = "there is no statement; write for example SELECT COUNT(*) FROM s [RANGE 1 HOUR]"
        raise DefinitionError(msg)
    return texts
