"""Output mode `update` beside Spark's own: the same rows for the same batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import CheckpointError, DefinitionError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SLACK = "4 seconds"


def events(seed: int) -> list[pa.Table]:
    """Return batches of events, some late within the slack and some beyond, one batch empty.

    Spark compares late events with an older watermark, so those beyond are late for both.
    """
    dice = np.random.default_rng(seed)
    tables = []
    for number, size in enumerate((6, 20, 0, 15, 1, 25)):
        times = 5 * number * SECOND + dice.integers(0, 8 * SECOND, size)
        times -= np.where(dice.random(size) < 0.3, dice.integers(0, SECOND, size), 0)
        if number > 3:
            times -= np.where(dice.random(size) < 0.2, 40 * SECOND, 0)
        columns = {
            "ts": pa.array(60 * SECOND + times).cast(pa.timestamp("us", "UTC")),
            "key": pa.array(dice.choice(["a", "b", "c"], size), mask=dice.random(size) < 0.1),
            "x": pa.array(dice.integers(0, 9, size)),
            "item": pa.array(dice.integers(0, 1_000_000, size)),
        }
        tables.append(pa.table(columns))
    return tables


def of_spark(frame: DataFrame, *keys: Any) -> DataFrame:
    grouped = frame.withWatermark("ts", SLACK).groupBy(*keys)
    return grouped.agg(sf.count("*").alias("n"), sf.sum("x").alias("s"), sf.max("x").alias("m"))


def of_ours(grouped: Any) -> Any:
    return grouped.agg(ice.count().alias("n"), ice.sum("x").alias("s"), ice.max("x").alias("m"))


#: a query of Spark, and the same of Icestream
QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], Callable[[ice.Stream], Any]]] = {
    "tumbling": (
        lambda df: of_spark(df, sf.window("ts", "5 seconds"), "key"),
        lambda a: of_ours(a.window("5 seconds").groupBy("key")),
    ),
    "hopping": (
        lambda df: of_spark(df, sf.window("ts", "6 seconds", "2 seconds"), "key"),
        lambda a: of_ours(a.window("6 seconds", "2 seconds").groupBy("key")),
    ),
    "without keys": (
        lambda df: of_spark(df, sf.window("ts", "7 seconds", "7 seconds", "3 seconds")),
        lambda a: of_ours(a.window("7 seconds", startTime="3 seconds")),
    ),
    "running": (lambda df: of_spark(df, "key"), lambda a: of_ours(a.groupBy("key"))),
    "filtered and projected": (
        lambda df: of_spark(df, sf.window("ts", "5 seconds"), "key")
        .where("n < 4")
        .select("key", sf.col("window.start").alias("start"), (sf.col("s") + 1).alias("more")),
        lambda a: of_ours(a.window("5 seconds").groupBy("key"))
        .where("n < 4")
        .select("key", "window.start AS start", "s + 1 AS more"),
    ),
    "without the key": (
        lambda df: of_spark(df, sf.window("ts", "5 seconds"), "key").select("n", "s"),
        lambda a: of_ours(a.window("5 seconds").groupBy("key")).select("n", "s"),
    ),
    "collections": (
        lambda df: df.withWatermark("ts", SLACK)
        .groupBy(sf.window("ts", "5 seconds"), "key")
        .agg(sf.sort_array(sf.collect_set("x")).alias("set"), sf.count("*").alias("n")),
        lambda a: a.window("5 seconds").groupBy("key").agg(
            ice.collect_set("x").alias("set"), ice.count().alias("n")
        ),
    ),
    "pairs of a join": (
        lambda df: df.withWatermark("ts", SLACK)
        .alias("a")
        .join(
            df.withWatermark("ts", SLACK).alias("b"),
            sf.expr(
                "a.x = b.x AND a.item < b.item"
                " AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 SECOND"
            ),
        )
        .select(sf.col("a.item").alias("one"), sf.col("b.item").alias("other")),
        lambda a: a.events()
        .select("x", "item AS one")
        .join(
            a.events().select("x", "item AS other"),
            "x",
            within=("0 seconds", "1 second"),
            where="one < other",
        )
        .select("one", "other"),
    ),
}  # fmt: skip


class Sink:
    """Takes the rows of each batch that has some."""

    def __init__(self) -> None:
        self.rows: list[list[dict[str, Any]]] = []
        self.columns: list[str] = []

    def __call__(self, rows: DataFrame, _number: int) -> None:
        self.columns = rows.columns
        found = [row.asDict(recursive=True) for row in rows.collect()]
        self.rows += [found] * bool(found)

    @property
    def batches(self) -> list[Counter[str]]:
        return [Counter(map(repr, each)) for each in self.rows]


def written(writer: Any, checkpoint: Path) -> Sink:
    sink = Sink()
    writer = writer.outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if isinstance(writer, ice.StreamWriter):
        writer = writer.memory("64 MB").shards(2)
    writer.trigger(availableNow=True).start().awaitTermination()
    return sink


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", QUERIES)
def test_oracle_update_writes_what_spark_writes(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    seed = list(QUERIES).index(name)
    feed = Feed(spark, f"{tmp_path}/in", *events(seed))
    theirs, ours = QUERIES[name]
    stream = ice.stream(feed.stream(), "ts", slack=SLACK)
    wanted = written(theirs(feed.stream()).writeStream, tmp_path / "spark")
    found = written(ours(stream).writeStream, tmp_path / "chk")
    assert found.columns == wanted.columns
    assert len(wanted.batches) > 2
    assert found.batches == wanted.batches


@pytest.mark.sample(1)
@pytest.mark.parametrize("overlap", [6, 60])
def test_oracle_windows_that_overlap_go_on_after_restarts(
    overlap: int, spark: SparkSession, tmp_path: Path
) -> None:
    """Each batch reaches windows that others of other batches and runs began."""
    range_, slide = f"{overlap * 500} milliseconds", "500 milliseconds"

    def theirs(df: DataFrame) -> DataFrame:
        grouped = df.withWatermark("ts", SLACK).groupBy(sf.window("ts", range_, slide), "key")
        return grouped.agg(
            sf.count("x").alias("n"),
            sf.avg("x").alias("a"),
            sf.min("item").alias("least"),
            sf.sort_array(sf.collect_set("x")).alias("set"),
        )

    def ours(stream: ice.Stream) -> Any:
        return stream.window(range_, slide).groupBy("key").agg(
            ice.count("x").alias("n"),
            ice.avg("x").alias("a"),
            ice.min("item").alias("least"),
            ice.collect_set("x").alias("set"),
        )  # fmt: skip

    tables = events(overlap)
    feed = Feed(spark, f"{tmp_path}/in", tables[0])
    found, wanted = list[Counter[str]](), list[Counter[str]]()
    for first in (1, 3, 5, 7):
        stream = ice.stream(feed.stream(), "ts", slack=SLACK)
        wanted += written(theirs(feed.stream()).writeStream, tmp_path / "spark").batches
        found += written(ours(stream).writeStream, tmp_path / "chk").batches
        for table in tables[first : first + 2]:
            feed.add(table)
    assert len(wanted) > 3
    assert found == wanted


def test_sessions_are_refused_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", *events(0))
    theirs = of_spark(feed.stream(), sf.session_window("ts", "2 seconds"), "key")
    with pytest.raises(AnalysisException, match=r"(?i)session window"):
        written(theirs.writeStream, tmp_path / "spark")
    sessions = ice.stream(feed.stream(), "ts").session("2 seconds").groupBy("key").count()
    with pytest.raises(DefinitionError, match=r"a session that grows.*'now'"):
        sessions.writeStream.outputMode("update")


#: queries whose rows may be withdrawn, and why
WITHDRAWN: dict[str, tuple[Callable[[ice.Stream], Any], str]] = {
    "lifetimes that end": (
        lambda a: a.events().last("1 minute").groupBy("key").agg(ice.count()),
        "events that end",
    ),
    "outer join": (
        lambda a: a.events().forever().select("key", "x").join(
            a.events().forever().select("key", "item"), "key", how="left"
        ),
        "may be taken back",
    ),
    "difference": (
        lambda a: a.events().forever().difference(a.where("x > 3").events().forever(), on="key"),
        "may be taken back",
    ),
    "top of several": (
        lambda a: a.events().forever().groupApply("key", lambda group: group.top(2, by="x")),
        "a top of several rows",
    ),
    "versions": (lambda a: a.events().untilNext("key"), "may be taken back"),
    "rows of the stream": (lambda a: a.rows(5).groupBy("key").count(), "events that end"),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHDRAWN)
def test_update_refuses_what_it_cannot_say(name: str, spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", *events(0))
    make, why = WITHDRAWN[name]
    with pytest.raises(DefinitionError, match=rf"{why}.*outputMode\('now'\).*'changes'"):
        make(ice.stream(feed.stream(), "ts")).writeStream.outputMode("update")


def test_the_best_and_the_newest_row_of_a_key_are_replaced(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = events(7)
    feed = Feed(spark, f"{tmp_path}/in", *tables)
    stream = ice.stream(feed.stream(), "ts", slack="1 minute")
    best = stream.events().select("key", "x", "item").forever()
    queries = {
        "top": best.groupApply("key", lambda group: group.top(1, by=["x", "item"])),
        "newest": stream.window("5 seconds", slide="event").groupBy("key").count(),
    }
    last: dict[str, dict[Any, Any]] = {}
    for name, query in queries.items():
        sink = written(query.writeStream, tmp_path / name)
        for batch in sink.rows:
            assert len({row["key"] for row in batch}) == len(batch)
        last[name] = {row["key"]: row for batch in sink.rows for row in batch}
    came = pa.concat_tables(tables).to_pylist()
    for key in ("a", "b", "c", None):
        mine = [row for row in came if row["key"] == key]
        top = max((row["x"], row["item"]) for row in mine)
        assert (last["top"][key]["x"], last["top"][key]["item"]) == top
        times = [row["ts"] for row in mine]
        near = [each for each in times if (max(times) - each).total_seconds() < 5]
        assert last["newest"][key]["count"] == len(near)


def test_a_checkpoint_goes_on_in_the_mode_it_has(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", *events(1))
    stream = ice.stream(feed.stream(), "ts", slack=SLACK)
    counted = stream.window("6 seconds", "2 seconds").groupBy("key").count()
    writer = counted.writeStream.format("noop").memory("64 MB").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{tmp_path}/chk")
    writer.outputMode("changes").start().awaitTermination()
    with pytest.raises(CheckpointError, match=r"write outputMode\('changes'\)"):
        writer.outputMode("update").start()
    writer.outputMode("changes").start().awaitTermination()
