"""Columns over frames on Spark: what is refused, and rows beside Spark's own `Window`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import DefinitionError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


def payments(number: int, count: int = 60) -> pa.Table:
    """Return a batch of events, a few of equal time."""
    dice = np.random.default_rng([7, number])
    times = START + number * 20 * SECOND + dice.integers(0, 20, count) * SECOND
    return pa.table(
        {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "no": pa.array(np.arange(count) + number * count),
            "card": pa.array(dice.integers(0, 6, count), mask=dice.random(count) < 0.1),
            "shop": pa.array(dice.choice(["ice", "sea"], count).tolist()),
            "amount": pa.array(dice.integers(1, 400, count) / 4),
        }
    )


@pytest.fixture(scope="module")
def feed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return Feed(spark, f"{tmp_path_factory.mktemp('over')}/in", *map(payments, range(3)))


def test_oracle_features_beside_sparks_windows(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    stream = ice.stream(feed.stream(), time="ts", slack="20 seconds")
    featured = (
        stream.over(
            ice.count().alias("n"),
            ice.avg(sf.col("amount") * 2).alias("mean"),
            partitionBy="card",
            range="5 seconds",
        )
        .over(ice.max("amount").alias("most"), partitionBy=["card", "shop"], range="30 seconds")
        .over(ice.sum("amount").alias("three"), partitionBy="shop", rows=3)
        .over(
            ice.lag("amount", 1, 0.0).alias("before"),
            ice.rank().alias("place"),
            ice.row_number().alias("number"),
            partitionBy="shop",
        )
    )
    writer = featured.writeStream.format("parquet").shards(2).memory("64 MB")
    writer = writer.option("path", f"{tmp_path}/out").option("flush", "true")
    writer = writer.option("checkpointLocation", f"{tmp_path}/chk")
    writer.trigger(availableNow=True).start().awaitTermination()
    found = spark.read.parquet(f"{tmp_path}/out").orderBy("no").toArrow().to_pylist()

    seconds = sf.unix_timestamp("ts")
    by_card = Window.partitionBy("card").orderBy(seconds).rangeBetween(-5, 0)
    by_both = Window.partitionBy("card", "shop").orderBy(seconds).rangeBetween(-30, 0)
    by_shop = Window.partitionBy("shop").orderBy("ts", "no")
    expected = feed.batch().select(
        "*",
        sf.count("*").over(by_card).alias("n"),
        sf.avg(sf.col("amount") * 2).over(by_card).alias("mean"),
        sf.max("amount").over(by_both).alias("most"),
        sf.sum("amount").over(by_shop.rowsBetween(-2, 0)).alias("three"),
        sf.lag("amount", 1, 0.0).over(by_shop).alias("before"),
        sf.rank().over(Window.partitionBy("shop").orderBy("ts")).alias("place"),
        sf.row_number().over(by_shop).alias("number"),
    )
    assert found == expected.orderBy("no").toArrow().to_pylist()


def test_oracle_objects_beside_sparks_windows(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    stream = ice.stream(feed.stream(), time="ts", slack="20 seconds")
    featured = (
        stream.over(
            ice.percentile("amount", [0.25, 0.9]).alias("quarters"),
            ice.min("shop").alias("least"),
            ice.collect_set("amount").alias("amounts"),
            ice.sum("amount").alias("spent"),
            partitionBy="card",
            range="7 seconds",
        )
        .over(
            ice.collect_list("shop").alias("shops"),
            ice.last("shop").alias("last"),
            ice.max_by("shop", "amount").alias("dearest"),
            partitionBy="card",
            rows=4,
        )
        .over(ice.lag("shop", 2, "none").alias("before"), partitionBy="card")
        .over(ice.count_distinct("amount").alias("kinds"), partitionBy="shop")
        .over(
            ice.median("amount").alias("middle"),
            ice.max("amount").alias("most"),
            partitionBy="shop",
            rows=5,
            range="3 seconds",
        )
    )
    writer = featured.writeStream.format("parquet").shards(2).memory("64 MB")
    writer = writer.option("path", f"{tmp_path}/out").option("flush", "true")
    writer = writer.option("checkpointLocation", f"{tmp_path}/chk")
    writer.trigger(availableNow=True).start().awaitTermination()
    found = spark.read.parquet(f"{tmp_path}/out").orderBy("no").toArrow().to_pylist()

    seconds = sf.unix_timestamp("ts")
    by_card = Window.partitionBy("card").orderBy(seconds).rangeBetween(-7, 0)
    in_order = Window.partitionBy("card").orderBy("ts", "no")
    four = in_order.rowsBetween(-3, 0)
    by_shop = Window.partitionBy("shop").orderBy("ts")
    five = Window.partitionBy("shop").orderBy("ts", "no").rowsBetween(-4, 0)
    near = sf.filter("__five", lambda each: each["at"] >= seconds - 3)
    values = sf.transform(near, lambda each: each["x"])
    sorted_values = sf.array_sort("__values")
    size = sf.size("__values")
    half = [sf.element_at(sorted_values, ((size + each) / 2).cast("int")) for each in (1, 2)]
    expected = (
        feed.batch()
        .select(
            "*",
            sf.percentile("amount", [0.25, 0.9]).over(by_card).alias("quarters"),
            sf.min("shop").over(by_card).alias("least"),
            sf.array_sort(sf.collect_set("amount").over(by_card)).alias("amounts"),
            sf.sum("amount").over(by_card).alias("spent"),
            sf.collect_list("shop").over(four).alias("shops"),
            sf.last("shop").over(four).alias("last"),
            sf.max_by("shop", "amount").over(four).alias("dearest"),
            sf.lag("shop", 2, "none").over(in_order).alias("before"),
            sf.size(sf.collect_set("amount").over(by_shop)).cast("long").alias("kinds"),
            sf.collect_list(sf.struct(seconds.alias("at"), sf.col("amount").alias("x")))
            .over(five)
            .alias("__five"),
        )
        .withColumn("__values", values)
        .withColumn("middle", (half[0] + half[1]) / 2)
        .withColumn("most", sf.array_max("__values"))
        .drop("__five", "__values")
    )
    expected = expected.orderBy("no").toArrow().to_pylist()
    # of equal amounts, Spark may choose any shop
    for row, wanted in zip(found, expected, strict=True):
        assert row.pop("dearest") in (wanted.pop("dearest"), *row["shops"])
        assert row.pop("quarters") == pytest.approx(wanted.pop("quarters"), rel=1e-15)
        assert row == wanted


def test_rows_of_windows_that_move_with_events_have_objects(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    stream = ice.stream(feed.stream(), time="ts", slack="20 seconds")
    chosen = ice.collect_list("amount").alias("amounts"), ice.count().alias("n")
    found = []
    for number, windowed in enumerate(
        (
            stream.window("5 seconds", slide="event").groupBy("shop"),
            stream.rows(3, partitionBy="shop"),
            stream.rows(3),
        )
    ):
        writer = windowed.agg(*chosen).writeStream.format("parquet").memory("64 MB")
        writer = writer.option("path", f"{tmp_path}/out{number}").option("flush", "true")
        writer = writer.option("checkpointLocation", f"{tmp_path}/chk{number}")
        writer.trigger(availableNow=True).start().awaitTermination()
        found.append(spark.read.parquet(f"{tmp_path}/out{number}").toArrow().to_pylist())
    for rows in found:
        assert len(rows) == 180
        assert all(len(row["amounts"]) == row["n"] for row in rows)
    assert max(row["n"] for row in found[0]) > 3 == max(row["n"] for row in found[1])
    assert "shop" not in found[2][0]


SLIDES: dict[str, Callable[[ice.Stream], Any]] = {
    "a range at every third event": lambda s: s.window("5 seconds", slide=ice.rows(3)).groupBy(
        "shop"
    ),
    "rows at every second event": lambda s: s.rows(3, slide=2, partitionBy="shop"),
    "rows at instants": lambda s: s.rows(3, slide="10 seconds", partitionBy="shop"),
    "rows of all events at instants": lambda s: s.rows(40, slide="10 seconds"),
}


@pytest.mark.parametrize("name", SLIDES)
def test_parity_rows_at_slides_with_objects_and_without(
    name: str, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    stream = ice.stream(feed.stream(), time="ts", slack="20 seconds")
    chosen = ice.count().alias("n"), ice.collect_list("amount").alias("amounts")
    found = []
    for asked in (chosen[:1], chosen):
        where = tmp_path / str(len(asked))
        writer = SLIDES[name](stream).agg(*asked).writeStream.format("parquet").memory("64 MB")
        writer = writer.option("path", f"{where}/out").option("flush", "true")
        writer = writer.option("checkpointLocation", f"{where}/chk")
        writer.trigger(availableNow=True).start().awaitTermination()
        rows = spark.read.parquet(f"{where}/out")
        found.append([tuple(each) for each in rows.sort(*rows.columns).collect()])
    alone, beside = found
    assert len(alone) > 5
    assert [row[:-1] for row in beside] == alone
    assert all(len(row[-1]) == row[-2] for row in beside)


def test_rows_of_a_key_within_a_range_are_features_of_each_event(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    stream = ice.stream(feed.stream(), time="ts", slack="20 seconds")
    total = ice.sum("amount").alias("sum")
    found = []
    for number, made in enumerate(
        (
            stream.rows(3, partitionBy="shop", range="4 seconds").agg(total),
            # times are whole seconds, and the range of a feature includes both of its ends
            stream.over(total, partitionBy="shop", rows=3, range="3 seconds"),
        )
    ):
        writer = made.writeStream.format("parquet").memory("64 MB").option("flush", "true")
        writer = writer.option("path", f"{tmp_path}/out{number}")
        writer = writer.option("checkpointLocation", f"{tmp_path}/chk{number}")
        writer.trigger(availableNow=True).start().awaitTermination()
        rows = spark.read.parquet(f"{tmp_path}/out{number}").toDF(*made.columns)
        time = "time" if number == 0 else "ts"
        found.append(sorted(tuple(each) for each in rows.select(time, "shop", "sum").collect()))
    assert len(found[0]) == 180
    assert found[0] == found[1]


def test_rows_at_slides_go_on_as_events(feed: Feed) -> None:
    stream = ice.stream(feed.stream(), time="ts", slack="20 seconds")
    rows = stream.rows(3, slide=2, partitionBy="shop").agg(ice.count().alias("n"))
    assert rows.over(ice.sum("n").alias("all"), partitionBy="shop", rows=2).columns == [
        "time",
        "shop",
        "n",
        "all",
    ]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no functions": ({"features": list}, "over takes Icestream's functions"),
    "all rows of a range": ({"range": "1 hour", "rows": "unbounded"}, "without a range"),
    "rows as text": ({"rows": "many"}, "'unbounded'"),
    "no rows": ({"rows": 0}, "positive"),
    "an unknown key": ({"partitionBy": "cart"}, "the columns are"),
    "a column twice": ({"features": lambda: [ice.count().alias("no")]}, "another alias"),
    "a percentile of texts": (
        {"features": lambda: [ice.median("shop").alias("m")]},
        "needs a number",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_over_cannot_compute_is_refused(name: str, feed: Feed) -> None:
    asked, reason = REFUSED[name]
    asked = dict(asked)
    features = asked.pop("features", lambda: [ice.count().alias("n")])()
    stream = ice.stream(feed.stream(), time="ts", slack="20 seconds")
    with pytest.raises(DefinitionError, match=reason):
        _ = stream.over(*features, **asked).schema
