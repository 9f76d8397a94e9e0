"""Parquet written by the driver, beside the same rows written by Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icestream.core.errors import StorageError
from icestream.runtime.driver import Delivery
from icestream.runtime.spark.parquet_sink import ParquetTable
from icestream.runtime.spark.sink import FileSink, ResultRows, hand_out, no_rows, table_of
from icestream.runtime.tables.layout import TableFiles, TableTarget
from icestream.runtime.tables.sink_log import SinkLog
from icestream.state.files import LocalFiles
from icestream.state.log.ipc import write_table
from icestream.state.log.writer import SegmentWriter
from icestream.state.versions.commits import Commit
from icestream.state.versions.table_files import TableFile

pytestmark = pytest.mark.spark

#: columns of every type that results can have; times are instants or local, not both
COLUMNS = """
    struct({0} as start, {0} as end) as window, n as key, int(n) as small, smallint(n) as short,
    tinyint(n % 100) as tiny, n / 7.0d as ratio, float(n / 7) as single, n % 2 = 0 as flag,
    string(n) as name, binary(string(n)) as bytes, date_add(date'1500-01-01', int(n * 211)) as day,
    decimal(n) / 100 as money, cast(n as decimal(9, 2)) as little,
    cast(n as decimal(30, 3)) as wide, array(n, n + 1) as list, array(struct(n as a)) as structs,
    if(n % 3 = 0, null, n) as some, struct(if(n % 3 = 0, null, n) as a, {0} as b) as nested
"""
INSTANT = "timestamp_micros(n * 77654321987654L - 30000000000000000L)"
LOCAL = "timestampadd(SECOND, n * 77654321L, timestamp_ntz'1000-01-01 00:00:00')"


def every_type(spark: SparkSession, time: str) -> DataFrame:
    frame = spark.sql(f"select {COLUMNS.format(time)} from (select id as n from range(0, 700))")
    return spark.createDataFrame(frame.toArrow(), no_rows(spark, frame.schema).schema)


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def rows_in(spark: SparkSession, path: str, frame: DataFrame) -> ResultRows:
    """Keep the rows of a frame as a result file."""
    writer = SegmentWriter(LocalFiles(), path, 0)
    for batch in frame.toArrow().to_batches(200):
        writer.append(write_table(batch), rows=batch.num_rows)
    writer.finish()
    return ResultRows(spark, LocalFiles(), [path], frame.schema)


def give(sink: FileSink, rows: ResultRows, version: int) -> None:
    """Hand rows to a sink as a query does."""
    table = table_of(sink, rows.shape, rows.spark, rows.schema)
    hand_out(sink, rows, Delivery(Commit(version + 1, None), (), (), again=False), table)


def writes(sink: FileSink, rows: ResultRows) -> bool:
    """Return whether rows are written without Spark."""
    return table_of(sink, rows.shape, rows.spark, rows.schema) is not None


def storage(folder: str) -> tuple[str, dict[bytes, bytes], list[tuple[Any, ...]]]:
    """Describe how a folder's files are stored: columns, keys, codec."""
    path = next(Path(folder).glob("*.parquet"))
    file = pq.ParquetFile(path)
    described = str(file.schema).split("\n", 1)[1].split("{", 1)[1]
    group = file.metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    codecs = [(each.path_in_schema, each.physical_type, each.compression) for each in columns]
    return described, file.metadata.metadata, codecs


