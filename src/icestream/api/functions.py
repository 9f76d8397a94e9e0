"""Aggregate functions, named as in `pyspark.sql.functions`.

Idea: an expression has a function name, input columns and literals. `operators.aggregates` or
`operators.object_aggregates` choose its state and its result type once the column types are known.

Invariant: results are named as Spark names them, where Spark has the function
(`test_results_are_named_as_sparks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as sf

from icestream.api.parameters import fractions, quantile_size, registers
from icestream.core.errors import DefinitionError
from icestream.operators.object_aggregates.user_aggregates import UserAggregate


@dataclass(frozen=True)
class AggregateExpression:
    """A function over columns or expressions, or over whole events."""

    function: str
    #: none for whole events
    columns: tuple[Column, ...] = ()
    #: literals that determine what the function computes
    parameters: tuple[Any, ...] = ()
    #: the function of `pyspark.sql.functions` that computes the same; none if Spark has none
    spelling: str = ""
    #: literals that this function takes after the columns
    options: tuple[Any, ...] = ()
    #: the user's name for the result
    name: str | None = None

    def alias(self, alias: str) -> AggregateExpression:
        """Name the output column."""
        return replace(self, name=alias)

    @property
    def title(self) -> str:
        """Return the name of the function if Spark has no name for it."""
        own = self.parameters[0] if self.function == "user" else None
        return own.title or "user" if isinstance(own, UserAggregate) else self.function

    @property
    def in_spark(self) -> Column | None:
        """Return Spark's own column that computes the same, or None."""
        if not self.spelling:
            return None
        computed: Column = getattr(sf, self.spelling)(*(self.columns or "*"), *self.options)
        return computed


def _aggregate(
    function: str,
    *columns: Column | str,
    parameters: tuple[Any, ...] = (),
    spelling: str | None = None,
    options: tuple[Any, ...] = (),
) -> AggregateExpression:
    return AggregateExpression(
        function,
        tuple(as_column(column) for column in columns),
        parameters,
        function if spelling is None else spelling,
        options,
    )


def as_column(column: object) -> Column:
    """Return the argument of an aggregate function as a column: given itself or by name."""
    if isinstance(column, str):
        return sf.col(column)
    if isinstance(column, Column):
        return column
    if isinstance(column, AggregateExpression):
        msg = (
            f"{column.title} is an aggregate already, and an aggregate takes a column: aggregate "
            "first, then aggregate the result, window(...).agg(...).window(...).agg(...)"
        )
        raise DefinitionError(msg)
    msg = f"expected a column or its name; got {column!r}"
    raise DefinitionError(msg)


def count(column: Column | str = "*") -> AggregateExpression:
    """Aggregate function: count events, or those in which the column is not null.

    Examples:
        >>> hourly.agg(ice.count()).columns[-1]
        'count(1)'
    """
    if isinstance(column, str) and column == "*":
        return AggregateExpression("count", spelling="count")
    return _aggregate("count", column)


def sum(column: Column | str) -> AggregateExpression:
    """Aggregate function: sum the values: integers and decimals exactly, floats without drift.

    Examples:
        >>> hourly.agg(ice.sum("busyTime")).columns[-1]
        'sum(busyTime)'
    """
    return _aggregate("sum", column)


def avg(column: Column | str) -> AggregateExpression:
    """Aggregate function: average the values.

    Examples:
        >>> hourly.agg(ice.avg("busyTime")).columns[-1]
        'avg(busyTime)'
    """
    return _aggregate("avg", column)


def mean(column: Column | str) -> AggregateExpression:
    """Aggregate function: average the values; an alias of `avg`.

    Examples:
        >>> hourly.agg(ice.mean("busyTime")).columns[-1]
        'avg(busyTime)'
    """
    return _aggregate("avg", column, spelling="mean")


def min(column: Column | str) -> AggregateExpression:
    """Aggregate function: the smallest value.

    Examples:
        >>> hourly.agg(ice.min("busyTime")).columns[-1]
        'min(busyTime)'
    """
    return _aggregate("min", column)


def max(column: Column | str) -> AggregateExpression:
    """Aggregate function: the largest value; NaN is larger than any number, as in Spark.

    Examples:
        >>> hourly.agg(ice.max("busyTime")).columns[-1]
        'max(busyTime)'
    """
    return _aggregate("max", column)


def var_pop(column: Column | str) -> AggregateExpression:
    """Aggregate function: the population variance of the values.

    Examples:
        >>> hourly.agg(ice.var_pop("busyTime")).columns[-1]
        'var_pop(busyTime)'
    """
    return _aggregate("var_pop", column)


