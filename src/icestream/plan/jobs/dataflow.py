"""The dataflow of a job: components of steps, and edges between them.

Idea: walking back from the results, every operator becomes a step of its component; tuples from
another component or from a source are received over an edge, partitioned by the attributes of the
component. Inside, they are regrouped only if an operator has another key.

Invariants:
1. A stream that several operators of a component use crosses the exchange once
   (`test_a_stream_crosses_an_exchange_once`).
2. Edges lead forward (`test_parity_any_fusion_gives_equal_results`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import (
    Emit,
    Map,
    Regroup,
    Stateful,
)
from icestream.operators.jobs.compute import Compute
from icestream.operators.jobs.consolidate import Consolidate
from icestream.operators.lifetimes.changes import HEAD, LifetimeOperator
from icestream.plan.events.building import DataflowBuilding, EventPlace
from icestream.plan.events.dataflow import Dataflow, Output, component_order, in_order
from icestream.plan.jobs.planning import JobPlan
from icestream.plan.nodes.jobs import ComputeNode, ConsolidateNode, JobNode, MapNode, TupleSource
from icestream.plan.nodes.queries import Source

#: attribute that all tuples of an operator without a key have in common
ALL = "__all"
_ALL = pa.field(ALL, pa.int8(), nullable=False)


def compiled_job(
    plan: JobPlan,
    numbers: Mapping[int, int],
    sources: tuple[Source, ...],
    columns: tuple[pa.Schema, ...],
    time: pa.DataType,
) -> Dataflow:
    """Return the dataflow of a job; `numbers` maps the tags of sources to their numbers."""
    building = _Building(plan, numbers)
    for view, node in enumerate(plan.outputs):
        building.emit(node, view)
    components, edges = in_order(building.components, building.edges)
    order = component_order(building.components, building.edges)
    return Dataflow(
        sources=sources,
        columns=columns,
        components=components,
        edges=edges,
        views=tuple(Output(node.payload, "append") for node in plan.outputs),
        time=time,
        reach=max(node.settles for node in plan.outputs),
        names=tuple(
            tuple(plan.operators[each].name for each in plan.components[number]) for number in order
        ),
        measured=plan.measured,
    )


@dataclass(frozen=True)
class WithAll:
    """Adds the attribute that all tuples have in common."""

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        everyone = pa.array(np.zeros(changes.num_rows, dtype=np.int8))
        return changes.add_column(len(HEAD), _ALL, everyone)


@dataclass(frozen=True)
class WithoutAll:
    """Removes it again."""

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        return changes.drop_columns([ALL])


class _Building(DataflowBuilding):
    """The dataflow of a job, under construction."""

    def __init__(self, plan: JobPlan, numbers: Mapping[int, int]) -> None:
        super().__init__()
        self._plan = plan
        self._sources = numbers
        self._number = {id(node): at for at, node in enumerate(plan.operators)}
        #: groupings of each component by the columns of their ids
        self._groupings: dict[int, dict[tuple[str, ...], int]] = {}
        self._places: dict[int, EventPlace] = {}
        self._exchanged: dict[tuple[int, int, tuple[str, ...]], EventPlace] = {}

    def emit(self, node: JobNode, view: int) -> None:
        """Make the tuples of a node the rows of a view."""
        place = self._place(node)
        if place.component is None:
            msg = (
                f"{node.name} only maps tuples of a source, which Spark itself can do: end the job "
                "with compute or consolidate, or with maps after them"
            )
            raise DefinitionError(msg)
        grouping = self._of(place.component, place.step)
        self._add(place.component, Emit((place.step,), node.payload, grouping, view))

    def _place(self, node: JobNode) -> EventPlace:
        """Return where the tuples of a node are, computed once."""
        if id(node) not in self._places:
            self._places[id(node)] = self._placed(node)
        return self._places[id(node)]

    def _placed(self, node: JobNode) -> EventPlace:
        if isinstance(node, TupleSource):
            return EventPlace(node.payload, source=self._sources[node.source])
        component = self._plan.place[self._number[id(node)]]
        if not self._plan.has_tasks(component):
            assert isinstance(node, MapNode)
            return self._on_the_way(node)
        if isinstance(node, MapNode):
            return self._mapped(node, self._inside(node, node.inputs[0], component))
        return self._stateful(node, component)

    def _on_the_way(self, node: MapNode) -> EventPlace:
        """Map tuples at their source."""
        if len(node.inputs) > 1:
            msg = f"{node.name} maps a union: put union(...) after map(...)"
            raise DefinitionError(msg)
        return self._mapped(node, self._place(node.inputs[0]))

    def _mapped(self, node: MapNode, place: EventPlace) -> EventPlace:
        mapped = self._step_or_map(place, node.change, node.payload, _text(node))
        stays = place.identity is not None and {*place.identity} <= {*node.unchanged}
        return mapped if stays else replace(mapped, identity=None)

    def _stateful(self, node: JobNode, component: int) -> EventPlace:
        """Group tuples by the key of an operator with state."""
        keys = node.key or (ALL,)
        places = [self._grouped(node, each, component, keys) for each in node.inputs]
        operator, result = _operator(node, places[0].payload)
        steps = tuple(each.step for each in places)
        grouping = self._of(component, places[0].step)
        applied = Stateful(steps, result, grouping, operator, _text(node))
        step = self._add(component, applied)
        if not node.key:
            dropped = Map((step,), node.payload, grouping, WithoutAll(), "of all")
            step = self._add(component, dropped)
        identity = keys if node.key and set(keys) <= set(node.payload.names) else None
        return EventPlace(node.payload, component, step, identity=identity)

    def _grouped(
        self, node: JobNode, before: JobNode, component: int, keys: tuple[str, ...]
    ) -> EventPlace:
        """Return the tuples of an input with the ids of some columns."""
        place = self._inside(node, before, component)
        grouping = self._groupings[component].setdefault(keys, len(self._groupings[component]))
        if place.identity == keys and self._of(component, place.step) == grouping:
            return place
        step = self._add(component, Regroup((place.step,), place.payload, grouping, keys))
        return replace(place, step=step, identity=keys)

    def _inside(self, node: JobNode, before: JobNode, component: int) -> EventPlace:
        """Return the tuples of an input inside a component, over an exchange if necessary."""
        place = self._place(before)
        if place.component == component:
            return place
        keys = self._plan.attributes(component, self._number[id(node)]) or (ALL,)
        known = (id(before), component, keys)
        if known not in self._exchanged:
            origin = place.component
            aligned = origin is not None and self._aligned(before, origin, component)
            self._exchanged[known] = self._over_exchange(place, component, keys, aligned=aligned)
        return self._exchanged[known]

    def _aligned(self, before: JobNode, origin: int, target: int) -> bool:
        """Return whether two components, with maps between, are partitioned by equal values."""
        plan = self._plan
        both = {*plan.components[origin], *plan.components[target]}
        while plan.place[self._number[id(before)]] != origin:
            both.add(self._number[id(before)])
            before = before.inputs[0]
        tracks = plan.tracks(origin) & plan.job.graph.common(both)
        return tracks != 0 and tracks == plan.tracks(origin) == plan.tracks(target)

    def _over_exchange(
        self, place: EventPlace, component: int, keys: tuple[str, ...], *, aligned: bool
    ) -> EventPlace:
        if keys == (ALL,):
            payload = pa.schema([_ALL, *place.payload])
            place = self._step_or_map(place, WithAll(), payload, "all together")
        groupings = self._groupings.setdefault(component, {keys: 0})
        step = self._received(place, component, keys, aligned=aligned)
        identity = keys if groupings.get(keys) == 0 else None
        return EventPlace(place.payload, component, step, identity=identity)


def _operator(node: JobNode, payload: pa.Schema) -> tuple[LifetimeOperator, pa.Schema]:
    """Return the operator of a node over tuples of a payload, and the columns it makes."""
    keys = pa.schema([payload.field(name) for name in node.key or (ALL,)])
    operator: LifetimeOperator
    if isinstance(node, ComputeNode):
        operator = Compute(node.fold, keys, payload, node.spans, node.waits)
    else:
        assert isinstance(node, ConsolidateNode)
        operator = Consolidate(node.merge, keys, node.values, node.tilings, node.given, node.waits)
    return operator, operator.result


def _text(node: JobNode) -> str:
    """Return an operator as text; it is part of the stored description."""
    columns = ", ".join(f"{each.name} {each.type}" for each in node.payload)
    match node:
        case MapNode():
            return f"map {node.name} to {columns}"
        case ComputeNode():
            how = "answers of" if node.fold.eager else "windows of"
            spans = "all time" if node.spans is None else str(node.spans)
            by = ", ".join(node.key) or "all"
            return f"compute {node.name} by {by}, {how} {spans}, to {columns}"
        case ConsolidateNode():
            by = ", ".join(node.key) or "all"
            ways = "; ".join(str(each) for each in node.tilings)
            return f"consolidate {node.name} by {by}, {ways}, to {columns}"
    return node.name
