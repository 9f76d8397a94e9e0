from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import place_of, violations
from icestream.plan.fuse.operator_graph import Graph, Link
from icestream.plan.fuse.running_fusion import JOIN_FROM, PART_BELOW, RunningFusion

#: three operators in a row by the same key, then one by another
CHAIN = Graph((1,) * 4, (Link(0, 1, 0, 1), Link(1, 2, 0, 1), Link(2, 3, 0, 0)))
NAMES = (("a",), ("b", "c"), ("d",), ("e",))
SHARDS = 2
MUCH, LITTLE = [[int(4 * JOIN_FROM)] * SHARDS] * 3, [[0] * SHARDS] * 3
ALONE = ((0,), (1,), (2,), (3,))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 7))
    links = [
        Link(origin, target, 0.0, draw(st.integers(0, 1)))
        for target in range(1, count)
        for origin in sorted(draw(st.sets(st.integers(0, target - 1), max_size=3)))
    ]
    return Graph((1,) * count, tuple(links))


def begun(graph: Graph, together: Any) -> RunningFusion:
    return RunningFusion.begin(graph, SHARDS).chosen(graph, together, NAMES, SHARDS)


@given(graphs(), st.data())
def test_what_runs_together_is_valid(graph: Graph, data: st.DataObject) -> None:
    fusion = begun(graph, "auto")
    some = st.sampled_from([0, 1000, 100_000])
    for _ in range(4):
        rows = [[data.draw(some) for _ in range(SHARDS)] for _ in graph.edges]
        fusion = fusion.after(graph, rows)
        assert violations(graph, fusion.groups(graph)) == []
        done: set[tuple[int, int]] = set()
        for wave in fusion.waves(graph, SHARDS):
            for group, shard in wave:
                for edge in graph.edges:
                    if edge.target in group and edge.origin not in group:
                        senders = [shard] if edge.tracks else range(SHARDS)
                        assert {(edge.origin, each) for each in senders} <= done
            done |= {(each, shard) for group, shard in wave for each in group}
        assert len(done) == len(graph.operators) * SHARDS
        for shard in range(SHARDS):
            assert len(place_of(fusion.groups(graph, shard))) == len(graph.operators)
            assert violations(graph, fusion.groups(graph, shard)) == []


def test_operators_join_when_many_rows_go_between_them_and_part_when_few_do() -> None:
    fusion = begun(CHAIN, "auto")
    assert fusion.groups(CHAIN) == ALONE
    fusion = fusion.after(CHAIN, MUCH)
    assert fusion.groups(CHAIN) == ((0, 1, 2), (3,))
    waves = fusion.waves(CHAIN, SHARDS)
    assert waves == [[((0, 1, 2), 0), ((0, 1, 2), 1)], [((3,), 0), ((3,), 1)]]
    fusion = fusion.after(CHAIN, LITTLE)
    assert fusion.groups(CHAIN) == ((0, 1, 2), (3,))
    for _ in range(8):
        fusion = fusion.after(CHAIN, LITTLE)
    assert fusion.groups(CHAIN) == ALONE


def test_only_shards_with_many_rows_run_together() -> None:
    fusion = begun(CHAIN, "auto").after(CHAIN, [[0, int(4 * JOIN_FROM)]] * 3)
    assert fusion.groups(CHAIN, 0) == ALONE
    assert fusion.groups(CHAIN, 1) == ((0, 1, 2), (3,))
    waves = fusion.waves(CHAIN, SHARDS)
    assert waves[0] == [((0,), 0), ((0, 1, 2), 1)]
    assert waves[1:] == [[((1,), 0)], [((2,), 0)], [((3,), 0), ((3,), 1)]]


@given(st.lists(st.floats(PART_BELOW, JOIN_FROM - 1), min_size=1), st.booleans())
def test_rows_between_the_bounds_change_nothing(rows: list[float], joined: bool) -> None:
    shards = frozenset(range(SHARDS)) if joined else frozenset()
    together = (shards, shards, frozenset[int]())
    fusion = RunningFusion(True, together, ((JOIN_FROM - 1,) * SHARDS,) * 3)
    for each in rows:
        fusion = fusion.after(CHAIN, [[int(each) + 1] * SHARDS] * 3)
        assert fusion.together == together


def test_a_choice_reads_back() -> None:
    fusion = begun(CHAIN, "auto").after(CHAIN, [[0, 9000]] * 3)
    assert RunningFusion.from_json(json.loads(json.dumps(fusion.to_json()))) == fusion


def test_a_user_chooses_and_measured_rows_do_not_change_it() -> None:
    fusion = begun(CHAIN, [["c", "d"]])
    assert fusion.groups(CHAIN) == ((0,), (1, 2), (3,))
    assert fusion.after(CHAIN, MUCH).together == fusion.together
    assert fusion.chosen(CHAIN, "none", NAMES, SHARDS).groups(CHAIN) == ALONE


@pytest.mark.parametrize(
    ("together", "reported"),
    [([["d", "e"]], "cannot be fused"), ([["a", "x"]], "'x'"), ("all", "'auto', 'none'")],
)
def test_what_cannot_run_together_is_refused(together: object, reported: str) -> None:
    with pytest.raises(DefinitionError, match=reported):
        begun(CHAIN, together)
