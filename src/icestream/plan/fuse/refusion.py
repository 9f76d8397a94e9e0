"""Changes components while a job runs, as measured rates change.

Idea: there are two decisions. `improved` moves single operators to neighbouring components while
that saves exchanged rows, and so repairs what greedy fusion, or changed rates, left behind.
`adapted` decides for each key group separately: inside a component, whose operators share key
groups, the two ends of an edge run together for key groups that pass many rows, and separately for
the others, which can then be spread over more shards. Two bounds, the lower one for parting and the
higher one for joining, prevent oscillation.

Invariants:
1. Moving operators never adds communication, and components stay valid
   (`test_moving_operators_never_adds_communication`).
2. Key groups run together only inside valid components, and without cycles
   (`test_key_groups_run_together_inside_valid_components`).
3. Equal rates change nothing a second time (`test_equal_rates_change_nothing`).
4. Between the two bounds nothing changes (`test_between_the_bounds_nothing_changes`).

Cost: a move scans the edges of one operator; `adapted` decides once for key groups with equal
edges.

Limits: an operator with another partitioning cannot join for some key groups: it has others.

References: Madsen, Zhou, Su (2016), section 8 (future work).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import Components, alone, fused_by_rates, place_of, waits_in_circle
from icestream.plan.fuse.operator_graph import Graph


def improved(
    graph: Graph,
    components: Components,
    *,
    gain: float = 0.0,
    most_moves: int | None = None,
    circles: bool = False,
) -> Components:
    """Move single operators to neighbouring components while that saves exchanged rows.

    Args:
        graph: the job, with current rates.
        components: the current components.
        gain: rows per second that a move must at least save to be worth its migration.
        most_moves: the most operators to move.
        circles: whether components may wait for each other in a cycle.
    """
    near: list[list[tuple[int, float]]] = [[] for _ in graph.operators]
    for edge in graph.edges:
        near[edge.origin].append((edge.target, edge.rate))
        near[edge.target].append((edge.origin, edge.rate))
    of = place_of(components)
    members = defaultdict(set, {at: set(each) for at, each in enumerate(components)})
    moves = 0
    going = True
    while going:
        going = False
        for number in sorted(of):
            if most_moves is not None and moves >= most_moves:
                break
            rows: dict[int, float] = defaultdict(float)
            for other, rate in near[number]:
                rows[of[other]] += rate
            here = of[number]
            for there in sorted(rows, key=lambda each: (-rows[each], each)):
                saved = rows[there] - rows.get(here, 0.0)
                if saved <= gain:
                    break
                if not graph.common(members[there] | {number}):
                    continue
                trial = {**of, number: there}
                if not circles and waits_in_circle(graph, _components(trial)):
                    continue
                of = trial
                members[here].discard(number)
                members[there].add(number)
                moves += 1
                going = True
                break
    return _components(of)


@dataclass(frozen=True)
class PartialFusion:
    """Components, and the key groups for which the two ends of an edge run together."""

    components: Components
    #: key groups by the number of the edge
    together: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def none(cls, graph: Graph) -> PartialFusion:
        """Return every operator alone."""
        return cls(alone(graph))


def adapted(
    graph: Graph,
    before: PartialFusion,
    rates: Sequence[Sequence[float]],
    *,
    join_from: float,
    part_below: float,
) -> PartialFusion:
    """Decide what runs together, from rates measured by edge and key group.

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
            if rate > 0
            and rate >= (part_below if group in before.together.get(at, ()) else join_from)
        }
        for at, by_group in enumerate(rates)
    }
    rows = [sum(wanted[at].values()) for at in range(len(graph.edges))]
    components = _grown(graph, before.together.keys(), rows)
    of = place_of(components)
    inside = [at for at, edge in enumerate(graph.edges) if of[edge.origin] == of[edge.target]]
    known: dict[tuple[tuple[int, ...], frozenset[int]], list[int]] = {}
    together: dict[int, set[int]] = defaultdict(set)
    for group in range(max(map(len, rates), default=0)):
        edges = sorted(
            (at for at in inside if group in wanted[at]), key=lambda at: (-wanted[at][group], at)
        )
        ran = frozenset(at for at in edges if group in before.together.get(at, ()))
        alike = (tuple(edges), ran)
        if alike not in known:
            known[alike] = _together(graph, edges, ran)
        for at in known[alike]:
            together[at].add(group)
    return PartialFusion(components, {at: frozenset(together[at]) for at in sorted(together)})


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
    start = _components(of)
    still = None if waits_in_circle(graph, start) else start
    return fused_by_rates(_with_rates(graph, rates), start=still)


def _with_rates(graph: Graph, rates: Sequence[float]) -> Graph:
    pairs = zip(graph.edges, rates, strict=True)
    return Graph(graph.operators, tuple(replace(edge, rate=rate) for edge, rate in pairs))


def _components(of: Mapping[int, int]) -> Components:
    members: dict[int, list[int]] = defaultdict(list)
    for number in sorted(of):
        members[of[number]].append(number)
    return tuple(sorted(tuple(each) for each in members.values()))
