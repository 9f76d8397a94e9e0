from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import CheckpointError
from icestream.core.times import MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.evolution.rules import check_same_plan
from icestream.plan.nodes.queries import Plan, grouping_id
from icestream.plan.windows.grid import Cumulative, Windows
from tests.fixtures.plans import INSTANT, window_plan

PLAN = window_plan(
    "10 seconds",
    "5 seconds",
    slack=["1 second", "2 seconds"],
    keys=pa.schema([("a", pa.int64()), ("b", pa.int64())]),
    inputs=pa.schema([("x0", pa.float64()), ("x1", pa.float64())]),
    aggregates=[Aggregate("sum", "x0", "s"), Aggregate("sum", "x1", "t")],
)


VIEW = PLAN.views[0]
REACH = 10_000_000


def seen_otherwise(**changes: Any) -> Plan:
    """Return the plan with changes to its only view."""
    return replace(PLAN, views=(replace(VIEW, **changes),))


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAN, sources=PLAN.sources[::-1]),
        replace(PLAN, sources=PLAN.sources[:1]),
        seen_otherwise(windows=Windows(REACH, REACH)),
        seen_otherwise(windows=Windows(REACH, REACH // 2, 1)),
        seen_otherwise(windows=Cumulative(REACH, REACH // 2)),
        replace(PLAN, keys=pa.schema([("b", pa.int64()), ("a", pa.int64())])),
        replace(PLAN, keys=pa.schema([("a", pa.int64()), ("b", pa.int32())])),
        replace(PLAN, expressions=("x1", "x0")),
        replace(PLAN, inputs=pa.schema([("x0", pa.float32()), ("x1", pa.float64())])),
        seen_otherwise(aggregates=VIEW.aggregates[::-1]),
        seen_otherwise(aggregates=(VIEW.aggregates[0], Aggregate("avg", "x1", "t"))),
        seen_otherwise(groupings=((0,), ())),
        seen_otherwise(keys=(1, 0)),
        seen_otherwise(tells_grouping=True),
        replace(PLAN, views=(VIEW, VIEW)),
        replace(PLAN, time=pa.timestamp("us")),
        replace(PLAN, key_groups=128),
    ],
)
def test_every_part_of_a_plan_shows_in_its_description(other: Plan) -> None:
    kept = json.loads(json.dumps(PLAN.describe(), sort_keys=True))
    check_same_plan("root", kept, PLAN.describe())
    with pytest.raises(CheckpointError, match=r"root belongs to another query\. .*checkpoint has"):
        check_same_plan("root", kept, other.describe())


def test_a_wrong_plan_is_told_every_difference() -> None:
    other = replace(PLAN, time=pa.timestamp("us"), key_groups=64)
    with pytest.raises(CheckpointError) as failure:
        check_same_plan("root", PLAN.describe(), other.describe())
    assert "time: the checkpoint has 'timestamp[us, tz=UTC]'" in str(failure.value)
    assert "key groups: the checkpoint has 4096, the query has 64" in str(failure.value)


def test_what_happens_to_late_events_may_change_at_every_start() -> None:
    check_same_plan("root", PLAN.describe(), replace(PLAN, late="keep").describe())


def test_result_columns_are_window_keys_and_answers() -> None:
    plan = seen_otherwise(groupings=((0,), ()), tells_grouping=True)
    rows = plan.results(plan.views[0])
    assert rows.names == ["window", "a", "b", "grouping_id", "s", "t"]
    assert rows.field("window").type == pa.struct([("start", INSTANT), ("end", INSTANT)])
    assert PLAN.results(VIEW).names == ["window", "a", "b", "s", "t"]
    assert PLAN.batch_schema.names == ["time", "source", "k0", "k1", "x0", "x1"]


seen = st.none() | st.integers(-(10**10), 10**10)


@given(st.lists(st.tuples(seen, seen), max_size=8))
def test_the_watermark_never_goes_back(steps: list[tuple[int | None, int | None]]) -> None:
    watermark = MINUS_INFINITY
    for step in steps:
        after = PLAN.watermark(watermark, step)
        assert after >= watermark
        assert after == watermark or after % 1000 == 0
        if None not in step:
            assert after >= min(
                t // 1000 * 1000 - s.slack
                for t, s in zip(step, PLAN.sources, strict=True)
                if t is not None
            )
        watermark = after


def test_output_mode_and_store_may_change_between_runs() -> None:
    other = replace(seen_otherwise(mode="changes"), store="tuples")
    check_same_plan("root", PLAN.describe(), other.describe())


def test_output_modes_of_several_views_may_not_change() -> None:
    both = replace(PLAN, views=(VIEW, replace(VIEW, mode="changes")))
    other = replace(PLAN, views=(VIEW, VIEW))
    with pytest.raises(CheckpointError, match="query 1, mode"):
        check_same_plan("root", both.describe(), other.describe())


def test_a_grouping_id_has_a_bit_for_each_key_left_out() -> None:
    # first key highest, as in Spark
    assert [grouping_id(each, (0, 1)) for each in ((0, 1), (0,), (1,), ())] == [0, 1, 2, 3]


def test_the_slowest_source_holds_the_watermark() -> None:
    assert PLAN.watermark(MINUS_INFINITY, (10_000_000, None)) == MINUS_INFINITY
    assert PLAN.watermark(MINUS_INFINITY, (10_000_999, 50_000_000)) == 9_000_000
    assert PLAN.watermark(MINUS_INFINITY, (-1, 50_000_000)) == -1_001_000
