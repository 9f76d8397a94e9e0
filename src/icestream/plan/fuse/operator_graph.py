"""Jobs as pure data: operators, the attributes they may be partitioned by, and their copies.

Idea: operators that are partitioned by the same values can run side by side without an exchange.
Names are not enough: an attribute may be renamed, or recomputed under the same name. So attributes
are followed: inputs and outputs that are copies of each other form a *track*. A component may be
partitioned by the tracks that every operator of it may be partitioned by and that every edge inside
it carries unchanged; then the routed value is the same at every operator.

    edge x -> y carries user as id      operator y copies id to who       track: x.user, y.id, y.who

Invariants:
1. Rows that were routed by a track's value at the component's input have that value in the track's
   attribute at every operator of it (`test_oracle_rows_meet_where_tracks_say`).
2. An operator has at most one input attribute of a track
   (`test_an_operator_has_one_attribute_of_a_track`).
3. The kind determines the properties (`test_kinds_have_the_properties_of_the_table`).

Cost: one union per attribute and edge.

Limits: a second copy of an attribute inside one operator is not followed; the first one is.

References: Madsen, Zhou, Su (2016), sections 4.3 and 4.4 and table 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros


class OperatorKind(StrEnum):
    """The kind of an operator."""

    MAP = "map"
    COMPUTE = "compute"
    CONSOLIDATE = "consolidate"
    BUILT_IN = "built-in"


#: whether each kind is stateful, and flexible
_PROPERTIES = {
    OperatorKind.MAP: (False, True),
    OperatorKind.COMPUTE: (True, True),
    OperatorKind.CONSOLIDATE: (False, False),
}


@dataclass(frozen=True)
class GraphOperator:
    """One operator: its inputs and outputs, and the inputs by which it may be partitioned."""

    name: str
    kind: OperatorKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: inputs by any of which rows may be partitioned; none: all rows must go to one place
    partition: frozenset[str]
    #: outputs that are copies of inputs: output -> input
    unchanged: Mapping[str, str] = field(default_factory=dict)
    #: length of the longest window, 0 without windows
    longest: Micros = 0
    #: properties of a built-in operator; for other kinds the kind determines them
    keeps_state: bool = True
    any_partition: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown attributes."""
        missing = self.partition.union(self.unchanged.values()) - set(self.inputs)
        if missing:
            msg = f"{self.name}: {sorted(missing)} are not inputs; its inputs are {self.inputs}"
            raise DefinitionError(msg)
        unwritten = self.unchanged.keys() - set(self.outputs)
        if unwritten:
            msg = (
                f"{self.name}: {sorted(unwritten)} are not outputs; its outputs are {self.outputs}"
            )
            raise DefinitionError(msg)

    @property
    def stateful(self) -> bool:
        """Return whether state is needed from row to row; data that is only buffered is resent."""
        return _PROPERTIES[self.kind][0] if self.kind in _PROPERTIES else self.keeps_state

    @property
    def flexible(self) -> bool:
        """Return whether the partitioner may change without moving state."""
        return _PROPERTIES[self.kind][1] if self.kind in _PROPERTIES else self.any_partition