@pytest.mark.sample(2)
@pytest.mark.parametrize("stored", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize("time", [INSTANT, LOCAL], ids=["instants", "local"])
def test_oracle_direct_files_have_the_schema_spark_writes(
    time: str, stored: str, spark: SparkSession, tmp_path: Path
) -> None:
    frame = every_type(spark, time)
    rows = rows_in(spark, f"{tmp_path}/rows", frame)
    with setting(spark, "spark.sql.parquet.outputTimestampType", stored):
        ours = FileSink(spark, "parquet", f"{tmp_path}/ours", (), {}, frame.schema)
        assert writes(ours, rows)
        give(ours, rows, 0)
        theirs = FileSink(spark, "parquet", f"{tmp_path}/theirs", (), {}, frame.schema)
        theirs.deliver(rows.frame(), 0)
    (our_columns, our_marks, our_codecs), (columns, marks, codecs) = (
        storage(f"{tmp_path}/{name}") for name in ("ours", "theirs")
    )
    assert our_columns == columns
    assert our_codecs == codecs
    assert _decoded(our_marks) == _decoded(marks)
    found, expected = (spark.read.parquet(f"{tmp_path}/{name}") for name in ("ours", "theirs"))
    assert found.schema == expected.schema
    assert found.toArrow().sort_by("key").equals(expected.toArrow().sort_by("key"))
    assert found.toArrow().sort_by("key").equals(frame.toArrow().sort_by("key"))


def _decoded(marks: dict[bytes, bytes]) -> dict[bytes, Any]:
    return {
        key: json.loads(value) if value.startswith(b"{") else value for key, value in marks.items()
    }


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_files_are_compressed_as_asked(codec: str, spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(5).toDF("n")
    rows = rows_in(spark, f"{tmp_path}/rows", frame)
    options = {"compression": codec}
    sink = FileSink(spark, "parquet", f"{tmp_path}/out", (), options, rows.schema)
    assert writes(sink, rows)
    give(sink, rows, 0)
    expected = "UNCOMPRESSED" if codec == "none" else codec.upper()
    assert storage(f"{tmp_path}/out")[2] == [("n", "INT64", expected)]
    assert sorted(row.n for row in spark.read.parquet(f"{tmp_path}/out").collect()) == [*range(5)]


@pytest.mark.parametrize(
    ("options", "conf", "column"),
    [
        ({"compression": "lz4"}, {}, "n"),
        ({"parquet.block.size": "1"}, {}, "n"),
        ({"retention": "1 day"}, {}, "n"),
        ({}, {"spark.sql.parquet.writeLegacyFormat": "true"}, "n"),
        ({}, {"spark.sql.files.maxRecordsPerFile": "10"}, "n"),
        ({}, {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}, "n"),
        ({}, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}, "n"),
        ({}, {}, "map(n, n)"),
        ({}, {}, "make_dt_interval(n)"),
        ({}, {}, "named_struct('a', timestamp_micros(n), 'b', timestamp_ntz'2020-01-01')"),
        ({}, {}, "string(n) collate UNICODE"),
    ],
    ids=str,
)
def test_what_only_spark_can_write_is_left_to_spark(
    options: dict[str, str], conf: dict[str, str], column: str, spark: SparkSession, tmp_path: Path
) -> None:
    schema = spark.range(1).toDF("n").selectExpr(f"{column} as x").schema
    for name, value in conf.items():
        with setting(spark, name, value):
            assert (
                ParquetTable.of(spark, f"{tmp_path}/out", schema, TableTarget(options=options))
                is None
            )
    if not conf:
        assert (
            ParquetTable.of(spark, f"{tmp_path}/out", schema, TableTarget(options=options)) is None
        )


def test_hadoops_settings_of_parquet_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    schema = spark.range(1).schema
    assert ParquetTable.of(spark, f"{tmp_path}/out", schema, TableTarget()) is not None
    hadoop.set("parquet.crypto.factory.class", "some.Factory")
    try:
        assert ParquetTable.of(spark, f"{tmp_path}/out", schema, TableTarget()) is None
    finally:
        hadoop.unset("parquet.crypto.factory.class")


def test_spark_and_direct_writing_take_turns(spark: SparkSession, tmp_path: Path) -> None:
    """Long enough for the log to be compacted, by either of the two."""
    schema = spark.range(1).toDF("n").schema
    sink = FileSink(spark, "parquet", f"{tmp_path}/out", (), {}, schema)
    for version in range(25):
        frame = spark.range(version, version + 1).toDF("n")
        rows = rows_in(spark, f"{tmp_path}/{version}", frame)
        if version % 3:
            give(sink, rows, version)
        else:
            sink.deliver(rows.frame(), version)
    found = spark.read.parquet(f"{tmp_path}/out").collect()
    assert sorted(row.n for row in found) == [*range(25)]
    log = {each.name for each in (tmp_path / "out" / "_spark_metadata").iterdir()}
    assert "19.compact" in log


def test_a_version_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = rows_in(spark, f"{tmp_path}/rows", spark.range(3).toDF("n"))
    for version in (0, 0, 1, 0, 1):
        sink = FileSink(spark, "parquet", f"{tmp_path}/out", (), {}, rows.schema)
        give(sink, rows, version)
    assert spark.read.parquet(f"{tmp_path}/out").count() == 6
    assert len([*(tmp_path / "out").glob("*.parquet")]) == 2


def test_crash_files_that_were_not_entered_are_not_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_in(spark, f"{tmp_path}/rows", spark.range(3).toDF("n"))
    sink = FileSink(spark, "parquet", f"{tmp_path}/out", (), {}, rows.schema)
    give(sink, rows, 0)

    def die(log: SinkLog, batch: int, files: list[TableFile]) -> None:
        assert all(Path(each.location).stat().st_size == each.bytes for each in files)
        msg = "killed"
        raise OSError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(SinkLog, "enter", die)
        with pytest.raises(OSError, match="killed"):
            give(sink, rows, 1)
    assert spark.read.parquet(f"{tmp_path}/out").count() == 3
    give(sink, rows, 1)
    assert spark.read.parquet(f"{tmp_path}/out").count() == 6


def test_another_writer_is_noticed(tmp_path: Path) -> None:
    folder = f"{tmp_path}/out"
    log, other = (SinkLog(TableFiles(), folder) for _ in range(2))
    log.enter(0, [])
    other.enter(0, [])
    with pytest.raises(StorageError, match="only one query may write to a folder"):
        other.enter(0, [TableFile(0, folder, "part-0.parquet", 1, 1)])


def test_a_table_that_begins_with_a_later_version_is_read_by_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = rows_in(spark, f"{tmp_path}/rows", spark.range(3).toDF("n"))
    for version in (237, 238, 251):
        sink = FileSink(spark, "parquet", f"{tmp_path}/out", (), {}, rows.schema)
        give(sink, rows, version)
    assert spark.read.parquet(f"{tmp_path}/out").count() == 9
    assert len([*(tmp_path / "out" / "_spark_metadata").glob("[0-9]*")]) < 40
    sink.deliver(rows.frame(), 262)
    assert spark.read.parquet(f"{tmp_path}/out").count() == 12


def test_versions_without_rows_leave_a_table_that_can_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = every_type(spark, INSTANT).schema
    sink = FileSink(spark, "parquet", f"{tmp_path}/out", (), {}, schema)
    for version in range(3):
        give(sink, ResultRows(spark, LocalFiles(), [], schema), version)
    found = spark.read.parquet(f"{tmp_path}/out")
    assert found.schema == schema
    assert found.count() == 0
    assert len([*(tmp_path / "out").glob("*.parquet")]) == 1


def test_oracle_columns_that_are_picked_are_written_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(9).selectExpr(
        "id", "struct(if(id = 4, null, id) AS a, struct(string(id) AS c) AS b) AS pair"
    )

    def shape(rows: DataFrame) -> DataFrame:
        return rows.select("pair.b.c", sf.col("id").alias("n"), "pair").select("n", "c", "pair.a")

    rows = replace(rows_in(spark, f"{tmp_path}/rows", frame), shape=shape)
    sink = FileSink(spark, "parquet", f"{tmp_path}/out", (), {}, shape(frame).schema)
    assert writes(sink, rows)
    give(sink, rows, 0)
    found = spark.read.parquet(f"{tmp_path}/out")
    assert found.schema.simpleString() == shape(frame).schema.simpleString()
    assert sorted(found.collect(), key=str) == sorted(shape(frame).collect(), key=str)


def test_shaped_rows_go_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = rows_in(spark, f"{tmp_path}/rows", spark.range(5).toDF("n"))
    shaped = ResultRows(
        spark, rows.files, rows.paths, rows.schema, lambda frame: frame.where("n > 2")
    )
    sink = FileSink(spark, "parquet", f"{tmp_path}/out", (), {}, rows.schema)
    assert not writes(sink, shaped)
    give(sink, shaped, 0)
    assert sorted(row.n for row in spark.read.parquet(f"{tmp_path}/out").collect()) == [3, 4]


def test_folders_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "out 1%20+a"
    rows = rows_in(spark, f"{tmp_path}/rows", spark.range(5).toDF("n"))
    sink = FileSink(spark, "parquet", str(folder), (), {}, rows.schema)
    assert writes(sink, rows)
    give(sink, rows, 0)
    assert sorted(row.n for row in spark.read.parquet(str(folder)).collect()) == [*range(5)]
    [path] = folder.glob("*.parquet")
    assert pq.read_table(path).column("n").to_pylist() == [*range(5)]
