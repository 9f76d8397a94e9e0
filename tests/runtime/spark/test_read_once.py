"""Sources that give other rows whenever they are read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.runtime.spark.tasks import SparkExecutor
from icestream.runtime.version.task import ShardReport, ShardTask
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

EVENTS = 400


def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on about half of the rows, others every time."""
    dice = random.SystemRandom()
    for batch in batches:
        chosen = [number for number in range(batch.num_rows) if dice.random() < 0.5]
        yield batch.take(pa.array(chosen, pa.int64()))


def started(spark: SparkSession, folder: Path, exchange: str) -> ice.Query:
    times = pa.array(range(EVENTS)).cast(pa.timestamp("us", "UTC"))
    keys = pa.array([f"key-{n % 40}" for n in range(EVENTS)])
    stream = Feed(spark, f"{folder}/in", pa.table({"ts": times, "key": keys})).stream()
    wild = stream.mapInArrow(some, stream.schema)
    counted = ice.stream(wild, "ts").window("1 second").groupBy("key").count()
    writer = counted.writeStream.format("parquet").option("path", f"{folder}/out")
    writer = writer.option("checkpointLocation", f"{folder}/chk").option("exchange", exchange)
    return writer.option("flush", True).memory("64 MB").trigger(availableNow=True).start()


@pytest.mark.parametrize("exchange", ["files", "storage"])
def test_crash_a_source_that_is_not_deterministic_is_read_once(
    exchange: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards run twice, as they do when an executor is lost; what they read is what it was."""
    run = SparkExecutor.run

    def twice(executor: SparkExecutor, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        run(executor, tasks)
        return run(executor, tasks)

    monkeypatch.setattr(SparkExecutor, "run", twice)
    query = started(spark, tmp_path, exchange)
    query.awaitTermination()
    counted = spark.read.parquet(f"{tmp_path}/out").selectExpr("sum(`count`)").collect()[0][0]
    assert counted == sum(each["numInputRows"] for each in query.recentProgress)
    assert 0 < counted < EVENTS