def var_samp(column: Column | str) -> AggregateExpression:
    """Aggregate function: the sample variance of the values.

    Examples:
        >>> hourly.agg(ice.var_samp("busyTime")).columns[-1]
        'var_samp(busyTime)'
    """
    return _aggregate("var_samp", column)


def variance(column: Column | str) -> AggregateExpression:
    """Aggregate function: the sample variance; an alias of `var_samp`.

    Examples:
        >>> hourly.agg(ice.variance("busyTime")).columns[-1]
        'variance(busyTime)'
    """
    return _aggregate("var_samp", column, spelling="variance")


def stddev_pop(column: Column | str) -> AggregateExpression:
    """Aggregate function: the population standard deviation of the values.

    Examples:
        >>> hourly.agg(ice.stddev_pop("busyTime")).columns[-1]
        'stddev_pop(busyTime)'
    """
    return _aggregate("stddev_pop", column)


def stddev_samp(column: Column | str) -> AggregateExpression:
    """Aggregate function: the sample standard deviation of the values.

    Examples:
        >>> hourly.agg(ice.stddev_samp("busyTime")).columns[-1]
        'stddev_samp(busyTime)'
    """
    return _aggregate("stddev_samp", column)


def stddev(column: Column | str) -> AggregateExpression:
    """Aggregate function: the sample standard deviation; an alias of `stddev_samp`.

    Examples:
        >>> hourly.agg(ice.stddev("busyTime")).columns[-1]
        'stddev(busyTime)'
    """
    return _aggregate("stddev_samp", column, spelling="stddev")


def covar_pop(col1: Column | str, col2: Column | str) -> AggregateExpression:
    """Aggregate function: population covariance of two columns; pairs with a null are ignored.

    Examples:
        >>> hourly.agg(ice.covar_pop("busyTime", "price")).columns[-1]
        'covar_pop(busyTime, price)'
    """
    return _aggregate("covar_pop", col1, col2)


def covar_samp(col1: Column | str, col2: Column | str) -> AggregateExpression:
    """Aggregate function: the sample covariance of two columns; pairs with a null are ignored.

    Examples:
        >>> hourly.agg(ice.covar_samp("busyTime", "price")).columns[-1]
        'covar_samp(busyTime, price)'
    """
    return _aggregate("covar_samp", col1, col2)


def corr(col1: Column | str, col2: Column | str) -> AggregateExpression:
    """Aggregate function: the correlation of two columns; null if one of them has a single value.

    Examples:
        >>> hourly.agg(ice.corr("busyTime", "price")).columns[-1]
        'corr(busyTime, price)'
    """
    return _aggregate("corr", col1, col2)


def weighted_avg(col: Column | str, weight: Column | str) -> AggregateExpression:
    """Aggregate function: sum(col * weight) / sum(weight), null if the weights sum to 0.

    Examples:
        >>> hourly.agg(ice.weighted_avg("price", "volume").alias("vwap")).columns[-1]
        'vwap'
    """
    return _aggregate("weighted_avg", col, weight, spelling="")


def first(col: Column | str, ignorenulls: bool = False) -> AggregateExpression:
    """Aggregate function: the value of the first event by time; of equal times, first to arrive.

    Examples:
        >>> hourly.agg(ice.first("busyTime")).columns[-1]
        'first(busyTime)'
    """
    return _ordered("first", col, ignorenulls)


def last(col: Column | str, ignorenulls: bool = False) -> AggregateExpression:
    """Aggregate function: the value of the last event by time; of equal times, the last to arrive.

    Examples:
        >>> hourly.agg(ice.last("busyTime")).columns[-1]
        'last(busyTime)'
    """
    return _ordered("last", col, ignorenulls)


def any_value(col: Column | str, ignoreNulls: bool | None = None) -> AggregateExpression:
    """Aggregate function: any value; Icestream returns the first.

    Examples:
        >>> hourly.agg(ice.any_value("busyTime")).columns[-1]
        'any_value(busyTime)'
    """
    return _ordered("first", col, bool(ignoreNulls), spelling="any_value")


def _ordered(
    function: str, col: Column | str, ignorenulls: bool, spelling: str | None = None
) -> AggregateExpression:
    given: object = ignorenulls
    if not isinstance(given, bool):
        msg = f"{function} takes ignorenulls=True or False; got {ignorenulls!r}"
        raise DefinitionError(msg)
    parameters = (True,) if ignorenulls else ()
    return _aggregate(
        function, col, parameters=parameters, spelling=spelling, options=(ignorenulls,)
    )


