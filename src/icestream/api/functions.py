"""Aggregate functions, named as in `pyspark.sql.functions`.

Idea: a function is a name and the column it looks at; what it keeps and returns is decided by
`operators.aggregates` once the type of the column is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as sf

from icestream.core.errors import DefinitionError


@dataclass(frozen=True)
class AggregateExpression:
    """A function over a column or expression, or over whole events."""

    function: str
    #: None for whole events
    column: Column | None
    #: the function of `pyspark.sql.functions` that computes the same
    spelling: str
    #: what the user calls the result
    name: str | None = None

    def alias(self, alias: str) -> AggregateExpression:
        """Name the output column."""
        return replace(self, name=alias)

    @property
    def in_spark(self) -> Column:
        """Return Spark's own column that computes the same."""
        computed: Column = getattr(sf, self.spelling)("*" if self.column is None else self.column)
        return computed


def _aggregate(function: str, column: Column | str, spelling: str = "") -> AggregateExpression:
    return AggregateExpression(function, as_column(column), spelling or function)


def as_column(column: object) -> Column:
    """Return a column, given it or its name."""
    if isinstance(column, str):
        return sf.col(column)
    if isinstance(column, Column):
        return column
    msg = f"expected a column or its name; got {column!r}"
    raise DefinitionError(msg)


def count(column: Column | str = "*") -> AggregateExpression:
    """Count events, or those in which the column is not null."""
    if isinstance(column, str) and column == "*":
        return AggregateExpression("count", None, "count")
    return _aggregate("count", column)


def sum(column: Column | str) -> AggregateExpression:
    """Add the values up: integers and decimals exactly, floats without drift."""
    return _aggregate("sum", column)


def avg(column: Column | str) -> AggregateExpression:
    """Average the values."""
    return _aggregate("avg", column)


def mean(column: Column | str) -> AggregateExpression:
    """Average the values; another name of `avg`."""
    return _aggregate("avg", column, "mean")


def min(column: Column | str) -> AggregateExpression:
    """Return the least value."""
    return _aggregate("min", column)


def max(column: Column | str) -> AggregateExpression:
    """Return the greatest value; NaN is greater than any number, as in Spark."""
    return _aggregate("max", column)


def var_pop(column: Column | str) -> AggregateExpression:
    """Return the variance of the values as a whole population."""
    return _aggregate("var_pop", column)


def var_samp(column: Column | str) -> AggregateExpression:
    """Return the variance of the values as a sample."""
    return _aggregate("var_samp", column)


def variance(column: Column | str) -> AggregateExpression:
    """Return the sample variance; another name of `var_samp`."""
    return _aggregate("var_samp", column, "variance")


def stddev_pop(column: Column | str) -> AggregateExpression:
    """Return the standard deviation of the values as a whole population."""
    return _aggregate("stddev_pop", column)


def stddev_samp(column: Column | str) -> AggregateExpression:
    """Return the standard deviation of the values as a sample."""
    return _aggregate("stddev_samp", column)


def stddev(column: Column | str) -> AggregateExpression:
    """Return the sample standard deviation; another name of `stddev_samp`."""
    return _aggregate("stddev_samp", column, "stddev")
