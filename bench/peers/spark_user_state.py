"""Measure Spark's own `transformWithStateInPandas`: running totals by key, RocksDB state store.

Run as `python -m bench.peers.spark_user_state PLAN`; prints one JSON line per run of the
plan. Beyond Spark's defaults: changelog checkpoints, as many shuffle partitions as cores, and at
least one file per core in a batch. A key takes two calls to the state server, one to read and one
to write.
"""

# ruff: noqa: N802, N803 - PySpark's names

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from bench.cold import keyed_rows
from bench.peers.spark_window import session
from bench.query_runs import measured, run_all

STATE = "n long, total double"
OUTPUT = "key long, n long, total double"


class SparkTotals(StatefulProcessor):
    """Count and sum of each key so far."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._seen = handle.getValueState("seen", STATE)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the rows of a key in this batch."""
        n, total = self._seen.get() or (0, 0.0)
        for part in rows:
            n, total = n + len(part), total + float(part["value"].sum())
        self._seen.update((n, total))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})

    def close(self) -> None:
        """Nothing is open."""


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""
    query = (
        spark.readStream.schema(keyed_rows.SPARK_SCHEMA)
        .option("maxFilesPerTrigger", plan["files_per_trigger"])
        .parquet(plan["input"])
        .select("key", "value")
        .groupBy("key")
        .transformWithStateInPandas(SparkTotals(), OUTPUT, "Append", "None")
        .writeStream.format("parquet")
        .outputMode("append")
        .option("path", plan["output"])
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return measured(query, plan)


if __name__ == "__main__":
    run_all(session, run)
