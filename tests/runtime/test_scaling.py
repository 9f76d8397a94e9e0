"""Changing the number of tasks while a query runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import DefinitionError
from icestream.runtime.scaling import check_parallelism, placed, told
from icestream.runtime.shard import ShardReport
from icestream.testing.feed import Feed, rows


def report(shard: int, seconds: float) -> ShardReport:
    return ShardReport(
        shard, "", [], None, [], snapshot=False, rebuilt=False, statistics={"seconds": seconds}
    )


def test_what_shards_take_is_smoothed_and_added_up_over_components() -> None:
    first = told(None, (0, 1), 2, [report(0, 1.0), report(1, 2.0), report(2, 0.5), report(3, 0.5)])
    assert first == {"parallelism": 2, "tasks": [0, 1], "loads": [1.5, 2.5], "moved": 0}
    second = told(
        first, (1, 1), 2, [report(0, 3.5), report(1, 2.5), report(2, 0.0), report(3, 0.0)]
    )
    assert second == {"parallelism": 2, "tasks": [1, 1], "loads": [2.5, 2.5], "moved": 1}


def test_shards_move_only_when_it_is_worth_it() -> None:
    busy = {"parallelism": 2, "tasks": [0, 0, 1, 1], "loads": [2.0, 2.0, 0.1, 0.1], "moved": 0}
    assert placed(busy, 4, 2, rebalance=False) == (0, 0, 1, 1)
    assert placed(busy, 4, 2, rebalance=True) in {(1, 0, 1, 1), (0, 1, 1, 1)}
    idle = {**busy, "loads": [0.02, 0.02, 0.001, 0.001]}
    assert placed(idle, 4, 2, rebalance=True) == (0, 0, 1, 1)


@pytest.mark.parametrize("wrong", [0, -1, 9])
def test_no_more_tasks_than_shards(wrong: int) -> None:
    with pytest.raises(DefinitionError, match="1 to 8 tasks"):
        check_parallelism(wrong, 8)


@pytest.mark.spark
@pytest.mark.parametrize("exchange", ["files", "shuffle"])
def test_oracle_a_running_query_is_rescaled_without_a_trace(
    spark: SparkSession, tmp_path: Path, exchange: str
) -> None:
    dice = np.random.default_rng(5)
    tables = []
    for batch in range(6):
        times = np.sort(dice.integers(batch * 4_000_000, (batch + 1) * 4_000_000, 400))
        column = pa.array(times).cast(pa.timestamp("us", "UTC"))
        tables.append(pa.table({"ts": column, "key": dice.integers(0, 50, 400)}))
    feed = Feed(spark, f"{tmp_path}/in", tables[0])
    result = ice.stream(feed.stream(), "ts").window("8 seconds", "2 seconds").groupBy("key").count()
    writer = result.writeStream.option("checkpointLocation", f"{tmp_path}/chk")
    writer = writer.option("path", f"{tmp_path}/out").option("exchange", exchange)
    query = writer.parallelism(2).memory("256 MB").start()
    seen = []
    for table, tasks in zip(tables[1:], (8, 3, 1, 5, 2), strict=True):
        query.processAllAvailable()
        query.rescale(tasks)
        feed.add(table)
        query.processAllAvailable()
        seen.append((query.lastProgress or {})["icestream"]["parallelism"])
    query.stop()
    assert seen == [8, 3, 1, 5, 2]
    window = sf.window("ts", "8 seconds", "2 seconds")
    closed = "window.end <= timestamp '1970-01-01 00:00:20Z'"
    expected = feed.batch().groupBy(window, "key").count().where(closed)
    found = spark.read.parquet(f"{tmp_path}/out").where(closed)
    assert sorted(rows(found, ("key",))) == sorted(rows(expected, ("key",)))
