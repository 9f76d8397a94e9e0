"""The words of PySpark's DataFrames on everything that has columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import DefinitionError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def stream(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ice.Stream:
    times = pa.array([0, 1_000_000, 2_000_000]).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": times, "k": ["a", "b", "a"], "x": [1, 2, 3]})
    feed = Feed(spark, f"{tmp_path_factory.mktemp('words')}/in", rows)
    return ice.stream(feed.stream(), "ts")


KINDS: dict[str, Callable[[ice.Stream], Any]] = {
    "stream": lambda stream: stream,
    "events": lambda stream: stream.events(),
    "updates": lambda stream: stream.latestBy("k"),
    "result": lambda stream: (
        stream.rows(3, partitionBy="k").agg(ice.sum("x").alias("x")).select("time AS ts", "k", "x")
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_has_the_same_words(
    kind: str, stream: ice.Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = KINDS[kind](stream)
    assert rows.columns == ["ts", "k", "x"]
    for made, columns in (
        (rows.select("ts", "k", sf.col("x")), ["ts", "k", "x"]),
        (rows.selectExpr("ts", "k", "x * 2 AS y"), ["ts", "k", "y"]),
        (rows.select("*", "x + 1 AS y"), ["ts", "k", "x", "y"]),
        (rows.withColumn("x", "x * 2"), ["ts", "k", "x"]),
        (rows.withColumn("y", sf.col("x") * 2), ["ts", "k", "x", "y"]),
        (rows.withColumns({"y": "x", "z": sf.col("x")}), ["ts", "k", "x", "y", "z"]),
        (rows.withColumnRenamed("x", "y").where("y > 1"), ["ts", "k", "y"]),
        (rows.withColumnRenamed("none", "y").filter(sf.col("x") > 1), ["ts", "k", "x"]),
        (rows.drop("x", "none"), ["ts", "k"]),
    ):
        assert made.columns == columns
    rows.printSchema()
    assert " |-- k: string (nullable = true)" in capsys.readouterr().out
    with pytest.raises(AttributeError, match="have no 'frobnicate': they have"):
        rows.frobnicate  # noqa: B018
    with pytest.raises(DefinitionError):
        rows.drop("ts", "k", "x")


def test_words_that_are_not_there_name_others(stream: ice.Stream) -> None:
    for kind, word, instead in (
        ("stream", "agg", r"groupBy\(...\).agg"),
        ("events", "orderBy", "top"),
        ("updates", "groupBy", r"window\(...\).groupBy"),
        ("result", "top", r"events\(\)"),
    ):
        with pytest.raises(AttributeError, match=instead):
            getattr(KINDS[kind](stream), word)


def test_groups_are_those_of_pyspark(stream: ice.Stream) -> None:
    for grouped in (stream.groupBy("k"), stream.events().forever().groupBy(["k"])):
        assert grouped.agg(ice.max("x").alias("m")).columns == ["k", "m"]
        assert grouped.count().columns == ["k", "count"]


def test_batches_are_joined_before_and_after(stream: ice.Stream, spark: SparkSession) -> None:
    names = spark.createDataFrame([("a", "Ann")], "k string, name string")
    joined = stream.join(names, on="k", how="left")
    assert joined.columns == ["k", "ts", "x", "name"]
    counted = joined.window("1 second").groupBy("name").count()
    assert counted.columns == ["window", "name", "count"]
    result = KINDS["result"](stream).join(names, on="k")
    assert result.columns == ["k", "ts", "x", "name"]
    assert result.groupBy("name").count().columns == ["name", "count"]
    with pytest.raises(DefinitionError, match="batch DataFrame"):
        stream.join(stream._parts[0].frame, on="k")
    # the event time keeps its meaning under another name
    other = stream.withColumnRenamed("x", "y").withColumnRenamed("ts", "at")
    assert other.window("1 second").count().columns == ["window", "count"]
    assert stream.join(other, on="k", within="1 second").columns == ["ts", "k", "x", "at", "y"]


def test_words_about_events_are_those_of_events(stream: ice.Stream) -> None:
    result = KINDS["result"](stream)
    for rows in (stream, result, stream.events()):
        names = rows.columns
        assert rows.dropDuplicates("k").columns == names
        assert rows.union(rows.where("x > 1").events()).columns == names  # type: ignore[arg-type]
        assert rows.over(ice.lag("x").alias("y"), partitionBy="k").columns == [*names, "y"]
        assert rows.groupApply("k", lambda group: group.top(1, by="x")).columns == names
        assert rows.groupApply("k", lambda one, other: one.difference(other), stream).columns
        other = stream.select("ts", "k").withColumnRenamed("ts", "at")
        both = rows.join(other, "k", "left", within="1 second")
        assert both.columns == [*names, "at"]
        with pytest.raises(DefinitionError, match="takes other events"):
            rows.groupApply("k", lambda one, other: one, 5)  # type: ignore[arg-type]
    sides = stream.select("ts", "k"), result.select("k", "x")
    assert ice.join(*sides, on="k", within="1 second").columns == ["ts", "k", "x"]


@pytest.mark.parametrize(
    "keyed",
    [
        lambda s: s.groupBy("xs").agg(ice.count()),
        lambda s: s.dropDuplicates("xs"),
        lambda s: s.over(ice.count().alias("n"), partitionBy="xs"),
        lambda s: s.join(s.withColumnRenamed("k", "other"), on="xs", within="1 hour"),
        lambda s: s.session("1 hour").groupBy("xs").count(),
        lambda s: s.latestBy("xs"),
    ],
    ids=["groups", "duplicates", "over", "join", "sessions", "updates"],
)
def test_columns_that_cannot_be_keys_are_refused_where_they_are_written(
    keyed: Callable[[ice.Stream], Any], stream: ice.Stream
) -> None:
    with pytest.raises(DefinitionError, match=r"'xs' has type list.*group by one of its elements"):
        keyed(stream.withColumn("xs", sf.array("x")))
