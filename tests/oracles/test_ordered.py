from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.testing.sources import SECOND, StreamShape, batches_of, generate
from tests.fixtures.plans import window_plan
from tests.oracles.arrivals import Row
from tests.oracles.frames import ObviousFrames, frames_by_sql
from tests.oracles.grid import differences


@pytest.mark.parametrize("frame", [Frame(range=7 * SECOND), Frame(rows=6)])
def test_oracle_the_obvious_computation_equals_sql_where_nothing_is_late(frame: Frame) -> None:
    chosen = ("count", "sum", "min", "max", "var_pop")
    plan = window_plan(
        windows=frame,
        slack="100 seconds",
        aggregates=[Aggregate(function, "value", function) for function in chosen],
    )
    items = generate(
        plan, StreamShape(events=150, start=-20 * SECOND, nulls=0.2, disorder=SECOND), 1
    )
    oracle = ObviousFrames(plan)
    rows = [row for splits in batches_of(items) for row in oracle.feed(splits)] + oracle.flush()
    batches = [b for splits in batches_of(items) for split in splits for b in split]
    assert oracle.late == 0
    assert len(rows) == sum(batch.num_rows for batch in batches)
    assert not differences(frames_by_sql(plan, batches), rows, 1, tolerance=1e-9)


#: seconds and keys of the events of three batches; the value of the n-th event is n
#:
#:     time   1   2   2   4   |   8   |   3   9   20      the watermark is 2 seconds behind:
#:     event  a1  b2  a3  a4  |   b5  |   a6  b7  a8      a6 is late
BATCHES: tuple[tuple[tuple[int, int], ...], ...] = (
    ((1, 0), (2, 1), (2, 0), (4, 0)),
    ((8, 1),),
    ((3, 0), (9, 1), (20, 0)),
)


def shown(frame: Frame) -> list[Row]:
    """Return (second, key, sum of values) of all rows."""
    plan = window_plan(
        windows=frame,
        slack="2 seconds",
        inputs=pa.schema([("value", pa.int64())]),
        aggregates=[Aggregate("sum", "value", "total")],
    )
    oracle, number, rows = ObviousFrames(plan), 0, []
    for events in BATCHES:
        seconds, keys = zip(*events, strict=True)
        columns = [
            pa.array([s * SECOND for s in seconds]).cast(plan.time),
            pa.array([0] * len(events), pa.int32()),
            pa.array(keys, pa.int64()),
            pa.array(range(number + 1, number + 1 + len(events)), pa.int64()),
        ]
        number += len(events)
        rows += oracle.feed([[pa.record_batch(columns, schema=plan.batch_schema)]])
    assert oracle.late == 1
    rows += oracle.flush()
    return [(time // SECOND, key, total) for time, _, key, total in rows]


def test_a_range_of_time_by_hand() -> None:
    assert shown(Frame(range=2 * SECOND)) == [
        (1, 0, 1), (2, 1, 2), (2, 0, 4), (4, 0, 4), (8, 1, 5), (9, 1, 12), (20, 0, 8),
    ]  # fmt: skip


def test_rows_of_the_stream_by_hand() -> None:
    assert shown(Frame(rows=3, partition="stream")) == [
        (1, 0, 1), (2, 1, 2), (2, 0, 4), (4, 0, 7), (8, 1, 5), (9, 1, 12), (20, 0, 8),
    ]  # fmt: skip
    every_third = Frame(rows=4, slide=RowsSlide(3), partition="stream")
    assert shown(every_third) == [(2, 0, 4), (2, 1, 2), (9, 0, 7), (9, 1, 12)]


def test_rows_of_each_group_by_hand() -> None:
    assert shown(Frame(rows=2)) == [
        (1, 0, 1), (2, 1, 2), (2, 0, 4), (4, 0, 7), (8, 1, 7), (9, 1, 12), (20, 0, 12),
    ]  # fmt: skip
    assert shown(Frame(rows=2, slide=RowsSlide(2))) == [(2, 0, 4), (8, 1, 7), (20, 0, 12)]


def test_instants_without_events_since_the_last_show_nothing() -> None:
    assert shown(Frame(rows=2, slide=5 * SECOND, partition="stream")) == [
        (5, 0, 7), (10, 1, 12), (25, 1, 7), (25, 0, 8),
    ]  # fmt: skip
    assert shown(Frame(rows=2, slide=5 * SECOND)) == [
        (5, 0, 7), (5, 1, 2), (10, 1, 12), (25, 0, 12),
    ]  # fmt: skip
