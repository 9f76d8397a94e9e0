"""What needs state: joins, aggregates and tops over events with lifetimes.

Idea: rows are either *points*, at their instant, or they stay forever, as in a table. Joins whose
conditions bound the distance of instants work on points; all others, and all aggregates that do not
group by the instant, work on rows that stay. COUNT(DISTINCT x) groups by x inside each group, once
for all its conditions, and counts the groups that met them, in one aggregate with the counts and
sums beside it; MIN and MAX of text are a top of one row.

Invariants:
1. Answers are those of DuckDB over the same rows (`tests/sql/lowering`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp

from icestream.api import functions as aggregate_functions
from icestream.api.events import Events
from icestream.api.window_rows import final_window_rows
from icestream.operators.dataflow.steps import Padding, Projecting
from icestream.operators.lifetimes.conditions_met import ConditionsMet
from icestream.operators.lifetimes.window_copies import WINDOW, WindowEnds
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.plan.events.current_rows import stay_forever
from icestream.plan.events.features import ORDER_FUNCTIONS, UP_TO_ROW, UP_TO_TIME, FeatureCall
from icestream.plan.events.pane_windows import either
from icestream.plan.nodes.events import Mapped
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.sql.lowering.in_spark import INSTANT, Staged
from icestream.sql.lowering.windows import aggregate_of
from icestream.sql.relations.tree import OverCall, SortKey, TimeWindow
from icestream.sql.statements.aggregates import AggregateCall
from icestream.sql.statements.dialect import written

_NUMBERS: ContextVar[Iterator[int]] = ContextVar("numbers")
_NO_COLUMNS = ("1 AS one",)
#: aggregates that skip nulls and have an inverse
_COUNTED = ("count", "count_if", "sum", "avg")


def number_names_anew() -> None:
    """Begin a statement: names belong to it alone, so its plan is the same whenever it is made."""
    _NUMBERS.set(count(1))


def temporary(name: str) -> str:
    """Return a name for a column that no other column of the SQL statement has."""
    return f"t{next(_NUMBERS.get())}_{name}"


@dataclass(frozen=True)
class Flowing:
    """Rows as events; `points` if each lives for one instant, otherwise they stay forever."""

    events: Events
    points: bool

    @property
    def forever(self) -> Flowing:
        """Return the rows as a table that keeps them."""
        return Flowing(self.events.forever(), points=False) if self.points else self


def flowing(rows: Staged, whole: Callable[[str], Events]) -> Flowing:
    """Lower rows that Spark computes to events, where possible of the `whole` source."""
    if rows.source is None:
        events = rows.stream.events().select(*(rows.sent or _NO_COLUMNS), *rows.hidden[1:])
    else:
        texts = [f"{written(rows.computed[name])} AS {name}" for name in rows.sent]
        events = reduce(Events.where, rows.conditions, whole(rows.source))
        events = events.select(*(texts or _NO_COLUMNS))
    if not rows.has_instant:
        return Flowing(events, points=True)
    if rows.window is not None:
        window, edges = windows_of(rows.window), tuple(rows.edges.items())
        copies = WindowEnds(window, rows.stream._parts[0].time_type, edges)
        shown = ", ".join(f"{edge} AS {name}" for name, edge in edges)
        text = f"copies in windows {window.describe()}: {shown}"
        moved = events._mapped(copies, copies.columns(events._node.payload), text, rows.ahead)
        return Flowing(moved.select(*rows.columns), points=True)
    moved = events._between(INSTANT, INSTANT, rows.ahead)
    return Flowing(moved.select(*rows.columns), points=True)


def windows_of(window: TimeWindow) -> Windows | Cumulative:
    """Return the windows of a statement as those of a plan."""
    if window.kind == "cumulate":
        return Cumulative(window.size, window.step)
    return Windows(window.size, window.step, window.offset)


def filtered(rows: Flowing, condition: exp.Expr) -> Flowing:
    """Lower a condition: keep the events that satisfy it."""
    return replace(rows, events=rows.events.where(written(condition)))


def projected(rows: Flowing, items: Mapping[str, exp.Expr]) -> Flowing:
    """Lower a projection of events: compute columns."""
    texts = [f"{written(each)} AS {name}" for name, each in items.items()]
    return replace(rows, events=rows.events._selected(*texts))


def with_columns(rows: Flowing, items: Mapping[str, exp.Expr]) -> Flowing:
    """Add computed columns to events with state."""
    events = rows.events
    if items:
        texts = [f"{written(each)} AS {name}" for name, each in items.items()]
        events = events.select(*events.columns, *texts)
    return replace(rows, events=events)


# -- aggregates ----------------------------------------------------------------------------


def aggregated(
    rows: Flowing,
    keys: Sequence[str],
    calls: Mapping[str, AggregateCall],
    own: Mapping[str, UserAggregate],
) -> Events:
    """Lower aggregates of events by group; the arguments of calls are names of columns."""
    payload = rows.events._node.payload
    texts = {
        name: call
        for name, call in calls.items()
        if call.function in ("min", "max") and pt.is_string(payload.field(call.arguments[0]).type)
    }
    distinct: dict[str, dict[str, AggregateCall]] = {}
    for name, call in calls.items():
        if call.function == "count_distinct":
            distinct.setdefault(call.arguments[-1], {})[name] = call
    counted = [name for name, call in calls.items() if distinct and call.function in _COUNTED]
    plain = [
        aggregate_of(call, own, call.arguments).alias(name)
        for name, call in calls.items()
        if name not in (*texts, *counted) and call.function != "count_distinct"
    ]
    if not plain and not texts and not distinct:
        plain = [aggregate_functions.count().alias(temporary("count"))]

    def apply(group: Events) -> Events:
        parts = [group.agg(*plain)] if plain else []
        parts += [_extreme(group, name, call) for name, call in texts.items()]
        beside = {name: calls[name] for name in counted}
        parts += [_distinct(group, keys, distinct, beside)] if distinct else []
        return reduce(Events.join, parts)

    made = rows.events.groupApply(list(keys), apply)
    found = _panes(made, rows.events, keys, calls, own)
    if found is not None:
        made = replace(made, _node=either(made._node, found._node))
    return made.select(*keys, *calls)


def _panes(
    made: Events,
    copied: Events,
    keys: Sequence[str],
    calls: Mapping[str, AggregateCall],
    own: Mapping[str, UserAggregate],
) -> Events | None:
    """Return aggregates of copies in windows from panes of the events; None if that cannot be."""
    match copied._node:
        case Mapped(change=Projecting(), before=Mapped(change=WindowEnds() as copies, before=node)):
            events = replace(copied, _node=node)
        case _:
            return None
    edges = dict(copies.edges)
    asked = {edges[key] for key in keys if key in edges}
    one_each = "end" in asked or (asked and isinstance(copies.windows, Windows))
    if not one_each or any(map(_is_of_some, calls.values())):
        return None
    by = [key for key in keys if key not in edges]
    hidden = [name for name in made.columns if name not in (*keys, *calls)]
    wanted = [aggregate_of(call, own, call.arguments).alias(n) for n, call in calls.items()]
    wanted += [aggregate_functions.count().alias(name) for name in hidden]
    rows = final_window_rows(events, copies.windows, copies.time, by, wanted)
    shown = [f"{WINDOW}.{edges[n]} AS {n}" if n in edges else n for n in made.columns]
    # copies are at the ends of their windows
    rows = rows.select(*shown).shift(1)
    same = rows._node.payload.types == made._node.payload.types
    return rows._loosened(made._node.payload) if same else None


def _is_of_some(call: AggregateCall) -> bool:
    """Return whether a call counts the values of some rows, for which windows have no aggregate."""
    return call.function == "count_distinct" and len(call.arguments) > 1


def _extreme(group: Events, name: str, call: AggregateCall) -> Events:
    """Return the least or the greatest text of each group."""
    (value,) = call.arguments
    missing = temporary("missing")
    chosen = group.select(f"{value} AS {name}", f"{value} IS NULL AS {missing}")
    best = chosen.top(1, by=[missing, name], ascending=[True, call.function == "min"])
    return best.select(name)


def _distinct(
    group: Events,
    keys: Sequence[str],
    values: Mapping[str, Mapping[str, AggregateCall]],
    beside: Mapping[str, AggregateCall],
) -> Events:
    """Count the different values in each group, of all rows or of those that satisfy a condition.

    A call has the condition before the value, if it has one. The rows themselves, with nulls for
    what is known of values, are beside these rows for calls that skip nulls. All rows have the keys
    of the group, so such calls read keys under other names.
    """
    is_there = {name: temporary("there") for calls in values.values() for name in calls}
    # without rows beside them, groups in which nothing is counted need a row too
    known = {} if beside else {temporary("known"): "true"}
    parts = []
    for value, calls in values.items():
        for name, call in calls.items():
            held = call.arguments[0] if call.arguments[1:] else "true"
            known[is_there[name]] = f"{held} AND {value} IS NOT NULL"
        parts.append(_met(group, value, known))
        known = {}
    chosen = [aggregate_functions.count_if(flag).alias(name) for name, flag in is_there.items()]
    row = temporary("row")
    texts = dict.fromkeys(text for call in beside.values() for text in call.arguments)
    read = {text: temporary("key") if text in keys else text for text in texts}
    for name, call in beside.items():
        arguments = [read[text] for text in call.arguments] or [row]
        chosen.append(getattr(aggregate_functions, call.function)(*arguments).alias(name))
    if beside:
        columns = [text if text == n else f"{text} AS {n}" for text, n in read.items()]
        parts.append(group.select(*columns, f"1 AS {row}"))
    fields = {each.name: each.with_nullable(True) for part in parts for each in part._node.payload}
    schema = pa.schema(list(fields.values()))
    padded = [each._mapped(Padding(schema), schema, "with nulls") for each in parts]
    return reduce(Events.union, padded).agg(*chosen)


def _met(group: Events, value: str, conditions: Mapping[str, str]) -> Events:
    """Return a row of flags for each value of a group: which conditions one of its rows meets."""
    texts = [f"{text} AS {name}" for name, text in conditions.items()]
    chosen = group.select(value, *texts)
    if stay_forever(group._node):
        met = chosen.groupApply(value, lambda one: _conditions_met(one, list(conditions)))
        return met.select(*conditions)
    counts = [aggregate_functions.count_if(each).alias(each) for each in conditions]
    counted = chosen.groupApply(value, lambda one: one.agg(*counts))
    return counted.select(*(f"{each} > 0 AS {each}" for each in conditions))


# -- frames --------------------------------------------------------------------------------


def feature(
    name: str, over: OverCall, keys: tuple[str, ...], own: Mapping[str, UserAggregate]
) -> FeatureCall:
    """Lower a function over a frame of events to a column."""
    call = over.call
    if call.function in ORDER_FUNCTIONS:
        return FeatureCall(call.function, call.arguments, name, keys, UP_TO_TIME, call.parameters)
    if over.kind == "rows":
        frame = UP_TO_ROW if over.before is None else Frame(rows=over.before + 1)
    else:
        frame = UP_TO_TIME if over.before is None else Frame(range=over.before, peers=True)
    made = aggregate_of(call, own, call.arguments)
    return FeatureCall(made.function, call.arguments, name, keys, frame, made.parameters)


# -- tops ----------------------------------------------------------------------------------


def sort_columns(order: Sequence[SortKey]) -> tuple[dict[str, exp.Expr], list[str], list[bool]]:
    """Return columns to add, and columns and directions to order by as Spark does."""
    made: dict[str, exp.Expr] = {}
    by: list[str] = []
    ascending: list[bool] = []
    for each in order:
        node = each.expression
        name = node.name if isinstance(node, exp.Column) else temporary("order")
        if not isinstance(node, exp.Column):
            made[name] = node
        if each.nulls_first == each.descending:
            missing = temporary("missing")
            made[missing] = exp.Is(this=node.copy(), expression=exp.null())
            by.append(missing)
            ascending.append(not each.nulls_first)
        by.append(name)
        ascending.append(not each.descending)
    return made, by, ascending


def _conditions_met(group: Events, conditions: Sequence[str]) -> Events:
    """Return, for events that never end, which boolean columns were true in the group."""
    scope = group._scope("_conditions_met", "groupApply")
    operator = ConditionsMet(group._node.payload, scope.keys, conditions)
    return group._applied(operator, f"met {', '.join(conditions)}", grows=True)
