from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.runtime import direct
from icestream.runtime.direct import Piece, file_columns

pytestmark = pytest.mark.spark

SCHEMA = "ts timestamp, key bigint, value double"


def write(folder: Path, files: int, rows: int = 300, **changes: pa.DataType) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(3)
    for number in range(files):
        times = np.sort(rng.integers(0, 60_000_000, rows)) + number * 60_000_000
        table = pa.table(
            {
                "ts": pa.array(times).cast(changes.get("ts", pa.timestamp("us", "UTC"))),
                "key": pa.array(rng.integers(0, 5, rows), changes.get("key", pa.int64())),
                "value": rng.normal(size=rows),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=50)


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(folder))


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


def test_oracle_reading_files_directly_gives_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", 3)
    frame = stream_of(spark, tmp_path / "in")
    assert file_columns(frame) == {"ts": "ts", "key": "key", "value": "value"}
    direct_rows = rows(spark, frame, tmp_path, "auto")
    assert direct_rows == rows(spark, frame, tmp_path, "rows")
    assert direct_rows


def test_files_that_need_sparks_reader_go_through_the_jvm(
    spark: SparkSession, tmp_path: Path
) -> None:
    # keys are stored as int32 and asked for as bigint: Spark converts, we leave it to Spark
    write(tmp_path / "in", 2, key=pa.int32())
    frame = stream_of(spark, tmp_path / "in")
    assert rows(spark, frame, tmp_path, "auto") == rows(spark, frame, tmp_path, "rows")


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
    spark: SparkSession, tmp_path: Path, changed: Any
) -> None:
    (tmp_path / "in").mkdir()
    assert file_columns(changed(stream_of(spark, tmp_path / "in"))) is None


def test_other_formats_are_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert file_columns(spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))) is None


def test_renamed_columns_are_followed_to_the_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = stream_of(spark, tmp_path / "in").select(sf.col("key").alias("a"), "ts")
    renamed = frame.select(sf.col("a").alias("b"), sf.col("ts").alias("time"))
    assert file_columns(renamed) == {"b": "key", "time": "ts"}


def test_pieces_of_a_file_share_its_row_groups_without_overlap(tmp_path: Path) -> None:
    write(tmp_path / "in", 1, rows=500)
    path = tmp_path / "in" / "0.parquet"
    size = path.stat().st_size
    file = pq.ParquetFile(path)
    for cuts in ([0, size], [0, size // 3, size // 2, size], [*list(range(0, size, 700)), size]):
        found = [
            group
            for start, end in itertools.pairwise(cuts)
            for group in direct._row_groups(file, Piece(str(path), start, end - start))
        ]
        assert found == list(range(10))
    file.close()


def test_partition_folders_are_left_to_spark() -> None:
    assert direct._local("file:///data/day=1/a.parquet") == ""
    assert direct._local("file:///data/a%20b.parquet") == "/data/a b.parquet"
    assert direct._local("s3a://bucket/a.parquet") == ""
