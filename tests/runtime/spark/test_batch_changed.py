"""Sources that give other rows when Spark reads a part of a batch again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.runtime.spark.tasks import ShuffleExchangeExecutor
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.version.work import BatchChanged
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

EVENTS = 400


def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on about half of the rows, others every time."""
    dice = random.SystemRandom()
    for batch in batches:
        chosen = [number for number in range(batch.num_rows) if dice.random() < 0.5]
        yield batch.take(pa.array(chosen, pa.int64()))


def started(spark: SparkSession, folder: Path) -> ice.Query:
    times = pa.array(range(EVENTS)).cast(pa.timestamp("us", "UTC"))
    keys = pa.array([f"key-{n % 40}" for n in range(EVENTS)])
    stream = Feed(spark, f"{folder}/in", pa.table({"ts": times, "key": keys})).stream()
    wild = stream.mapInArrow(some, stream.schema)
    counted = ice.stream(wild, "ts").window("1 second").groupBy("key").count()
    writer = counted.writeStream.format("parquet").option("path", f"{folder}/out")
    writer = writer.option("checkpointLocation", f"{folder}/chk").option("exchange", "shuffle")
    return writer.option("flush", True).memory("64 MB").trigger(availableNow=True).start()


def losing(patch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Lose what executors have stored between ingest and shards, some times; count the losses."""
    run = ShuffleExchangeExecutor.run
    lost: list[int] = []

    def lose(executor: Any, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        if len(lost) < times and executor._parcels:
            lost.append(tasks[0].version)
            for blobs in executor._parcels:
                blobs.unpersist(blocking=True)
        return run(executor, tasks)

    patch.setattr(ShuffleExchangeExecutor, "run", lose)
    return lost


def test_crash_a_source_that_is_not_deterministic_is_read_again_as_a_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = losing(monkeypatch, 2)
    query = started(spark, tmp_path)
    query.awaitTermination()
    assert lost == [1, 1]
    counted = spark.read.parquet(f"{tmp_path}/out").selectExpr("sum(`count`)").collect()[0][0]
    assert counted == sum(each["numInputRows"] for each in query.recentProgress)
    assert 0 < counted < EVENTS


def test_a_source_that_changes_again_and_again_ends_with_advice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = losing(monkeypatch, 1000)
    with pytest.raises(BatchChanged, match=r"exchange', 'storage'"):
        started(spark, tmp_path).awaitTermination()
    assert lost == [1] * 4
