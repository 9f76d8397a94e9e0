"""Events of equal time come in the order of their source, whatever the batches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

import icestream as ice

pytestmark = pytest.mark.spark

SECOND = 1_000_000
#: files by name, in the order in which they were changed; that of one size, and of names, differs
FILES = {"d e%1.parquet": 3, "b.parquet": 40, "c.parquet": 1, "a.parquet": 7, "f.parquet": 20}


def _fill(folder: str, start: int = 0) -> None:
    """Write files whose events are all of one time, numbered as they come; the last is later."""
    os.makedirs(folder)
    number = start
    for place, (name, rows) in enumerate(FILES.items()):
        times = pa.array([SECOND] * rows, pa.int64()).cast(pa.timestamp("us", "UTC"))
        table = pa.table({"ts": times, "n": list(range(number, number + rows)), "k": [1] * rows})
        number += rows
        path = os.path.join(folder, name)
        pq.write_table(table, path + ".tmp")
        os.utime(path + ".tmp", (1_000_000_000 + 10 * place,) * 2)
        os.rename(path + ".tmp", path)


def _run(result: Any, folder: Path, **options: Any) -> list[Row]:
    found: list[Row] = []
    writer = result.writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect()))
    writer = writer.option("checkpointLocation", str(folder)).option("flush", True).memory("64 MB")
    for name, value in options.items():
        writer = writer.option(name, value)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return found


WAYS = {
    "files": {},
    "rows": {"input": "rows"},
    "storage": {"exchange": "storage"},
}


def _stream(spark: SparkSession, folder: str, files: int, **options: Any) -> DataFrame:
    reader = spark.readStream.schema("ts timestamp, n bigint, k bigint")
    return reader.options(maxFilesPerTrigger=files, **options).parquet(folder)


@pytest.mark.sample(2)
@pytest.mark.parametrize("files", [2, 9])
@pytest.mark.parametrize("way", list(WAYS))
def test_oracle_ties_go_by_the_log_of_files_however_they_are_read(
    spark: SparkSession, tmp_path: Path, files: int, way: str
) -> None:
    _fill(f"{tmp_path}/in")
    events = ice.stream(_stream(spark, f"{tmp_path}/in", files), time="ts")
    last = sum(FILES.values()) - 1
    windows = events.window("10 seconds").groupBy("k").agg(
        ice.first("n").alias("first"),
        ice.last("n").alias("last"),
        ice.min_by("n", "k").alias("least"),
        ice.max_by("n", "k").alias("most"),
    )  # fmt: skip
    (row,) = _run(windows, tmp_path / "windows", **WAYS[way])
    assert (row["first"], row["last"], row["least"], row["most"]) == (0, last, 0, 0)
    frames = events.rows(2).groupBy("k").agg(ice.first("n").alias("a"), ice.last("n").alias("b"))
    found = [(row["a"], row["b"]) for row in _run(frames, tmp_path / "frames", **WAYS[way])]
    assert found == [(max(0, n - 1), n) for n in range(last + 1)]


@pytest.mark.parametrize("way", ["files", "rows"])
def test_oracle_ties_go_by_the_log_of_files_beside_events(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    _fill(f"{tmp_path}/in")
    events = ice.stream(_stream(spark, f"{tmp_path}/in", 9), time="ts")
    count = sum(FILES.values())
    beside = events.over(ice.lag("n").alias("before"), partitionBy="k")
    found = {row["n"]: row["before"] for row in _run(beside, tmp_path / "over", **WAYS[way])}
    assert found == {n: n - 1 if n else None for n in range(count)}


def test_rows_that_went_through_python_know_their_file(spark: SparkSession, tmp_path: Path) -> None:
    def same(value: int) -> int:
        return value

    _fill(f"{tmp_path}/in")
    stream = _stream(spark, f"{tmp_path}/in", 9).withColumn(
        "m", sf.udf(same, "bigint", useArrow=False)("n")
    )
    windows = ice.stream(stream, time="ts").window("10 seconds")
    result = windows.groupBy("k").agg(ice.first("m").alias("first"), ice.last("m").alias("last"))
    (row,) = _run(result, tmp_path / "checkpoint")
    assert (row["first"], row["last"]) == (0, sum(FILES.values()) - 1)


def test_streams_of_one_folder_lose_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    _fill(f"{tmp_path}/in")
    whole = sum(FILES.values())
    for way, options in WAYS.items():
        halves = [
            ice.stream(
                _stream(spark, f"{tmp_path}/in", 3).where(f"n % 2 = {part}"),
                time="ts",
                name=f"half{part}",
            )
            for part in range(2)
        ]
        result = (
            halves[0]
            .union(halves[1])
            .window("10 seconds")
            .agg(ice.count().alias("events"), ice.first("n").alias("first"))
        )
        (row,) = _run(result, tmp_path / way, **options)
        assert (row["events"], row["first"]) == (whole, 0)


def test_files_that_are_read_latest_first_are_in_that_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    _fill(f"{tmp_path}/in")
    whole = sum(FILES.values())
    for way, options in WAYS.items():
        for files in (3, 9):
            stream = _stream(spark, f"{tmp_path}/in", files, latestFirst=True)
            windows = ice.stream(stream, time="ts").window("10 seconds").groupBy("k")
            result = windows.agg(ice.first("n").alias("first"), ice.last("n").alias("last"))
            (row,) = _run(result, tmp_path / f"{way}{files}", **options)
            assert (row["first"], row["last"]) == (whole - FILES["f.parquet"], 2)


def test_oracle_sums_of_floats_are_exact_however_events_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icestream.runtime.work.windows import prefold

    monkeypatch.setattr(prefold, "LEAST_EVENTS", 1)
    monkeypatch.setattr(prefold, "WORTH_IT", 1.0)
    os.makedirs(f"{tmp_path}/in")
    for place in range(2):
        times = pa.array([place * SECOND] * 4, pa.int64()).cast(pa.timestamp("us", "UTC"))
        table = pa.table({"ts": times, "v": [1e17, 1.0, -1e17, 3.0], "k": [1] * 4})
        pq.write_table(table, f"{tmp_path}/in/{place}.parquet")
        os.utime(f"{tmp_path}/in/{place}.parquet", (1_000_000_000 + 10 * place,) * 2)
    reader = spark.readStream.schema("ts timestamp, v double, k bigint")
    events = ice.stream(reader.option("maxFilesPerTrigger", 1).parquet(f"{tmp_path}/in"), time="ts")
    sums = events.window("1 second").groupBy("k").agg(ice.sum("v").alias("sum"))
    for way, options in WAYS.items():
        assert [row["sum"] for row in _run(sums, tmp_path / way, **options)] == [4.0, 4.0]
