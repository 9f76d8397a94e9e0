"""What fusion by rates is measured with: a baseline, moves of single operators, rows that are sent.

Idea: `fused_one_by_one` grows one component after the other and is what greedy fusion is compared
with. `improved` moves single operators to neighbouring components as long as that takes rows off
the exchanges, and so repairs what greedy fusion, or rates that have changed, left behind.

Invariants:
1. Components of the baseline are valid (`test_components_grown_one_by_one_are_valid`).
2. Moving operators never adds communication, and components stay valid
   (`test_moving_operators_never_adds_communication`).

Cost: a move looks at the edges of one operator.

References: Madsen, Zhou, Su (2016), sections 7.6 and 8.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from icestream.plan.fuse.fusion import (
    Components,
    GrowingComponents,
    components_at,
    place_of,
    set_bits,
    waits_in_circle,
)
from icestream.plan.fuse.operator_graph import Graph


def communication(
    graph: Graph, components: Components, rates: Sequence[float] | None = None
) -> float:
    """Return the rows per second that go from one component to another."""
    of = place_of(components)
    given = [edge.rate for edge in graph.edges] if rates is None else rates
    return sum(
        rate
        for edge, rate in zip(graph.edges, given, strict=True)
        if of[edge.origin] != of[edge.target]
    )


def fused_one_by_one(graph: Graph, seed: int, *, circles: bool = False) -> Components:
    """Fuse as others are compared with: grow one component after the other.

    From the first operator on, the downstream operator that is in no component yet and has most
    tracks in common joins; when none can, a random operator that is in no component yet begins
    the next component.
    """
    parts = GrowingComponents(graph)
    chance = random.Random(seed)
    free = set(range(len(graph.operators)))
    first = 0
    while free:
        free.discard(first)
        here = parts.of[first]
        while True:
            joining = [
                (-parts.common(here, number).bit_count(), number)
                for number in set_bits(parts.following[here])
                if number in free
            ]
            best = next(
                (
                    number
                    for score, number in sorted(joining)
                    if score < 0 and (circles or not parts.circle(here, number))
                ),
                None,
            )
            if best is None:
                break
            parts.join(here, best)
            here = parts.of[first]
            free.discard(best)
        if free:
            first = chance.choice(sorted(free))
    return parts.components()


def improved(
    graph: Graph,
    components: Components,
    *,
    gain: float = 0.0,
    most_moves: int | None = None,
    circles: bool = False,
) -> Components:
    """Move single operators to neighbouring components while that takes rows off the exchanges.

    Args:
        graph: the job, with rates as they are now.
        components: what there is.
        gain: rows per second that a move must save at least to be worth its migration.
        most_moves: operators that may be moved at most.
        circles: whether components may wait for each other in a circle.
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
                if not circles and waits_in_circle(graph, components_at(trial)):
                    continue
                of = trial
                members[here].discard(number)
                members[there].add(number)
                moves += 1
                going = True
                break
    return components_at(of)
