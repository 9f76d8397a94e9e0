from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import Stateful
from icestream.operators.grid.slice_log import SLICE_BYTES
from icestream.operators.lifetimes.join import StreamJoin
from icestream.plan.events import placement, queries
from icestream.plan.events.dataflow import Dataflow
from icestream.runtime.version.quotas import least_quota
from icestream.runtime.version.settings import Settings
from icestream.testing.sources import Item, StreamShape, batches_of
from tests.fixtures import dataflow_plans as plans
from tests.oracles.lifetimes import Bag
from tests.suites.dataflow_conformance import (
    DataflowConformance,
    expected_rows,
    open_dataflow,
    stream_of,
)


class TestRunningAggregate(DataflowConformance):
    flow = plans.running_aggregate()


class TestWindowedAggregate(DataflowConformance):
    flow = plans.running_aggregate("append")


@pytest.mark.slow
class TestRevisedAggregate(DataflowConformance):
    flow = plans.revised_aggregate()


class TestSelfJoin(DataflowConformance):
    flow = plans.self_join()
    exact = True


@pytest.mark.slow
class TestJoinWithin(DataflowConformance):
    flow = plans.join_within()
    exact = True


class TestDifference(DataflowConformance):
    flow = plans.difference()


@pytest.mark.slow
class TestSettledDifference(DataflowConformance):
    flow = plans.difference("append")
    many_groups = 1500
    many_events = 6000


class TestBest(DataflowConformance):
    flow = plans.best()
    #: these groups are smaller than others
    tiny_share = 200 << 10


@pytest.mark.slow
class TestSettledBest(DataflowConformance):
    flow = plans.best("append")


@pytest.mark.slow
class TestNested(DataflowConformance):
    flow = plans.nested()


@pytest.mark.slow
class TestRecommender(DataflowConformance):
    flow = plans.recommender()
    many_groups = 60
    many_events = 240

    def shape(self) -> StreamShape:
        # pairs of what a user rated are many
        return replace(super().shape(), events=50, batches=4, skew=0.5)


class TestChained(DataflowConformance):
    """The scopes of a component beside the same scopes in components of their own."""

    flow = plans.chained()
    tiny_share = 320 << 10

    def expected(self, items: Sequence[Item]) -> list[Bag]:
        assert len(self.flow.components) == 1
        with mock.patch.object(placement, "key_columns", return_value=None):
            apart = plans.chained()
        assert len(apart.components) == 4
        return expected_rows(apart, items)


class TestAggregatesOfPairs(DataflowConformance):
    """Aggregates of both sides of a join beside those of its pairs."""

    flow = plans.totals_of_pairs()

    def expected(self, items: Sequence[Item]) -> list[Bag]:
        with mock.patch.object(queries, "without_pairs", side_effect=lambda outputs: outputs):
            apart = plans.totals_of_pairs(self.flow.views[0].mode, ever=self.ever)
        assert any(isinstance(each, StreamJoin) for each in operators_of(apart))
        assert not any(isinstance(each, StreamJoin) for each in operators_of(self.flow))
        return expected_rows(apart, items)

    ever = False


class TestAggregatesOfPairsThatStay(TestAggregatesOfPairs):
    flow = plans.totals_of_pairs("changes", ever=True)
    ever = True


def operators_of(flow: Dataflow) -> list[object]:
    steps = (step for steps in flow.components for step in steps)
    return [step.operator for step in steps if isinstance(step, Stateful)]


class TestUserDefined(DataflowConformance):
    flow = plans.user_defined()
    exact = True


class TestUnited(DataflowConformance):
    flow = plans.united()


FLOWS = {
    "running aggregate": plans.running_aggregate(),
    "final aggregate": plans.running_aggregate("append"),
    "revised aggregate": plans.revised_aggregate(),
    "join within": plans.join_within(),
    "settled difference": plans.difference("append"),
    "settled best": plans.best("append"),
    "aggregates of pairs": plans.totals_of_pairs(),
    "nested": plans.nested("append"),
    "chained": plans.chained("append"),
    "recommender": plans.recommender("append"),
    "user-defined": plans.user_defined(),
}


@pytest.mark.parametrize("name", FLOWS)
def test_bounded_the_least_memory_is_enough(name: str, tmp_path: Path) -> None:
    flow = FLOWS[name]
    with pytest.raises(DefinitionError, match="memory of 1 B is too small"):
        _check(flow, 1)
    least = next(
        budget for budget in range(SLICE_BYTES, 64 << 20, SLICE_BYTES) if _is_enough(flow, budget)
    )
    events = 300 if name == "recommender" else 5000
    items = stream_of(flow, StreamShape(events=events, groups=events // 2, batches=3), 1)
    query = open_dataflow(flow, tmp_path, budget=least, shards=1)
    for batch in batches_of(items):
        (delivery,) = query.driver.batch(query.next_batch, batch)
        assert delivery.progress["icestream"]["peakMemoryBytes"] <= least
    query.flush()


def _check(flow: Dataflow, budget: int) -> None:
    Settings("", "", budget, shards=1).check_memory(least_quota(flow), flow.jobs)


def _is_enough(flow: Dataflow, budget: int) -> bool:
    try:
        _check(flow, budget)
    except DefinitionError:
        return False
    return True
