"""Jobs of map, compute and consolidate: which operators share a component.

Idea: operators that may be partitioned alike are fused into components; between two components, and
between a source and a component, there is an exchange. Attributes are followed through the job, so
that operators share a component only if the values they are partitioned by reach them unchanged. A
component of maps alone needs no exchange: it runs where its tuples come from.

Invariants:
1. Fused or not, results are equal (`test_parity_any_fusion_gives_equal_results`).
2. Operators are fused only if their partition attributes reach them unchanged
   (`test_an_attribute_that_is_computed_anew_is_not_common`).
3. What would be fused from the start can be fused and parted while a measured job runs
   (`test_a_measured_job_can_run_as_it_would_be_fused`).

Limits: an operator whose key has no attributes is a component of one shard.

References: Madsen, Zhou, Su (2016), sections 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter

from icestream.core.errors import DefinitionError
from icestream.plan.fuse import fusion
from icestream.plan.fuse import operator_graph as og
from icestream.plan.nodes.jobs import ComputeNode, ConsolidateNode, JobNode, MapNode, TupleSource

#: names of operators to fuse, or how to choose
Fuse = str | Sequence[Sequence[str]]
#: tuples per second by the names of the sending and the receiving operator
Rates = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class JobPlan:
    """Operators, the components they are fused into, and the operators with results."""

    outputs: tuple[JobNode, ...]
    components: fusion.Components
    rates: Rates
    #: whether measurements decide which components run together, while the job runs
    measured: bool = False

    @cached_property
    def operators(self) -> tuple[JobNode, ...]:
        return operators_of(self.outputs)

    @cached_property
    def job(self) -> og.Job:
        """Return the job in the form that fusion uses."""
        return fusion_job(self.operators, self.rates)

    @cached_property
    def place(self) -> dict[int, int]:
        return fusion.place_of(self.components)

    def tracks(self, component: int) -> int:
        """Return the tracks that a component is partitioned by.

        Components that may run together while the job runs are partitioned as if they had been
        fused from the start.
        """
        graph, alike = self.job.graph, self.components[component]
        if self.measured:
            alike = next(each for each in self._fusible if alike[0] in each)
        return graph.common(alike)

    @cached_property
    def _fusible(self) -> fusion.Components:
        return _fused(self.job.graph, self.rates)

    def attributes(self, component: int, operator: int) -> tuple[str, ...]:
        """Return the attributes that a component is partitioned by, as named by an operator."""
        tracks = self.tracks(component)
        found: list[str] = []
        for track in range(tracks.bit_length()):
            if tracks >> track & 1:
                found += self.job.attributes(operator, 1 << track)
        return tuple(found)

    def has_tasks(self, component: int) -> bool:
        """Return whether a component has more than maps, which run where their tuples come from."""
        members = self.components[component]
        return not all(isinstance(self.operators[number], MapNode) for number in members)


def planned_job(
    outputs: Sequence[JobNode], *, fuse: Fuse = "auto", rates: Rates | None = None
) -> JobPlan:
    """Fuse the operators of a job.

    Args:
        outputs: the operators whose tuples are results.
        fuse: `auto`: by rates if there are any, else by common attributes; `none`; `measured`:
            every operator by itself, fused and parted by measurements; or lists of names of
            operators to fuse.
        rates: tuples per second between operators, by their names.
    """
    operators = operators_of(outputs)
    names = [each.name for each in operators]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"several operators are called {twice}: give each a unique name with name=..."
        raise DefinitionError(msg)
    known = {(before.name, each.name) for each in operators for before in each.inputs}
    unknown = sorted(set(rates or {}) - known)
    if unknown:
        msg = f"rates are given for {unknown}; tuples go from and to {sorted(known)}"
        raise DefinitionError(msg)
    graph = fusion_job(operators, rates or {}).graph
    if fuse == "auto":
        components = _fused(graph, rates or {})
    elif fuse in ("none", "measured"):
        components = fusion.alone(graph)
    elif isinstance(fuse, str):
        msg = f"fuse must be 'auto', 'none', 'measured' or lists of names; got {fuse!r}"
        raise DefinitionError(msg)
    else:
        components = fusion.fused_by_hand(graph, _numbered(fuse, names))
    return JobPlan(tuple(outputs), components, dict(rates or {}), fuse == "measured")


def _fused(graph: og.Graph, rates: Rates) -> fusion.Components:
    """Fuse by rates if there are any, else by common attributes."""
    return fusion.fused_by_rates(graph) if rates else fusion.fused_by_attributes(graph)


def operators_of(outputs: Iterable[JobNode]) -> tuple[JobNode, ...]:
    """Return all operators of a job to fuse, each after its inputs."""
    before: dict[JobNode, tuple[JobNode, ...]] = {}
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in before:
            before[node] = node.inputs
            waiting += reversed(node.inputs)
    ordered = TopologicalSorter(before).static_order()
    return tuple(node for node in ordered if not isinstance(node, TupleSource))


def fusion_job(operators: Sequence[JobNode], rates: Rates) -> og.Job:
    """Return the operators and edges of a job in the form that fusion uses."""
    place = {id(node): number for number, node in enumerate(operators)}
    edges = [
        og.GraphEdge(place[id(before)], number, rates.get((before.name, node.name), 0.0))
        for number, node in enumerate(operators)
        for before in node.inputs
        if id(before) in place
    ]
    return og.Job(tuple(map(_as_operator, operators)), tuple(edges))


def _as_operator(node: JobNode) -> og.GraphOperator:
    inputs = tuple(node.inputs[0].payload.names)
    kind, partition, longest = og.OperatorKind.CONSOLIDATE, node.key, 0
    if isinstance(node, MapNode):
        kind = og.OperatorKind.MAP
        partition = inputs if node.partition is None else node.partition
    elif isinstance(node, ComputeNode):
        kind = og.OperatorKind.COMPUTE
        longest = 0 if node.spans is None else node.spans.longest
    elif isinstance(node, ConsolidateNode):
        longest = max(each.window.range for each in node.tilings)
    return og.GraphOperator(
        node.name,
        kind,
        inputs,
        tuple(node.payload.names),
        frozenset(partition),
        frozenset(node.unchanged),
        longest,
    )


def _numbered(fuse: Sequence[Sequence[str]], names: list[str]) -> list[list[int]]:
    unknown = sorted({name for each in fuse for name in each} - set(names))
    if unknown:
        msg = f"fuse names {unknown}; the operators are {names}"
        raise DefinitionError(msg)
    return [[names.index(name) for name in each] for each in fuse]
