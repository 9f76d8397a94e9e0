"""What a writer refuses, before anything runs; and checkpoints that belong to something else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.core.errors import CheckpointError, DefinitionError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Ran:
    """A query that ran once, and its checkpoint."""

    feed: Feed
    checkpoint: Path

    def result(self, keys: tuple[str, ...] = ("key",), range: str = "2 seconds") -> ice.Result:
        return ice.stream(self.feed.stream(), "ts").window(range).groupBy(*keys).count()

    def writer(self, folder: Path, result: ice.Result | None = None) -> ice.StreamWriter:
        """Return a writer for a copy of the checkpoint."""
        shutil.copytree(self.checkpoint, folder / "copy")
        writer = (result or self.result()).writeStream.format("noop").trigger(availableNow=True)
        return writer.option("checkpointLocation", f"{folder}/copy")


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    times = pa.array([0, 5_000_000]).cast(pa.timestamp("us", "UTC"))
    feed = Feed(spark, f"{folder}/in", pa.table({"ts": times, "key": ["a", "b"]}))
    ran = Ran(feed, folder / "chk")
    writer = ran.result().writeStream.option("CHECKPOINTLOCATION", f"file://{ran.checkpoint}")
    query = writer.format("noop").shards(1).memory("64 MB").trigger(availableNow=True).start()
    query.awaitTermination()
    return ran


BAD: dict[str, tuple[Callable[[ice.StreamWriter], Any], str]] = {
    "whole output": (lambda w: w.outputMode("whole"), "'whole' is not supported.*append"),
    "no checkpoint": (lambda w: w.format("noop").start(), "checkpointLocation"),
    "a checkpoint on an unknown storage": (
        lambda w: w.format("noop").option("checkpointLocation", "gopher://x/y").start(),
        "cannot be stored on gopher://;",
    ),
    "no path": (lambda w: w.option("checkpointLocation", "/nowhere").start(), "needs .option"),
    "flush of a query that goes on": (
        lambda w: (
            w.format("noop")
            .option("checkpointLocation", "/nowhere")
            .option("flush", "True")
            .start()
        ),
        "needs trigger",
    ),
    "a ticker beside a trigger": (
        lambda w: (
            w.format("noop")
            .options(checkpointLocation="/nowhere", ticker="1 second")
            .trigger(availableNow=True)
            .start()
        ),
        "excludes any other trigger",
    ),
    "a ticker that never ticks": (
        lambda w: w.format("noop").options(checkpointLocation="/nowhere", ticker="0 s").start(),
        "positive interval",
    ),
    "a continuous trigger": (lambda w: w.trigger(continuous="1 second"), "micro-batches"),
    "two triggers": (lambda w: w.trigger(once=True, availableNow=True), "choose one"),
    "memory that is no size": (lambda w: w.memory("a lot"), "cannot read 'a lot' as a size"),
    "a partition column that is not there": (
        lambda w: w.partitionBy("day"),
        r"names \['day'\]; the result has",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_run_is_refused_before_it_starts(name: str, ran: Ran) -> None:
    attempt, message = BAD[name]
    with pytest.raises(DefinitionError, match=message):
        attempt(ran.result().writeStream)


CHOICES: dict[str, tuple[Callable[[ice.StreamWriter], ice.StreamWriter], str]] = {
    "memory": (lambda w: w.memory("1 KB"), r"too small for 1 shards.*\.memory"),
    "memory per": (lambda w: w.memory("1 GB", per="task"), "per 'query' or per 'host'"),
    "shards": (lambda w: w.shards(0), "shards takes a whole number, 1 or more; got 0"),
    "exchange": (lambda w: w.option("exchange", "post"), "'files' or 'storage'"),
    "input": (lambda w: w.option("input", "telepathy"), "'auto' or 'rows'"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_that_cannot_work_is_refused(name: str, ran: Ran, tmp_path: Path) -> None:
    choose, message = CHOICES[name]
    with pytest.raises(DefinitionError, match=message):
        choose(ran.writer(tmp_path)).start()


def test_the_checkpoint_of_another_plan_is_refused_by_naming_what_differs(
    ran: Ran, tmp_path: Path
) -> None:
    writer = ran.writer(tmp_path, ran.result(range="4 seconds"))
    with pytest.raises(CheckpointError, match=r"range: .*'2 seconds'.*'4 seconds'") as caught:
        writer.start()
    assert "keys" not in str(caught.value)


def test_a_checkpoint_of_spark_is_refused(ran: Ran, tmp_path: Path) -> None:
    plain = ran.feed.stream().writeStream.format("noop").trigger(availableNow=True)
    plain.option("checkpointLocation", f"{tmp_path}/chk").start().awaitTermination()
    writer = ran.result().writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(CheckpointError, match="a query of Spark's own, which cannot be continued"):
        writer.option("checkpointLocation", f"{tmp_path}/chk").start()
    assert not (tmp_path / "chk" / "icestream").exists()


def test_the_last_output_mode_counts(ran: Ran) -> None:
    writer = ran.result().writeStream
    for mode in ("append", "changes"):
        again = writer.outputMode("now").outputMode(mode)
        alone = writer.outputMode(mode)
        assert (again._mode, again._schema) == (mode, alone._schema)
        assert again._built.plan == alone._built.plan


def test_a_checkpoint_keeps_its_shards(ran: Ran, tmp_path: Path) -> None:
    query = ran.writer(tmp_path).start()
    query.awaitTermination()
    assert query.exception() is None


def test_the_checkpoint_of_a_newer_format_is_refused(ran: Ran, tmp_path: Path) -> None:
    writer = ran.writer(tmp_path)
    plan = tmp_path / "copy" / "icestream" / "plan.json"
    body, _, seal = plan.read_text().rstrip("\n").rpartition("\n")
    plan.write_text(body + "\n" + re.sub(r"icestream \d+ ", "icestream 999 ", seal) + "\n")
    with pytest.raises(CheckpointError, match=r"format 999.*newer Icestream"):
        writer.start()


def test_a_checkpoint_that_was_rolled_back_is_noticed(ran: Ran, tmp_path: Path) -> None:
    writer = ran.writer(tmp_path)
    shutil.rmtree(tmp_path / "copy" / "icestream" / "commits")
    times = pa.array([9_000_000]).cast(pa.timestamp("us", "UTC"))
    ran.feed.add(pa.table({"ts": times, "key": ["a"]}))
    with pytest.raises(CheckpointError, match=r"Spark sends batch 1.*rolled back"):
        writer.start().awaitTermination()


def test_named_queries_live_under_sparks_common_folder(
    ran: Ran, spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        assert ran.result().writeStream.queryName("q")._checkpoint() == f"{tmp_path}/q"
        with pytest.raises(DefinitionError, match="checkpointLocation"):
            ran.result().writeStream.start()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_table_is_filled(ran: Ran, spark: SparkSession, tmp_path: Path) -> None:
    writer = ran.result().writeStream.option("checkpointLocation", f"{tmp_path}/chk")
    writer.option("flush", True).trigger(availableNow=True).toTable("counted").awaitTermination()
    counts = spark.table("counted").groupBy("key").sum("count").collect()
    assert {row[0] for row in counts} == {"a", "b"}
    spark.sql("drop table counted")
