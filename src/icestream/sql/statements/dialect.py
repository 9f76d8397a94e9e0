"""The SQL of expressions: Spark's, read by sqlglot and written back with the same meaning.

Idea: sqlglot turns functions it knows into its own notions and spells those for a dialect; on the
way `to_char(x, '99.9')` loses its format and `instr(a, b, 1, 2)` its occurrence. Here no function
is known, so each call is written back as it was read; only Spark decides what it means.

Invariants:
1. A call keeps its name and all its arguments (`test_functions_are_written_as_they_were_read`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

#: what looks like a call and has words between its arguments, as in CAST(x AS INT)
_WITH_WORDS_INSIDE = (
    "CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST",
)  # fmt: skip


class _Parser(SparkParser):
    """Spark's grammar without the functions sqlglot would translate."""

    FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in _WITH_WORDS_INSIDE
    }


class Cql(Spark):
    """Spark's SQL in which all functions are left to Spark."""

    Parser = _Parser


def written(node: exp.Expr) -> str:
    """Return an expression as Spark reads it; the same text for the same calls in any case."""
    return node.sql(dialect=Cql, comments=False, normalize_functions="lower")


def column(name: str) -> exp.Column:
    """Return a reference to a result column of any name."""
    return exp.column(name, quoted=True)
