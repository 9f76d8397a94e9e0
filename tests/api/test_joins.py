"""Joins of several streams on Spark: what is refused, and rows beside Spark's own join."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.api.events import Events
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
#: so little that partitions leave memory after every batch
TIGHT: Any = {"onPressure": "defer", "threshold": 0.001}


def rows_of(name: str, number: int, count: int = 60) -> pa.Table:
    dice = np.random.default_rng([ord(name), number])
    kind = pa.int32() if name == "d" else pa.int64()  # keys may have another width
    times = START + number * 10 * SECOND + np.sort(dice.integers(0, 10 * SECOND, count))
    return pa.table(
        {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            f"{name}1": pa.array(dice.integers(0, 40, count), kind, dice.random(count) < 0.05),
            f"{name}2": pa.array(dice.integers(0, 40, count)),
            name: pa.array(np.arange(number * count, (number + 1) * count)),
        }
    )


@dataclass(frozen=True)
class World:
    feeds: dict[str, Feed]

    def events(self, name: str) -> Events:
        stream = ice.stream(self.feeds[name].stream(), time="ts", slack="10 seconds")
        return stream.events().select(f"{name}1", f"{name}2", name).forever()

    def tree(self, **how: Any) -> Events:
        a, b, c, d = map(self.events, "abcd")
        abc = ice.join(a, b, c, on=[("a1", "b1", "c1")], **how)
        rows = abc.select("a", "b", "c", "c2").join(d, on=[("c2", "d1")], where="a <> d", **how)
        return rows.select("a", "b", "c", "d")


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("joins")
    return World(
        {
            name: Feed(spark, f"{folder}/{name}", *(rows_of(name, number) for number in range(3)))
            for name in "abcd"
        }
    )


def writer_of(events: Events, folder: Path, shards: int = 2) -> StreamWriter:
    writer = events.writeStream.format("parquet").shards(shards).memory("64 MB")
    writer = writer.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/chk")
    return writer


def written(spark: SparkSession, folder: Path) -> Counter[tuple[Any, ...]]:
    rows = spark.read.parquet(f"{folder}/out").select("a", "b", "c", "d").toArrow().to_pylist()
    return Counter(tuple(row.values()) for row in rows)


def answer() -> Counter[tuple[Any, ...]]:
    tables = {name: pa.concat_tables([rows_of(name, n) for n in range(3)]) for name in "abcd"}
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table.drop_columns(["ts"]))
        return Counter(
            connection.execute(
                "SELECT a, b, c, d FROM a, b, c, d WHERE a1 = b1 AND b1 = c1 AND c2 = d1 AND a <> d"
            ).fetchall()
        )


@pytest.mark.parametrize("shards", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_oracle_a_tree_that_spills_all_the_time(
    spark: SparkSession, world: World, tmp_path: Path, shards: int
) -> None:
    writer = writer_of(world.tree(**TIGHT), tmp_path, shards).option("flush", "true")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    reported = [progress["icestream"] for progress in query.recentProgress]
    assert reported[-1]["spills"] > 0
    assert reported[-1]["joins"][0]["lateRows"] > 0
    assert any(each["bytesSpilled"] for each in reported)
    assert all(each["bytesLogged"] for each in reported[:-1])
    assert written(spark, tmp_path) == answer()


@pytest.mark.parametrize("shards", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_oracle_clean_up_on_demand_and_restart(
    spark: SparkSession, world: World, tmp_path: Path, shards: int
) -> None:
    first = writer_of(world.tree(**TIGHT), tmp_path, shards).trigger(availableNow=True).start()
    first.awaitTermination()
    assert written(spark, tmp_path).total() < answer().total()
    again = writer_of(world.tree(**TIGHT), tmp_path, shards).start()
    again.cleanUp()
    again.cleanUp()
    again.stop()
    assert written(spark, tmp_path) == answer()


def test_parity_fetching_joins_give_the_same_rows(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    writer = writer_of(world.tree(onPressure="fetch"), tmp_path).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert written(spark, tmp_path) == answer()


def test_columns_are_the_same_whatever_happens_on_pressure(world: World) -> None:
    a, b, c = map(world.events, "abc")
    three = (a, b.select("b1 AS a1", "b"), c.select("c1", "c"))
    on = [("a1", "a1", "c1")]
    deferring = ice.join(*three, on=on, where="a < b", onPressure="defer")
    assert deferring.columns == ["a1", "a2", "a", "b", "c1", "c"]
    assert ice.join(*three, on=on, where="a < b").columns == deferring.columns


def test_explain_reports_joins_and_what_leaves_memory(
    spark: SparkSession, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = world.tree(onPressure="defer")
    tree.explain()
    reported = capsys.readouterr().out
    assert "results, for 1,000,000 rows of" in reported
    assert "measured" not in reported
    query = writer_of(tree, tmp_path).trigger(availableNow=True).start()
    query.awaitTermination()
    tree.explain(query.lastProgress)
    measured = capsys.readouterr().out
    assert re.search(r"measured  .* results, for 1\d* rows of .* in memory", measured)
    assert "join 3 streams by a1 = b1 = c1, join 0" in reported
    assert "by global_output_ahead, of 256 partitions of each join" in reported


Definition = Callable[[Events, Events, Events], Any]

BAD: dict[str, tuple[Definition, str]] = {
    "one stream": (lambda a, b, c: ice.join(a, on="a1"), "two or more streams"),
    "another pressure": (
        lambda a, b, c: ice.join(a, b, on=[("a1", "b1")], onPressure="panic"),
        "onPressure must be 'auto', 'defer' or 'fetch'",
    ),
    "a strategy of a fetching join": (
        lambda a, b, c: ice.join(a, b, on=[("a1", "b1")], strategy="largest"),
        "'strategy' is only for joins with onPressure='defer'",
    ),
    "too few names": (lambda a, b, c: ice.join(a, b, c, on=[("a1", "b1")]), "each of the 3"),
    "keys of different types": (
        lambda a, b, c: ice.join(a, b.select("cast(b1 AS STRING) AS b1"), on=[("a1", "b1")]),
        "must have one type.*a1 int64, b1 string: cast",
    ),
    "a join of a group": (
        lambda a, b, c: a.groupApply(
            "a1", lambda x, y: x.join(y, onPressure="defer"), b.select("b1 AS a1", "b")
        ),
        "joins whole streams",
    ),
    "results that may be taken back": (
        lambda a, b, c: ice.join(
            a.groupApply("a1", lambda g: g.agg(ice.count())),
            b, on=[("a1", "b1")], onPressure="defer",
        ),
        "results that may be retracted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_refused_while_it_is_written(world: World, name: str) -> None:
    definition, match = BAD[name]
    with pytest.raises(DefinitionError, match=match):
        definition(*map(world.events, "abc"))
