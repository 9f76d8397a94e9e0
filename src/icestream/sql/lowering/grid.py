"""Windows on a grid and sessions over one stream: the fast form of statements that aggregate them.

Idea: such a statement is a projection, perhaps a condition, and aggregates of a window of staged
rows. It makes the calls of the fluent API that one would write by hand, so it has panes, plans and
checkpoints of windows.

Invariants:
1. Answers equal those of the same statement over lifetimes (`test_oracle_both_forms_of_windows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import functions as sf
from sqlglot import exp

from icestream.api import functions as aggregate_functions
from icestream.api.result import Result, Windowed
from icestream.api.stream import Stream
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.sql.lowering.staged import Staged, located, quoted
from icestream.sql.relations.read import NamedRelation
from icestream.sql.relations.tree import (
    Conditions,
    Filter,
    Grouped,
    Project,
    Relation,
    TimeWindow,
    WindowTable,
    substituted,
)
from icestream.sql.statements.build import aggregate_of
from icestream.sql.statements.dialect import written
from icestream.sql.statements.tokens import Text


def on_a_grid(
    relation: Relation,
    query: NamedRelation,
    text: Text,
    own: Mapping[str, UserAggregate],
    staged: Callable[[WindowTable], Staged | None],
) -> Result | None:
    """Return the result of a statement over windows of one stream; None for any other."""
    if not isinstance(relation, Project):
        return None
    inner = relation.input
    having: Conditions = ()
    if isinstance(inner, Filter):
        having, inner = inner.conditions, inner.input
    if not isinstance(inner, Grouped) or not isinstance(inner.input, WindowTable):
        return None
    table = inner.input
    edges = {name: each for name, each in inner.keys.items() if _edge(each, table) is not None}
    if not edges:
        return None
    rows = staged(table)
    if rows is None:
        return None
    with located(text, table.place):
        windowed = windows_of(rows.stream, table.window)
    keys = {name: each for name, each in inner.keys.items() if name not in edges}
    place = next((call.place for call in inner.calls.values()), text.place)
    with located(text, place):
        aggregates = [
            aggregate_of(call, own, [sf.expr(each) for each in call.arguments]).alias(name)
            for name, call in inner.calls.items()
        ] or [aggregate_functions.count().alias("count")]
        result = windowed.groupBy(
            *(sf.expr(written(each)).alias(name) for name, each in keys.items())
        ).agg(*aggregates)
    heading = "session_window" if table.window.kind == "session" else "window"
    columns = {
        name: exp.Dot(this=exp.column(heading), expression=exp.to_identifier(_edge(each, table)))
        for name, each in edges.items()
    }
    for each in having:
        with located(text, text.place_of(each)):
            result = result.where(written(substituted(each, columns)))
    names = {column: name for name, column in query.names}
    chosen = [
        f"{written(substituted(each, columns))} AS {quoted(names[column])}"
        for column, each in relation.items.items()
    ]
    return result.select(*(sf.expr(each) for each in chosen))


def windows_of(stream: Stream, window: TimeWindow) -> Windowed:
    """Apply a window to a stream."""
    match window.kind:
        case "cumulate":
            return stream.cumulative(window.size, window.step)
        case "session":
            return stream.session(window.size)
    return stream.window(window.size, window.step)


def _edge(node: exp.Expr, table: WindowTable) -> str | None:
    """Return `start` or `end` if a key is that column of the window."""
    if isinstance(node, exp.Column):
        return {table.start: "start", table.end: "end"}.get(node.name)
    return None
