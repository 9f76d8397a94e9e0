"""Dataflows: grouped sub-queries over events with lifetimes, as components with edges between them.

Idea: a dataflow is a graph of steps, divided into components where the partitioning changes. Inside
a component all steps of a shard work on the same key groups; an *edge* carries changes from a
source or a component to another one, partitioned by the ids of its key columns. Components are
numbered so that edges lead forward, and a version runs them in that order.

Invariants:
1. Dataflows that compute something else have other descriptions
   (`test_every_step_shows_in_the_description`).
2. Edges lead from sources or earlier components to later ones
   (`test_edges_lead_forward`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.dataflow.results import HOLDING, LifetimeRows
from icestream.operators.dataflow.spec import ComponentSpec
from icestream.operators.dataflow.steps import (
    Emit,
    JoinMany,
    Map,
    Receive,
    Regroup,
    Send,
    Sole,
    Stateful,
    Step,
    Trace,
    consumers,
)
from icestream.operators.dataflow.stores import ColdOptions
from icestream.operators.lifetimes.current_top import CurrentTop
from icestream.operators.lifetimes.top import TopK
from icestream.plan.fuse.operator_graph import Graph, Link
from icestream.plan.fuse.running_fusion import RunningFusion, Together
from icestream.plan.nodes.queries import KEY_GROUPS, SOURCE, TIME, AnyPlan, Source
from icestream.plan.nodes.spilling import Spilling
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session

#: names the identities of groups inside groups in a description
INNER = "inner identities"


@dataclass(frozen=True)
class Edge:
    """A path of changes between two components, or from a source."""

    #: number of the sending source; None if a component sends
    source: int | None
    #: number of the sending component; None if a source sends
    origin: int | None
    target: int
    keys: tuple[str, ...]
    payload: pa.Schema
    #: maps that are applied to the changes of a source before they are sent
    maps: tuple[Callable[[pa.RecordBatch], pa.RecordBatch], ...] = ()
    texts: tuple[str, ...] = ()
    #: whether both ends are partitioned by the same values, so that changes stay in their shard
    aligned: bool = False
    #: whether the source sends its late events, instead of all others
    late: bool = False
    #: whether the target reads changes as they arrive, not by group
    by_arrival: bool = False


@dataclass(frozen=True)
class Output:
    """Rows that a dataflow delivers."""

    payload: pa.Schema
    #: `append`: final events; `update`, `now`: rows of keys that changed; `changes`: all of them
    mode: str
    #: columns that identify rows in modes `now` and `update`, in which there are none if each row
    #: is written once
    key: tuple[str, ...] = ()
    #: whether these are events at instants, whose final rows show no lifetime
    instants: bool = False
    #: how much later than meant its events live
    delay: Micros = 0


@dataclass(frozen=True)
class Dataflow(AnyPlan):
    """Sub-queries over the events of one or more sources."""

    sources: tuple[Source, ...]
    #: columns of each source, under the user's names
    columns: tuple[pa.Schema, ...]
    components: tuple[tuple[Step, ...], ...]
    edges: tuple[Edge, ...]
    views: tuple[Output, ...]
    time: pa.DataType
    reach: Micros = 0
    late: str = "drop"
    key_groups: int = KEY_GROUPS
    cold: ColdOptions = field(default_factory=ColdOptions)
    #: how joins that defer results spill; None if there are none
    spilling: Spilling | None = None
    #: names of the operators of each component, if they have names
    names: tuple[tuple[str, ...], ...] = ()
    measured: bool = False
    forgets_past: bool = False
    #: windows that all events go into; none if some have lifetimes
    windows: tuple[Windows | Cumulative | Session, ...] = ()
    #: whether identities of groups inside groups begin with bits of the outer ones; not in
    #: checkpoints of earlier releases
    inner_ids: bool = True

    @property
    def batch_schema(self) -> pa.Schema:
        """Return the columns of the batches that ingest reads."""
        columns = [
            pa.field(source_column(number, place), field.type)
            for number, schema in enumerate(self.columns)
            for place, field in enumerate(schema)
        ]
        return pa.schema([pa.field(TIME, self.time), pa.field(SOURCE, pa.int32()), *columns])

    @property
    def jobs(self) -> int:
        return len(self.components)

    def results(self, view: Any) -> pa.Schema:
        return self._rows(view).schema

    def _rows(self, view: Output) -> LifetimeRows:
        if view.mode == "update" and not view.key:
            return LifetimeRows(view.payload, self.time, "append", instants=True)
        return LifetimeRows(view.payload, self.time, view.mode, view.instants, view.delay)

    @cached_property
    def specs(self) -> tuple[ComponentSpec, ...]:
        rows = tuple(map(self._rows, self.views))
        spilling = self.spilling
        traced = (1, 1.0) if spilling is None else (spilling.partitions, spilling.sample)
        return tuple(
            ComponentSpec(steps, rows, *traced, self.forgets_past, self.inner_ids, self.inside)
            for steps in self.components
        )

    @cached_property
    def inside(self) -> dict[int, tuple[str, ...]]:
        """Return the keys of groups inside others, by the edge on which changes go to them alone.

        Such changes are sent in the order of the inner groups.
        """
        found: dict[int, tuple[str, ...]] = {}
        for steps in self.components if self.inner_ids else ():
            after = consumers(steps)
            for number, step in enumerate(steps):
                match step, [steps[each] for each, _ in after[number]]:
                    case Receive(), [Regroup() as entered]:
                        found[step.edge] = entered.keys
        return found

    @cached_property
    def tops(self) -> dict[int, TopK | CurrentTop]:
        """Return the top-k of events that stay, by the edge on which these go to it alone.

        Where nobody asks for the past, only the best events of each batch are sent.
        """
        found: dict[int, TopK | CurrentTop] = {}
        for steps in self.components if self.forgets_past else ():
            after = consumers(steps)
            for number, step in enumerate(steps):
                match step, [steps[each] for each, _ in after[number]]:
                    case Receive(), [
                        Stateful(operator=TopK(grows=True) | CurrentTop() as operator)
                    ]:
                        found[step.edge] = operator
        return found

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Return the largest number of components that changes pass before they reach each."""
        depths = [0] * len(self.components)
        for target in range(len(depths)):
            origins = [e.origin for e in self.edges if e.target == target and e.origin is not None]
            depths[target] = 1 + max((depths[origin] for origin in origins), default=-1)
        return tuple(depths)

    def least_quota(self, operator: int, grouping: int) -> int:
        kept = max(sum(map(bool, spec.groupings)) for spec in self.specs)
        sole = [spec.sole.least_quota for spec in self.specs if spec.sole is not None]
        return max(operator, kept * grouping, *sole)

    def check_fusion(self, together: Together, shards: int) -> None:
        if not self.names:
            super().check_fusion(together, shards)
        fusion = RunningFusion.begin(self.graph, shards)
        fusion.chosen(self.graph, together, self.names, shards)

    @cached_property
    def graph(self) -> Graph:
        """Return the components for fusion: those on an aligned edge can run together."""
        links = (
            Link(edge.origin, edge.target, 0.0, int(edge.aligned))
            for edge in self.edges
            if edge.origin is not None
        )
        return Graph((1,) * len(self.components), tuple(links))

    @cached_property
    def join_components(self) -> dict[int, int]:
        """Return the component of each join that may defer results, by its number."""
        return {
            spec.join.number: component
            for component, spec in enumerate(self.specs)
            if spec.join is not None
        }

    def late_before(self, watermark: Micros) -> Micros:
        """Return the instant before which events are late."""
        if self.forgets_past:
            return MINUS_INFINITY
        return min((each.late_before(watermark) for each in self.windows), default=watermark)

    def settled_by(self, latest: Micros) -> Micros:
        """Return the watermark that settles all effects of an event at `latest`."""
        return latest if self.forgets_past else latest + self.reach + 1

    @property
    def held_key(self) -> tuple[str, ...] | None:
        return self.views[0].key if self.views[0].mode == "now" else None

    def watermark(self, before: Micros, seen: tuple[Micros | None, ...]) -> Micros:
        if self.forgets_past:
            return max(before, *(MINUS_INFINITY if each is None else each for each in seen))
        return super().watermark(before, seen)

    @property
    def fixed_shards(self) -> str:
        if self.inner_ids or not self._nests:
            return ""
        return "an earlier release began it, with groups inside groups that have other identities"

    @property
    def _nests(self) -> bool:
        return any(spec.begins for spec in self.specs)

    def as_stored(self, stored: Mapping[str, Any]) -> Dataflow:
        """Return the dataflow with the key groups and identities that a checkpoint has."""
        groups = stored.get("key groups", self.key_groups)
        return replace(self, key_groups=groups, inner_ids=INNER in stored)

    def describe(self) -> dict[str, Any]:
        """Return the dataflow as JSON, for the checkpoint and for people."""
        spilling = {} if self.spilling is None else {"spilling": self.spilling.describe()}
        inner = {INNER: "begin with the outer ones"} if self.inner_ids and self._nests else {}
        return {
            **spilling,
            **inner,
            "sources": self._described_sources(),
            "columns": [[_field(each) for each in schema] for schema in self.columns],
            "time": str(self.time),
            "edges": [
                {
                    "from": _end("source", edge.source) or _end("component", edge.origin),
                    "to": f"component {edge.target}",
                    "by": list(edge.keys),
                    "after": list(edge.texts),
                }
                for edge in self.edges
            ],
            "components": [
                [f"{number}: {described(step)}" for number, step in enumerate(steps)]
                for steps in self.components
            ],
            "views": [
                {
                    "mode": view.mode,
                    "result": [_field(each) for each in view.payload],
                    **({"key": list(view.key)} if view.mode in HOLDING else {}),
                }
                for view in self.views
            ],
            "late": self.late,
            "durability": self.cold.store.durability,
            "key groups": self.key_groups,
        }


