from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from icestream.plan.nodes.updates import Updates
from icestream.runtime.driver import Delivery
from icestream.runtime.local import LocalQuery
from tests.fixtures.update_streams import (
    SECOND,
    Costly,
    ManualClock,
    SlowFirst,
    open_updates,
    quotes_plan,
    splits_of,
)


def one_task(plan: Updates, folder: Path, shards: int) -> LocalQuery:
    """Open a query whose shards run in one task."""
    query = open_updates(plan, folder, shards=shards)
    query.rescale(1)
    return query


def batches_of(query: LocalQuery, clock: ManualClock, keys: int, batches: int) -> list[Delivery]:
    """Update all keys in every batch, one second apart."""
    found = []
    for number in range(batches):
        clock.at = max(clock.at, (number + 1) * SECOND)
        quotes = [(f"s{key}", number, number * SECOND + key) for key in range(keys)]
        found += query.driver.batch(number, splits_of(quotes))
    return found


def served(deliveries: list[Delivery], name: str = "served") -> list[float]:
    """Return how many keys each version served, or another number it reports."""
    return [each.progress["icestream"]["updates"][name] for each in deliveries]


@pytest.mark.parametrize(("keys", "each"), [(30, 50_000), (400, 2_000), (30, 150_000)])
def test_bounded_shards_of_a_task_share_its_time(keys: int, each: int, tmp_path: Path) -> None:
    """Eight shards serve within the time of one task and use most of it."""
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=each), budget=800_000)
    found = batches_of(one_task(plan, tmp_path, shards=8), clock, keys, 12)[4:]
    assert max(served(found, "servingMs")) <= 1.01 * 800
    possible = min(keys, 800_000 // each)
    assert min(served(found)) >= 0.7 * possible


@pytest.mark.parametrize("each", [500_000, 100_000, 1_000])
def test_bounded_the_first_batches_keep_their_time(each: int, tmp_path: Path) -> None:
    """Shards that have served nothing yet know what the others of their task have learnt."""
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=each), budget=800_000)
    found = batches_of(one_task(plan, tmp_path, shards=8), clock, 3_000, 12)
    assert max(served(found, "servingMs")) <= 800
    assert min(served(found)) >= 0.7 * (800_000 // each)


def test_a_key_in_one_shard_has_the_time_of_all(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=700_000), budget=800_000)
    found = batches_of(one_task(plan, tmp_path, shards=8), clock, 1, 6)
    assert served(found) == [1] * 6


def test_a_task_without_time_serves_one_key(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=2_000_000), budget=800_000)
    found = batches_of(one_task(plan, tmp_path, shards=8), clock, 30, 6)
    assert served(found) == [1] * 6


def test_every_shard_is_served_even_if_there_is_time_for_one_key(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=500_000), budget=800_000)
    query, seen = one_task(plan, tmp_path, shards=4), set()
    for number in range(40):
        clock.at = max(clock.at, (number + 1) * SECOND)
        quotes = [(f"s{key}", number, number * SECOND + key) for key in range(12)]
        seen |= set(query.feed(splits_of(quotes), number)["symbol"].to_pylist())
    assert len(seen) == 12


def test_a_slow_first_call_delays_one_batch(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(SlowFirst(clock, each=1_000), budget=500_000)
    found = batches_of(open_updates(plan, tmp_path, shards=1), clock, 400, 4)
    assert served(found, "servingMs")[0] <= 10_000 + 500
    assert min(served(found)[1:]) >= 0.8 * 400


def test_a_slow_sink_leaves_time_for_serving(tmp_path: Path) -> None:
    """A sink of 1.2 s and a trigger of 1 s: half of the time is for serving."""
    clock = ManualClock()
    plan = replace(quotes_plan(Costly(clock, each=4_000)), interval=SECOND)
    query = open_updates(plan, tmp_path, shards=1)
    found, longest = 0, 0.0
    for number in range(10):
        began = clock.at
        quotes = [(f"s{key}", number, number * SECOND + key) for key in range(1000)]
        deliveries = query.driver.batch(number, splits_of(quotes))
        clock.at += 1_200_000
        took = (clock.at - began) / 1e6
        query.driver.trigger = number, took
        if number >= 3:
            longest = max(longest, took)
            found += int(served(deliveries)[0])
    assert found >= 7 * 0.8 * 250
    assert longest <= 1.2 * 2.2
