from __future__ import annotations

import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.steps import Receive, Regroup, Stateful
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.invertible_aggregate import InvertibleAggregate
from icestream.plan.events.dataflow import Dataflow
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import CLICKS, RATINGS, PlanStream, dataflow


def uncovered(*, both: bool) -> Dataflow:
    """Ratings of users without clicks; or, with `both`, that and clicks without ratings."""
    ratings, clicks = PlanStream.of(RATINGS).select("user"), PlanStream.of(CLICKS, 1).select("user")

    def lonely(left: PlanStream, right: PlanStream) -> PlanStream:
        found = left.difference(right)
        return found.union(right.difference(left)) if both else found

    return dataflow(ratings.apply(["user"], lonely, clicks), "changes", (RATINGS, CLICKS))


def test_what_covers_is_received_first() -> None:
    flow = uncovered(both=False)
    (spec,) = flow.specs
    received = [n for n, step in enumerate(spec.steps) if isinstance(step, Receive)]
    assert [number for number, _ in spec.received] == received[::-1]
    for number, edge in spec.received:
        step = spec.steps[number]
        assert isinstance(step, Receive)
        assert step.edge == edge


def test_where_each_covers_the_other_the_order_is_that_of_the_steps() -> None:
    (spec,) = uncovered(both=True).specs
    numbers = [number for number, _ in spec.received]
    assert numbers == sorted(numbers)


def test_what_is_computed_is_received_before_what_asks_for_it() -> None:
    ratings = PlanStream.of(RATINGS).select("user")
    clicks = PlanStream.of(CLICKS, 1).select("user")

    def answered(asking: PlanStream, ratings: PlanStream) -> PlanStream:
        counted = ratings.agg(Aggregate("count", None, "n"))
        return asking.join(counted.select("n"))

    flow = dataflow(clicks.apply(["user"], answered, ratings), "changes", (RATINGS, CLICKS))
    (spec,) = flow.specs
    first, _ = spec.received[0]
    assert first > spec.received[1][0]
    behind = (spec.steps[number] for number in spec.behind[first])
    operators = [step.operator for step in behind if isinstance(step, Stateful)]
    assert any(isinstance(operator, InvertibleAggregate) for operator in operators)


@pytest.mark.parametrize(
    ("flow", "grouping", "names"),
    [
        (plans.difference(), 0, [StreamDifference.__name__]),
        (plans.recommender(), 1, [InvertibleAggregate.__name__]),
        (plans.united(), 0, None),
        (plans.user_defined(), 0, None),
    ],
    ids=["difference", "inner aggregate", "aggregate that keeps events", "user code"],
)
def test_groups_pass_where_all_operators_forget(
    flow: Dataflow, grouping: int, names: list[str] | None
) -> None:
    spec = next(spec for spec in flow.specs if len(spec.groupings) > grouping)
    entered = next(
        number
        for number, step in enumerate(spec.steps)
        if isinstance(step, Receive | Regroup) and step.grouping == grouping
    )
    passed = spec.passed[entered]
    steps = [spec.steps[number] for number in passed or ()]
    found = [type(step.operator).__name__ for step in steps if isinstance(step, Stateful)]
    assert (None if passed is None else found) == names
