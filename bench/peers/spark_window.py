"""Measure Spark's own `groupBy(window(...), key)`: append mode, RocksDB state store.

Run as `python -m bench.peers.spark_window PLAN`; prints one JSON line per run of the
plan. Beyond Spark's defaults: changelog checkpoints, as many shuffle partitions as cores, and at
least one file per core in a batch.

The query is written in two ways. `one` window copies each event into every window it belongs to.
`two` chained windows first fold the events of a slide, by a window that tumbles, and then copy one
row for each key and slide: the way to write it well.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
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
    found = _in_two(events, plan) if plan.get("windows") == "two" else _in_one(events, plan)
    query = (
        found.writeStream.format("parquet")
        .outputMode("append")
        .option("path", plan["output"])
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return measured(query, plan)


def _in_one(events: DataFrame, plan: dict[str, Any]) -> DataFrame:
    return events.groupBy(F.window("ts", plan["range"], plan["slide"]), "key").agg(
        F.count("*").alias("n"),
        F.sum("value").alias("s"),
        F.avg("value").alias("a"),
        F.min("value").alias("lo"),
        F.max("value").alias("hi"),
    )


def _in_two(events: DataFrame, plan: dict[str, Any]) -> DataFrame:
    slides = events.groupBy(F.window("ts", plan["slide"]), "key").agg(
        F.count("*").alias("n"),
        F.sum("value").alias("s"),
        F.min("value").alias("lo"),
        F.max("value").alias("hi"),
    )
    whole = F.window(F.window_time("window"), plan["range"], plan["slide"])
    return slides.groupBy(whole, "key").agg(
        F.sum("n").alias("n"),
        F.sum("s").alias("s"),
        (F.sum("s") / F.sum("n")).alias("a"),
        F.min("lo").alias("lo"),
        F.max("hi").alias("hi"),
    )


if __name__ == "__main__":
    run_all(session, run)
