from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from icestream.plan.fuse.fusion import fused_by_rates
from icestream.plan.fuse.operator_graph import GraphEdge, GraphOperator, Job, OperatorKind

NAMES = ("a", "b", "c")


def operator(
    name: str,
    kind: OperatorKind = OperatorKind.MAP,
    partition: str = "abc",
    *,
    unchanged: str = "abc",
) -> GraphOperator:
    return GraphOperator(name, kind, NAMES, NAMES, frozenset(partition), frozenset(unchanged))


def lending() -> Job:
    """The job of figure 1: interest rates, by area and for all; approval, by area and for all."""
    row = ("user", "area", "date", "approval", "amount", "return", "lendingTime", "income")
    rated = (*row, "interest")
    by_area = frozenset({"area"})
    return Job(
        (
            GraphOperator("op1", OperatorKind.MAP, row, rated, frozenset(row), frozenset(row)),
            GraphOperator("op2", OperatorKind.COMPUTE, rated, ("area", "x"), by_area, by_area),
            GraphOperator("op3", OperatorKind.COMPUTE, rated, ("area", "y"), by_area, by_area),
            GraphOperator("op4", OperatorKind.COMPUTE, ("area", "x"), ("x",), frozenset()),
            GraphOperator("op5", OperatorKind.COMPUTE, ("area", "y"), ("y",), frozenset()),
        ),
        (GraphEdge(0, 1, 100), GraphEdge(0, 2, 100), GraphEdge(1, 3, 10), GraphEdge(2, 4, 10)),
    )


def test_kinds_have_the_properties_of_the_table() -> None:
    found = {
        kind: (operator("x", kind).stateful, operator("x", kind).flexible) for kind in OperatorKind
    }
    assert found == {
        OperatorKind.MAP: (False, True),
        OperatorKind.COMPUTE: (True, True),
        OperatorKind.CONSOLIDATE: (False, False),
    }


def test_the_lending_job_is_fused_by_area() -> None:
    job = lending()
    assert fused_by_rates(job.graph) == ((0, 1, 2), (3,), (4,))
    tracks = job.graph.common((0, 1, 2))
    assert job.attributes(0, tracks) == job.attributes(1, tracks) == {"area"}


def test_a_value_computed_anew_under_the_old_name_is_another_attribute() -> None:
    changed = operator("change", unchanged="b")
    job = Job((changed, operator("next", OperatorKind.COMPUTE, "a")), (GraphEdge(0, 1, 1.0),))
    assert job.graph.common((0, 1)) == 0
    assert fused_by_rates(job.graph) == ((0,), (1,))
    # by b, which it leaves alone, they can
    job = Job((changed, operator("next", OperatorKind.COMPUTE, "ab")), (GraphEdge(0, 1, 1.0),))
    assert job.attributes(1, job.graph.common((0, 1))) == {"b"}


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


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    count = draw(st.integers(2, 6))
    some = st.sets(st.sampled_from(NAMES))
    operators = [
        operator(
            f"o{number}",
            partition="".join(draw(some)),
            unchanged="".join(draw(some)),
        )
        for number in range(count)
    ]
    edges = []
    for target in range(1, count):
        for origin in sorted(draw(st.sets(st.integers(0, target - 1), max_size=2))):
            edges.append(GraphEdge(origin, target, float(draw(st.integers(1, 9)))))
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
    written = {out: row[out] if out in unchanged else chance.random() for out in NAMES}
    for edge in job.edges:
        if edge.origin == number and edge.target in component:
            passed = {name: written[name] for name in job.carried(edge)}
            _follow(job, component, edge.target, track, passed, routed, chance)
