from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.grid import cost
from icestream.plan.grid.cost import PlanComparison
from icestream.plan.grid.lower import AUTO, TUPLES
from icestream.plan.windows.grid import Windows
from icestream.runtime.driver import Delivery
from icestream.runtime.work.windows import work
from icestream.testing.sources import SECOND, StreamShape, batches_of, generate
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.arrivals import Row
from tests.oracles.grid import ObviousWindows, differences, rows_of
from tests.suites.window_conformance import small_sizes

COUNT = (Aggregate("count", None, "n"),)
#: groupings that each need entries of their own, where the log stores an event once
GROUPED: dict[str, Any] = {
    "keys": pa.schema([(name, pa.int64()) for name in "abc"]),
    "grouping_sets": ((0,), (1,), (2,), (0, 1), (1, 2)),
}


def test_the_choice_of_a_store_is_kept_in_the_commit(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", "2 seconds", store=AUTO, aggregates=COUNT)
    items = batches_of(generate(plan, StreamShape(events=200, batches=4), 1))
    query = open_query(plan, str(tmp_path))
    kept = []
    for number, batch in enumerate(items):
        if number == 2:
            query = open_query(plan, str(tmp_path))
        query.feed(batch)
        assert query.driver.last is not None
        kept.append({n: query.driver.last.decisions[n] for n in ("store", "composition")})
    assert kept[0]["store"] != AUTO
    assert all(each == kept[0] for each in kept)


def test_the_estimate_is_held_against_the_log_once_windows_are_full(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", "2 seconds", store=AUTO, aggregates=COUNT, slack=0)
    # more entries than the newest slices that stay in memory
    shape = StreamShape(events=4000, batches=8, span=40 * SECOND, groups=200, disorder=0, aborts=0)
    query = open_query(plan, str(tmp_path))
    reported = []
    for number, batch in enumerate(batches_of(generate(plan, shape, 2))):
        (delivery,) = query.driver.batch(number, batch)
        reported.append(delivery.progress["icestream"])
    ratios = [each["logToEstimate"] for each in reported]
    assert ratios[0] is None
    (estimated,) = {each["estimatedLogBytes"] for each in reported}
    assert ratios[-1] == pytest.approx(reported[-1]["logBytes"] / estimated, abs=1e-3)
    assert all(0 < ratio < 10 for ratio in ratios[-3:])
    assert reported[-1]["sliceBytesUsed"] >= reported[-1]["sliceBytesRead"] > 0


@pytest.mark.parametrize("first", ["events", "nothing"])
def test_raw_events_may_be_chosen_where_fields_have_no_inverse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    most = [Aggregate("max", f"x{place}", f"m{place}") for place in range(6)]
    inputs = pa.schema([(f"x{place}", pa.int32()) for place in range(6)])
    monkeypatch.setattr(cost, "WORTH_FOLDING_AGAIN", 0.0)
    plan = window_plan("20 seconds", "1 second", inputs=inputs, store=AUTO, aggregates=most)
    shape = StreamShape(events=900, batches=4, span=45 * SECOND, groups=900, aborts=0)
    items = generate(plan, shape, 1)
    query = open_query(plan, str(tmp_path), shards=1)
    if first == "nothing":
        query.feed([])
    oracle = ObviousWindows(plan)
    read = 0
    for batch in batches_of(items):
        (delivery,) = query.driver.batch(query.next_batch, batch)
        assert delivery.commit.decisions["store"] == "tuples"
        assert not differences(rows_of(query.rows([delivery])), oracle.feed(batch), 1)
        read += delivery.progress["icestream"]["blocksRead"]
    assert not differences(rows_of(query.flush()), oracle.flush(), 1)
    assert read > 0


def test_a_store_is_not_chosen_before_there_are_events(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", "2 seconds", store=AUTO, aggregates=COUNT)
    query = open_query(plan, str(tmp_path))
    query.feed([])
    assert query.driver.last is not None
    assert query.driver.last.decisions["store"] == AUTO
    query.feed(batches_of(generate(plan, StreamShape(events=50, batches=1), 1))[0])
    assert query.driver.last.decisions["store"] != AUTO


WHOLE = pa.schema([("a", pa.int64()), ("b", pa.int32())])
EXACT = (
    Aggregate("count", None, "n"),
    Aggregate("sum", "a", "sum"),
    Aggregate("avg", "b", "mean"),
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("mode", ["append", "changes"])
@pytest.mark.parametrize("seed", range(3))
def test_oracle_the_store_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, mode: str
) -> None:
    plan = window_plan(
        "10 seconds", "2 seconds", store=AUTO, inputs=WHOLE, aggregates=EXACT, mode=mode
    )
    longer = replace(plan.views[0], windows=Windows(14 * SECOND, 4 * SECOND))
    plan = replace(plan, views=(plan.views[0], longer))
    shape = StreamShape(
        events=600, batches=30, groups=9, disorder=20 * SECOND, duplicates=0.1, gaps=1, empty=0.2
    )
    monkeypatch.setattr(work, "REVIEWED_EVERY", 2 + seed)
    monkeypatch.setattr(
        PlanComparison, "preferred", lambda _, present: "panes" if present == TUPLES else TUPLES
    )
    slow = [ObviousWindows(plan, view) for view in range(2)]
    stores: list[str] = []
    with small_sizes():
        query = open_query(plan, str(tmp_path))

        def check(deliveries: Sequence[Delivery], expected: list[list[Row]]) -> None:
            for view, rows in enumerate(expected):
                assert not differences(rows_of(query.rows(deliveries, view)), rows, 1)

        for number, batch in enumerate(batches_of(generate(plan, shape, seed))):
            check(query.driver.batch(number, batch), [each.feed(batch) for each in slow])
            assert query.driver.last is not None
            stores.append(query.driver.last.decisions["store"])
            if number % 5 == seed:
                query.close()
                if number % 2:
                    shutil.rmtree(tmp_path / "local")
                query = open_query(plan, str(tmp_path))
        check(query.driver.flush(), [each.flush() for each in slow])
        query.close()
    changes = sum(one != other for one, other in pairwise(stores) if one != AUTO)
    assert changes >= 30 // (2 + seed) // 2


@pytest.mark.slow
def test_a_store_is_left_once_panes_are_nearly_as_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "REVIEWED_EVERY", 4)
    # with windows of few batches, what versions log to be rebuilt is much of both
    monkeypatch.setattr(cost, "WORTH_FOLDING_AGAIN", 1.2)
    monkeypatch.setattr(cost, "STILL_WORTH_IT", 1.0)
    inputs = pa.schema([(f"x{place}", pa.int64()) for place in range(8)])
    sums = [Aggregate("sum", name, f"s{name}") for name in inputs.names]
    plan = window_plan(
        "400 seconds", "20 seconds", inputs=inputs, store=AUTO, aggregates=sums, slack=0, **GROUPED
    )
    query, oracle, stores = open_query(plan, str(tmp_path), shards=1), ObviousWindows(plan), []
    # every event in a group of its own, then few groups
    for number in range(40):
        shape = StreamShape(
            events=120,
            batches=1,
            span=10 * SECOND,
            start=number * 10 * SECOND,
            groups=5000 if number < 16 else 2,
        )
        (batch,) = batches_of(generate(plan, shape, number))
        (delivery,) = query.driver.batch(number, batch)
        assert not differences(rows_of(query.rows([delivery])), oracle.feed(batch), 4)
        stores.append(delivery.commit.decisions["store"])
    assert stores[0] == stores[14] == TUPLES
    assert stores[-1] == "panes"
    assert not differences(rows_of(query.flush()), oracle.flush(), 4)