def min_by(col: Column | str, ord: Column | str) -> AggregateExpression:
    """Aggregate function: the value of the event with the smallest `ord`, the first of several.

    Examples:
        >>> hourly.agg(ice.min_by("agent", "busyTime")).columns[-1]
        'min_by(agent, busyTime)'
    """
    return _aggregate("min_by", col, ord)


def max_by(col: Column | str, ord: Column | str) -> AggregateExpression:
    """Aggregate function: the value of the event with the largest `ord`, the first of several.

    Examples:
        >>> hourly.agg(ice.max_by("agent", "busyTime")).columns[-1]
        'max_by(agent, busyTime)'
    """
    return _aggregate("max_by", col, ord)


def bool_and(col: Column | str) -> AggregateExpression:
    """Aggregate function: whether a condition holds for all events; nulls are ignored.

    Examples:
        >>> from pyspark.sql import functions as F
        >>> hourly.agg(ice.bool_and(F.expr("busyTime > 60")).alias("long")).columns[-1]
        'long'
    """
    return _aggregate("bool_and", col)


def bool_or(col: Column | str) -> AggregateExpression:
    """Aggregate function: whether a condition holds for any event; nulls are ignored.

    Examples:
        >>> from pyspark.sql import functions as F
        >>> hourly.agg(ice.bool_or(F.expr("busyTime > 60")).alias("long")).columns[-1]
        'long'
    """
    return _aggregate("bool_or", col)


def every(col: Column | str) -> AggregateExpression:
    """Aggregate function: whether a condition holds for all events; an alias of `bool_and`.

    Examples:
        >>> from pyspark.sql import functions as F
        >>> hourly.agg(ice.every(F.expr("busyTime > 60")).alias("long")).columns[-1]
        'long'
    """
    return _aggregate("bool_and", col, spelling="every")


def some(col: Column | str) -> AggregateExpression:
    """Aggregate function: whether a condition holds for any event; an alias of `bool_or`.

    Examples:
        >>> from pyspark.sql import functions as F
        >>> hourly.agg(ice.some(F.expr("busyTime > 60")).alias("long")).columns[-1]
        'long'
    """
    return _aggregate("bool_or", col, spelling="some")


def count_if(col: Column | str) -> AggregateExpression:
    """Aggregate function: count the events for which a condition holds.

    Examples:
        >>> from pyspark.sql import functions as F
        >>> hourly.agg(ice.count_if(F.expr("busyTime > 60")).alias("long")).columns[-1]
        'long'
    """
    return _aggregate("count_if", col)


# -- functions whose state is the values or a sketch -----------------------------------------


def collect_list(col: Column | str) -> AggregateExpression:
    """Aggregate function: all values that are not null, in the order of the stream.

    Examples:
        >>> hourly.agg(ice.collect_list("busyTime")).columns[-1]
        'collect_list(busyTime)'
    """
    return _aggregate("collect_list", col)


def collect_set(col: Column | str) -> AggregateExpression:
    """Aggregate function: the distinct values that are not null.

    Examples:
        >>> hourly.agg(ice.collect_set("busyTime")).columns[-1]
        'collect_set(busyTime)'
    """
    return _aggregate("collect_set", col)


def count_distinct(col: Column | str, *cols: Column | str) -> AggregateExpression:
    """Aggregate function: count distinct values exactly, or combinations without a null.

    Examples:
        >>> hourly.agg(ice.count_distinct("busyTime")).columns[-1]
        'count(DISTINCT busyTime)'
    """
    return _aggregate("count_distinct", col, *cols)


def mode(col: Column | str) -> AggregateExpression:
    """Aggregate function: the most frequent value.

    Examples:
        >>> hourly.agg(ice.mode("busyTime")).columns[-1]
        'mode(busyTime)'
    """
    return _aggregate("mode", col)


def median(col: Column | str) -> AggregateExpression:
    """Aggregate function: the exact median.

    Examples:
        >>> hourly.agg(ice.median("busyTime")).columns[-1]
        'median(busyTime)'
    """
    return _aggregate("median", col)


def percentile(
    col: Column | str,
    percentage: float | Sequence[float],
    frequency: Column | str | int = 1,
) -> AggregateExpression:
    """Aggregate function: the exact percentile, interpolated, or a list of them.

    Args:
        col: a number.
        percentage: one fraction between 0 and 1, or several.
        frequency: how many times each value counts.

    Examples:
        >>> hourly.agg(ice.percentile("busyTime", 0.9)).columns[-1]
        'percentile(busyTime, 0.9, 1)'
    """
    wanted = fractions("percentile", percentage)
    if isinstance(frequency, Column | str):
        return _aggregate("percentile", col, frequency, parameters=(wanted,), spelling="")
    if frequency != 1:
        msg = f"frequency must be a column or the number 1; got {frequency!r}"
        raise DefinitionError(msg)
    return _aggregate("percentile", col, parameters=(wanted,), options=(percentage,))


