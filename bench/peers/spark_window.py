"""Measure Spark's own `groupBy(window(...), key)`: append mode, RocksDB state store.

Run as `python -m bench.peers.spark_window PLAN`; prints one JSON line per run of the
plan. Beyond Spark's defaults: changelog checkpoints, as many shuffle partitions as cores, and at
least one file per core in a batch.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses

from bench import rows
from bench.query_runs import measured, run_all


def session(cores: int) -> SparkSession:
    """Start Spark with the RocksDB state store."""
    state = "spark.sql.streaming.stateStore"
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", cores)
        .config(f"{state}.providerClass", provider)
        .config(f"{state}.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""
    events = (
        spark.readStream.schema(rows.SPARK_SCHEMA)
        .option("maxFilesPerTrigger", plan["files_per_trigger"])
        .parquet(plan["input"])
        .withWatermark("ts", plan["slack"])
    )
    query = (
        events.groupBy(F.window("ts", plan["range"], plan["slide"]), "key")
        .agg(
            F.count("*").alias("n"),
            F.sum("value").alias("s"),
            F.avg("value").alias("a"),
            F.min("value").alias("lo"),
            F.max("value").alias("hi"),
        )
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
