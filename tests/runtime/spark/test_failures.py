"""What a user is told when Spark's own part of a query fails."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.core.errors import DamageError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark


def events(second: int) -> pa.Table:
    times = pa.array([second * 1_000_000]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "key": ["a"]})


def run(feed: Feed, checkpoint: Path) -> None:
    counts = ice.stream(feed.stream(), "ts").window("2 seconds").groupBy("key").count()
    writer = counts.writeStream.format("noop").memory("64 MB").shards(1)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, f"{tmp_path}/in", *map(events, range(3)))


DAMAGES = {
    "metadata": ("empty", "half", "no JSON", "no text", "missing"),
    "offsets/1": ("missing",),
    "offsets/2": ("empty", "half", "no text"),
    "commits/2": ("empty", "half"),
    "sources/0/0": ("half", "missing"),
    "sources/0/2": ("empty", "half", "missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_of_spark_is_named(feed: Feed, tmp_path: Path, name: str) -> None:
    checkpoint = tmp_path / "chk"
    run(feed, checkpoint)
    feed.add(events(9))
    damaged = checkpoint / "spark" / name
    whole = damaged.read_bytes()
    contents = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "no JSON": whole.replace(b":", b"="),
        "no text": whole.replace(b":", b"\xff"),
    }
    for how in DAMAGES[name]:
        damaged.unlink()
        if how != "missing":
            damaged.write_bytes(contents[how])
        with pytest.raises(DamageError) as failed:
            run(feed, checkpoint)
        assert str(damaged) in str(failed.value)
        assert "\n" not in str(failed.value)
        damaged.write_bytes(whole)
    run(feed, checkpoint)


def test_a_file_that_spark_does_not_read_again_stops_nothing(feed: Feed, tmp_path: Path) -> None:
    run(feed, tmp_path / "chk")
    (tmp_path / "chk" / "spark" / "offsets" / "0").write_text("v1\nold and damaged")
    feed.add(events(9))
    run(feed, tmp_path / "chk")
