from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.windows.session import Session
from icestream.testing.sources import SECOND
from tests.fixtures.plans import window_plan
from tests.oracles.arrivals import Row
from tests.oracles.sessions import ObviousSessions

PLAN = window_plan(
    windows=Session(10 * SECOND), slack="5 seconds", aggregates=[Aggregate("count", None, "n")]
)


def feed(oracle: ObviousSessions, *events: tuple[int, int | None]) -> list[Row]:
    """Feed events of (second, key); return rows in seconds."""
    columns = [
        pa.array([second * SECOND for second, _ in events], pa.int64()).cast(PLAN.time),
        pa.array([0] * len(events), pa.int32()),
        pa.array([key for _, key in events], pa.int64()),
        pa.array([None] * len(events), pa.float64()),
    ]
    return reported(oracle.feed([[pa.record_batch(columns, schema=PLAN.batch_schema)]]))


def reported(rows: Sequence[Row]) -> list[Row]:
    return sorted((start // SECOND, end // SECOND, *rest) for start, end, *rest in rows)


def test_sessions_follow_sparks_rules() -> None:
    # slack 5: the watermark is five seconds behind the latest event
    oracle = ObviousSessions(PLAN)
    assert feed(oracle, (0, 1), (10, 1), (21, 1), (3, None)) == [(3, 13, None, 1)]
    assert oracle.watermark == 16 * SECOND
    # the session [0, 20) is open, and so is [21, 31); an event at 11 touches both
    assert feed(oracle, (6, 1), (7, 2), (11, 1)) == []
    assert oracle.late == 1
    assert feed(oracle, (36, 3)) == [(0, 31, 1, 4), (7, 17, 2, 1)]
    assert reported(oracle.flush()) == [(36, 46, 3, 1)]


def test_a_flush_before_the_first_event_has_no_rows() -> None:
    assert ObviousSessions(PLAN).flush() == []
