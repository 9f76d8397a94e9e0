from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.research.fusion import communication
from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import (
    Components,
    alone,
    fused_by_attributes,
    fused_by_hand,
    fused_by_rates,
    violations,
)
from icestream.plan.fuse.operator_graph import Graph, Link

TRACKS = 4


@st.composite
def graphs(draw: st.DrawFn, most: int = 8) -> Graph:
    count = draw(st.integers(1, most))
    tracks = st.integers(0, (1 << TRACKS) - 1)
    edges = []
    for target in range(1, count):
        for origin in sorted(draw(st.sets(st.integers(0, target - 1), max_size=3))):
            carried = draw(st.one_of(st.just(-1), tracks))
            edges.append(Link(origin, target, float(draw(st.integers(0, 9))), carried))
    return Graph(tuple(draw(tracks) for _ in range(count)), tuple(edges))


def every(graph: Graph, *, circles: bool = False) -> list[Components]:
    return [
        fused_by_rates(graph, circles=circles),
        fused_by_attributes(graph, circles=circles),
    ]


@given(graphs(), st.booleans())
def test_every_fusion_is_valid(graph: Graph, circles: bool) -> None:
    for components in every(graph, circles=circles):
        assert violations(graph, components, circles=circles) == []
        assert communication(graph, components) <= communication(graph, alone(graph))


def printed(graph: Graph, *, circles: bool) -> Components:
    """Algorithm 1 line by line; a fusion that would let components wait in a cycle is skipped."""
    fused = {number: frozenset({number}) for number in range(len(graph.operators))}
    while True:
        best, chosen = 0.0, None
        for i in range(len(graph.operators)):
            for edge in graph.edges:
                if edge.origin != i or edge.target in fused[i]:
                    continue
                both = fused[i] | fused[edge.target]
                trial = {**fused, **dict.fromkeys(both, both)}
                if not graph.common(both) or (not circles and not acyclic(graph, trial)):
                    continue
                if edge.rate > best:
                    best, chosen = edge.rate, trial
        if chosen is None:
            return tuple(sorted(tuple(sorted(each)) for each in set(fused.values())))
        fused = chosen


def acyclic(graph: Graph, fused: dict[int, frozenset[int]]) -> bool:
    components = tuple(tuple(sorted(each)) for each in set(fused.values()))
    return not [each for each in violations(graph, components) if "cycle" in each]


@given(graphs(), st.booleans())
def test_oracle_fusing_by_rates_is_the_printed_algorithm(graph: Graph, circles: bool) -> None:
    assert fused_by_rates(graph, circles=circles) == printed(graph, circles=circles)


@given(graphs())
def test_nothing_is_left_to_fuse(graph: Graph) -> None:
    for components in (fused_by_rates(graph), fused_by_attributes(graph)):
        for edge in graph.edges:
            one, other = (
                next(each for each in components if number in each)
                for number in (edge.origin, edge.target)
            )
            if one != other and edge.rate > 0:
                rest = tuple(each for each in components if each not in (one, other))
                assert violations(graph, (*rest, one + other))


@given(graphs(most=6))
def test_oracle_the_optimum_is_a_bound(graph: Graph) -> None:
    best = min(
        communication(graph, each)
        for each in partitions(len(graph.operators))
        if not violations(graph, each)
    )
    for components in every(graph):
        assert communication(graph, components) >= best


def partitions(count: int) -> Iterator[Components]:
    if count == 0:
        yield ()
        return
    for smaller in partitions(count - 1):
        yield (*smaller, (count - 1,))
        for at, each in enumerate(smaller):
            yield (*smaller[:at], (*each, count - 1), *smaller[at + 1 :])


def test_a_circle_between_components_is_not_made() -> None:
    # 0 -> 1 -> 2 and 0 -> 2: fusing 0 and 2 would wait for 1, which waits for 0
    edges = (Link(0, 1, 1.0, -1), Link(1, 2, 1.0, -1), Link(0, 2, 9.0, -1))
    graph = Graph((0b01, 0b10, 0b01), edges)
    assert fused_by_rates(graph) == ((0,), (1,), (2,))
    assert fused_by_rates(graph, circles=True) == ((0, 2), (1,))
    # once 1 can join one of them, the way around is gone
    assert fused_by_rates(Graph((0b01, 0b11, 0b01), edges)) == ((0, 1, 2),)


def test_edges_below_a_rate_are_left() -> None:
    graph = Graph((1, 1, 1), (Link(0, 1, 5.0, -1), Link(1, 2, 1.0, -1)))
    assert fused_by_rates(graph, least=2.0) == ((0, 1), (2,))
    assert fused_by_rates(graph, start=((0,), (1, 2)), least=9.0) == ((0,), (1, 2))


def test_by_hand_is_what_was_asked_for_or_an_error() -> None:
    graph = Graph((1, 1, 2), (Link(0, 1, 5.0, -1), Link(1, 2, 1.0, -1)))
    assert fused_by_hand(graph, [[1, 0]]) == ((0, 1), (2,))
    with pytest.raises(DefinitionError, match="no partition attribute in common"):
        fused_by_hand(graph, [[1, 2]])
    with pytest.raises(DefinitionError, match="exactly one"):
        fused_by_hand(graph, [[0, 1], [1]])


def test_attributes_fuse_what_leaves_most_room() -> None:
    # by rates 0 joins 1 and 2 is left out; by attributes 0 joins 2 first
    graph = Graph((0b111, 0b001, 0b110), (Link(0, 1, 9.0, -1), Link(0, 2, 1.0, -1)))
    assert fused_by_rates(graph) == ((0, 1), (2,))
    assert fused_by_attributes(graph) == ((0, 2), (1,))