def approx_count_distinct(col: Column | str, rsd: float = 0.02) -> AggregateExpression:
    """Aggregate function: count distinct values with a sketch (HyperLogLog).

    Args:
        col: the values.
        rsd: the relative standard deviation of the result, between 0.0008 and 0.09.

    Examples:
        >>> hourly.agg(ice.approx_count_distinct("busyTime")).columns[-1]
        'approx_count_distinct(busyTime)'
    """
    return _aggregate("approx_count_distinct", col, parameters=(registers(rsd),), options=(rsd,))


def approx_percentile(
    col: Column | str, percentage: float | Sequence[float], accuracy: int = 100
) -> AggregateExpression:
    """Aggregate function: the approximate percentile, or a list, from a sketch (KLL).

    Args:
        col: a number.
        percentage: one fraction between 0 and 1, or several.
        accuracy: the rank error is at most 1/accuracy with a probability of 99 %; at most 20000.

    Examples:
        >>> hourly.agg(ice.approx_percentile("busyTime", 0.9)).columns[-1]
        'approx_percentile(busyTime, 0.9, 100)'
    """
    return _aggregate(
        "approx_percentile",
        col,
        parameters=(fractions("approx_percentile", percentage), quantile_size(accuracy)),
        options=(percentage, accuracy),
    )


def percentile_approx(
    col: Column | str, percentage: float | Sequence[float], accuracy: int = 100
) -> AggregateExpression:
    """Aggregate function: the approximate percentile; an alias of `approx_percentile`.

    Examples:
        >>> hourly.agg(ice.percentile_approx("busyTime", 0.9)).columns[-1]
        'percentile_approx(busyTime, 0.9, 100)'
    """
    made = approx_percentile(col, percentage, accuracy)
    return replace(made, spelling="percentile_approx")


def approx_top_k(
    col: Column | str, k: int = 5, maxItemsTracked: int = 10_000
) -> AggregateExpression:
    """Aggregate function: the k most frequent values with counts, from a sketch.

    Examples:
        >>> hourly.agg(ice.approx_top_k("agent", 3)).columns[-1]
        'approx_top_k(agent)'
    """
    return _aggregate("approx_top_k", col, parameters=(k, maxItemsTracked), spelling="")


def user(aggregate: UserAggregate, *cols: Column | str) -> AggregateExpression:
    """Aggregate function: apply a user-defined aggregate to columns.

    Examples:
        >>> import pyarrow as pa
        >>> longest = ice.UserAggregate(
        ...     lift=lambda x: x,
        ...     combine=max,
        ...     lower=lambda x: x,
        ...     result=pa.int64(),
        ...     title="longest",
        ... )
        >>> hourly.agg(ice.user(longest, "busyTime").alias("longest")).columns
        ['window', 'serviceId', 'longest']
    """
    return _aggregate("user", *cols, parameters=(aggregate,), spelling="")


def lag(column: Column | str, offset: int = 1, default: object = None) -> AggregateExpression:
    """Function for `over`: the value of the event `offset` before, or `default` if there is none.

    Examples:
        >>> calls.over(ice.lag("busyTime").alias("before"), partitionBy="agent").columns[-1]
        'before'
    """
    _check_offset(offset)
    if isinstance(default, str):
        escaped = default.replace("\\", "\\\\").replace("'", "\\'")
        default = f"'{escaped}'"
    text = None if default is None else str(default)
    return _aggregate("lag", column, parameters=(offset, text), spelling="")


def row_number() -> AggregateExpression:
    """Function for `over`: the number of an event among those with equal keys, from 1.

    Examples:
        >>> calls.over(ice.row_number().alias("number"), partitionBy="agent").columns[-1]
        'number'
    """
    return AggregateExpression("row_number")


def rank() -> AggregateExpression:
    """Function for `over`: 1 and the number of events with equal keys and an earlier time.

    Examples:
        >>> calls.over(ice.rank().alias("place"), partitionBy="agent").columns[-1]
        'place'
    """
    return AggregateExpression("rank")


def _check_offset(offset: object) -> None:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        msg = f"lag takes a number of events, 0 or more; got {offset!r}"
        raise DefinitionError(msg)
