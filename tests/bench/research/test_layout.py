from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.research.layout import JobLayout, Migrate, RePartition, most_partitions
from icestream.core.errors import DefinitionError
from icestream.plan.fuse.fusion import fused_by_rates
from icestream.plan.fuse.operator_graph import GraphEdge, GraphOperator, Job, OperatorKind


def one(name: str, kind: OperatorKind, partition: str) -> GraphOperator:
    names = ("area", "user")
    chosen = frozenset(each for each in names if each[0] in partition)
    return GraphOperator(name, kind, names, names, chosen, frozenset(names), 60)


def simple(following: GraphOperator | None) -> Job:
    """A map, a compute and a consolidate by area, and what comes next."""
    operators = [
        one("rate", OperatorKind.MAP, "au"),
        one("sum", OperatorKind.COMPUTE, "a"),
        one("merge", OperatorKind.CONSOLIDATE, "a"),
    ]
    edges = [GraphEdge(0, 1, 9), GraphEdge(1, 2, 5)]
    if following is not None:
        operators.append(following)
        edges.append(GraphEdge(2, 3, 1))
    return Job(tuple(operators), tuple(edges))


def layout(job: Job, *together: tuple[int, ...]) -> JobLayout:
    return JobLayout.of(job, together or fused_by_rates(job.graph))


FIRST, LAST = (0, 1, 2), (3,)


@pytest.mark.parametrize(
    ("following", "fits"),
    [
        (one("next", OperatorKind.COMPUTE, "a"), True),
        (one("next", OperatorKind.CONSOLIDATE, "a"), True),
        # flexible: partitioned by what the consolidate needs
        (one("next", OperatorKind.COMPUTE, "u"), True),
        (one("next", OperatorKind.COMPUTE, ""), True),
        (one("next", OperatorKind.CONSOLIDATE, "u"), False),
    ],
)
def test_split_needs_a_next_component_that_fits(following: GraphOperator, fits: bool) -> None:
    before = layout(simple(following), FIRST, LAST)
    assert before.violations() == []
    assert before.can_split("rate") == fits
    if fits:
        after = before.applied(before.split("rate"))
        assert after.violations() == []
        assert after.components["rate"].operators == {0, 1}
        assert after.components["next"].operators == {2, 3}
        assert after.job.flexible(after.components["rate"].operators)
        assert after.job.attributes(2, after.components["next"].tracks) == {"area"}
    else:
        with pytest.raises(DefinitionError, match="cannot be split"):
            before.split("rate")


def test_combine_undoes_split() -> None:
    for following in (
        None,
        one("next", OperatorKind.COMPUTE, "a"),
        one("next", OperatorKind.COMPUTE, "u"),
    ):
        job = simple(following)
        before = layout(job, *((FIRST,) if following is None else (FIRST, LAST)))
        moves = before.split("rate")
        after = before.applied(moves)
        assert len(after.components) == 2
        assert after.applied(JobLayout.combine(moves)).components == before.components


def test_a_consolidate_at_the_end_becomes_a_component_of_its_own() -> None:
    before = layout(simple(None))
    assert list(before.components) == ["rate"]
    after = before.applied(before.split("rate"))
    assert [sorted(each.operators) for each in after.components.values()] == [[0, 1], [2]]


def test_only_a_stateful_component_with_a_consolidate_can_be_split() -> None:
    job = simple(None)
    assert not layout(job, (0, 1), (2,)).can_split("rate")
    assert not layout(job, (0, 1), (2,)).can_split("merge")


def test_a_consolidate_between_two_next_components_is_not_split_off() -> None:
    job = simple(one("next", OperatorKind.COMPUTE, "a"))
    job = Job(
        (*job.operators, one("too", OperatorKind.COMPUTE, "a")), (*job.edges, GraphEdge(2, 4, 1))
    )
    with pytest.raises(DefinitionError, match="not one"):
        layout(job, FIRST, (3,), (4,)).split("rate")


def test_one_more_node_is_a_composition() -> None:
    before = layout(simple(one("next", OperatorKind.COMPUTE, "a")), FIRST, LAST)
    (move,) = before.split("rate")
    after = before.applied(before.with_node(move, 7))
    assert after.components["rate"].nodes == {0, 7}
    assert after.components["next"].nodes == {0}
    assert after.components["rate"].operators == {0, 1}
    assert before.next_of("rate") == {"next"}


def test_an_operator_leaves_what_limits_it() -> None:
    before = layout(simple(None), (0, 1), (2,))
    after = before.applied([Migrate(1, "rate", "merge")])
    # alone again, the map may be partitioned by all it reads
    assert after.job.attributes(0, after.components["rate"].tracks) == {"area", "user"}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6))
def test_every_operation_leaves_a_valid_layout(moves: list[tuple[int, int]]) -> None:
    job = simple(one("next", OperatorKind.COMPUTE, "au"))
    now = layout(job, (0,), (1,), (2,), (3,))
    for operator, place in moves:
        origin = next(name for name, each in now.components.items() if operator in each.operators)
        target = job.operators[place].name
        if origin != target:
            after = now.applied([Migrate(operator, origin, target)])
            members = sorted(each for one in after.components.values() for each in one.operators)
            assert members == [0, 1, 2, 3]
            wrong = after.violations()
            assert all("cycle" in each for each in wrong)
            if not wrong:
                now = after


def test_what_is_not_there_cannot_be_moved() -> None:
    before = layout(simple(None))
    with pytest.raises(DefinitionError, match="no operator"):
        before.applied([Migrate(1, "merge", "rate")])
    with pytest.raises(DefinitionError, match="a node"):
        before.applied([RePartition("rate", frozenset())])


def test_a_component_has_no_more_partitions_than_its_attributes_have_values() -> None:
    job = simple(one("total", OperatorKind.COMPUTE, ""))
    areas = {(number, "area"): 40 for number in (1, 2)}
    assert most_partitions(job, FIRST, job.graph.common(FIRST), areas) == 40
    assert most_partitions(job, (0,), job.graph.common((0,)), areas) == math.inf
    assert most_partitions(job, LAST, 0, areas) == 1
