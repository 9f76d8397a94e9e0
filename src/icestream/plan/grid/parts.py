"""The parts of a plan: views that one operator computes, alongside the operators of other views.

Idea: views on a grid whose aggregates have a fixed size are one part, which receives entries. Every
other kind of view receives the events themselves; such views are one part if their windows, keys
and groupings are equal, whatever they compute. Windows that move with events need not even be
equal: their state is the events. A part is itself a plan over the columns it needs, so that its
operator need not know about other parts.

Invariants:
1. A view is in exactly one part, and its rows return under its number and with its columns
   (`test_every_view_is_in_one_part`).
2. A plan that one operator can run unchanged is its only part
   (`test_a_plan_of_one_part_is_itself`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fields import ORDERED
from icestream.operators.side_by_side import ViewRows
from icestream.plan.nodes.queries import SOURCE, TIME, Plan, View
from icestream.plan.windows.frame import Frame


@dataclass(frozen=True)
class PlanPart:
    """Views that one operator computes."""

    #: the views alone, over the columns they need; for events, one view for all of equal windows
    plan: Plan
    #: numbers of the views in the whole plan, with the columns of their rows
    views: tuple[tuple[int, pa.Schema], ...]
    #: columns of the events of the whole plan that it needs
    columns: tuple[str, ...]
    #: whether its operator receives entries instead of events
    folded: bool
    #: for events: the rows of the part's plan that each view shows, and which of their columns
    shown: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the events of the whole plan in the form that this part reads."""
        if tuple(batch.schema.names) == self.columns:
            return batch
        chosen = [batch.column(name) for name in self.columns]
        return pa.RecordBatch.from_arrays(chosen, self.plan.batch_schema.names)

    @property
    def framed(self) -> bool:
        """Return whether its windows move with events."""
        return isinstance(self.plan.views[0].windows, Frame)

    @property
    def windows(self) -> int:
        """Return the number of kinds of windows that need separate memory."""
        return 1 if self.folded else len(self.plan.views)

    @property
    def rows(self) -> ViewRows:
        """Return the conversion from the operator's rows to rows of the whole plan's views."""
        return ViewRows(self.views, self.shown, numbered=self.framed)


@lru_cache(maxsize=8)
def parts_of(plan: Plan) -> tuple[PlanPart, ...]:
    """Return the parts of a plan of windows, the one on panes first."""
    on_panes = tuple(n for n, view in enumerate(plan.views) if plan.on_panes(view))
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, view in enumerate(plan.views):
        if number not in on_panes:
            windows: Any = view.windows
            kept = (Frame, windows.in_one_shard) if isinstance(windows, Frame) else windows
            kind = (kept, view.keys, view.groupings, view.tells_grouping)
            alike.setdefault(kind, []).append(number)
    panes = (_of_entries(plan, on_panes),) if on_panes else ()
    return (*panes, *(_of_events(plan, tuple(numbers)) for numbers in alike.values()))


def needs_order(plan: Plan) -> bool:
    """Return whether a part's rows depend on the order in which events of equal time arrive."""
    return any(
        not plan.on_panes(view)
        or any(
            field.kind in ORDERED for each in view.aggregates for field in each.fields(plan.types)
        )
        for view in plan.views
    )


def _of_entries(plan: Plan, numbers: tuple[int, ...]) -> PlanPart:
    """Return the part of views on panes."""
    views = [plan.views[number] for number in numbers]
    used = {place for view in views for each in (view.keys, *view.groupings) for place in each}
    places = tuple(sorted(used))
    return _part(plan, numbers, places, tuple(_placed(view, places) for view in views), folded=True)


def _of_events(plan: Plan, numbers: tuple[int, ...]) -> PlanPart:
    """Return the part of similar views; those with equal windows are merged into one."""
    keys, groupings = plan.views[numbers[0]].keys, plan.views[numbers[0]].groupings
    places = tuple(dict.fromkeys(place for each in (keys, *groupings) for place in each))
    equal: dict[Any, list[int]] = {}
    for number in numbers:
        equal.setdefault(plan.views[number].windows, []).append(number)
    own: list[View] = []
    shown: dict[int, tuple[int, tuple[int, ...]]] = {}
    for whose, same in enumerate(equal.values()):
        views = [plan.views[number] for number in same]
        first = _placed(views[0], places)
        aggregates, columns = first.aggregates, [range(len(first.aggregates))]
        if len(views) > 1:
            aggregates, columns = _united(views)
        own.append(replace(first, aggregates=aggregates))
        leading = 1 + len(keys) + first.tells_grouping
        for number, chosen in zip(same, columns, strict=True):
            answers = (leading + each for each in chosen)
            shown[number] = (whose, (*range(leading), *answers))
    part = _part(plan, numbers, places, tuple(own), folded=False)
    return replace(part, shown=tuple(shown[number] for number in numbers))


def _part(
    plan: Plan,
    numbers: tuple[int, ...],
    places: tuple[int, ...],
    views: tuple[View, ...],
    *,
    folded: bool,
) -> PlanPart:
    """Return a part over some keys and the inputs of its aggregates and windows."""
    taken = {name for view in views for each in view.aggregates for name in each.columns}
    taken |= set(replace(plan, views=views).own_ends)
    inputs = [place for place, field in enumerate(plan.inputs) if field.name in taken]
    own = replace(
        plan,
        keys=pa.schema([plan.keys.field(place) for place in places]),
        inputs=pa.schema([plan.inputs.field(place) for place in inputs]),
        expressions=tuple(plan.expressions[place] for place in inputs),
        views=views,
    )
    columns = (TIME, SOURCE, *(f"k{place}" for place in places), *own.inputs.names)
    alone = len(views) == len(plan.views) == len(numbers)
    if alone and (folded or own.keys.equals(plan.keys)):
        own, columns = plan, tuple(plan.batch_schema.names)
    results = tuple((number, plan.results(plan.views[number])) for number in numbers)
    return PlanPart(own, results, columns, folded)


def _placed(view: View, places: tuple[int, ...]) -> View:
    """Return a view over keys at other positions."""
    at = {place: own for own, place in enumerate(places)}
    return replace(
        view,
        keys=tuple(at[place] for place in view.keys),
        groupings=tuple(tuple(sorted(at[place] for place in each)) for each in view.groupings),
    )


def _united(views: list[View]) -> tuple[tuple[Aggregate, ...], list[Any]]:
    """Return the aggregates of views, each once, and where each view finds its own.

    They get unique names, because views may use one name for different things.
    """
    found: dict[Aggregate, int] = {}
    columns = [
        [found.setdefault(replace(each, alias=""), len(found)) for each in view.aggregates]
        for view in views
    ]
    named = tuple(replace(each, alias=f"a{place}") for each, place in found.items())
    return named, columns
