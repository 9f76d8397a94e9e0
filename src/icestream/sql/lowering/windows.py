"""Windows of one stream: the fast form of statements that only aggregate them.

Idea: nothing is decided here. The plan of a statement is the plan of the calls that one would write
by hand (`test_oracle_a_statement_is_the_query_written_by_hand`), so a query may be rewritten from
one form to the other and keep its checkpoint. Errors of Spark or of the fluent API are reported at
their place in the text.

Invariants:
1. Answers equal those of the same statement over lifetimes (`test_oracle_both_forms_of_windows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as sf
from sqlglot import exp

from icestream.api import functions as aggregate_functions
from icestream.api.columns import quoted
from icestream.api.functions import AggregateExpression
from icestream.api.result import Result, Windowed
from icestream.api.stream import Stream
from icestream.core.errors import DefinitionError
from icestream.core.units import format_interval
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.sql.lowering.in_spark import located
from icestream.sql.relations.tree import TimeWindow
from icestream.sql.relations.window_query import WindowQuery
from icestream.sql.statements.aggregates import AggregateCall
from icestream.sql.statements.dialect import written
from icestream.sql.statements.tokens import Text


def built(
    query: WindowQuery, stream: Stream, text: Text, own: Mapping[str, UserAggregate]
) -> Result:
    """Lower a statement over windows to calls of the fluent API."""
    for each in query.where:
        with located(text, text.place_of(each)):
            stream = stream.where(written(each))
    with located(text, query.table.place):
        windowed = windowed_stream(stream, query.table.window, query.partition)
    aggregates = {}
    for name, call in query.aggregates.items():
        with located(text, call.place):
            columns = [sf.expr(each) for each in call.arguments]
            aggregates[name] = aggregate_of(call, own, columns).alias(name)
    result = _aggregated(query, windowed, aggregates, text)
    for each in query.having:
        with located(text, text.place_of(each)):
            result = result.where(written(each))
    return _selected(query, result, text)


def windowed_stream(
    stream: Stream, window: TimeWindow | Frame, partition: Sequence[str] = ()
) -> Windowed:
    """Lower a window of a statement to one on a grid, of a stream."""
    if isinstance(window, TimeWindow):
        match window.kind:
            case "cumulate":
                return stream.cumulative(window.size, window.step)
            case "session":
                gap = window.gap
                return stream.session(window.size if gap is None else sf.expr(written(gap)))
        return stream.window(window.size, window.step, window.offset)
    if window.range is not None and window.rows is None:
        event = window.slide if isinstance(window.slide, RowsSlide) else "event"
        return stream.window(window.range, slide=event)
    assert window.rows is not None
    slide = window.slide
    step = slide.rows if isinstance(slide, RowsSlide) else slide and format_interval(slide)
    by = [sf.col(quoted(name)) for name in partition] or None
    return stream.rows(window.rows, step, partitionBy=by, range=window.range)


def aggregate_of(
    call: AggregateCall, own: Mapping[str, UserAggregate], columns: Sequence[Column | str]
) -> AggregateExpression:
    """Lower a call in windows to the aggregate of the fluent API, over some columns."""
    if call.is_users:
        return aggregate_functions.user(own[call.function], *columns)
    made: AggregateExpression = getattr(aggregate_functions, call.function)(
        *columns, *call.parameters
    )
    return made


def _aggregated(
    query: WindowQuery,
    windowed: Windowed,
    aggregates: Mapping[str, AggregateExpression],
    text: Text,
) -> Result:
    """Group and aggregate; if that fails, find the part that caused it."""
    keys = {name: _column(name, each, text) for name, each in query.keys.items()}
    columns = list(keys.values())
    if query.sets is None:
        grouped = windowed.groupBy(*columns)
    else:
        sets = [[columns[place] for place in each] for each in query.sets]
        grouped = windowed.groupingSets(sets, *columns)
    try:
        return grouped.agg(*aggregates.values())
    except DefinitionError as error:
        for name, column in keys.items():
            with located(text, text.place_of(query.keys[name])):
                windowed.groupBy(column).count()
        for name, aggregate in aggregates.items():
            with located(text, query.aggregates[name].place):
                windowed.agg(aggregate)
        raise text.error(text.place, str(error)) from None


def _selected(query: WindowQuery, result: Result, text: Text) -> Result:
    """Select the columns; each is tried first, to find the one that is wrong."""
    chosen = [(written(each).strip("`"), name) for name, each in query.columns.items()]
    if chosen == [(name, name) for name in result.columns]:
        return result
    columns = [_column(name, each, text) for name, each in query.columns.items()]
    for each, column in zip(query.columns.values(), columns, strict=True):
        if not isinstance(each, exp.Column):
            with located(text, text.place_of(each)):
                result.select(column)
    return result.select(*columns)


def _column(name: str, node: exp.Expr, text: Text) -> Column:
    with located(text, text.place_of(node)):
        return sf.expr(written(node)).alias(name)
