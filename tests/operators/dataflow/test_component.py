from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow import component
from icestream.operators.dataflow.component import ComponentOperator
from icestream.operators.dataflow.steps import Regroup, Stateful, sent
from icestream.operators.lifetimes.changes import changes_of
from icestream.operators.protocol import Shard
from icestream.plan.events.dataflow import Dataflow
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import RATINGS, PlanStream, dataflow
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Bag, Event, assert_same_snapshots
from tests.oracles.plain_dataflow import ChangeLists, PlainStores, plain_component
from tests.suites.dataflow_conformance import bag_of_rows

Rating = tuple[Micros, int, int, float]


class Noting(PlainStores):
    """Stores that remember when they were told to begin."""

    def __init__(self, flow: Dataflow) -> None:
        super().__init__(flow.specs[0].groupings)
        self.begun: list[int] = []

    def begin(self, grouping: int, watermark: Micros) -> None:
        self.begun.append(grouping)
        super().begin(grouping, watermark)


def changes(ratings: list[Rating], flow: Dataflow) -> ChangeLists:
    """Return ratings as the edges of a dataflow bring them."""
    payload = pa.record_batch(
        [
            pa.array([rating[place] for rating in ratings], RATINGS.field(place - 1).type)
            for place in (1, 2, 3)
        ],
        schema=RATINGS,
    )
    times = np.array([rating[0] for rating in ratings], dtype=np.int64)
    ones, nobody = np.ones(len(times), np.int64), np.zeros(len(times), np.uint64)
    found = ChangeLists()
    for number, edge in enumerate(flow.edges):
        if edge.source == 0:
            moved = changes_of(payload, times, times + 1, ones, nobody, nobody)
            for change in edge.maps:
                moved = change(moved)
            inside = flow.inside.get(number)
            found.lists[number].append(sent(moved, edge.keys, edge.payload, inside))
    return found


def run(
    operator: ComponentOperator, inputs: ChangeLists, watermark: Micros
) -> list[tuple[int, pa.RecordBatch]]:
    operator.on_batch(inputs)
    return list(operator.on_watermark(watermark))


def total(flow: Dataflow, emitted: list[tuple[int, pa.RecordBatch]]) -> Bag:
    sums: Bag = Counter()
    for _, rows in emitted:
        for event, count in bag_of_rows(flow, pa.Table.from_batches([rows])).items():
            sums[event] += count
    return oracle.without_zeros(sums)


def random_ratings(dice: np.random.Generator, first: Micros, count: int) -> list[Rating]:
    return [
        (int(first + at), int(user), int(item), float(rating))
        for at, user, item, rating in zip(
            dice.integers(0, 4_000_000, count),
            dice.integers(0, 3, count),
            dice.integers(0, 3, count),
            dice.integers(1, 9, count) / 2,
            strict=True,
        )
    ]


def nested_answer(ratings: list[Rating]) -> Bag:
    """Return the two best items of each user by their mean and greatest rating, the slow way."""
    length = 9 * plans.SECOND
    alive: Bag = Counter()
    for at, user, item, rating in ratings:
        alive[Event((user, item), at, at + length, (rating,))] += 1
    scored = oracle.aggregate(alive, oracle.mean(0), oracle.most(0))
    by_user: Bag = Counter()
    for event, count in scored.items():
        user, item = event.group
        score = event.payload[0] + event.payload[1]
        by_user[event._replace(group=(user, 0), payload=(user, item, score))] += count
    best: Bag = Counter()
    for event, count in oracle.top(by_user, 2, lambda row: (-row[2], row[1])).items():
        best[event._replace(group=(0, 0))] += count
    return best


