"""Several results over one stream, started as one query on Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import DefinitionError
from tests.fixtures.parquet_feed import Feed, rows

pytestmark = pytest.mark.spark


def events(first: int, count: int) -> pa.Table:
    """Make events a third of a second apart, of 7 keys and 3 sites."""
    number = np.arange(first, first + count)
    return pa.table(
        {
            "ts": pa.array(number * 333_333).cast(pa.timestamp("us", "UTC")),
            "key": pa.array(number * 5 % 7),
            "site": pa.array([f"site {n * 11 % 3}" for n in number.tolist()]),
            "n": pa.array(number * number % 101),
        }
    )


def by_spark(feed: Feed, range: str, slide: str, *keys: str) -> list[tuple[Any, ...]]:
    window = sf.window("ts", range, slide)
    answers = (sf.count("*").alias("count"), sf.sum("n").alias("total"))
    return rows(feed.batch().groupBy(window.alias("window"), *keys).agg(*answers), keys)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("plan", "exchange"), [("auto", "files"), ("tuples", "files"), ("tuples", "storage")]
)
def test_oracle_views_with_sinks_of_their_own_equal_sparks_batches(
    spark: SparkSession, tmp_path: Path, plan: str, exchange: str
) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 60), events(60, 90))
    found: list[pa.Table] = []

    def take(batch: DataFrame, version: int) -> None:
        found.append(batch.toArrow())

    def run() -> None:
        stream = ice.stream(feed.stream(), time="ts", slack="1 second")
        answers = (ice.count().alias("count"), ice.sum("n").alias("total"))
        short = stream.window("10 seconds", slide="2 seconds").groupBy("key").agg(*answers)
        long = stream.window("30 seconds", slide="15 seconds").groupBy("site").agg(*answers)
        query = ice.start(
            short.writeStream.format("parquet").option("path", f"{tmp_path}/short"),
            long.writeStream.foreachBatch(take),
            checkpointLocation=f"{tmp_path}/chk",
            memory="64 MB",
            trigger={"availableNow": True},
            flush=True,
            plan=plan,
            exchange=exchange,
        )
        query.awaitTermination()
        progress = query.lastProgress
        assert progress is not None
        assert plan == "auto" or progress["icestream"]["store"] == plan

    run()
    assert Counter(rows(spark.read.parquet(f"{tmp_path}/short"), ["key"])) == Counter(
        by_spark(feed, "10 seconds", "2 seconds", "key")
    )
    together = spark.createDataFrame(pa.concat_tables(found)) if found else None
    assert together is not None
    assert Counter(rows(together, ["site"])) == Counter(
        by_spark(feed, "30 seconds", "15 seconds", "site")
    )


def test_updates_on_spark_tell_the_groups_that_changed(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table(
        {
            "ts": pa.array([0, 1, 5, 9, 30])
            .cast(pa.timestamp("s", "UTC"))
            .cast(pa.timestamp("us", "UTC")),
            "key": ["a", "b", "a", "b", "c"],
        }
    )
    feed = Feed(spark, f"{tmp_path}/in", table)
    # windows of 10 s, every 5 s      [-5, 5) [0, 10) [5, 15) [10, 20) ... [25, 35)
    result = ice.stream(feed.stream(), "ts").window("10 seconds", slide="5 seconds")
    query = (
        result.groupBy("key")
        .count()
        .writeStream.outputMode("changes")
        .format("memory")
        .queryName("updates")
        .option("checkpointLocation", f"{tmp_path}/chk")
        .option("flush", True)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    reported = [
        (int(row["window"]["end"].timestamp()), row["key"], row["count"])
        for row in spark.table("updates").toLocalIterator()
    ]
    assert sorted(reported) == [
        (5, "a", 1),
        (5, "b", 1),
        (10, "a", 2),
        (10, "b", 2),
        (15, "a", 1),
        (15, "b", 1),
        (20, "a", 0),
        (20, "b", 0),
        (35, "c", 1),
    ]


def test_queries_over_different_streams_are_not_started_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 5))
    one = ice.stream(feed.stream(), "ts").window("1 second").count()
    other = ice.stream(feed.stream(), "ts", "1 second").window("1 second").count()
    with pytest.raises(DefinitionError, match="must read the same stream"):
        ice.start(
            one.writeStream.format("noop"),
            other.writeStream.format("noop"),
            checkpointLocation=f"{tmp_path}/chk",
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize("exchange", ["files", "storage"])
def test_oracle_kinds_started_together_equal_sparks_batches(
    spark: SparkSession, tmp_path: Path, exchange: str
) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 60), events(90, 90))
    stream = ice.stream(feed.stream(), time="ts", slack="1 second")
    total = ice.sum("n").alias("total")
    results = {
        "hops": stream.window("10 seconds", slide="2 seconds").groupBy("key").agg(total),
        "sessions": stream.session("2 seconds").groupBy("site").agg(ice.count().alias("count")),
        "middle": stream.window("20 seconds", slide="5 seconds")
        .groupBy("site")
        .agg(ice.percentile("n", 0.5).alias("middle"), ice.count_distinct("key").alias("keys")),
        "moving": stream.rows(4, partitionBy="key").agg(total),
        "seconds": stream.window("3 seconds", slide="event").groupBy("key").agg(total),
        "longer": stream.window("15 seconds", slide="event")
        .groupBy("key")
        .agg(ice.min("n").alias("least"), total),
    }
    query = ice.start(
        *(each.writeStream.option("path", f"{tmp_path}/{name}") for name, each in results.items()),
        checkpointLocation=f"{tmp_path}/chk",
        memory="64 MB",
        trigger={"availableNow": True},
        flush=True,
        exchange=exchange,
    )
    query.awaitTermination()
    batch = feed.batch()
    hops, session = sf.window("ts", "10 seconds", "2 seconds"), sf.session_window("ts", "2 seconds")
    wide = sf.window("ts", "20 seconds", "5 seconds")
    last_four = Window.partitionBy("key").orderBy("ts").rowsBetween(-3, 0)
    timed = Window.partitionBy("key").orderBy(sf.unix_micros("ts"))
    seconds, longer = (timed.rangeBetween(1 - reach * 1_000_000, 0) for reach in (3, 15))
    expected = {
        "hops": batch.groupBy(hops.alias("window"), "key").agg(sf.sum("n")),
        "sessions": batch.groupBy(session.alias("window"), "site").agg(sf.count("*")),
        "middle": batch.groupBy(wide.alias("window"), "site").agg(
            sf.percentile("n", sf.lit(0.5)), sf.count_distinct("key")
        ),
        "moving": batch.select("ts", "key", sf.sum("n").over(last_four)),
        "seconds": batch.select("ts", "key", sf.sum("n").over(seconds)),
        "longer": batch.select("ts", "key", sf.min("n").over(longer), sf.sum("n").over(longer)),
    }
    for name, frame in expected.items():
        found = spark.read.parquet(f"{tmp_path}/{name}")
        assert Counter(found.collect()) == Counter(frame.collect()), name


def test_oracle_events_and_windows_are_one_query(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 60), events(90, 90))
    stream = ice.stream(feed.stream(), time="ts", slack="1 second")
    rows_ = stream.events()
    hops = stream.window("10 seconds").groupBy("key").agg(ice.sum("n").alias("total"))
    results = {
        "sums": rows_.over(ice.sum("n").alias("so_far"), partitionBy="key"),
        "hops": hops.where("total > 0"),
        "first": rows_.select("key", "n").dropDuplicates("key"),
        "hourly": hops.window("1 hour").agg(ice.sum("total").alias("total")),
    }
    query = ice.start(
        *(each.writeStream.option("path", f"{tmp_path}/{name}") for name, each in results.items()),
        checkpointLocation=f"{tmp_path}/chk",
        memory="64 MB",
        shards=2,
        trigger={"availableNow": True},
        flush=True,
    )
    query.awaitTermination()
    batch = feed.batch()
    window, wide = sf.window("ts", "10 seconds"), sf.window("ts", "1 hour")
    timed = Window.partitionBy("key").orderBy("ts")
    expected = {
        "sums": batch.select("key", sf.sum("n").over(timed)),
        "hops": batch.groupBy(window, "key").agg(sf.sum("n").alias("s")).where("s > 0"),
        "first": batch.groupBy("key").agg(sf.min_by("n", "ts")),
        "hourly": batch.groupBy(wide).agg(sf.sum("n")),
    }
    for name, frame in expected.items():
        found = spark.read.parquet(f"{tmp_path}/{name}")
        found = found.select("key", "so_far") if name == "sums" else found.drop("lifetime")
        assert Counter(found.collect()) == Counter(frame.collect()), name


def test_windows_beside_events_have_final_rows(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 5))
    stream = ice.stream(feed.stream(), "ts")
    with pytest.raises(DefinitionError, match="started with events are in mode 'append', not"):
        ice.start(
            stream.events().dropDuplicates("key").writeStream.format("noop"),
            stream.window("1 second").count().writeStream.format("noop").outputMode("changes"),
            checkpointLocation=f"{tmp_path}/chk",
        )


def test_rows_that_hold_are_not_started_together(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 5))
    counted = ice.stream(feed.stream(), "ts").window("1 second").count()
    for mode in ("update", "now"):
        with pytest.raises(DefinitionError, match=f"'{mode}' is started alone.*or 'changes'"):
            ice.start(
                counted.writeStream.format("noop"),
                counted.writeStream.format("noop").outputMode(mode),
                checkpointLocation=f"{tmp_path}/chk",
            )
