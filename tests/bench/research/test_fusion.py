from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.research.fusion import communication, fused_one_by_one, improved
from icestream.plan.fuse.fusion import (
    Components,
    alone,
    fused_by_attributes,
    fused_by_rates,
    violations,
)
from icestream.plan.fuse.operator_graph import Graph, Link


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 7))
    tracks = st.integers(0, 7)
    edges = [
        Link(origin, target, float(draw(st.integers(0, 9))), draw(st.just(-1) | tracks))
        for target in range(1, count)
        for origin in sorted(draw(st.sets(st.integers(0, target - 1), max_size=3)))
    ]
    return Graph(tuple(draw(tracks) for _ in range(count)), tuple(edges))


@given(graphs(), st.integers(0, 3), st.booleans())
def test_components_grown_one_by_one_are_valid(graph: Graph, seed: int, circles: bool) -> None:
    components = fused_one_by_one(graph, seed, circles=circles)
    assert violations(graph, components, circles=circles) == []
    assert communication(graph, components) <= communication(graph, alone(graph))


def test_the_operator_with_most_tracks_in_common_joins_first() -> None:
    graph = Graph((0b111, 0b001, 0b110), (Link(0, 1, 9.0, -1), Link(0, 2, 1.0, -1)))
    assert fused_one_by_one(graph, 1) == ((0, 2), (1,))


def test_rows_are_sent_where_an_edge_leaves_its_component() -> None:
    graph = Graph((1, 1, 1), (Link(0, 1, 5.0, -1), Link(1, 2, 2.0, -1)))
    assert communication(graph, alone(graph)) == 7.0
    assert communication(graph, ((0, 1), (2,))) == 2.0
    assert communication(graph, ((0, 1), (2,)), rates=[1.0, 3.0]) == 3.0


@given(graphs(), st.integers(0, 5))
def test_moving_operators_never_adds_communication(graph: Graph, most: int) -> None:
    for components in (fused_by_rates(graph), fused_by_attributes(graph)):
        better = improved(graph, components)
        assert violations(graph, better) == []
        assert communication(graph, better) <= communication(graph, components)
        assert improved(graph, better) == better
        assert moved(components, improved(graph, components, most_moves=most)) <= most


def moved(before: Components, after: Components) -> int:
    """Operators that left those which they were with, counted once for each that stayed."""
    return 0 if before == after else sum(each not in before for each in after) // 2


def test_an_operator_moves_to_where_its_rows_come_from() -> None:
    # rates have turned: 1 once read from 0, and now passes its rows to 2
    graph = Graph((0b01, 0b11, 0b10), (Link(0, 1, 1.0, -1), Link(1, 2, 8.0, -1)))
    assert improved(graph, ((0, 1), (2,))) == ((0,), (1, 2))
    assert improved(graph, ((0, 1), (2,)), gain=7.0) == ((0, 1), (2,))