@pytest.mark.parametrize("chunk", [1, 7, 65_536])
def test_oracle_a_graph_of_steps_adds_up_to_the_answer(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(component, "CHUNK_ROWS", chunk)
    monkeypatch.setattr(component, "ENOUGH_ROWS", chunk)
    dice = np.random.default_rng(chunk)
    flow = plans.nested()
    operator = plain_component(flow.specs[0])
    emitted: list[tuple[int, pa.RecordBatch]] = []
    everything: list[Rating] = []
    for number in range(4):
        # scores that tell items apart: ties are broken by what a slow version does not know
        news = [
            (at, user, item, rating + (1 + item) / 64)
            for at, user, item, rating in random_ratings(dice, 3_000_000 * number, 12)
        ]
        everything += news
        emitted += run(operator, changes(news, flow), 3_000_000 * (number + 1))
        found, expected = total(flow, emitted), nested_answer(everything)
        scores = {key: sorted(r) for key, r in _by_score(found).items()}
        assert scores == {key: sorted(r) for key, r in _by_score(expected).items()}


def _by_score(bag: Bag) -> dict[tuple[int, float], list[tuple[int, int, int]]]:
    """Return when each user has each score, whatever the item."""
    without = Counter[Event]()
    for event, count in bag.items():
        user, _, score = event.payload
        without[event._replace(payload=(user, score))] += count
    return {
        (payload[0], payload[1]): found for (_, payload), found in oracle.snapshots(without).items()
    }


def test_a_store_begins_only_where_its_grouping_is_entered() -> None:
    flow = plans.nested()
    stores = Noting(flow)
    shard = cast("Shard", SimpleNamespace(arena=SimpleNamespace(header={})))
    operator = ComponentOperator(flow.specs[0], shard, stores)
    steps = flow.components[0]
    entered = [step.grouping for step in steps if isinstance(step, Regroup)]
    stateful = [step.grouping for step in steps if isinstance(step, Stateful)]
    run(operator, changes([(1, 1, 1, 2.0), (2, 2, 2, 3.0)], flow), 5)
    # once for each chunk that enters a grouping, the one that changes were sent for first; then for
    # the watermark
    assert stores.begun == [*entered, *stateful]


def test_groupings_are_entered_from_the_outside_in() -> None:
    flow = plans.nested()
    stores = Noting(flow)
    shard = cast("Shard", SimpleNamespace(arena=SimpleNamespace(header={})))
    operator = ComponentOperator(flow.specs[0], shard, stores)
    run(operator, changes([(at, at % 2, at, 2.0) for at in range(50)], flow), 5)
    first_seen = list(dict.fromkeys(stores.begun))
    assert first_seen == sorted(first_seen)


def test_what_a_watermark_settles_meets_rows_that_it_expires() -> None:
    # means of a user's last 10 us, told when they are final, joined with ratings that live as long:
    #
    #     mean   [1, 11) 2.0   final once the watermark is past 11
    #     rating [1, 21)       expires as the watermark comes to 21
    flow = _final_means_with_ratings()
    operator = plain_component(flow.specs[0])
    early = run(operator, changes([(1, 1, 7, 2.0)], flow), 5)
    assert total(flow, early) == Counter()
    late = run(operator, ChangeLists(), 30)
    expected: Bag = Counter({Event((0, 0), 1, 11, (1, 2.0, 7)): 1})
    assert_same_snapshots(total(flow, late), expected)


def _final_means_with_ratings() -> Dataflow:
    from icestream.operators.lifetimes.aggregate import lifetime_aggregate

    def both(group: PlanStream) -> PlanStream:
        short = group.window(10)
        mean = lifetime_aggregate(
            RATINGS, (Aggregate("avg", "rating", "mean"),), ("user",), mode="final"
        )
        final = short.through(mean, "final means", grows=True)
        ratings = group.window(20).select("user AS user2", "item")
        return final.join(ratings, hidden=["user2"])

    return dataflow(PlanStream.of(RATINGS).apply(["user"], both), "changes")


def test_an_empty_batch_moves_the_watermark_and_says_nothing() -> None:
    flow = plans.running_aggregate()
    operator = plain_component(flow.specs[0])
    assert run(operator, ChangeLists(), MINUS_INFINITY) == []
    assert run(operator, ChangeLists(), 10) == []
