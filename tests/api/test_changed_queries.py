"""Queries that change between two starts, on Spark, with their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api.query_warnings import QueryWarning
from icestream.core.errors import CheckpointError, DefinitionError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000


def calls(batch: int) -> pa.Table:
    seconds = [4 * batch + n for n in (2, 3, 0, 1)]
    times = pa.array([each * SECOND for each in seconds]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "key": ["a", "b", "a", None], "x": [batch, 2, 3, 4]})


def run(writer: Any, folder: Path) -> ice.Query:
    query = writer.option("checkpointLocation", f"{folder}/chk").memory("64 MB").shards(2)
    started: ice.Query = query.trigger(availableNow=True).start()
    started.awaitTermination()
    return started


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_an_aggregate_is_added_to_windows_and_to_their_table(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, f"{tmp_path}/in", *(calls(each) for each in range(3)))

    def writer(*aggregates: Any) -> Any:
        stream = ice.stream(feed.stream(), "ts", slack="2 seconds")
        kpis = stream.window("10 seconds").groupBy("key").agg(*aggregates)
        return kpis.writeStream.format(kind).option("path", f"{tmp_path}/out")

    total = ice.sum("x").alias("total")
    run(writer(total), tmp_path)
    feed.add(calls(3))
    both = total, ice.max(sf.col("x") + 1).alias("most"), ice.count().alias("n")
    with pytest.raises(DefinitionError, match=r"most .* is missing in it.*mergeSchema"):
        run(writer(*both), tmp_path)
    with pytest.warns(QueryWarning, match="has changed, and goes on with its state.*total"):
        run(writer(*both).option("mergeSchema", "true"), tmp_path)
    for number in (4, 5):
        feed.add(calls(number))
    run(writer(*both).option("mergeSchema", "true"), tmp_path)
    if kind == "delta":
        table = DeltaTable(f"{tmp_path}/out").to_pyarrow_table()
    else:
        table = spark.read.option("mergeSchema", "true").parquet(f"{tmp_path}/out").toArrow()
    came = pa.concat_tables(
        calls(each).append_column("batch", pa.array([each] * 4)) for each in range(6)
    )
    base = duckdb.connect()
    base.execute("SET TimeZone = 'UTC'")
    base.register("came", came)
    base.register("rows", table.flatten())
    # the sum and the number of events are whole; the maximum began with the change
    wanted = base.sql(
        "SELECT time_bucket(INTERVAL '10 seconds', ts), key, sum(x), "
        "max(x + 1) FILTER (WHERE batch >= 3), count(*) FROM came "
        "WHERE ts < '1970-01-01 00:00:20+00' GROUP BY ALL"
    )
    found = base.sql('SELECT "window.start", key, total, most, n FROM rows')
    assert set(found.fetchall()) == set(wanted.fetchall())
    assert len(found) == 6


def test_an_aggregate_is_added_to_a_table_of_what_holds(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, f"{tmp_path}/in", *(calls(each) for each in range(2)))

    def started(*aggregates: Any) -> ice.Query:
        events = ice.stream(feed.stream(), "ts", slack="1 hour").events().forever()
        sums = events.groupApply("key", lambda group: group.agg(*aggregates))
        writer = sums.writeStream.outputMode("now").format("delta")
        writer = writer.option("path", f"{tmp_path}/lake").option("mergeSchema", "true")
        return run(writer, tmp_path)

    total = ice.sum("x").alias("total")
    started(total)
    feed.add(calls(2).slice(0, 1))
    with pytest.warns(QueryWarning, match="has changed"):
        query = started(total, ice.count().alias("n"), ice.sum("x + 0").alias("since"))
    # only a came since, and all rows have the new columns
    wanted = {("a", 9, 5, 2), ("b", 4, 2, None), (None, 8, 2, None)}
    assert {tuple(row) for row in query.table().collect()} == wanted
    lake = DeltaTable(f"{tmp_path}/lake").to_pyarrow_table().to_pylist()
    assert {tuple(row[name] for name in ("key", "total", "n", "since")) for row in lake} == wanted
    query = started(total, ice.count().alias("n"), ice.sum("x + 0").alias("since"))
    assert {tuple(row) for row in query.table().collect()} == wanted


def test_a_table_can_be_asked_before_its_new_columns_are_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, f"{tmp_path}/in", calls(0))

    def asked(*aggregates: Any) -> int:
        counted = ice.stream(feed.stream(), "ts", slack="1 hour").groupBy("key").agg(*aggregates)
        query = run(counted.writeStream.outputMode("now"), tmp_path)
        return len([row.asDict() for row in query.table().collect()])

    count = asked(ice.count().alias("n"))
    with pytest.warns(QueryWarning, match="has changed"):
        assert asked(ice.count().alias("n"), ice.sum("x").alias("total")) == count > 0


def test_columns_behind_state_keep_their_zone(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", calls(0))

    def begin(zone: str) -> None:
        spark.conf.set("spark.sql.session.timeZone", zone)
        stream = ice.stream(feed.stream(), "ts", slack="2 seconds")
        text = "SELECT key, hour(max(ts)) AS h FROM calls GROUP BY key"
        query = ice.sql(text, calls=stream).writeStream.outputMode("changes")
        run(query.format("parquet").option("path", f"{tmp_path}/out"), tmp_path)

    try:
        begin("Europe/Berlin")
        feed.add(calls(1))
        with pytest.raises(CheckpointError, match=r"in Europe/Berlin .* in Asia/Tokyo"):
            begin("Asia/Tokyo")
        begin("Europe/Berlin")
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert {row.h for row in spark.read.parquet(f"{tmp_path}/out").collect()} == {1}
