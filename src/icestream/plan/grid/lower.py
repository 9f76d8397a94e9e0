"""From plans to operators: the only module that knows both.

Idea: the views of a plan on panes share one window operator, which receives entries. Every other
part has its own operator, which receives the events themselves; they run side by side in every
shard.

Invariant: a plan that no operator can run is refused when it is made
(`test_a_plan_that_no_operator_runs_is_refused`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.frames.operator import FrameOperator
from icestream.operators.frames.spec import FrameSpec
from icestream.operators.grid.composed_windows import Tiled
from icestream.operators.grid.emission import WindowView
from icestream.operators.grid.operator import PANES, WindowOperator
from icestream.operators.grid.refolding import RawEvents
from icestream.operators.grid.spec import WindowSpec
from icestream.operators.object_aggregates.functions import ORDERED_FUNCTIONS
from icestream.operators.object_aggregates.operator import ObjectOperator
from icestream.operators.object_aggregates.states import ObjectSpec
from icestream.operators.protocol import Emitted, Operator, Shard
from icestream.operators.session.operator import SessionOperator
from icestream.operators.session.spec import SessionSpec
from icestream.operators.side_by_side import Side, SideBySide, lifetimes_of
from icestream.plan.grid.compose import Composition, compose
from icestream.plan.grid.cost import KeyCounts
from icestream.plan.grid.parts import PlanPart, parts_of
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session

#: what the log stores for windows on a grid
TUPLES = "tuples"
AUTO = "auto"
#: cost of a row that is written for longer windows, in rows added to running rows
KEEPING = 1.0


def check(plan: Plan) -> None:
    """Refuse a plan that cannot be lowered to any operator."""
    if plan.store == TUPLES and on_panes(plan) is None:
        msg = (
            "the plan 'tuples' is for window(...) and cumulative(...) with aggregates of fixed "
            "size: other windows have only one plan. Use the plan 'auto'"
        )
        raise DefinitionError(msg)
    for part in parts_of(plan):
        specs = (window_spec(part.plan),) if part.folded else _specs(part.plan)
        for spec in specs:
            if not isinstance(spec, ObjectSpec):
                spec.layout  # noqa: B018 - built now, so that an unsupported type is reported now


def on_panes(plan: Plan) -> Plan | None:
    """Return the part of a plan that is lowered to windows on panes; None if there is none."""
    first = parts_of(plan)[0]
    return first.plan if first.folded else None


def takes_tuples(plan: Plan) -> bool:
    """Return whether some operator that a plan is lowered to receives events, not entries."""
    return not all(part.folded for part in parts_of(plan))


def takes_back(plan: Plan) -> bool:
    """Return whether a plan is lowered to windows on panes, all of them invertible."""
    folded = on_panes(plan)
    return folded is not None and window_spec(folded).layout.suffix_words == 0


def sole_part(plan: Plan) -> tuple[Plan, SessionSpec | ObjectSpec] | None:
    """Return a plan of sessions or object aggregates alone, lowered to one operator; else None."""
    (part, *others) = parts_of(plan)
    if others or part.folded or part.framed:
        return None
    (spec,) = _specs(part.plan)
    assert isinstance(spec, SessionSpec | ObjectSpec)
    return part.plan, spec


def whole_stream(plan: Plan) -> bool:
    """Return whether one shard must see all events of a lowered plan in order."""
    windows = plan.views[0].windows
    return isinstance(windows, Frame) and windows.in_one_shard


def liftable(plan: Plan) -> ObjectSpec | None:
    """Return what folds events of a lowered plan before they are sent; None if events must be.

    If the result does not depend on the order of events, any task can make states, and the owner of
    the group combines them.
    """
    if not isinstance(plan.views[0].windows, Windows | Cumulative):
        return None
    (spec,) = _specs(plan)
    assert isinstance(spec, ObjectSpec)
    free = all(each.function not in ORDERED_FUNCTIONS for each in spec.aggregates)
    return spec if free else None


def composition(plan: Plan, keys: KeyCounts, *, factors: bool = True) -> Composition | None:
    """Choose which windows of a plan are lowered to compositions; None if panes are as cheap.

    Without `factors` windows are composed of others of the plan only.
    """
    spec = window_spec(plan)
    able = {
        each
        for number, each in enumerate(spec.windows)
        if isinstance(each, Windows) and (each.tumbles or not spec.updates(number))
    }
    if len(able) < 2 or not any(each.tumbles for each in able):
        return None
    chosen = compose(
        able,
        _extended(keys, max(each.range for each in able)),
        grid=spec.grid,
        invertible=spec.layout.suffix_words == 0,
        factors=factors,
        keeping=KEEPING,
        sliding=False,
    )
    return chosen if chosen.kept else None


def _extended(keys: KeyCounts, longest: Micros) -> KeyCounts:
    """Extrapolate the number of groups to a length, from the measured growth."""
    (first, few), (last, many) = keys.points[0], keys.points[-1]
    if not first < last < longest or few <= 0:
        return keys
    growth = math.log(many / few) / math.log(last / first)
    return KeyCounts((*keys.points, (longest, many * (longest / last) ** growth)))


def tiled(chosen: Composition | None) -> tuple[Tiled, ...]:
    """Lower a composition to the form that the window operator executes."""
    if chosen is None:
        return ()
    return tuple(
        Tiled(
            recipe.window,
            tuple((part.source, part.count) for each in recipe.steps for part in each.add),
        )
        for recipe in chosen.recipes
        if recipe.window.tumbles and (recipe.inputs or not recipe.wanted)
    )


@dataclass(frozen=True)
class Lowered:
    """A plan that was lowered once, to be opened on many shards."""

    sides: Sequence[Side]

    @cached_property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of the operator, in the order of ordinals."""
        own = [side.lifetimes for side in self.sides]
        return lifetimes_of(own) if len(own) > 1 else own[0]

    def operator(self, shard: Shard) -> Operator:
        """Open the operator on one shard."""
        sides = self.sides
        return SideBySide(sides, shard) if len(sides) > 1 else sides[0].opens(shard)

    def emitted(self, rows: Iterator[Any]) -> Iterator[Emitted]:
        """Return the output of the operator as rows of views."""
        return rows if len(self.sides) > 1 else self.sides[0].emitted(rows)


