"""Streams that tasks read themselves, beside the same streams through the JVM."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.runtime.ingest.arrow import ArrowReader
from icestream.runtime.ingest.csv import CsvReader
from icestream.runtime.ingest.parquet import ParquetReader
from icestream.runtime.ingest.reader import read
from icestream.runtime.ingest.source import source_of, sources_of
from icestream.runtime.spark import tasks as executors

pytestmark = pytest.mark.spark

SCHEMA = "ts timestamp, key bigint, value double"
READERS = {"parquet": ParquetReader, "csv": CsvReader, "arrow": ArrowReader}


def table_of(number: int, rows: int, **changes: pa.DataType) -> pa.Table:
    rng = np.random.default_rng(number)
    times = np.sort(rng.integers(0, 60_000_000, rows)) + number * 60_000_000
    return pa.table(
        {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "key": pa.array(rng.integers(0, 5, rows), changes.get("key", pa.int64())),
            "value": rng.normal(size=rows),
        }
    )


def write(folder: Path, kind: str, files: int, rows: int = 300, **changes: pa.DataType) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        table, path = table_of(number, rows, **changes), folder / f"{number}.{kind}"
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=50)
        elif kind == "csv":
            local = table.set_column(0, "ts", table.column("ts").cast(pa.timestamp("us")))
            with path.open("wb") as file:
                file.write(f"{','.join(local.column_names)}\n".encode())
                options = pyarrow.csv.WriteOptions(include_header=False)
                pyarrow.csv.write_csv(local, file, options)
        else:
            with ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, 50)
        # Spark takes files in the order of their times
        os.utime(path, (1_000_000_000 + number,) * 2)


def stream_of(spark: SparkSession, folder: Path, kind: str = "parquet") -> DataFrame:
    folder.mkdir(exist_ok=True)
    options = {"header": "true"} if kind == "csv" else {}
    return ice.files(spark, str(folder), kind, schema=SCHEMA, maxFilesPerTrigger=2, **options)


def rows(spark: SparkSession, frame: DataFrame, work: Path, mode: str) -> list[tuple[Any, ...]]:
    query = (
        ice.stream(frame, time="ts", slack="2 minutes")
        .window("30 seconds", slide="10 seconds")
        .groupBy("key")
        .agg(ice.count().alias("n"), ice.max("value").alias("top"))
        .writeStream.format("parquet")
        .option("path", str(work / mode / "out"))
        .option("checkpointLocation", str(work / mode / "checkpoint"))
        .option("input", mode)
        .option("flush", True)
        .memory("8 MB")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(map(tuple, spark.read.parquet(str(work / mode / "out")).collect()))


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", READERS)
def test_oracle_reading_files_directly_gives_the_same_rows(
    kind: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    write(tmp_path / "in", kind, 3)
    frame = stream_of(spark, tmp_path / "in", kind)
    source = source_of(frame)
    assert source is not None
    assert isinstance(source.reader, READERS[kind])
    assert source.columns == {"ts": "ts", "key": "key", "value": "value"}
    expected = rows(spark, frame, tmp_path, "rows")
    with monkeypatch.context() as patch:
        patch.setattr(executors.SparkExecutor, "_from_rows", None)
        assert rows(spark, frame, tmp_path, "auto") == expected
    assert expected


def test_a_few_rows_in_files_are_read_without_a_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in", "parquet", 3)
    frame = stream_of(spark, tmp_path / "in", "parquet")
    found, read_here, shares = [], [], list[Any]()

    def noted(*share: Any) -> Any:
        shares.append(share)
        return read(*share)

    monkeypatch.setattr(executors, "read", noted)
    for most in (executors.LITTLE, 0):
        monkeypatch.setattr(executors, "LITTLE", most)
        found.append(rows(spark, frame, tmp_path / str(most), "auto"))
        read_here.append(len(shares))
    # tasks are other processes
    assert read_here[0] == read_here[1] > 0
    assert found[0] == found[1] != []


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_that_need_sparks_reader_go_through_the_jvm(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    # the last file has keys of another type, or a line in quotes: Spark converts, we leave it
    write(tmp_path / "in", "parquet", 3)
    write(tmp_path / "in", kind, 3)
    if kind == "csv":
        for each in (tmp_path / "in").glob("*.parquet"):
            each.unlink()
        last = tmp_path / "in" / "2.csv"
        last.write_text(last.read_text() + '"1970-01-01T00:02:10",1,2.5\n')
    else:
        pq.write_table(table_of(2, 300, key=pa.int32()), tmp_path / "in" / "2.parquet")
    frame = stream_of(spark, tmp_path / "in", kind)
    assert rows(spark, frame, tmp_path, "auto") == rows(spark, frame, tmp_path, "rows")


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    "changed",
    [
        lambda frame: frame.where("key > 1"),
        lambda frame: frame.withColumn("value", sf.col("value") * 2),
        lambda frame: frame.unionAll(frame),
    ],
    ids=["filter", "expression", "union"],
)
def test_only_plain_columns_are_read_directly(
    kind: str, spark: SparkSession, tmp_path: Path, changed: Any
) -> None:
    assert source_of(changed(stream_of(spark, tmp_path / "in", kind))) is None


def test_other_formats_are_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    assert source_of(stream_of(spark, tmp_path / "in", "json")) is None


def test_options_of_csv_without_an_equal_are_left_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame = ice.files(spark, f"{tmp_path}/in", "csv", schema=SCHEMA, timestampFormat="yyyy")
    assert source_of(frame) is None


def test_paths_that_another_function_reads_are_left_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    texts = spark.readStream.text(f"{tmp_path}/in")
    assert source_of(texts.mapInArrow(lambda batches: batches, "value string")) is None


@pytest.mark.parametrize("kind", READERS)
def test_renamed_columns_are_followed_to_the_file(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    frame = stream_of(spark, tmp_path / "in", kind).select(sf.col("key").alias("a"), "ts")
    source = source_of(frame.select(sf.col("a").alias("b"), sf.col("ts").alias("time")))
    assert source is not None
    assert source.columns == {"b": "key", "time": "ts"}


@pytest.mark.parametrize("kind", READERS)
def test_oracle_processing_times_of_files_that_tasks_read_are_sparks(
    kind: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in", kind, 5, rows=20)
    frame = stream_of(spark, tmp_path / "in", kind).withColumn("now", sf.current_timestamp())
    monkeypatch.setattr(executors.SparkExecutor, "_from_rows", None)
    query = (
        ice.stream(frame.select("key", sf.col("now").alias("at")), time="at")
        .window("1 millisecond")
        .groupBy("key")
        .count()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("flush", True)
        .memory("8 MB")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    logged = (tmp_path / "checkpoint").rglob("offsets/[0-9]*")
    wanted = {json.loads(each.read_text().splitlines()[1])["batchTimestampMs"] for each in logged}
    out = spark.read.parquet(str(tmp_path / "out"))
    found = out.select(sf.unix_millis("window.start").alias("at"), "count").collect()
    assert {row["at"] for row in found} == wanted
    assert sum(row["count"] for row in found) == 100


def test_processing_times_of_several_streams_are_left_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    frames = [
        stream_of(spark, tmp_path / str(number)).select(
            sf.current_timestamp().alias("ts"), "key", sf.lit(number).alias("source")
        )
        for number in range(2)
    ]
    assert sources_of(frames[0].unionAll(frames[1])) is None


def pairs(frames: tuple[DataFrame, DataFrame], work: Path, mode: str) -> Any:
    left, right = (ice.stream(frame, time="ts").events().forever() for frame in frames)
    other = right.select("key AS twin", "value AS other")
    return (
        left.join(other, on=[("key", "twin")], onPressure="defer")
        .writeStream.format("parquet")
        .option("path", str(work / mode / "out"))
        .option("checkpointLocation", str(work / mode / "checkpoint"))
        .option("input", mode)
        .memory("64 MB")
        .trigger(availableNow=True)
        .start()
    )


def test_oracle_reading_the_files_of_several_streams_gives_the_same_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    # the second stream has nothing in the last batch
    write(tmp_path / "one", "parquet", 3, rows=20)
    write(tmp_path / "two", "arrow", 2, rows=15)
    frames = stream_of(spark, tmp_path / "one"), stream_of(spark, tmp_path / "two", "arrow")
    found = {}
    for mode in ("rows", "auto"):
        with monkeypatch.context() as patch:
            if mode == "auto":
                patch.setattr(executors.SparkExecutor, "_from_rows", None)
            pairs(frames, tmp_path, mode).awaitTermination()
        out = spark.read.parquet(str(tmp_path / mode / "out")).drop("lifetime")
        found[mode] = sorted(map(tuple, out.collect()))
    assert found["auto"] == found["rows"]
    assert found["rows"]


def test_streams_that_share_a_folder_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    frames = [
        stream_of(spark, tmp_path / "in").select("ts", "key", sf.lit(number).alias("source"))
        for number in range(2)
    ]
    assert sources_of(frames[0].unionAll(frames[1])) is None
