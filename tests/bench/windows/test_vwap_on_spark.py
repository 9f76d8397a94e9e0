from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.windows.trades import SYMBOLS, TradeColumns
from bench.windows.vwap_on_spark import HOUR, Scale, summarise, write_events, wrong

#: 6,000 events; 1 a second: an hour is 3,600 of them
SCALE = Scale(rate=1, batch=2_000, batches=3, skip=1)


def report(rows: int, millis: int) -> dict[str, Any]:
    phases = {"triggerExecution": millis, "ingest": 10, "component": 20, "sink": 30}
    own = {"resultRows": rows, "logBytes": 144 * rows, "stateMemoryBytes": rows}
    return {
        "batchId": millis,
        "numInputRows": rows,
        "durationMs": phases,
        "icestream": own,
    }


def test_batches_that_warm_up_and_the_flush_do_not_count() -> None:
    flush = {**report(0, 5), "icestream": {**report(7, 0)["icestream"]}}
    found = summarise([report(1_000, 900), report(1_000, 901), report(1_000, 1_099), flush], skip=1)
    assert found["events_per_second"] == pytest.approx(1_000)
    assert (found["batch_ms"], found["batch_max_ms"]) == (1_000, 1_099)
    assert found["batch_p99_to_median"] == pytest.approx(1.097, abs=0.001)
    assert (found["events"], found["result_rows"]) == (3_000, 3_007)
    assert found["sink_ms"] == 30


def test_the_files_hold_the_trades_in_order(tmp_path: Path) -> None:
    write_events(tmp_path / "events", SCALE)
    files = sorted((tmp_path / "events").iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == ["0000.parquet", "0001.parquet", "0002.parquet"]
    times = pq.read_table(files[1]).column("time").cast(pa.int64()).to_pylist()
    assert times == [second * 1_000_000 for second in range(2_000, 4_000)]


def test_what_is_wrong_is_counted(tmp_path: Path) -> None:
    trades, events = TradeColumns(SCALE.rate), 6_000
    last = {event: trades.average(event, HOUR) for event in range(events - SYMBOLS, events)}
    instants = pa.array(range(events)).cast(pa.duration("s")).cast(pa.duration("us"))
    columns: dict[str, Any] = {
        "time": instants.cast(pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "symbol": [event % SYMBOLS for event in range(events)],
        "vwap": [last.get(event, 0.0) for event in range(events)],
    }

    def wrong_in(table: pa.Table) -> int:
        pq.write_table(table, tmp_path / "part.parquet")
        return wrong(tmp_path, SCALE)

    right = pa.table(columns)
    assert wrong_in(right) == 0
    assert wrong_in(right.slice(1)) == 1
    columns["vwap"][-1] *= 1.000001
    assert wrong_in(pa.table(columns)) == 1
