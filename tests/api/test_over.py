"""Columns over frames on Spark: what is refused, and rows beside Spark's own `Window`."""

from __future__ import annotations

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


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no functions": ({"features": list}, "over takes Icestream's functions"),
    "two frames": ({"range": "1 hour", "rows": 3}, "give one"),
    "rows as text": ({"rows": "many"}, "'unbounded'"),
    "no rows": ({"rows": 0}, "positive"),
    "an unknown key": ({"partitionBy": "cart"}, "the columns are"),
    "a column twice": ({"features": lambda: [ice.count().alias("no")]}, "another alias"),
    "an object": (
        {"features": lambda: [ice.median("amount").alias("m")]},
        "no state of fixed size",
    ),
    "a text": ({"features": lambda: [ice.lag("shop").alias("m")]}, "no state of fixed size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_over_cannot_compute_is_refused(name: str, feed: Feed) -> None:
    asked, reason = REFUSED[name]
    asked = dict(asked)
    features = asked.pop("features", lambda: [ice.count().alias("n")])()
    stream = ice.stream(feed.stream(), time="ts", slack="20 seconds")
    with pytest.raises(DefinitionError, match=reason):
        _ = stream.over(*features, **asked).schema