def lowered(
    plan: Plan,
    store: str = PANES,
    made_of: tuple[Tiled, ...] = (),
    events: tuple[RawEvents, int] | None = None,
    flushed: Micros | None = None,
    switched: tuple[int, ...] = (),
) -> Lowered:
    """Lower a plan to its operator; some windows may be composed of others.

    `events` are the reader of events for the store `tuples`, and the current version; `flushed` is
    the latest event, if the version closes every window that has one; `switched` are the first
    ordinals of versions that changed the store.
    """
    return Lowered(
        [
            Side(
                partial(_opened, part, spec, store, events, flushed, switched),
                _operator(part).lifetimes,
                part.rows,
                part.windows,
            )
            for part in parts_of(plan)
            for spec in [window_spec(part.plan, made_of) if part.folded else None]
        ]
    )


def _opened(
    part: PlanPart,
    spec: WindowSpec | None,
    store: str,
    events: tuple[RawEvents, int] | None,
    flushed: Micros | None,
    switched: tuple[int, ...],
    shard: Shard,
) -> Operator:
    if spec is not None:
        return WindowOperator(spec, shard, store, events, flushed, switched)
    plan, opens = part.plan, cast("Any", _operator(part))
    specs, results = _specs(plan), [plan.results(view) for view in plan.views]
    made: Operator = opens(specs, shard, results) if part.framed else opens(*specs, shard, *results)
    return made


def tuple_keys(plan: Plan) -> pa.Schema:
    """Return the key columns of a lowered plan's events, under internal names."""
    renamed = [field.with_name(f"k{place}") for place, field in enumerate(plan.keys)]
    return pa.schema([*renamed, *list(plan.group_keys)[len(renamed) :]])


@lru_cache(maxsize=8)
def window_spec(plan: Plan, made_of: tuple[Tiled, ...] = ()) -> WindowSpec:
    """Lower a plan to the spec of its window operator; windows may be composed of others."""
    return WindowSpec(
        tuple(_window_view(plan, number, view) for number, view in enumerate(plan.views)),
        plan.group_keys,
        plan.inputs,
        made_of,
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
        view.mode == "changes",
        plan.results(view),
    )


def _operator(
    part: PlanPart,
) -> type[WindowOperator | FrameOperator | SessionOperator | ObjectOperator]:
    if part.folded:
        return WindowOperator
    windows = part.plan.views[0].windows
    if isinstance(windows, Frame):
        return FrameOperator
    return SessionOperator if isinstance(windows, Session) else ObjectOperator


def _specs(plan: Plan) -> list[FrameSpec | SessionSpec | ObjectSpec]:
    """Return the spec of each view of a part that receives events."""
    return [_spec(plan, view) for view in plan.views]


def _spec(plan: Plan, view: View) -> FrameSpec | SessionSpec | ObjectSpec:
    keys = tuple_keys(plan)
    if isinstance(view.windows, Frame):
        return FrameSpec(view.aggregates, keys, plan.inputs, view.windows, plan.time)
    if isinstance(view.windows, Session):
        return SessionSpec(view.aggregates, keys, plan.inputs, view.windows)
    assert isinstance(view.windows, Windows | Cumulative)
    return ObjectSpec(view.aggregates, keys, plan.inputs, view.windows)
