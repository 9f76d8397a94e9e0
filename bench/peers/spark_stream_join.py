"""Measure Spark's own join of two streams, inner or outer: a bound on time, RocksDB state store.

Run as `python -m bench.peers.spark_stream_join PLAN`; prints one JSON line per run of the
plan. Beyond Spark's defaults: changelog checkpoints, as many shuffle partitions as cores, and at
least one file per core and stream in a batch.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses

from bench.cold import keyed_rows
from bench.peers.spark_window import session
from bench.query_runs import measured, run_all


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""

    def side(name: str) -> DataFrame:
        events = (
            spark.readStream.schema(keyed_rows.SPARK_SCHEMA)
            .option("maxFilesPerTrigger", plan["files_per_trigger"])
            .parquet(plan[name])
            .withWatermark("ts", plan["slack"])
        )
        return events.select(
            F.col("ts").alias(f"{name}_ts"),
            F.col("key").alias(f"{name}_key"),
            F.col("id").alias(f"{name}_id"),
        )

    near = F.expr(
        "left_key = right_key"
        f" AND right_ts >= left_ts - INTERVAL {plan['within']}"
        f" AND right_ts <= left_ts + INTERVAL {plan['within']}"
    )
    query = (
        side("left")
        .join(side("right"), near, plan["how"])
        .select(F.coalesce("left_key", "right_key").alias("key"), "left_id", "right_id")
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
