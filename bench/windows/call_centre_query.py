"""Run the 144 figures of the call centres on Spark and report every batch.

Run as `python -m bench.windows.call_centre_query PLAN`; prints one JSON line per batch
and one at the end. The files of the plan exist before it starts.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import psutil
from pyspark.sql import DataFrame

import icestream as ice
from icestream.api.functions import AggregateExpression
from icestream.demo.call_centre.kpis import FIELDS, GROUPINGS
from icestream.demo.call_centre.schema import SPARK_SCHEMA


def figures() -> list[AggregateExpression]:
    """Return the aggregates of one grouping: the count, and sum and average of each field."""
    chosen = [ice.count().alias("calls")]
    for name in FIELDS:
        chosen += [ice.sum(name).alias(f"sum_{name}"), ice.avg(name).alias(f"avg_{name}")]
    return chosen


class Workers(threading.Thread):
    """Samples the memory of all Python processes under this one."""

    def __init__(self) -> None:
        """Prepare; `start()` begins."""
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self.peak = 0

    def run(self) -> None:
        """Sample twice a second."""
        while not self._ended.wait(0.5):
            self.peak = max(self.peak, self._now())

    def stop(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self.join()

    def _now(self) -> int:
        total = 0
        for process in psutil.Process().children(recursive=True):
            try:
                if "python" in process.name():
                    total += process.memory_full_info().uss
            except psutil.Error:
                continue
        return total


def main() -> None:
    """Run one query over the existing files."""
    plan = json.loads(sys.argv[1])
    spark = ice.local_session("call-centre", cores=plan["cores"])
    files = (
        spark.readStream.schema(SPARK_SCHEMA)
        .option("maxFilesPerTrigger", plan["files_per_trigger"])
        .parquet(plan["input"])
    )
    calls = ice.stream(files, time="timestamp", slack=plan["slack"])
    kpis = (
        calls.window(plan["range"], slide=plan["slide"])
        .groupingSets([[key] for key in GROUPINGS], *GROUPINGS)
        .agg(*figures())
    )

    def keep(rows: DataFrame, version: int) -> None:
        if version >= plan["keep_from"]:
            rows.write.parquet(str(Path(plan["output"]) / f"version-{version}"))

    workers = Workers()
    workers.start()
    query = (
        kpis.writeStream.foreachBatch(keep)
        .outputMode(plan["mode"])
        .option("checkpointLocation", plan["checkpoint"])
        .option("plan", plan["store"])
        .memory(plan["memory"])
        .trigger(availableNow=True)
        .start()
    )
    told: set[int] = set()
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(0.5))
        for each in query.recentProgress:
            if each["numInputRows"] and each["version"] not in told:
                told.add(each["version"])
                print(json.dumps(each), flush=True)
    workers.stop()
    print(json.dumps({"workers_bytes": workers.peak}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
