"""From plans to operators: the only place that knows both.

Idea: views on a grid whose aggregates fit words share one window operator, fed with entries. Every
other kind of view has an operator of its own, fed with the events themselves.

Invariant: a plan that no operator can run is refused where it is made
(`test_a_plan_that_no_operator_runs_is_refused`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.emission import WindowView
from icestream.operators.levels import Tiled
from icestream.operators.objects import ObjectOperator, ObjectSpec
from icestream.operators.objects.functions import needs_objects
from icestream.operators.ordered import Frame, OrderedSpec
from icestream.operators.ordered.operator import OrderedOperator
from icestream.operators.panes import Cumulative, Windows
from icestream.operators.protocol import Emitted, Operator, Shard
from icestream.operators.session import Session, SessionOperator, SessionSpec
from icestream.operators.window import PANES, WindowOperator
from icestream.operators.window_spec import WindowSpec
from icestream.plan.compose import Composition, compose
from icestream.plan.cost import KeyCounts
from icestream.plan.nodes import Plan, View

#: what the log keeps of windows on a grid
TUPLES = "tuples"
AUTO = "auto"
STORES = (PANES, TUPLES, AUTO)
#: what a row costs that is written for longer windows, in rows added to running rows
KEEPING = 1.0


def check(plan: Plan) -> None:
    """Refuse a plan that no operator runs."""
    if len(plan.views) > 1 and takes_tuples(plan):
        msg = (
            "queries that share a stream must all be window(...) or cumulative(...) with "
            "aggregates of fixed size; start windows that move with events, sessions, and "
            "aggregates such as percentile or collect_list on their own"
        )
        raise DefinitionError(msg)
    if plan.store == TUPLES and not may_refold(plan):
        msg = (
            "the plan 'tuples' needs aggregates that can be taken back: counts and sums of "
            "integers or decimals over window(...). Use the plan 'panes' or 'auto'"
        )
        raise DefinitionError(msg)
    spec = _spec(plan) if takes_tuples(plan) else window_spec(plan)
    if not isinstance(spec, ObjectSpec):
        spec.layout  # noqa: B018 - made now, so that a type without room is told now


def takes_tuples(plan: Plan) -> bool:
    """Tell whether the plan's operator is fed with events, not with entries."""
    return not all(_on_panes(plan, view) for view in plan.views)


def may_refold(plan: Plan) -> bool:
    """Tell whether what leaves the windows may be folded anew from raw events."""
    return not takes_tuples(plan) and window_spec(plan).layout.front_words == 0


def whole_stream(plan: Plan) -> bool:
    """Tell whether one shard must see all events in order."""
    windows = plan.views[0].windows
    return isinstance(windows, Frame) and windows.in_one_shard


def lifetimes(plan: Plan) -> tuple[str, ...]:
    """Return the lifetime classes of the operator's segments, in the order of their ordinals."""
    return _operator(plan).lifetimes


def emitted(plan: Plan, rows: Iterator[Any]) -> Iterator[Emitted]:
    """Return what an operator emits as rows of views."""
    return ((0, batch) for batch in rows) if takes_tuples(plan) else rows


def composition(plan: Plan, keys: KeyCounts) -> Composition | None:
    """Choose which tumbling windows are made of others; None if panes are as good for all."""
    spec = window_spec(plan)
    tumbling = {each for each in spec.windows if isinstance(each, Windows) and each.tumbles}
    if len(tumbling) < 2:
        return None
    chosen = compose(
        tumbling,
        _extended(keys, max(each.range for each in tumbling)),
        grid=spec.grid,
        invertible=spec.layout.front_words == 0,
        keeping=KEEPING,
    )
    return chosen if chosen.kept else None


def _extended(keys: KeyCounts, longest: Micros) -> KeyCounts:
    """Let groups grow up to a length as they did over what was measured."""
    (first, few), (last, many) = keys.points[0], keys.points[-1]
    if not first < last < longest or few <= 0:
        return keys
    growth = math.log(many / few) / math.log(last / first)
    return KeyCounts((*keys.points, (longest, many * (longest / last) ** growth)))


def tiled(chosen: Composition | None) -> tuple[Tiled, ...]:
    """Return a composition as the window operator executes it."""
    if chosen is None:
        return ()
    return tuple(
        Tiled(
            recipe.window,
            tuple((part.source, part.count) for each in recipe.makings for part in each.add),
        )
        for recipe in chosen.recipes
        if recipe.inputs or not recipe.wanted
    )


def operator(
    plan: Plan, shard: Shard, store: str = PANES, made_of: tuple[Tiled, ...] = ()
) -> Operator:
    """Open the operator of a plan on one shard; some windows may be made of others."""
    if not takes_tuples(plan):
        return WindowOperator(replace(window_spec(plan), tiled=made_of), shard, store)
    opens: Any = _operator(plan)
    made: Operator = opens(_spec(plan), shard, plan.results(plan.views[0]))
    return made


def tuple_keys(plan: Plan) -> pa.Schema:
    """Return the key columns of events on their way to a shard, under names of their own."""
    renamed = [field.with_name(f"k{place}") for place, field in enumerate(plan.keys)]
    return pa.schema([*renamed, *list(plan.group_keys)[len(renamed) :]])


@lru_cache(maxsize=8)
def window_spec(plan: Plan) -> WindowSpec:
    """Return what the window operator of a plan computes."""
    return WindowSpec(
        tuple(_window_view(plan, number, view) for number, view in enumerate(plan.views)),
        plan.group_keys,
        plan.inputs,
    )


def _window_view(plan: Plan, number: int, view: View) -> WindowView:
    assert isinstance(view.windows, Windows | Cumulative)
    return WindowView(
        number,
        view.windows,
        view.aggregates,
        ()
        if plan.one_grouping
        else tuple((plan.grouping_id(each), view.grouping_id(each)) for each in view.groupings),
        view.keys,
        view.tells_grouping,
        view.mode == "update",
        plan.results(view),
    )


def _on_panes(plan: Plan, view: View) -> bool:
    on_grid = isinstance(view.windows, Windows | Cumulative)
    return on_grid and not any(needs_objects(each, plan.types) for each in view.aggregates)


def _operator(
    plan: Plan,
) -> type[WindowOperator | OrderedOperator | SessionOperator | ObjectOperator]:
    if not takes_tuples(plan):
        return WindowOperator
    windows = plan.views[0].windows
    if isinstance(windows, Frame):
        return OrderedOperator
    return SessionOperator if isinstance(windows, Session) else ObjectOperator


def _spec(plan: Plan) -> OrderedSpec | SessionSpec | ObjectSpec:
    view, keys = plan.views[0], tuple_keys(plan)
    if isinstance(view.windows, Frame):
        return OrderedSpec(view.windows, view.aggregates, keys, plan.inputs, plan.time)
    if isinstance(view.windows, Session):
        return SessionSpec(view.windows, view.aggregates, keys, plan.inputs)
    assert isinstance(view.windows, Windows | Cumulative)
    return ObjectSpec(view.windows, view.aggregates, keys, plan.inputs)
