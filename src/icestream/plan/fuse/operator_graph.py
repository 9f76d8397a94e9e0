"""Jobs as pure data: operators, the attributes they may be partitioned by, and their copies.

Idea: operators that are partitioned by the same values can run side by side without an exchange.
Names are not enough: an attribute may be recomputed under the same name. So attributes are
followed: inputs and outputs of one name that are copies of each other form a *track*. A component
may be partitioned by the tracks that every operator of it may be partitioned by and that every edge
inside it carries unchanged; then the routed value is the same at every operator.

    x copies user, y computes user anew, z reads that       tracks: x.user and y.user; z.user

Invariants:
1. Rows that were routed by a track's value at the component's input have that value in the track's
   attribute at every operator of it (`test_oracle_rows_meet_where_tracks_say`).
2. The kind determines the properties (`test_kinds_have_the_properties_of_the_table`).

Cost: one union per attribute and edge.

References: Madsen, Zhou, Su (2016), sections 4.3 and 4.4 and table 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from icestream.core.times import Micros


class OperatorKind(StrEnum):
    """The kind of an operator."""

    MAP = "map"
    COMPUTE = "compute"
    CONSOLIDATE = "consolidate"


@dataclass(frozen=True)
class GraphOperator:
    """One operator: its inputs and outputs, and the inputs by which it may be partitioned."""

    name: str
    kind: OperatorKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: inputs by any of which rows may be partitioned; none: all rows must go to one place
    partition: frozenset[str]
    #: outputs that are copies of the inputs of their names
    unchanged: frozenset[str] = frozenset()
    #: length of the longest window, 0 without windows
    longest: Micros = 0

    @property
    def stateful(self) -> bool:
        """Return whether state is needed from row to row; data that is only buffered is resent."""
        return self.kind is OperatorKind.COMPUTE

    @property
    def flexible(self) -> bool:
        """Return whether the partitioner may change without moving state."""
        return self.kind is not OperatorKind.CONSOLIDATE


@dataclass(frozen=True)
class GraphEdge:
    """A stream from one operator to another, each by its number; equal names are carried."""

    origin: int
    target: int
    #: measured rows per second
    rate: float = 0.0


@dataclass(frozen=True)
class Job:
    """Operators and the edges between them, without cycles."""

    operators: tuple[GraphOperator, ...]
    edges: tuple[GraphEdge, ...]

    def carried(self, edge: GraphEdge) -> list[str]:
        inputs = set(self.operators[edge.target].inputs)
        return [name for name in self.operators[edge.origin].outputs if name in inputs]

    @cached_property
    def graph(self) -> Graph:
        """Return the job for fusion: tracks instead of attributes."""
        tracks = self.tracks
        edges = []
        for edge in self.edges:
            kept = 0
            for name in self.carried(edge):
                copied = name in self.operators[edge.origin].unchanged
                if copied and tracks[edge.origin, name] == tracks[edge.target, name]:
                    kept |= 1 << tracks[edge.target, name]
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
        return any(self.operators[number].stateful for number in component)

    @cached_property
    def tracks(self) -> dict[tuple[int, str], int]:
        """Return the track of each input, numbered in order."""
        #: what an input, or the output of an operator, is a copy of
        copies: dict[tuple[int, str, bool], tuple[int, str, bool]] = {}

        def origin(node: tuple[int, str, bool]) -> tuple[int, str, bool]:
            while node in copies:
                node = copies[node]
            return node

        def join(one: tuple[int, str, bool], other: tuple[int, str, bool]) -> None:
            if origin(one) != origin(other):
                copies[origin(one)] = origin(other)

        for number, operator in enumerate(self.operators):
            for name in operator.unchanged:
                join((number, name, True), (number, name, False))
        for edge in self.edges:
            for name in self.carried(edge):
                join((edge.origin, name, True), (edge.target, name, False))
        numbers: dict[tuple[int, str, bool], int] = {}
        return {
            (number, name): numbers.setdefault(origin((number, name, False)), len(numbers))
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
