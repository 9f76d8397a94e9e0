"""A result per event on Spark: the whole way from Parquet files to Parquet files.

Idea: the query of `vwap`, through the public interface: events come from existing files, at full
speed, every batch is committed and its results are written, a row for every event. It is measured
once the window is full, so that as many events leave it as enter it. It is written in two ways: as
one weighted average, and as the quotient of two sums, which Spark multiplies before and divides
after. In size `full` the weighted average has the window of the paper, an hour of 100,000 events
a second; the quotient has one of a hundredth.

Run as `python -m bench.windows.vwap_on_spark PLAN`; prints one JSON line per run of the
plan.

Invariants:
1. Every event has a result, and the last one of every symbol is exact up to rounding
   (`test_what_is_wrong_is_counted`).

Cost: `full` writes 440 million events, 7 GB, and takes up to 25 GB of disk in all.

Limits: the latency of an event is at most that of its batch, and at full speed batches are large.
Of the results, only the last of every symbol is compared: a running sum that was once wrong stays
wrong.

References: section 5.3 and table 1 of SlideM.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset

from bench.harness import scratch, workspace
from bench.processes import results
from bench.registry import Size
from bench.steady import steady_rate
from bench.windows.trades import SECOND, SYMBOLS, TradeColumns

CORES = 2
MEMORY = "64 MB"
HOUR = 3_600
#: seconds after which the process is stopped
LIMIT = 1_800.0
#: bytes of the columns of a trade: time, symbol, price, volume
TRADE_BYTES = 24
#: ways to write the query
AVERAGE, QUOTIENT = WAYS = ("weighted average", "quotient of sums")
_PHASES = ("ingest", "component", "sink")
_SCHEMA = "time timestamp, symbol int, price double, volume int"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    #: events in a second of event time, in a file, which is a batch, and files in all
    rate: int
    batch: int
    batches: int
    #: batches that fill the window and warm everything up
    skip: int

    @property
    def window(self) -> int:
        """Events in a full window."""
        return HOUR * self.rate


_SMALL = Scale(rate=100, batch=200_000, batches=6, skip=3)
_MEDIUM = Scale(rate=1_000, batch=500_000, batches=18, skip=9)
_LARGE = Scale(rate=100_000, batch=2_000_000, batches=220, skip=180)
SCALES = {
    Size.SMALL: dict.fromkeys(WAYS, _SMALL),
    Size.FULL: {AVERAGE: _LARGE, QUOTIENT: _MEDIUM},
}


def measure(size: Size) -> dict[str, Any]:
    """Write the events and run the query, in a process of its own; return figures by way."""
    found = {}
    for way, scale in SCALES[size].items():
        folder = scratch(workspace(), "vwap-on-spark")
        write_events(folder / "events", scale)
        run = {
            "name": way,
            "input": str(folder / "events"),
            "output": str(folder / "results"),
            "checkpoint": str(folder / "checkpoint"),
            "memory": MEMORY,
            "skip": scale.skip,
        }
        command = [sys.executable, "-m", "bench.windows.vwap_on_spark"]
        (figures,) = results(command, {"cores": CORES, "runs": [run]}, limit=LIMIT)
        columns = TRADE_BYTES * min(scale.window, scale.batch * scale.batches)
        found[way] = figures | {
            "window_bytes": TRADE_BYTES * scale.window,
            "log_to_columns": figures["log_bytes"] / columns,
            "wrong_results": wrong(folder / "results", scale),
        }
        shutil.rmtree(folder, ignore_errors=True)
    return found


def write_events(folder: Path, scale: Scale) -> None:
    """Write the trades, a file per batch."""
    folder.mkdir(parents=True)
    trades = TradeColumns(scale.rate)
    for number in range(scale.batches):
        first = number * scale.batch
        columns = trades.batches(first, first + scale.batch, scale.batch)
        tables = [
            pa.table(
                {
                    "time": pa.array(times, pa.timestamp("us", tz="UTC")),
                    "symbol": symbols,
                    "price": prices,
                    "volume": volumes,
                }
            )
            for times, symbols, prices, volumes in columns
        ]
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.concat_tables(tables), path, compression="lz4", use_dictionary=["symbol"])
        # Spark reads files in the order of their modification times
        os.utime(path, (number + 1, number + 1))


def wrong(results: Path, scale: Scale) -> int:
    """Count the events without a result, and the symbols whose last result is not the exact one."""
    events = scale.batch * scale.batches
    rows = dataset.dataset(str(results), format="parquet")
    missing: int = abs(events - rows.count_rows())
    # Spark's setting decides how instants are stored: with or without a zone, in which unit
    kind = rows.schema.field("time").type
    instant = (events - SYMBOLS) * SECOND // scale.rate
    latest = pa.scalar(instant, pa.timestamp("us", tz=kind.tz)).cast(kind)
    last = rows.to_table(filter=dataset.field("time") >= latest)
    trades = TradeColumns(scale.rate)
    exact = {
        (events - SYMBOLS + place) % SYMBOLS: trades.average(events - SYMBOLS + place, scale.window)
        for place in range(SYMBOLS)
    }
    found = dict(
        zip(last.column("symbol").to_pylist(), last.column("vwap").to_pylist(), strict=True)
    )
    off = sum(
        symbol not in found or not math.isclose(found[symbol], value, rel_tol=1e-12)
        for symbol, value in exact.items()
    )
    return missing + off


def summarise(progress: Sequence[Mapping[str, Any]], skip: int) -> dict[str, Any]:
    """Return the rate, the times of warm batches by phase, and the bytes on the log."""
    reports = [each for each in progress if each["numInputRows"]]
    warm = [each["durationMs"] for each in reports[skip:]]
    took = [each["triggerExecution"] for each in warm]
    events = sum(each["numInputRows"] for each in reports)
    return {
        "events_per_second": steady_rate(reports, skip),
        "events_in_a_batch": reports[-1]["numInputRows"],
        "batch_ms": fmean(took),
        "batch_max_ms": max(took),
        "batch_p99_to_median": float(np.percentile(took, 99)) / median(took),
        **{f"{phase}_ms": fmean(each[phase] for each in warm) for phase in _PHASES},
        "result_rows": sum(each["icestream"]["resultRows"] for each in progress),
        "log_bytes": reports[-1]["icestream"]["logBytes"],
        "memory_bytes": max(each["icestream"]["stateMemoryBytes"] for each in reports),
        "events": events,
    }


def run(plan: Mapping[str, Any], cores: int) -> dict[str, Any]:
    """Run one query over all its files."""
    import icestream as ice  # noqa: PLC0415 - only the process that runs Spark needs it

    spark = ice.local_session(
        "vwap-on-spark", cores=cores, conf={"spark.sql.session.timeZone": "UTC"}
    )
    files = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(plan["input"])
    trades = ice.stream(files, time="time", slack="0 seconds")
    average = (
        trades.window("1 hour", slide="event")
        .groupBy("symbol")
        .agg(ice.weighted_avg("price", "volume").alias("vwap"))
    )
    quotient: ice.Result = ice.sql(
        "SELECT symbol, SUM(volume * price) / SUM(volume) AS vwap "
        "FROM trades [RANGE 1 HOUR] GROUP BY symbol",
        trades=trades,
    )
    query = (
        (average if plan["name"] == WAYS[0] else quotient)
        .writeStream.format("parquet")
        .option("path", plan["output"])
        .option("checkpointLocation", plan["checkpoint"])
        .option("flush", True)
        .memory(plan["memory"])
        .trigger(availableNow=True)
        .start()
    )
    # a query remembers a hundred batches
    reports: dict[int, Mapping[str, Any]] = {}
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(1.0))
        reports |= {each["version"]: each for each in query.recentProgress}
    return {"name": plan["name"], **summarise(list(reports.values()), plan["skip"])}


def main() -> None:
    """Run every query of the plan, one after the other."""
    plan = json.loads(sys.argv[1])
    for one in plan["runs"]:
        print(json.dumps(run(one, plan["cores"])), flush=True)


if __name__ == "__main__":
    main()
