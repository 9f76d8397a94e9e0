"""Queries whose tasks write the table: Parquet, Delta and Iceberg, on Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import DamageError, DefinitionError
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import VersionStore
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, f"{tmp_path}/in", *(events(each) for each in range(3)))


def events(batch: int) -> pa.Table:
    times = pa.array([(4 * batch + n) * SECOND for n in range(4)]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "key": ["a", "b", "a", None], "x": [1, 2, 3, 4]})


def summed(feed: Feed) -> ice.Result:
    stream = ice.stream(feed.stream(), "ts")
    return stream.window("2 seconds").groupBy("key").agg(ice.sum("x").alias("s"))


def expected(feed: Feed) -> list[tuple[Any, ...]]:
    found = feed.batch().groupBy("key", (_second() - _second() % 2).alias("start")).sum("x")
    return in_order([(row["start"], row["key"], row["sum(x)"]) for row in found.collect()])


def _second() -> Any:
    return sf.unix_seconds("ts")


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    if "window" in table.column_names:
        table = table.append_column("begin", pc.struct_field(table.column("window"), 0))
    return in_order([(int(r["begin"].timestamp()), r["key"], r["s"]) for r in table.to_pylist()])


class Lake:
    """One kind of table in a folder."""

    def __init__(self, kind: str, folder: Path, spark: SparkSession) -> None:
        self.kind = kind
        self._spark = spark
        self.folder = str(folder / "table")
        self.options = {"path": self.folder}
        if kind == "iceberg":
            self.options = {
                "path": "db.calls",
                "catalog.type": "sql",
                "catalog.uri": f"sqlite:///{folder}/catalogue.db",
                "catalog.warehouse": f"file://{folder}/warehouse",
            }
            self.folder = f"{folder}/warehouse/db/calls"

    def rows(self) -> list[tuple[Any, ...]]:
        if self.kind == "delta":
            return rows_of(pa.table(DeltaTable(self.folder).to_pyarrow_table()))
        if self.kind == "parquet":
            return rows_of(self._spark.read.parquet(self.folder).toArrow())
        start = "catalog."
        own = {k.removeprefix(start): v for k, v in self.options.items() if k.startswith(start)}
        return rows_of(load_catalog("default", **own).load_table("db.calls").scan().to_arrow())

    def in_folder(self) -> int:
        found = duckdb.execute(f"select count(*) from '{self.folder}/**/*.parquet'").fetchall()
        return int(found[0][0])


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(request.param, tmp_path, spark)


def run(result: ice.Result, lake: Lake, checkpoint: Path, *partitions: str) -> None:
    writer = result.writeStream.format(lake.kind).options(**lake.options).partitionBy(*partitions)
    writer = writer.option("checkpointLocation", str(checkpoint)).option("flush", True)
    writer = writer.memory("64 MB").shards(4).trigger(availableNow=True)
    writer.start().awaitTermination()


def test_oracle_tables_have_the_rows_of_sparks_batch_engine(
    lake: Lake, feed: Feed, tmp_path: Path
) -> None:
    run(summed(feed), lake, tmp_path / "chk", "key")
    assert lake.rows() == expected(feed)
    assert lake.in_folder() == len(expected(feed))
    results = tmp_path / "chk" / "icestream" / "results"
    assert not results.exists() or not [*results.iterdir()]


def test_a_checkpoint_that_moved_writes_nothing_twice(
    lake: Lake, feed: Feed, tmp_path: Path
) -> None:
    run(summed(feed), lake, tmp_path / "chk")
    # what Spark noted of the last batch is lost, as by a crash after our commit
    for noted in (tmp_path / "chk" / "spark" / "commits").glob("*2*"):
        noted.unlink()
    shutil.move(tmp_path / "chk", tmp_path / "moved")
    run(summed(feed), lake, tmp_path / "moved")
    assert lake.rows() == expected(feed)


def test_no_row_is_doubled_by_a_checkpoint_that_lost_its_identity(
    lake: Lake, feed: Feed, tmp_path: Path
) -> None:
    run(summed(feed), lake, tmp_path / "chk")
    identity = tmp_path / "chk" / "icestream" / "identity.json"
    kept = identity.read_bytes()
    identity.unlink()
    # what Spark noted of the last batch is lost, as by a crash after our commit
    for noted in (tmp_path / "chk" / "spark" / "commits").glob("*2*"):
        noted.unlink()
    with pytest.raises(DamageError, match=r"identity\.json.*rows twice.*--clone.*from a copy"):
        run(summed(feed), lake, tmp_path / "chk")
    assert not identity.exists()
    identity.write_bytes(kept)
    run(summed(feed), lake, tmp_path / "chk")
    assert lake.rows() == expected(feed)


@pytest.mark.sample(2)
def test_rows_that_expressions_change_are_written_once_too(
    lake: Lake, feed: Feed, tmp_path: Path
) -> None:
    run(summed(feed).where("s > 1").select("window", "key", "s"), lake, tmp_path / "chk")
    assert lake.rows() == [row for row in expected(feed) if row[2] > 1]


@pytest.mark.sample(2)
def test_rows_of_a_table_reach_the_sink_that_replaces_it(
    lake: Lake, feed: Feed, tmp_path: Path
) -> None:
    run(summed(feed), lake, tmp_path / "chk", "key")
    store = VersionStore(LocalFiles(), f"{tmp_path}/chk/icestream")
    last = store.latest()
    assert last is not None
    assert sum(file.rows for file in last.tables) > 0
    found: list[tuple[Any, ...]] = []

    def take(rows: DataFrame, version: int) -> None:
        found.extend(rows_of(rows.toArrow()))

    writer = summed(feed).writeStream.foreachBatch(take).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{tmp_path}/chk").start().awaitTermination()
    assert len(found) == sum(file.rows for file in last.tables)
    assert set(found) <= set(expected(feed))


@pytest.mark.sample(2)
def test_picked_columns_are_written_by_tasks_and_reach_the_sink_that_replaces_the_table(
    lake: Lake, feed: Feed, tmp_path: Path
) -> None:
    def chosen() -> ice.Result:
        return summed(feed).select("key", sf.col("window.start").alias("begin"), "s")

    run(chosen(), lake, tmp_path / "chk", "key")
    assert lake.rows() == expected(feed)
    last = VersionStore(LocalFiles(), f"{tmp_path}/chk/icestream").latest()
    assert last is not None
    assert sum(file.rows for file in last.tables) > 0
    found: list[tuple[Any, ...]] = []

    def take(rows: DataFrame, version: int) -> None:
        found.extend(rows_of(rows.toArrow()))

    writer = chosen().writeStream.foreachBatch(take).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{tmp_path}/chk").start().awaitTermination()
    assert len(found) == sum(file.rows for file in last.tables)
    assert set(found) <= set(expected(feed))


def test_a_table_of_other_columns_is_refused_at_the_start(
    lake: Lake, feed: Feed, tmp_path: Path
) -> None:
    run(summed(feed), lake, tmp_path / "chk")
    other = ice.stream(feed.stream(), "ts").window("2 seconds").groupBy("key").count()
    with pytest.raises(DefinitionError, match="other columns than the query writes"):
        run(other, lake, tmp_path / "other")
