from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import fused_by_rates
from icestream.plan.fuse.operator_graph import GraphEdge, GraphOperator, Job, OperatorKind

NAMES = ("a", "b", "c")


SAME = {each: each for each in NAMES}


def operator(
    name: str,
    kind: OperatorKind = OperatorKind.MAP,
    partition: str = "abc",
    *,
    unchanged: Mapping[str, str] = SAME,
    any_partition: bool = False,
) -> GraphOperator:
    return GraphOperator(
        name, kind, NAMES, NAMES, frozenset(partition), unchanged, any_partition=any_partition
    )


def lending() -> Job:
    """The job of figure 1: interest rates, by area and for all; approval, by area and for all."""
    row = ("user", "area", "date", "approval", "amount", "return", "lendingTime", "income")
    rated = (*row, "interest")
    by_area = frozenset({"area"})
    keep = {"area": "area"}
    each = {name: name for name in row}
    return Job(
        (
            GraphOperator("op1", OperatorKind.MAP, row, rated, frozenset(row), each),
            GraphOperator("op2", OperatorKind.COMPUTE, rated, ("area", "x"), by_area, keep),
            GraphOperator("op3", OperatorKind.COMPUTE, rated, ("area", "y"), by_area, keep),
            GraphOperator("op4", OperatorKind.COMPUTE, ("area", "x"), ("x",), frozenset()),
            GraphOperator("op5", OperatorKind.COMPUTE, ("area", "y"), ("y",), frozenset()),
        ),
        (GraphEdge(0, 1, 100), GraphEdge(0, 2, 100), GraphEdge(1, 3, 10), GraphEdge(2, 4, 10)),
    )


def test_kinds_have_the_properties_of_the_table() -> None:
    found = {
        kind: (operator("x", kind).stateful, operator("x", kind).flexible)
        for kind in (OperatorKind.MAP, OperatorKind.COMPUTE, OperatorKind.CONSOLIDATE)
    }
    assert found == {
        OperatorKind.MAP: (False, True),
        OperatorKind.COMPUTE: (True, True),
        OperatorKind.CONSOLIDATE: (False, False),
    }
    join = operator("join", OperatorKind.BUILT_IN)
    assert (join.stateful, join.flexible) == (True, False)
    window = operator("window", OperatorKind.BUILT_IN, any_partition=True)
    assert (window.stateful, window.flexible) == (True, True)


def test_the_lending_job_is_fused_by_area() -> None:
    job = lending()
    assert fused_by_rates(job.graph) == ((0, 1, 2), (3,), (4,))
    tracks = job.graph.common((0, 1, 2))
    assert job.attributes(0, tracks) == job.attributes(1, tracks) == {"area"}


def test_a_value_computed_anew_under_the_old_name_is_another_attribute() -> None:
    changed = operator("change", unchanged={"b": "b"})
    job = Job((changed, operator("next", OperatorKind.COMPUTE, "a")), (GraphEdge(0, 1, 1.0),))
    assert job.graph.common((0, 1)) == 0
    assert fused_by_rates(job.graph) == ((0,), (1,))
    # by b, which it leaves alone, they can
    job = Job((changed, operator("next", OperatorKind.COMPUTE, "ab")), (GraphEdge(0, 1, 1.0),))
    assert job.attributes(1, job.graph.common((0, 1))) == {"b"}


def test_a_renamed_attribute_is_the_same_and_sides_of_a_join_meet() -> None:
    left = GraphOperator(
        "left", OperatorKind.COMPUTE, ("user",), ("who",), frozenset({"user"}), {"who": "user"}
    )
    join = GraphOperator(
        "join", OperatorKind.BUILT_IN, ("key", "v"), ("key",), frozenset({"key"}), {}
    )
    top = GraphOperator(
        "right", OperatorKind.COMPUTE, ("id",), ("id", "v"), frozenset({"id"}), {"id": "id"}
    )
    job = Job(
        (left, top, join),
        (GraphEdge(0, 2, 5.0, {"who": "key"}), GraphEdge(1, 2, 4.0, {"id": "key", "v": "v"})),
    )
    assert fused_by_rates(job.graph) == ((0, 1, 2),)
    tracks = job.graph.common((0, 1, 2))
    assert [job.attributes(each, tracks) for each in range(3)] == [{"user"}, {"id"}, {"key"}]


