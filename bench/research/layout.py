"""Components of a running job on their nodes, and the operations that change them.

Idea: two basic operations. `Migrate` moves an operator from one component to another, `RePartition`
gives a component other nodes. Everything else is a sequence of them: *split* moves the consolidates
of a component to the next one, so that the rest can be moved without its state; *combine* moves
them back; adding a node to a component is a Migrate and a RePartition.

    compute + consolidate | next   --split-->   compute | consolidate + next   --combine--> back

Invariants:
1. After every operation each operator is in one component, and the partitioning of a component is
   possible for all its rigid operators (`test_every_operation_leaves_a_valid_layout`).
2. Combine undoes split (`test_combine_undoes_split`).
3. A split happens only where the next component is flexible or shares a partition attribute
   (`test_split_needs_a_next_component_that_fits`).

Limits: a flexible component that receives consolidates by other attributes is partitioned by those;
it stays exact if the component after it consolidates.

References: Madsen, Zhou, Su (2016), sections 4.5 and 5.1 and figures 3, 4 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import Components, place_of, waits_in_circle
from icestream.plan.fuse.operator_graph import Job, OperatorKind


@dataclass(frozen=True)
class PlacedComponent:
    """Operators that run together, what they are partitioned by, and where they run."""

    operators: frozenset[int]
    #: tracks, as bits; none means all rows on one node
    tracks: int
    nodes: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Migrate:
    """Move an operator from one component to another; a new target is created."""

    operator: int
    origin: str
    target: str


@dataclass(frozen=True)
class RePartition:
    """Run a component on other nodes, or balance its load on the same ones."""

    component: str
    nodes: frozenset[int]


Operation = Migrate | RePartition


@dataclass(frozen=True)
class JobLayout:
    """The components of a job, by name."""

    job: Job
    components: Mapping[str, PlacedComponent]

    @classmethod
    def of(cls, job: Job, components: Components, nodes: Iterable[int] = (0,)) -> JobLayout:
        """Return fused components as a layout; their names are those of their first operators."""
        everywhere = frozenset(nodes)
        return cls(
            job,
            {
                job.operators[each[0]].name: PlacedComponent(
                    frozenset(each), job.graph.common(each), everywhere
                )
                for each in components
            },
        )

    def applied(self, operations: Iterable[Operation]) -> JobLayout:
        """Return the layout after some operations; an error names what is impossible."""
        layout = self
        for each in operations:
            layout = layout._migrated(each) if isinstance(each, Migrate) else layout._placed(each)
        return layout

    def next_of(self, name: str) -> frozenset[str]:
        """Return the components that receive rows from one."""
        inside = self.components[name].operators
        reached = {edge.target for edge in self.job.edges if edge.origin in inside} - inside
        return frozenset(
            other for other, each in self.components.items() if each.operators & reached
        )

    def violations(self) -> list[str]:
        """Return the violations; none if the layout is valid."""
        members = sorted(number for each in self.components.values() for number in each.operators)
        if members != list(range(len(self.job.operators))):
            return ["every operator must be in exactly one component"]
        found = [
            f"{name} is partitioned by attributes foreign to {self.job.operators[number].name}"
            for name, each in self.components.items()
            for number in sorted(each.operators)
            if each.tracks & ~self.job.graph.operators[number]
            and not self.job.operators[number].flexible
        ]
        found += [
            f"{name} has operators that have no partition attribute in common"
            for name, each in self.components.items()
            if len(each.operators) > 1 and not each.tracks
        ]
        parts = tuple(tuple(sorted(each.operators)) for each in self.components.values())
        if waits_in_circle(self.job.graph, parts):
            found.append("components wait for each other in a cycle")
        return found

    # -- split and combine -------------------------------------------------------------------------

    def split(self, name: str) -> tuple[Migrate, ...]:
        """Return the moves of a component's consolidates to the next ones; an error if impossible.

        A consolidate without a successor becomes a component of its own.
        """
        component = self.components[name]
        job = self.job
        moved = [
            number
            for number in sorted(component.operators)
            if job.operators[number].kind is OperatorKind.CONSOLIDATE
        ]
        if not moved or not job.stateful(component.operators):
            msg = f"{name} cannot be split: only a stateful component with a consolidate can"
            raise DefinitionError(msg)
        of = place_of(tuple(tuple(each.operators) for each in self.components.values()))
        names = list(self.components)
        operations = []
        for number in moved:
            following = {
                names[of[edge.target]]
                for edge in job.edges
                if edge.origin == number and edge.target not in moved
            }
            if following - {name} == set():
                following = {f"{name}/consolidate"}
            if len(following) > 1 or name in following:
                msg = (
                    f"{job.operators[number].name} has the successors {sorted(following)}, not one"
                )
                raise DefinitionError(msg)
            operations.append(Migrate(number, name, following.pop()))
        wrong = self.applied(operations).violations()
        if wrong:
            msg = f"{name} cannot be split: {'; '.join(wrong)}"
            raise DefinitionError(msg)
        return tuple(operations)

    def can_split(self, name: str) -> bool:
        """Return whether a component can be split."""
        try:
            self.split(name)
        except DefinitionError:
            return False
        return True

    @staticmethod
    def combine(split: Iterable[Migrate]) -> tuple[Migrate, ...]:
        """Return the operations that undo a split."""
        return tuple(
            Migrate(each.operator, each.target, each.origin) for each in reversed(list(split))
        )

    def with_node(self, migrate: Migrate, node: int) -> tuple[Operation, ...]:
        """Return the operations that relieve a component and give it one more node."""
        nodes = self.components[migrate.origin].nodes
        return migrate, RePartition(migrate.origin, nodes | {node})

    # -- basic operations --------------------------------------------------------------------------

    def _migrated(self, move: Migrate) -> JobLayout:
        origin = self.components.get(move.origin)
        if origin is None or move.operator not in origin.operators:
            msg = f"{move.origin} has no operator {move.operator} to move"
            raise DefinitionError(msg)
        components = dict(self.components)
        target = components.get(move.target, PlacedComponent(frozenset(), 0, origin.nodes))
        left = origin.operators - {move.operator}
        joined = target.operators | {move.operator}
        components[move.origin] = replace(origin, operators=left, tracks=self._tracks(left))
        components[move.target] = replace(target, operators=joined, tracks=self._tracks(joined))
        if not left:
            del components[move.origin]
        return JobLayout(self.job, components)

    def _tracks(self, operators: frozenset[int]) -> int:
        """Return the partitioning of operators: attributes that all, or else rigid ones, share."""
        graph = self.job.graph
        common = graph.common(operators)
        rigid = [number for number in operators if not self.job.operators[number].flexible]
        if common or not rigid:
            return common
        shared = graph.common(rigid)
        # rows must reach a rigid operator with the value by which they were routed
        before, waiting = set(rigid), list(rigid)
        while waiting:
            number = waiting.pop()
            for edge in graph.edges:
                if edge.target == number and edge.origin in operators:
                    shared &= edge.tracks
                    if edge.origin not in before:
                        before.add(edge.origin)
                        waiting.append(edge.origin)
        return shared

    def _placed(self, change: RePartition) -> JobLayout:
        if change.component not in self.components or not change.nodes:
            msg = f"{change} needs an existing component, and a node"
            raise DefinitionError(msg)
        component = replace(self.components[change.component], nodes=change.nodes)
        return JobLayout(self.job, {**self.components, change.component: component})


def most_partitions(
    job: Job, component: Iterable[int], tracks: int, distinct: Mapping[tuple[int, str], int]
) -> float:
    """Return how many partitions a component can have at most, infinite where unknown.

    `distinct` has the number of distinct values of inputs, by operator and name, where it is known.
    """
    least: dict[int, float] = {}
    for number in component:
        operator = job.operators[number]
        for name in job.attributes(number, tracks):
            if len(operator.partition) == len(operator.inputs):
                known = math.inf
            else:
                known = distinct.get((number, name), math.inf)
            track = job.tracks[number, name]
            least[track] = min(least.get(track, math.inf), known)
    return math.prod(least.values())
