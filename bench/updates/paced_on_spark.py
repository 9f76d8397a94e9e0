"""How long batches take on Spark where a sink, a key, windows or a first call are slow.

Run as `python -m bench.updates.paced_on_spark PLAN`; prints one JSON line for each run of the plan.

Idea: Spark's `rate` source updates every key once a second. Before a run is measured the same query
runs with a step that costs nothing, so that the first measured batch compiles no kernels; every
batch that has input counts from then on, also the first. The cases are those of `paced_batches`,
where the clock is virtual.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from bench.query_runs import icestream_session, run_all
from bench.updates.paced_batches import ALIGNED, LOADING, SINK

#: seconds of all runs but that with a slow first call, which has its call in addition
SECONDS = 14
#: versions that a query makes before it is measured, and seconds that they may take
_FIRST = 2
_STARTS = 90
#: seconds between two looks at the progress
_LOOK = 0.5
#: batches after a slow call that have taken in what came meanwhile
_SETTLED = 4


@dataclass(frozen=True)
class Case:
    """What is slow."""

    keys: int
    #: seconds that the step takes for a row, and more until its first call has ended
    each: float = 0.0
    loading: float = 0.0
    #: seconds that the sink takes for a version
    sink: float = 0.0
    windowed: bool = False


CASES = {
    "keys": Case(30, 0.5),
    "windows": Case(ALIGNED, 0.001, windowed=True),
    "call": Case(4_000, 0.001, loading=LOADING),
    "sink": Case(1_000, 0.004, sink=SINK),
}


class Slow:
    """A step that waits for a service, which must start first."""

    def __init__(self, case: Case, started: Path) -> None:
        """Wait as the case says; the file `started` exists once the service runs."""
        self._case, self._started = case, started

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Wait."""
        if not self._started.exists():
            time.sleep(self._case.loading)
            self._started.touch()
        time.sleep(self._case.each * rows.num_rows)
        return rows.select(["symbol"])


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run a case and return its figures."""
    folder, name = Path(plan["folder"]), plan["name"]
    shutil.rmtree(folder, ignore_errors=True)
    case = CASES[name]
    free = Case(case.keys, windowed=case.windowed)
    _batches(spark, free, folder / "compiling", _STARTS, versions=_FIRST)
    batches = _batches(spark, case, folder / "measured", SECONDS + case.loading)
    took = [seconds for seconds, _ in batches]
    normal = [served for _, served in batches[_SETTLED:]]
    return {
        "name": name,
        "batches": batches,
        "longest": max(took),
        "first": took[0],
        "second": took[1],
        "answers_after": batches[1][1] / float(np.median(normal)),
    }


def _batches(
    spark: SparkSession, case: Case, folder: Path, seconds: float, versions: int | None = None
) -> list[tuple[float, int]]:
    """Run a query for some time, or to some version; return seconds and answers of each batch."""

    def deliver(rows: DataFrame, _: int) -> None:
        rows.toArrow()
        time.sleep(case.sink)

    folder.mkdir(parents=True)
    query = (
        _answers(spark, case, Slow(case, folder / "started"))
        .writeStream.foreachBatch(deliver)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )
    until, found = time.monotonic() + seconds, list[tuple[float, int]]()
    while time.monotonic() < until and (versions is None or len(found) < versions):
        time.sleep(_LOOK)
        found = [
            (each["durationMs"]["triggerExecution"] / 1000, each["icestream"]["updates"]["served"])
            for each in query.recentProgress
            if "updates" in each.get("icestream", {})
        ]
    failure = query.exception()
    query.stop()
    if failure is not None:
        raise failure
    return found


def _answers(spark: SparkSession, case: Case, step: Slow) -> Any:
    rows = spark.readStream.format("rate").option("rowsPerSecond", case.keys).load()
    frame = rows.select(
        sf.date_trunc("second", "timestamp").alias("ts"),
        (sf.col("value") % case.keys).alias("symbol"),
    )
    newest: Any = ice.stream(frame, time="ts").latestBy("symbol")
    if case.windowed:
        newest = newest.window("1 second", semantics="lazy").agg(ice.count().alias("n"))
    return newest.apply(step, "symbol long")


if __name__ == "__main__":
    run_all(icestream_session, run)