def test_built_in_operators_on_the_same_key_share_a_component() -> None:
    def join(name: str, by: str) -> GraphOperator:
        return operator(name, OperatorKind.BUILT_IN, by)

    window = operator("window", OperatorKind.BUILT_IN, "a", any_partition=True)
    job = Job(
        (join("one", "a"), join("two", "a"), window), (GraphEdge(0, 1, 2.0), GraphEdge(1, 2, 1.0))
    )
    assert fused_by_rates(job.graph) == ((0, 1, 2),)
    assert not job.flexible((0, 1, 2))
    assert job.stateful((0, 1, 2))
    job = Job(
        (join("one", "a"), join("two", "b"), window), (GraphEdge(0, 1, 2.0), GraphEdge(1, 2, 1.0))
    )
    assert fused_by_rates(job.graph) == ((0,), (1,), (2,))


def test_an_operator_has_one_attribute_of_a_track() -> None:
    # one side carries a as a, the other b as a: a row of the first would be needed in two places
    split = operator("split", partition="ab")
    one, other = operator("one", partition="ab"), operator("other", partition="ab")
    meet = operator("meet", OperatorKind.COMPUTE, "a")
    job = Job(
        (split, one, other, meet),
        (
            GraphEdge(0, 1, 4),
            GraphEdge(0, 2, 3),
            GraphEdge(1, 3, 2, {"a": "a"}),
            GraphEdge(2, 3, 1, {"b": "a"}),
        ),
    )
    assert len({tuple(job.attributes(0, 1 << track)) for track in range(3)}) == 3
    assert job.graph.common((0, 1, 2, 3)) == 0
    assert fused_by_rates(job.graph) == ((0, 1, 2), (3,))


def test_operators_of_one_source_share_an_exchange() -> None:
    source = GraphOperator("source", OperatorKind.MAP, (), ("a",), frozenset())
    job = Job(
        (
            source,
            operator("one", OperatorKind.COMPUTE, "a"),
            operator("other", OperatorKind.COMPUTE, "a"),
        ),
        (GraphEdge(0, 1, 1.0), GraphEdge(0, 2, 1.0)),
    )
    assert job.graph.common((1, 2))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((GraphEdge(0, 1), GraphEdge(1, 0)), "cycle"),
        ((GraphEdge(0, 2),), "unknown operator"),
        ((GraphEdge(0, 1, carries={"z": "a"}),), "cannot carry"),
    ],
)
def test_a_job_that_cannot_be_is_refused(edges: tuple[GraphEdge, ...], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Job((operator("one"), operator("other")), edges)


def test_attributes_that_are_not_there_are_refused() -> None:
    with pytest.raises(DefinitionError, match="not inputs"):
        operator("x", partition="z")
    with pytest.raises(DefinitionError, match="not outputs"):
        operator("x", unchanged={"z": "a"})


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    count = draw(st.integers(2, 6))
    some = st.sets(st.sampled_from(NAMES))
    operators = [
        operator(
            f"o{number}",
            partition="".join(draw(some)),
            unchanged=draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES))),
        )
        for number in range(count)
    ]
    edges = []
    for target in range(1, count):
        for origin in sorted(draw(st.sets(st.integers(0, target - 1), max_size=2))):
            taken = draw(st.permutations(NAMES))
            carries = dict(zip(draw(st.permutations(NAMES)), taken, strict=True))
            edges.append(GraphEdge(origin, target, float(draw(st.integers(1, 9))), carries))
    return Job(tuple(operators), tuple(edges))


@given(jobs(), st.integers(0, 2**32))
def test_oracle_rows_meet_where_tracks_say(job: Job, seed: int) -> None:
    """Rows run through the job; the value that routed them stays that of every operator."""
    chance = random.Random(seed)
    for component in fused_by_rates(job.graph):
        tracks = job.graph.common(component)
        for track in range(tracks.bit_length()):
            if tracks >> track & 1:
                for number in component:
                    row = {name: chance.random() for name in NAMES}
                    (routed,) = job.attributes(number, 1 << track)
                    _follow(job, component, number, track, row, row[routed], chance)


def _follow(
    job: Job,
    component: tuple[int, ...],
    number: int,
    track: int,
    row: dict[str, float],
    routed: float,
    chance: random.Random,
) -> None:
    (name,) = job.attributes(number, 1 << track)
    assert row[name] == routed
    assert name in job.operators[number].partition
    unchanged = job.operators[number].unchanged
    written = {out: row[unchanged[out]] if out in unchanged else chance.random() for out in NAMES}
    for edge in job.edges:
        if edge.origin == number and edge.target in component:
            carried = job.carried(edge)
            passed = {taken: written[given] for given, taken in carried.items()}
            _follow(job, component, edge.target, track, passed, routed, chance)
