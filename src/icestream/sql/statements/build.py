"""Statements become queries: each part of a description is one call of the fluent API.

Idea: nothing is decided here. The plan of a statement is the plan of the calls that one would write
by hand (`test_oracle_a_statement_is_the_query_written_by_hand`), so a query may be rewritten from
one form to the other and keep its checkpoint. Errors of Spark or of the fluent API are reported at
their place in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as sf

from icestream.api import functions as aggregate_functions
from icestream.api.functions import AggregateExpression
from icestream.api.result import Result, Windowed
from icestream.api.stream import Stream
from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan
from icestream.core.units import format_interval
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.plan.windows.frame import RowsSlide
from icestream.sql.statements.aggregates import AggregateCall
from icestream.sql.statements.statement import Description, Named
from icestream.sql.statements.tokens import Text
from icestream.sql.statements.windows import (
    CumulativeWindow,
    RangeWindow,
    RowSlide,
    RowsWindow,
    Window,
)


def build(statement: Description, stream: Stream, own: Mapping[str, UserAggregate]) -> Result:
    """Build the calls of the fluent API that a statement describes."""
    text = statement.text
    if statement.where is not None:
        with _located(text, statement.where.place):
            stream = stream.where(statement.where.expression)
    with _located(text, statement.window_place):
        windowed = windowed_stream(stream, statement.window)
    aggregates = {
        name: _aggregate(text, call, own).alias(name) for name, call in statement.aggregates.items()
    }
    result = _aggregated(statement, windowed, aggregates)
    if statement.having is not None:
        with _located(text, statement.having.place):
            result = result.where(statement.having.expression)
    return _selected(statement, result)


def windowed_stream(stream: Stream, window: Window) -> Windowed:
    """Build the call that applies a statement's window to a stream."""
    if isinstance(window, RangeWindow):
        if window.slide is None:
            return stream.window(window.range, slide="event")
        if isinstance(window.slide, RowSlide):
            return stream.window(window.range, slide=RowsSlide(window.slide.count))
        return stream.window(window.range, window.slide)
    if isinstance(window, RowsWindow):
        by = [_column(name) for name in window.partition_by] or None
        if window.slide is None:
            return stream.rows(window.rows, partitionBy=by)
        if isinstance(window.slide, RowSlide):
            return stream.rows(window.rows, window.slide.count, partitionBy=by)
        return stream.rows(window.rows, format_interval(window.slide), partitionBy=by)
    if isinstance(window, CumulativeWindow):
        return stream.cumulative(window.size, window.step)
    return stream.session(window.gap)


def _column(name: str) -> Column:
    return sf.col("`" + name.replace("`", "``") + "`")


def _aggregate(
    text: Text, call: AggregateCall, own: Mapping[str, UserAggregate]
) -> AggregateExpression:
    with _located(text, call.place):
        return aggregate_of(call, own, [sf.expr(argument) for argument in call.arguments])


def aggregate_of(
    call: AggregateCall, own: Mapping[str, UserAggregate], columns: Sequence[Column | str]
) -> AggregateExpression:
    """Return the aggregate of the fluent API that a call denotes, over some columns."""
    if call.is_users:
        return aggregate_functions.user(own[call.function], *columns)
    made: AggregateExpression = getattr(aggregate_functions, call.function)(
        *columns, *call.parameters
    )
    return made


def _aggregated(
    statement: Description, windowed: Windowed, aggregates: Mapping[str, AggregateExpression]
) -> Result:
    """Group and aggregate; if that fails, find the part that caused it."""
    text = statement.text
    keys = [_named(text, key) for key in statement.keys]
    if statement.sets is None:
        grouped = windowed.groupBy(*keys)
    else:
        grouped = windowed.groupingSets([[keys[i] for i in each] for each in statement.sets], *keys)
    try:
        return grouped.agg(*aggregates.values())
    except DefinitionError as error:
        for key, column in zip(statement.keys, keys, strict=True):
            with _located(text, key.place):
                windowed.groupBy(column).count()
        for name, aggregate in aggregates.items():
            with _located(text, statement.aggregates[name].place):
                windowed.agg(aggregate)
        raise text.error(text.place, str(error)) from None


def _selected(statement: Description, result: Result) -> Result:
    """Select the columns; if that fails, find the one that caused it."""
    as_they_are = [(each.expression.strip("`"), each.name) for each in statement.columns]
    if as_they_are == [(name, name) for name in result.columns]:
        return result
    columns = [_named(statement.text, each) for each in statement.columns]
    try:
        return result.select(*columns)
    except DefinitionError as error:
        for each, column in zip(statement.columns, columns, strict=True):
            with _located(statement.text, each.place):
                result.select(column)
        raise statement.text.error(statement.text.place, str(error)) from None


def _named(text: Text, each: Named) -> Column:
    with _located(text, each.place):
        return sf.expr(each.expression).alias(each.name)


@contextmanager
def _located(text: Text, place: TextSpan) -> Iterator[None]:
    """Report errors about a part of the text with its place."""
    try:
        yield
    except (DefinitionError, AnalysisException) as error:
        raise text.error(place, str(error).strip().splitlines()[0]) from None
