"""One run under overload: a live feed, a query over it, and what the application saw.

Run as `python -m bench.updates.overload_run PLAN`; prints one JSON line for each run of
the plan.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from bench.query_runs import icestream_session, run_all
from bench.updates.seen_staleness import KeyInstants, mean_staleness
from examples.market.quotes import SPARK_SCHEMA, LiveQuotes, number_of

_SCORES = "symbol string, ts timestamp"
#: seconds between two checks whether the measurement is over
_LOOK = 0.5
#: seconds of quotes on which a query is tried before it is measured
_FIRST = 2


class Sleeping:
    """A step that waits for its result, as if a remote model computed it."""

    def __init__(self, seconds: float, over: Path) -> None:
        """Wait `seconds` for each row, and no longer once the file `over` exists."""
        self._seconds = seconds
        self._over = over

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Wait."""
        until = time.monotonic() + self._seconds * rows.num_rows
        while (left := until - time.monotonic()) > 0 and not self._over.exists():
            time.sleep(min(left, _LOOK))
        return rows.select(["symbol", "ts"])


class Application:
    """Records the rows it receives, and when."""

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[tuple[Any, Any, int]] = []

    def __call__(self, rows: DataFrame, version: int) -> None:
        """Record rows."""
        table = rows.toArrow()
        keys = np.array([number_of(name) for name in table.column("symbol").to_pylist()], np.int64)
        times = np.asarray(table.column("ts").cast(pa.int64()).to_numpy())
        self._parts.append((keys, times, time.time_ns() // 1000))

    @property
    def deliveries(self) -> KeyInstants:
        """Return all deliveries."""
        parts = self._parts or [(np.empty(0, np.int64), np.empty(0, np.int64), 0)]
        keys, times, _ = zip(*parts, strict=True)
        at = np.repeat([each[2] for each in parts], [len(each[0]) for each in parts])
        return KeyInstants(np.concatenate(keys), np.concatenate(times), at)


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Feed a query for some time and measure its output."""
    folder = Path(plan["folder"])
    shutil.rmtree(folder, ignore_errors=True)
    _compile(spark, plan, folder / "compiling")
    over, seen = folder / "over", Application()
    feed = _feed(plan, folder, plan["rate"])
    query = (
        _writer(spark, plan, folder, over)
        .foreachBatch(seen)
        .trigger(processingTime=f"{plan['interval']} seconds")
        .start()
    )
    feed.start()
    time.sleep(plan["warm"] + plan["seconds"])
    end = time.time_ns() // 1000
    feed.stop()
    feed.check()
    begin = end - int(1e6 * plan["seconds"])
    reports = query.recentProgress
    failure = query.exception()
    over.touch()
    query.stop()
    if failure is not None:
        raise failure
    batches = [
        each["durationMs"]["triggerExecution"] / 1000
        for each in reports
        if each["timestamp"] >= _stamp(begin)
    ]
    told = [each["icestream"]["updates"] for each in reports]
    deliveries = seen.deliveries
    lately = (deliveries.at >= begin) & (deliveries.at < end)
    return {
        "name": plan["name"],
        "staleness": mean_staleness(feed.written, deliveries, plan["keys"], begin, end),
        "reported": _reported(told),
        "batches": batches,
        "answers_per_second": float(lately.sum()) / plan["seconds"],
        "quotes": feed.quotes,
        "serving": [each["servingMs"] / 1000 for each in told],
    }


def _reported(told: list[dict[str, Any]]) -> float | None:
    """Return the staleness that the query reported at last; without a queue it reports none."""
    whole = told[-1].get("totalStaleness") if told else None
    return None if whole is None else float(whole["averageMs"]) / 1000


def _feed(plan: dict[str, Any], folder: Path, rate: float) -> LiveQuotes:
    (folder / "in").mkdir(parents=True)
    return LiveQuotes(folder / "in", symbols=plan["keys"], rate=rate, skew=plan["skew"], seed=3)


def _writer(
    spark: SparkSession, plan: dict[str, Any], folder: Path, over: Path
) -> ice.StreamWriter:
    """Return the query of this kind over a feed, without sink and trigger."""
    frame = spark.readStream.schema(SPARK_SCHEMA).parquet(str(folder / "in"))
    stream = ice.stream(frame, time="ts")
    step = Sleeping(plan["cost"], over)
    if plan["kind"] == "append":
        result = stream.apply(step, _SCORES)
    elif plan["kind"] == "shedding":
        result = stream.where(f"rand(7) < {plan['kept']}").apply(step, _SCORES)
    else:
        result = stream.latestBy("symbol", schedule=plan["kind"]).apply(step, _SCORES)
    return result.writeStream.option("checkpointLocation", str(folder / "checkpoint"))


def _compile(spark: SparkSession, plan: dict[str, Any], folder: Path) -> None:
    """Run the query over a few quotes: on a new machine its first batch compiles the kernels."""
    feed = _feed(plan, folder, rate=plan["keys"] / _FIRST)
    feed.start()
    time.sleep(_FIRST)
    feed.stop()
    feed.check()
    writer = _writer(spark, plan, folder, folder / "over").foreachBatch(Application())
    writer.trigger(availableNow=True).start().awaitTermination()


def _stamp(micros: int) -> str:
    """Return a time as progress reports format it."""
    return f"{np.datetime64(micros, 'us')}"


if __name__ == "__main__":
    run_all(icestream_session, run)
