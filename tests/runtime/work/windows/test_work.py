from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.lower import AUTO
from icestream.testing.sources import SECOND, StreamShape, batches_of, generate
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.grid import ObviousWindows, differences, rows_of

COUNT = (Aggregate("count", None, "n"),)


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
    shape = StreamShape(events=400, batches=8, span=40 * SECOND, groups=5, disorder=0, aborts=0)
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
def test_raw_events_may_be_chosen_where_fields_have_no_inverse(tmp_path: Path, first: str) -> None:
    most = [Aggregate("max", f"x{place}", f"m{place}") for place in range(6)]
    inputs = pa.schema([(f"x{place}", pa.int32()) for place in range(6)])
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
