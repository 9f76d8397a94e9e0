"""Aggregate functions, named as in `pyspark.sql.functions`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from icestream.core.errors import DefinitionError


@dataclass(frozen=True)
class AggregateExpression:
    """A function over a column or expression, or over whole events."""

    function: str
    column: Column | None
    #: how the input reads in the text of the query
    text: str
    name: str

    def alias(self, name: str) -> AggregateExpression:
        """Name the output column."""
        return replace(self, name=name)


def _aggregate(function: str, column: Column | str) -> AggregateExpression:
    if not isinstance(column, Column | str):
        msg = f"{function} takes a column or its name; got {column!r}"
        raise DefinitionError(msg)
    chosen = F.col(column) if isinstance(column, str) else column
    text = column if isinstance(column, str) else shown(column)
    return AggregateExpression(function, chosen, text, f"{function}({text})")


def shown(column: Column) -> str:
    """Return the text of a column without its wrapping."""
    match = re.fullmatch(r"Column<'(.*)'>", str(column), re.DOTALL)
    return match[1] if match else str(column)


def count(column: Column | str = "*") -> AggregateExpression:
    """Count events, or those in which the column is not null."""
    if isinstance(column, str) and column == "*":
        return AggregateExpression("count", None, "*", "count(1)")
    return _aggregate("count", column)


def sum(column: Column | str) -> AggregateExpression:  # noqa: A001 - PySpark's name
    """Add the values up: integers and decimals exactly, floats without drift."""
    return _aggregate("sum", column)


def avg(column: Column | str) -> AggregateExpression:
    """Average the values."""
    return _aggregate("avg", column)


def mean(column: Column | str) -> AggregateExpression:
    """Average the values; another name of `avg`."""
    return _aggregate("avg", column)


def min(column: Column | str) -> AggregateExpression:  # noqa: A001 - PySpark's name
    """Return the least value."""
    return _aggregate("min", column)


def max(column: Column | str) -> AggregateExpression:  # noqa: A001 - PySpark's name
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
    return _aggregate("var_samp", column)


def stddev_pop(column: Column | str) -> AggregateExpression:
    """Return the standard deviation of the values as a whole population."""
    return _aggregate("stddev_pop", column)


def stddev_samp(column: Column | str) -> AggregateExpression:
    """Return the standard deviation of the values as a sample."""
    return _aggregate("stddev_samp", column)


def stddev(column: Column | str) -> AggregateExpression:
    """Return the sample standard deviation; another name of `stddev_samp`."""
    return _aggregate("stddev_samp", column)
