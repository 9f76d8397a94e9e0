from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY
from icestream.operators.dataflow.results import LifetimeRows
from icestream.operators.temporal.changes import changes_of

PAYLOAD = pa.schema([("name", pa.string())])
INSTANT = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def changes(*events: tuple[int, int, int, str | None]) -> pa.RecordBatch:
    le, re, diff = (
        np.array([event[place] for event in events], dtype=np.int64) for place in range(3)
    )
    payload = pa.record_batch([pa.array([e[3] for e in events], pa.string())], PAYLOAD)
    nobody = np.zeros(len(events), dtype=np.uint64)
    return changes_of(payload, le, re, diff, nobody, nobody)


def at(instant: int) -> datetime:
    return EPOCH + timedelta(microseconds=instant)


def test_a_lifetime_without_an_end_has_a_null_there() -> None:
    rows = LifetimeRows(PAYLOAD, INSTANT, "append")(
        changes((-5, INFINITY, 1, "a"), (1, 2, 1, None))
    )
    assert rows.to_pylist() == [
        {"lifetime": {"start": at(-5), "end": None}, "name": "a"},
        {"lifetime": {"start": at(1), "end": at(2)}, "name": None},
    ]


def test_an_event_that_comes_several_times_is_several_rows() -> None:
    rows = LifetimeRows(PAYLOAD, INSTANT, "update")(changes((1, 2, 3, "a"), (1, 2, -2, "b")))
    assert rows.column("change").to_pylist() == [1, 1, 1, -1, -1]
    assert rows.column("name").to_pylist() == ["a", "a", "a", "b", "b"]


def test_rows_have_the_columns_that_were_promised() -> None:
    for mode in ("append", "update"):
        rows = LifetimeRows(PAYLOAD, pa.timestamp("us"), mode)
        made = rows(changes((1, 2, 1, "a")))
        assert made.schema.equals(rows.schema)
        assert ("change" in made.schema.names) == (mode == "update")
        assert rows(changes()).num_rows == 0