def component_order(components: Iterable[int], edges: Sequence[Edge]) -> list[int]:
    """Return the numbers of a dataflow's components, such that edges lead forward."""
    before: dict[int, set[int]] = {number: set() for number in sorted(components)}
    for edge in edges:
        if edge.origin is not None:
            before[edge.target].add(edge.origin)
    return list(TopologicalSorter(before).static_order())


def in_order(
    components: Mapping[int, Sequence[Step]], edges: Sequence[Edge]
) -> tuple[tuple[tuple[Step, ...], ...], tuple[Edge, ...]]:
    """Return components and edges of a dataflow, numbered so that edges lead forward."""
    order = component_order(components, edges)
    place = {number: at for at, number in enumerate(order)}
    numbered = tuple(
        replace(
            edge,
            origin=None if edge.origin is None else place[edge.origin],
            target=place[edge.target],
        )
        for edge in edges
    )
    return tuple(tuple(components[number]) for number in order), numbered


def source_column(source: int, place: int) -> str:
    """Return the name of a column of a source of a dataflow in ingest."""
    return f"s{source}_{place}"


def described(step: Step) -> str:
    """Return a step of a dataflow as text; it is part of the stored description."""
    after = f" of {', '.join(map(str, step.inputs))}" if step.inputs else ""
    match step:
        case Receive():
            what = f"receive edge {step.edge}"
        case Map() | Stateful() | Sole():
            what = step.text
        case JoinMany():
            what = f"{step.spec.text}, join {step.spec.number}"
        case Trace():
            joins = ", ".join(str(each.join) for each in step.lineages)
            what = f"trace {'stored rows' if step.stored else 'results'} to joins {joins}"
        case Regroup():
            what = f"group by {', '.join(step.keys)}"
        case Send():
            what = f"send by {', '.join(step.keys)} on edge {step.edge}"
        case Emit():
            what = f"emit view {step.view}"
        case _:
            what = "union"
    return what + after


def _field(field: pa.Field) -> str:
    return f"{field.name} {field.type}"


def _end(kind: str, number: int | None) -> str:
    return "" if number is None else f"{kind} {number}"
