"""Sinks one by one, fed by hand; and the file sink behind a query that is restarted."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.core.errors import DefinitionError
from icestream.runtime.spark.sink import FILE_FORMATS, DeliveryMarks, Sink, TableSink, no_rows
from icestream.runtime.spark.sink_formats import make_sink
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import VersionStore
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SCHEMA = "n bigint, key string"


@pytest.fixture
def versions(spark: SparkSession) -> list[DataFrame]:
    return [spark.sql(f"select 'k{v % 2}' as key, {v}L as n") for v in range(3)]


def sink_of(spark: SparkSession, kind: str, options: Mapping[str, str], **more: Any) -> Sink:
    schema = no_rows(spark, spark.sql("select 'k' as key, 0L as n").schema).schema
    given = {"identity": lambda: "q", "name": None, "partition_by": (), **more}
    return make_sink(spark, kind, schema, options=options, **given)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "orc"])
def test_crash_a_version_delivered_again_is_written_once(
    kind: str, spark: SparkSession, tmp_path: Path, versions: list[DataFrame]
) -> None:
    assert kind in FILE_FORMATS
    out = f"{tmp_path}/out"
    sink = sink_of(spark, kind, {"path": out}, partition_by=("key",))
    for version in (0, 1, 1):
        sink.deliver(versions[version], version)
    reopened = sink_of(spark, kind, {"path": out}, partition_by=("key",))
    for version in (1, 2):
        reopened.deliver(versions[version], version)
    found = spark.read.format(kind).schema(SCHEMA).load(out)
    assert sorted((row.key, row.n) for row in found.collect()) == [("k0", 0), ("k0", 2), ("k1", 1)]
    assert {each.name for each in Path(out).glob("key=*")} == {"key=k0", "key=k1"}


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_relative_path_is_where_spark_looks_for_it(
    kind: str, spark: SparkSession, versions: list[DataFrame], request: pytest.FixtureRequest
) -> None:
    out = f"build/relative-{uuid.uuid4().hex}"
    place = spark.sparkContext._jvm.java.io.File(out).getAbsolutePath()  # type: ignore[union-attr]
    request.addfinalizer(lambda: shutil.rmtree(place, ignore_errors=True))
    sink_of(spark, kind, {"path": out}).deliver(versions[1], 0)
    assert [row.n for row in spark.read.format(kind).schema(SCHEMA).load(out).collect()] == [1]


@pytest.mark.parametrize(("kind", "partition_by"), [("parquet", ()), ("json", ("key",))])
def test_what_is_written_from_a_later_version_on_can_be_read(
    kind: str,
    partition_by: tuple[str, ...],
    spark: SparkSession,
    tmp_path: Path,
    versions: list[DataFrame],
) -> None:
    sink = sink_of(spark, kind, {"path": f"{tmp_path}/out"}, partition_by=partition_by)
    for version in (3, 4, 3):
        sink.deliver(versions[version - 3], version)
    found = spark.read.format(kind).schema(SCHEMA).load(f"{tmp_path}/out")
    assert sorted(row.n for row in found.collect()) == [0, 1]


def test_memory_fills_a_view(spark: SparkSession, versions: list[DataFrame]) -> None:
    sink = sink_of(spark, "memory", {}, name="seen")
    assert spark.table("seen").count() == 0
    for version in (0, 1, 1, 2):
        sink.deliver(versions[version], version)
    assert sorted(row.n for row in spark.table("seen").collect()) == [0, 1, 2]


def test_console_prints_rows(
    spark: SparkSession, versions: list[DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    sink_of(spark, "console", {}).deliver(versions[1], 1)
    reported = capsys.readouterr().out
    assert "version 1" in reported
    assert "|k1 |1  |" in reported


def test_noop_takes_rows(spark: SparkSession, versions: list[DataFrame]) -> None:
    sink = sink_of(spark, "noop", {})
    sink.deliver(versions[0], 0)
    assert not sink.every_version


def test_a_table_is_made_at_once_and_appended_to(
    spark: SparkSession, versions: list[DataFrame]
) -> None:
    sink = TableSink("counts_by_key", None, ("key",), {})
    sink.create(spark, versions[0].schema)
    assert spark.table("counts_by_key").count() == 0
    sink.create(spark, versions[0].schema)
    sink.deliver(versions[0], 0)
    sink.deliver(versions[1], 1)
    assert sorted(row.n for row in spark.table("counts_by_key").collect()) == [0, 1]
    spark.sql("drop table counts_by_key")


def test_formats_say_what_they_miss(spark: SparkSession) -> None:
    for kind in ("parquet", "delta", "iceberg"):
        with pytest.raises(DefinitionError, match=rf"'{kind}' needs \.option\('path'"):
            sink_of(spark, kind, {})
    with pytest.raises(DefinitionError, match="'memory' needs"):
        sink_of(spark, "memory", {})


class _Recorder(Sink):
    every_version = True
    repeatable = False

    def __init__(self) -> None:
        self.seen: list[int] = []

    def deliver(self, rows: DataFrame, version: int) -> None:
        if version == 7:
            msg = "down"
            raise OSError(msg)
        self.seen.append(version)


def test_crash_a_version_that_failed_is_not_marked(
    spark: SparkSession, tmp_path: Path, versions: list[DataFrame]
) -> None:
    recorder = _Recorder()
    once = DeliveryMarks(recorder, LocalFiles(), f"{tmp_path}/delivered")
    for version in (5, 5, 6, 6):
        once.deliver(versions[0], version)
    with pytest.raises(OSError, match="down"):
        once.deliver(versions[0], 7)
    assert recorder.seen == [5, 6]
    assert LocalFiles().list(f"{tmp_path}/delivered") == ["000000000006"]


def _events(*seconds: int) -> pa.Table:
    times = pa.array([each * 1_000_000 for each in seconds]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "key": [each % 3 for each in seconds]})


@pytest.mark.parametrize("kind", ["json", "orc"])
def test_formats_that_spark_writes_have_partitions(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, f"{tmp_path}/in", _events(1, 2, 3), _events(11, 12), _events(21))
    result = ice.stream(feed.stream(), "ts").window("5 seconds").groupBy("key").count()
    writer = result.writeStream.format(kind).partitionBy("KEY").option("flush", True)
    writer = writer.option("checkpointLocation", f"{tmp_path}/chk").memory("64 MB")
    writer.trigger(availableNow=True).start(f"{tmp_path}/out").awaitTermination()
    rows = spark.read.format(kind).load(f"{tmp_path}/out").select("key", "count").collect()
    assert sorted(map(tuple, rows)) == [(0, 1), (0, 1), (0, 1), (1, 1), (2, 1), (2, 1)]


@pytest.mark.slow
def test_versions_reach_the_sink_without_gaps(spark: SparkSession, tmp_path: Path) -> None:
    """Restart between our commit and Spark's: nothing is computed or written a second time."""
    feed = Feed(spark, f"{tmp_path}/in", _events(1, 2, 3), _events(11, 12), _events(21))

    def run() -> ice.Query:
        result = ice.stream(feed.stream(), "ts").window("5 seconds").groupBy("key").count()
        query = (
            result.select("window.start", "key", "count")
            .writeStream.partitionBy("key")
            .format("csv")
            .option("checkpointLocation", f"{tmp_path}/chk")
            .trigger(availableNow=True)
            .memory("64 MB")
            .start(f"{tmp_path}/out")
        )
        query.awaitTermination()
        return query

    def found() -> list[tuple[Any, ...]]:
        schema = "start timestamp, count bigint, key int"
        frame = spark.read.schema(schema).csv(f"{tmp_path}/out")
        chosen = frame.selectExpr("unix_seconds(start)", "key", "count")
        return sorted(tuple(row) for row in chosen.collect())

    assert [p["version"] for p in run().recentProgress] == [1, 2, 3]
    expected = [(0, 0, 1), (0, 1, 1), (0, 2, 1), (10, 0, 1), (10, 2, 1)]
    assert found() == expected
    log = tmp_path / "out" / "_spark_metadata"
    assert {"0", "1", "2"} <= {each.name for each in log.iterdir()}

    (tmp_path / "chk" / "spark" / "commits" / "2").unlink()
    assert run().recentProgress == []
    assert found() == expected
    last = VersionStore(LocalFiles(), str(tmp_path / "chk" / "icestream")).latest()
    assert last is not None
    assert (last.version, last.batch) == (3, 2)
