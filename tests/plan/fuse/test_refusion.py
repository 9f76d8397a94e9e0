from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import (
    Components,
    violations,
    waits_in_circle,
)
from icestream.plan.fuse.operator_graph import Graph, Link
from icestream.plan.fuse.refusion import PartialFusion, adapted

GROUPS = 3


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 7))
    tracks = st.integers(0, 7)
    edges = [
        Link(origin, target, float(draw(st.integers(0, 9))), -1)
        for target in range(1, count)
        for origin in sorted(draw(st.sets(st.integers(0, target - 1), max_size=3)))
    ]
    return Graph(tuple(draw(tracks) for _ in range(count)), tuple(edges))


def measured(data: st.DataObject, graph: Graph, least: int = 0, most: int = 9) -> list[list[float]]:
    rates = st.lists(st.integers(least, most).map(float), min_size=GROUPS, max_size=GROUPS)
    return [data.draw(rates) for _ in graph.edges]


@given(graphs(), st.data())
def test_key_groups_run_together_inside_valid_components(graph: Graph, data: st.DataObject) -> None:
    fusion: PartialFusion = {}
    for _ in range(3):
        rates = measured(data, graph)
        before = fusion
        fusion = adapted(graph, before, rates, join_from=5.0, part_below=2.0)
        assert violations(graph, united(graph, list(fusion))) == []
        for group in range(GROUPS):
            edges = [at for at, groups in fusion.items() if group in groups]
            assert all(rates[at][group] >= 2.0 for at in edges)
            fresh = [at for at in edges if group not in before.get(at, ())]
            assert all(rates[at][group] >= 5.0 for at in fresh)
            assert not waits_in_circle(graph, united(graph, edges))


def united(graph: Graph, edges: list[int]) -> Components:
    of = {number: {number} for number in range(len(graph.operators))}
    for at in edges:
        both = of[graph.edges[at].origin] | of[graph.edges[at].target]
        of.update(dict.fromkeys(both, both))
    return tuple(sorted({tuple(sorted(each)) for each in of.values()}))


@given(graphs(), st.data())
def test_equal_rates_change_nothing(graph: Graph, data: st.DataObject) -> None:
    fusion: PartialFusion = {}
    for _ in range(2):
        rates = measured(data, graph)
        fusion = adapted(graph, fusion, rates, join_from=5.0, part_below=2.0)
        assert adapted(graph, fusion, rates, join_from=5.0, part_below=2.0) == fusion


@given(graphs(), st.data())
def test_between_the_bounds_nothing_changes(graph: Graph, data: st.DataObject) -> None:
    rates = measured(data, graph)
    fusion = adapted(graph, {}, rates, join_from=5.0, part_below=2.0)
    between = measured(data, graph, 2, 4)
    assert adapted(graph, fusion, between, join_from=5.0, part_below=2.0) == fusion


def test_only_key_groups_that_communicate_are_fused() -> None:
    graph = Graph((1, 1), (Link(0, 1, 0.0, -1),))
    fusion = adapted(graph, {}, [[9.0, 1.0, 6.0]], join_from=5.0, part_below=2.0)
    assert fusion == {0: frozenset({0, 2})}
    fusion = adapted(graph, fusion, [[3.0, 4.0, 1.0]], join_from=5.0, part_below=2.0)
    assert fusion == {0: frozenset({0})}
    fusion = adapted(graph, fusion, [[0.0, 4.0, 1.0]], join_from=5.0, part_below=2.0)
    assert fusion == {}


def test_bounds_the_wrong_way_round_are_refused() -> None:
    graph = Graph((1,), ())
    with pytest.raises(DefinitionError, match="part_below"):
        adapted(graph, {}, [], join_from=1.0, part_below=2.0)