@dataclass(frozen=True)
class GraphEdge:
    """A stream from one operator to another, each by its number."""

    origin: int
    target: int
    #: measured rows per second
    rate: float = 0.0
    #: inputs of the target by the outputs that they come from; None: by equal names
    carries: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Job:
    """Operators and the edges between them, without cycles."""

    operators: tuple[GraphOperator, ...]
    edges: tuple[GraphEdge, ...]

    def __post_init__(self) -> None:
        """Refuse edges with unknown ends or attributes, and cycles."""
        for edge in self.edges:
            count = len(self.operators)
            if not (0 <= edge.origin < count and 0 <= edge.target < count):
                msg = f"{edge} names an unknown operator; there are {count}"
                raise DefinitionError(msg)
            origin, target = self.operators[edge.origin], self.operators[edge.target]
            for given, taken in (edge.carries or {}).items():
                if given not in origin.outputs or taken not in target.inputs:
                    msg = f"{origin.name} -> {target.name} cannot carry {given} as {taken}"
                    raise DefinitionError(msg)
        if cyclic(len(self.operators), ((edge.origin, edge.target) for edge in self.edges)):
            msg = "the edges of a job must not form a cycle; remove one of them"
            raise DefinitionError(msg)

    def carried(self, edge: GraphEdge) -> dict[str, str]:
        """Return the outputs that an edge carries, and the inputs that they become."""
        if edge.carries is not None:
            return dict(edge.carries)
        inputs = set(self.operators[edge.target].inputs)
        return {name: name for name in self.operators[edge.origin].outputs if name in inputs}

    def measured(self, rates: Sequence[float]) -> Job:
        """Return the job with other rates, edge by edge."""
        edges = (replace(edge, rate=rate) for edge, rate in zip(self.edges, rates, strict=True))
        return Job(self.operators, tuple(edges))

    @cached_property
    def graph(self) -> Graph:
        """Return the job for fusion: tracks instead of attributes."""
        tracks = self.tracks
        edges = []
        for edge in self.edges:
            kept = 0
            unchanged = self.operators[edge.origin].unchanged
            for given, taken in self.carried(edge).items():
                before = tracks.get((edge.origin, unchanged[given])) if given in unchanged else None
                if before is not None and before == tracks[edge.target, taken]:
                    kept |= 1 << before
            edges.append(Link(edge.origin, edge.target, edge.rate, kept))
        masks = [
            sum(1 << tracks[number, name] for name in operator.partition)
            for number, operator in enumerate(self.operators)
        ]
        return Graph(tuple(masks), tuple(edges))

    def attributes(self, number: int, tracks: int) -> frozenset[str]:
        """Return the inputs of an operator that belong to some tracks."""
        names = self.operators[number].inputs
        return frozenset(name for name in names if tracks >> self.tracks[number, name] & 1)

    def flexible(self, component: Iterable[int]) -> bool:
        """Return whether a component has only flexible operators."""
        return all(self.operators[number].flexible for number in component)

    def stateful(self, component: Iterable[int]) -> bool:
        """Return whether a component has a stateful operator."""
        return any(self.operators[number].stateful for number in component)

    @cached_property
    def tracks(self) -> dict[tuple[int, str], int]:
        """Return the track of each input, numbered in order."""
        unions = _Unions(self.operators)
        for edge in self.edges:
            for given, taken in self.carried(edge).items():
                unions.join((edge.origin, _written(given)), (edge.target, taken))
        numbers: dict[tuple[int, str], int] = {}
        return {
            (number, name): numbers.setdefault(unions.root((number, name)), len(numbers))
            for number, operator in enumerate(self.operators)
            for name in operator.inputs
        }


@dataclass(frozen=True, slots=True)
class Link:
    """An edge as fusion sees it."""

    origin: int
    target: int
    rate: float
    #: tracks that it carries unchanged from the partitioning of its origin
    tracks: int


@dataclass(frozen=True)
class Graph:
    """A job as fusion sees it: sets of tracks, as bits."""

    #: tracks that each operator may be partitioned by
    operators: tuple[int, ...]
    edges: tuple[Link, ...]

    def common(self, component: Iterable[int]) -> int:
        """Return the tracks that all operators of a component may be partitioned by."""
        members = set(component)
        tracks = -1
        for number in members:
            tracks &= self.operators[number]
        for edge in self.edges:
            if edge.origin in members and edge.target in members:
                tracks &= edge.tracks
        return tracks if members else 0


def cyclic(count: int, edges: Iterable[tuple[int, int]]) -> bool:
    """Return whether edges between `count` nodes of an operator graph form a cycle."""
    following: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for origin, target in edges:
        following[origin].append(target)
        waiting[target] += 1
    free = [node for node in range(count) if not waiting[node]]
    for node in free:
        for target in following[node]:
            waiting[target] -= 1
            if not waiting[target]:
                free.append(target)
    return len(free) < count


def _written(name: str) -> str:
    """Return the name of an output, distinct from inputs of the same name."""
    return f"{name}>"


class _Unions:
    """Unions of inputs and outputs that are copies of each other."""

    def __init__(self, operators: Sequence[GraphOperator]) -> None:
        self._parents: dict[tuple[int, str], tuple[int, str]] = {}
        #: the input of each operator that is in a union, by the root of the union
        self._inputs: dict[tuple[int, str], dict[int, str]] = {}
        for number, operator in enumerate(operators):
            for name in operator.inputs:
                self._add((number, name), {number: name})
            for name in operator.outputs:
                self._add((number, _written(name)), {})
            for given, taken in operator.unchanged.items():
                self.join((number, taken), (number, _written(given)))

    def _add(self, node: tuple[int, str], inputs: dict[int, str]) -> None:
        self._parents[node] = node
        self._inputs[node] = inputs

    def root(self, node: tuple[int, str]) -> tuple[int, str]:
        """Return the representative of the union that contains a node."""
        while self._parents[node] != node:
            self._parents[node] = self._parents[self._parents[node]]
            node = self._parents[node]
        return node

    def join(self, one: tuple[int, str], other: tuple[int, str]) -> None:
        """Merge two unions, unless an operator would then have two inputs in one."""
        one, other = self.root(one), self.root(other)
        if one == other or self._inputs[one].keys() & self._inputs[other].keys():
            return
        if len(self._inputs[one]) < len(self._inputs[other]):
            one, other = other, one
        self._parents[other] = one
        self._inputs[one].update(self._inputs.pop(other))
