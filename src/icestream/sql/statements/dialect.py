"""The SQL of expressions: Spark's, parsed by sqlglot and written back with the same meaning.

Idea: sqlglot maps functions that it knows to its own concepts and writes those in a dialect; this
loses the format of `to_char(x, '99.9')` and the occurrence of `instr(a, b, 1, 2)`. This dialect
knows no function, so each call is written back as it was read, and only Spark interprets it.

Expressions remember their place in the text, which names the columns of a result.

Invariants:
1. A call keeps its name and all its arguments (`test_functions_are_written_as_they_were_read`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

SparkTokenizer = Spark.Tokenizer

#: where an expression was read: from which character up to which
PLACE = "place"
#: what a table in a call is partitioned by, as in SESSION(TABLE t PARTITION BY k, ...)
PARTITION = "partition"

#: looks like a call but has keywords between its arguments, as in CAST(x AS INT)
_WITH_WORDS_INSIDE = (
    "CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST",
)  # fmt: skip


class _Parser(SparkParser):
    """Spark's grammar without the functions that sqlglot would translate."""

    # GROUP BY may begin with window(time, size), and SESSION(time, gap) is a window, too
    QUERY_MODIFIER_TOKENS: ClassVar[set[TokenType]] = {*SparkParser.QUERY_MODIFIER_TOKENS} - {
        TokenType.WINDOW
    }
    FUNC_TOKENS: ClassVar[set[TokenType]] = {*SparkParser.FUNC_TOKENS, TokenType.SESSION}
    FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in _WITH_WORDS_INSIDE
    }

    def _warn_unsupported(self) -> None:
        """Print nothing: what is not a query is refused by its reader."""

    def _parse_expression(self) -> exp.Expr | None:
        first = self._curr
        node = super()._parse_expression()
        if node is not None:
            node.meta[PLACE] = first.start, self._prev.end + 1
        return node

    def _parse_lambda(self, alias: bool = False) -> exp.Expr | None:
        """Parse an argument of a call, which may be a table that is partitioned."""
        node = super()._parse_lambda(alias=alias)
        if isinstance(node, exp.Column) and self._match(TokenType.PARTITION_BY):
            each, inside = self._parse_column, self._curr.token_type is TokenType.L_PAREN
            keys = self._parse_wrapped_csv(each) if inside else [each()]
            if None in keys or not keys:
                self.raise_error("PARTITION BY is followed by columns", self._curr)
            node.meta[PARTITION] = keys
        return node

    def _parse_projections(self) -> tuple[list[exp.Expr], list[exp.Expr] | None]:
        start = self._index
        found = super()._parse_projections()
        tokens = self._tokens[start : self._index]
        before: Token | None = None
        for each in tokens:
            first = before is None or before.token_type is TokenType.COMMA
            if each.token_type is TokenType.COMMA and (first or each is tokens[-1]):
                self.raise_error("an expression is missing next to this comma", each)
            before = each
        return found


class _Tokenizer(SparkTokenizer):
    """Spark's words, but what follows EXPLAIN is read as a statement.

    A quote in a text may be doubled, as in Spark 4.
    """

    STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']
    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        word: kind for word, kind in SparkTokenizer.KEYWORDS.items() if word != "EXPLAIN"
    }


class Cql(Spark):
    """Spark's SQL with all functions left to Spark."""

    Tokenizer = _Tokenizer
    Parser = _Parser


def written(node: exp.Expr) -> str:
    """Return an expression in Spark's dialect; the text does not depend on the case of calls."""
    return node.sql(dialect=Cql, comments=False, normalize_functions="lower")


def column(name: str) -> exp.Column:
    """Return a reference, in Spark's dialect, to a result column of any name."""
    return exp.column(name, quoted=True)
