from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from icestream.plan.nodes.queries import Source
from icestream.runtime.version.idle_sources import IdleSources
from tests.fixtures.dataflow_plans import CLICKS, RATINGS, SECOND, PlanStream, dataflow
from tests.fixtures.update_streams import ManualClock
from tests.suites.dataflow_conformance import open_dataflow

SOURCES = (Source("fast", 2 * SECOND), Source("slow", SECOND, idle=60 * SECOND))


def test_an_idle_source_does_not_hold_the_watermark() -> None:
    clock = ManualClock()
    idle = IdleSources(SOURCES, clock)
    assert idle.passed((100 * SECOND, 7 * SECOND), {0, 1}) == (100 * SECOND, 7 * SECOND)
    clock.at += 61 * SECOND
    # events of the fast one after a pause
    assert idle.passed((200 * SECOND, 7 * SECOND), {0}) == (200 * SECOND, 199 * SECOND)
    assert idle.names == ["slow"]
    assert idle.passed((200 * SECOND, 8 * SECOND), {1}) == (200 * SECOND, 8 * SECOND)
    assert idle.names == []


def test_a_source_that_never_sent_anything_may_be_idle() -> None:
    clock = ManualClock()
    idle = IdleSources(SOURCES, clock)
    assert idle.passed((5 * SECOND, None), {0}) == (5 * SECOND, None)
    clock.at += 61 * SECOND
    assert idle.passed((9 * SECOND, None), {0}) == (9 * SECOND, 8 * SECOND)
    # without others there is nothing to follow
    assert idle.passed((None, None), ()) == (None, None)


def test_rows_come_out_although_a_source_is_silent(tmp_path: Path) -> None:
    clock = ManualClock()
    ratings = PlanStream.of(RATINGS).select("user", "item AS what").window(SECOND)
    clicks = PlanStream.of(CLICKS, 1).select("user", "page AS what").window(SECOND)
    both = ratings.apply(["user"], lambda a, b: a.union(b).top(1, "what"), clicks)
    flow = dataflow(both, "append", (RATINGS, CLICKS), slack=0)
    query = open_dataflow(flow, tmp_path)
    sources = (flow.sources[0], Source("silent", 0, idle=10 * SECOND))
    query.driver._idle_sources = IdleSources(sources, clock)

    def fed(second: int) -> int:
        columns = [
            pa.array([second * SECOND]).cast(flow.time),
            pa.array([0], pa.int32()),
            *(pa.array([1], pa.int64()) for _ in range(2)),
            pa.array(np.ones(1)),
            *(pa.nulls(1, pa.int64()) for _ in range(2)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)
        return int(query.feed([[batch]]).num_rows)

    assert [fed(1), fed(5)] == [0, 0]
    clock.at += 11 * SECOND
    assert fed(9) == 2
    assert query.driver.last is not None
    assert query.driver.last.watermark == 9 * SECOND
