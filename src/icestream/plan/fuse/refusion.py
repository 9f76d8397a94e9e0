"""Changes components while a job runs, as measured rates change.

Idea: `adapted` decides for each key group separately. Inside a component, whose operators share key
groups, the two ends of an edge run together for key groups that pass many rows, and separately for
the others, which can then be spread over more shards. The bound for parting is lower than the one
for joining, which prevents oscillation.

Invariants:
1. Key groups run together only inside valid components, and without cycles
   (`test_key_groups_run_together_inside_valid_components`).
2. Equal rates change nothing a second time (`test_equal_rates_change_nothing`).
3. Between the two bounds nothing changes (`test_between_the_bounds_nothing_changes`).

Cost: one decision for all key groups with equal edges.

Limits: an operator with another partitioning cannot join for some key groups: it has others.

References: Madsen, Zhou, Su (2016), section 8 (future work).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import (
    Components,
    components_at,
    fused_by_rates,
    place_of,
    waits_in_circle,
)
from icestream.plan.fuse.operator_graph import Graph

#: the key groups for which the two ends of an edge run together, by the number of the edge
PartialFusion = Mapping[int, frozenset[int]]


def adapted(
    graph: Graph,
    before: PartialFusion,
    rates: Sequence[Sequence[float]],
    *,
    join_from: float,
    part_below: float,
) -> PartialFusion:
    """Decide the refusion of a running job, from rates measured by edge and key group.

    Args:
        graph: the job; its own rates are ignored.
        before: what ran together until now.
        rates: rows per second of each edge, for each key group.
        join_from: from this rate on, the two ends of an edge run together for a key group.
        part_below: below this rate they run separately again.
    """
    if not 0 <= part_below <= join_from:
        msg = f"part_below ({part_below}) must be at least 0 and at most join_from ({join_from})"
        raise DefinitionError(msg)
    wanted = {
        at: {
            group: rate
            for group, rate in enumerate(by_group)
            if rate > 0 and rate >= (part_below if group in before.get(at, ()) else join_from)
        }
        for at, by_group in enumerate(rates)
    }
    rows = [sum(wanted[at].values()) for at in range(len(graph.edges))]
    of = place_of(_grown(graph, before.keys(), rows))
    inside = [at for at, edge in enumerate(graph.edges) if of[edge.origin] == of[edge.target]]
    known: dict[tuple[tuple[int, ...], frozenset[int]], list[int]] = {}
    together: dict[int, set[int]] = defaultdict(set)
    for group in range(max(map(len, rates), default=0)):
        edges = sorted(
            (at for at in inside if group in wanted[at]), key=lambda at: (-wanted[at][group], at)
        )
        ran = frozenset(at for at in edges if group in before.get(at, ()))
        alike = (tuple(edges), ran)
        if alike not in known:
            known[alike] = _together(graph, edges, ran)
        for at in known[alike]:
            together[at].add(group)
    return {at: frozenset(together[at]) for at in sorted(together)}


def _together(graph: Graph, edges: Sequence[int], ran: Collection[int]) -> list[int]:
    """Return the edges of a key group, in descending order of rate, that can run together."""
    rates = [0.0] * len(graph.edges)
    for place, at in enumerate(edges):
        rates[at] = float(len(edges) - place)
    of = place_of(_grown(graph, ran, rates))
    return [at for at in edges if of[graph.edges[at].origin] == of[graph.edges[at].target]]


def _grown(graph: Graph, ran: Collection[int], rates: Sequence[float]) -> Components:
    """Fuse by rates, starting with edges that ran together and still have rows to pass."""
    of = {number: number for number in range(len(graph.operators))}
    for at in ran:
        if rates[at] > 0:
            one, other = of[graph.edges[at].origin], of[graph.edges[at].target]
            of = {number: one if place == other else place for number, place in of.items()}
    start = components_at(of)
    still = None if waits_in_circle(graph, start) else start
    return fused_by_rates(_with_rates(graph, rates), start=still)


def _with_rates(graph: Graph, rates: Sequence[float]) -> Graph:
    pairs = zip(graph.edges, rates, strict=True)
    return Graph(graph.operators, tuple(replace(edge, rate=rate) for edge, rate in pairs))
