"""Aggregates of one stream's windows, with columns and a condition on top: a form of its own.

Idea: such a statement needs nothing but the calls of the fluent API that one would write by hand,
with the names that one would choose, so it has their plans and shares their checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from icestream.sql.relations.names import ColumnScope, NamedRelation
from icestream.sql.relations.tree import (
    Conditions,
    Filter,
    Grouped,
    Project,
    Relation,
    Scan,
    TimeWindow,
    WindowTable,
    bare,
    substituted,
    substituted_call,
)
from icestream.sql.statements.aggregates import AggregateCall
from icestream.sql.statements.dialect import Cql, column, written


@dataclass(frozen=True)
class WindowQuery:
    """What is computed for the groups of windows."""

    table: WindowTable
    #: the stream of the windows if nothing but conditions is between; else None
    stream: str | None
    #: conditions on the rows of that stream
    where: Conditions
    #: expressions over the rows of the window, by the names of result columns
    keys: Mapping[str, exp.Expr]
    #: sets of keys by position; None for one grouping by all of them
    sets: tuple[tuple[int, ...], ...] | None
    #: columns of [PARTITION BY ... ROWS n]
    partition: tuple[str, ...]
    aggregates: Mapping[str, AggregateCall]
    #: conditions on result rows
    having: Conditions
    #: final columns, over keys, aggregates and the window
    columns: Mapping[str, exp.Expr]


def window_query(relation: Relation, query: NamedRelation) -> WindowQuery | None:
    """Return the form of a simplified relation; None if it is another one."""
    if not isinstance(relation, Project):
        return None
    inner = relation.input
    having: Conditions = ()
    if isinstance(inner, Filter):
        having, inner = inner.conditions, inner.input
    if not isinstance(inner, Grouped) or not isinstance(inner.input, WindowTable):
        return None
    groups, table = inner, inner.input
    edges = {name for name, each in groups.keys.items() if _is_edge(each, table)}
    if not edges or not all(edges & set(each) for each in groups.sets or ()):
        return None
    source = table.input.input if isinstance(table.input, Filter) else table.input
    spelled: dict[str, exp.Expr] = {}
    where: Conditions = ()
    if isinstance(source, Scan):
        spelled = {each: spelling(name) for name, each in source.named.items()}
        if isinstance(table.input, Filter):
            where = tuple(substituted(each, spelled) for each in table.input.conditions)
    names = _Names(relation, query, table)
    keys = {
        names.new(name, substituted(each, spelled)): substituted(each, spelled)
        for name, each in groups.keys.items()
        if name not in edges
    }
    calls = {each: substituted_call(call, spelled) for each, call in groups.calls.items()}
    aggregates = {names.new(each, call): call for each, call in calls.items()}
    if not aggregates:
        aggregates[names.free("count", "count(*)")] = AggregateCall("count", ())
    held = {**names.held, **{name: _edge(groups.keys[name], table) for name in edges}}
    if groups.grouping is not None:
        held[groups.grouping] = column("grouping_id")
    visible = {each: name for name, each in query.names}
    others = [name for name in groups.keys if name not in edges]
    sets: tuple[tuple[int, ...], ...] | None = None
    if groups.sets is not None:
        sets = tuple(
            tuple(others.index(name) for name in each if name not in edges) for each in groups.sets
        )
    if isinstance(table.window, TimeWindow) and table.window.gap is not None:
        gap = substituted(table.window.gap, spelled)
        table = replace(table, window=replace(table.window, gap=gap))
    return WindowQuery(
        table,
        source.source if isinstance(source, Scan) else None,
        where,
        keys,
        sets,
        tuple(spelled.get(each, exp.column(each)).name for each in table.partition),
        aggregates,
        tuple(_shown(each, held, table) for each in having),
        {visible[name]: _shown(each, held, table) for name, each in relation.items.items()},
    )


class _Names:
    """Names for the columns that hold keys and aggregates."""

    def __init__(self, relation: Project, query: NamedRelation, table: WindowTable) -> None:
        visible = {each: name for name, each in query.names}
        self._selected = {
            each.name: visible[name]
            for name, each in reversed(list(relation.items.items()))
            if isinstance(each, exp.Column) and name in visible
        }
        self._taken = {table.heading, "grouping_id"}
        #: references to the columns
        self.held: dict[str, exp.Expr] = {}

    def new(self, name: str, value: exp.Expr | AggregateCall) -> str:
        """Return the name of a key or aggregate: as selected, its own, or its text."""
        if isinstance(value, AggregateCall):
            own, text = "", call_text(value)
        else:
            own, text = ColumnScope(()).own_name(value), bare(written(value))
        found = self.free(self._selected.get(name) or own, text)
        self.held[name] = column(found)
        return found

    def free(self, wanted: str, text: str) -> str:
        number, name = 1, wanted or text
        while name.lower() in self._taken:
            name = text if number == 1 else f"{text} #{number}"
            number += 1
        self._taken.add(name.lower())
        return name


def call_text(call: AggregateCall) -> str:
    """Return a call in a query over windows as text."""
    return f"{call.function}({', '.join(bare(each) for each in call.arguments) or '*'})"


def spelling(name: str) -> exp.Column:
    """Return a column of the stream of a window query, quoted where that is needed."""
    plain = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
    return exp.column(name, quoted=not plain or name.upper() in Cql.Tokenizer.KEYWORDS)


def _is_edge(node: exp.Expr, table: WindowTable) -> bool:
    return isinstance(node, exp.Column) and node.name in (table.start, table.end)


def _edge(node: exp.Expr, table: WindowTable) -> exp.Expr:
    """Return a bound of the window as a field of its column."""
    if table.start == table.end:
        return column(table.heading)
    edge = "start" if node.name == table.start else "end"
    return exp.Dot(this=column(table.heading), expression=exp.to_identifier(edge))


def _shown(node: exp.Expr, held: Mapping[str, exp.Expr], table: WindowTable) -> exp.Expr:
    """Return an expression over result columns; the window's own column is one of them."""

    def change(each: exp.Expr) -> exp.Expr:
        if isinstance(each, exp.Anonymous) and each.name == "named_struct":
            edges = [held.get(each.expressions[at].name) for at in (1, 3)]
            if all(isinstance(one, exp.Dot) for one in edges):
                return column(table.heading)
        if isinstance(each, exp.Column) and each.name in held:
            made = held[each.name].copy()
            made.meta.update(each.meta)
            return made
        return each

    return node.transform(change)
