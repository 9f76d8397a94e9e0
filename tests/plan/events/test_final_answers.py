from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.steps import Stateful
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.queries import Source
from tests.fixtures.dataflow_plans import RATINGS, SECOND, PlanStream, dataflow
from tests.fixtures.plans import INSTANT

COUNT = Aggregate("count", None, "n")


def counted() -> PlanStream:
    ratings = PlanStream.of(RATINGS).window(SECOND)
    return ratings.apply(["user"], lambda group: group.agg(COUNT))


def stateful(flow: Dataflow) -> list[str]:
    return [step.text for spec in flow.components for step in spec if isinstance(step, Stateful)]


def test_aggregates_wait_where_only_final_rows_are_made_of_them() -> None:
    assert stateful(dataflow(counted(), "append")) == ["aggregate, told once"]
    busy = counted().where("n > 2").select("user", "n + 1 AS more")
    assert stateful(dataflow(busy, "append")) == ["aggregate, told once"]
    united = counted().union(counted())
    assert stateful(dataflow(united, "append")) == ["aggregate, told once"] * 2
    items = PlanStream.of(RATINGS).apply(
        ["user"], lambda group: group.apply(["item"], lambda inner: inner.agg(COUNT))
    )
    assert stateful(dataflow(items, "append")) == ["aggregate, told once"]


@pytest.mark.parametrize("mode", ["changes", "now"])
def test_aggregates_that_are_revised_tell_it_at_once(mode: str) -> None:
    assert "aggregate" in stateful(dataflow(counted(), mode))


@pytest.mark.parametrize("mode", ["changes", "now"])
def test_objects_are_reported_once_or_revised(mode: str) -> None:
    names = Aggregate("collect_list", "item", "items")
    items = PlanStream.of(RATINGS).window(SECOND).apply(["user"], lambda group: group.agg(names))
    assert stateful(dataflow(items, "append")) == ["aggregate, told once"]
    assert "aggregate" in stateful(dataflow(items, mode))
    rated = items.apply(["user"], lambda group: group.agg(Aggregate("last", "items", "l")))
    with pytest.raises(DefinitionError, match="depends on the order of events"):
        dataflow(rated, mode)


def test_aggregates_that_others_look_at_tell_all_at_once() -> None:
    best = counted().apply(["n"], lambda group: group.top(1, "user"))
    assert stateful(dataflow(best, "append")) == ["aggregate", "top 1 by user", "settle"]
    both = counted()
    flow = compiled(
        ((both.node, "append"), (both.where("n > 1").node, "changes")),
        {0: 0},
        (Source("source0", SECOND),),
        (RATINGS,),
        INSTANT,
    )
    assert sorted(stateful(flow)) == ["aggregate", "settle"]
