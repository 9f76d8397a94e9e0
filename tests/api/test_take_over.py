"""Two starts on one checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

import icestream as ice
from icestream.core.errors import CheckpointError, IcestreamError
from icestream.runtime.version.lease import LEASE
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import VersionStore
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark


def events(*seconds: int) -> pa.Table:
    times = pa.array([second * 1_000_000 for second in seconds], pa.int64())
    return pa.table({"ts": times.cast(pa.timestamp("us", "UTC")), "key": ["a"] * len(seconds)})


def writer(feed: Feed, folder: Path) -> ice.StreamWriter:
    counts = ice.stream(feed.stream(), "ts").window("2 seconds").groupBy("key").count()
    out = counts.writeStream.format("parquet").option("path", f"{folder}/out").shards(1)
    return out.option("checkpointLocation", f"{folder}/chk").memory("64 MB")


def rows(spark: SparkSession, folder: Path) -> list[Any]:
    found = spark.read.parquet(f"{folder}/out").select("window.start", "count").collect()
    return sorted((row[0].timestamp(), row[1]) for row in found)


def test_a_second_start_is_refused_or_takes_over(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 1, 2, 3))
    first = writer(feed, tmp_path).queryName("first").start()
    first.processAllAvailable()
    reported = rf"query 'first' of .* \(process {os.getpid()} on .*takeOver"
    with pytest.raises(CheckpointError, match=reported):
        writer(feed, tmp_path).start()
    assert first.exception() is None
    second = writer(feed, tmp_path).option("takeOver", True).start()
    feed.add(events(4, 5, 6, 7))
    second.processAllAvailable()
    assert not first.isActive
    second.stop()
    assert os.listdir(tmp_path / "chk" / "icestream" / LEASE) == []
    feed.add(events(8, 9, 10, 30))
    # a clean stop lets the next one start at once
    third = writer(feed, tmp_path).trigger(availableNow=True).option("flush", True).start()
    third.awaitTermination()
    begins = rows(spark, tmp_path)
    assert [count for _, count in begins] == [2, 2, 2, 2, 2, 1, 1]
    assert len({begin for begin, _ in begins}) == 7


def test_a_start_that_fails_lets_the_next_one_start(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 1, 2, 3))
    wrong = writer(feed, tmp_path).trigger(availableNow=True)
    refused = mock.patch.object(DataStreamWriter, "start", side_effect=RuntimeError("refused"))
    with refused, pytest.raises(RuntimeError, match="refused"):
        wrong.start()
    query = writer(feed, tmp_path).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None


def test_a_query_that_is_refused_leaves_no_identity(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", events(0, 1, 2, 3))
    write_deltalake(f"{tmp_path}/lake", pa.table({"other": [1]}))
    for refused in (
        writer(feed, tmp_path).format("delta").option("path", f"{tmp_path}/lake"),
        writer(feed, tmp_path).option("stateLocation", f"{tmp_path}/chk/state").memory("1 KB"),
        writer(feed, tmp_path).shards(1 << 30),
    ):
        with pytest.raises(IcestreamError):
            refused.trigger(availableNow=True).start()
        assert not [*tmp_path.rglob("identity.json")]
    assert not (tmp_path / "chk" / "commits").exists()
    # the identity is made with the first start, and stays
    for _ in range(2):
        writer(feed, tmp_path).trigger(availableNow=True).start().awaitTermination()
    (made,) = tmp_path.rglob("identity.json")
    assert VersionStore(LocalFiles(), str(made.parent)).identity() in {
        name.split("-")[2] for name in os.listdir(tmp_path / "out") if name.startswith("part-")
    }


def test_of_two_first_starts_one_makes_the_identity(tmp_path: Path) -> None:
    one, other = (VersionStore(LocalFiles(), str(tmp_path)) for _ in range(2))
    first, second = one.identity("1" * 32), other.identity("2" * 32)
    assert not [*tmp_path.iterdir()]
    one.make_identity(first)
    with pytest.raises(CheckpointError, match="at the same moment"):
        other.make_identity(second)
    assert other.identity("3" * 32) == one.identity() == "1" * 32
    one.make_identity(first)
