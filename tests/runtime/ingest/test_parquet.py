from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icestream.runtime.ingest import parquet
from icestream.runtime.ingest.file_splits import FileSplit
from icestream.runtime.ingest.parquet import ParquetReader, row_ranges
from icestream.runtime.ingest.reader import UnlikeSpark

INSTANT = pa.timestamp("us", "UTC")


def whole(path: Path) -> FileSplit:
    return FileSplit(str(path), 0, path.stat().st_size)


def test_pieces_of_a_file_share_its_row_groups_without_overlap(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": np.random.default_rng(3).normal(size=500)}), path, row_group_size=50
    )
    size = path.stat().st_size
    with pq.ParquetFile(path) as file:
        for cuts in ([0, size], [0, size // 3, size // 2, size], [*range(0, size, 700), size]):
            found = [
                group
                for start, end in itertools.pairwise(cuts)
                for groups, first, last in row_ranges(
                    file, FileSplit(str(path), start, end - start)
                )
                for group in groups
                if (first, last) == (0, 50 * len(groups))
            ]
            assert found == list(range(10))


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_a_file_share_a_large_row_group_without_overlap(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "LEAST_SHARE", 700)
    monkeypatch.setattr(parquet, "BATCH_ROWS", 64)
    dice = np.random.default_rng(seed)
    path = tmp_path / "a.parquet"
    table = pa.table({"x": dice.normal(size=2_000), "n": np.arange(2_000)})
    pq.write_table(table, path, row_group_size=int(dice.choice([2_000, 900, 130])))
    size = path.stat().st_size
    for count in (1, 2, 3, 9):
        cuts = [0, *sorted(dice.integers(0, size, count - 1).tolist()), size]
        pieces = [FileSplit(str(path), a, b - a) for a, b in itertools.pairwise(cuts)]
        parts = [
            pa.Table.from_batches(ParquetReader().batches(each, table.schema), table.schema)
            for each in pieces
        ]
        assert pa.concat_tables(parts).equals(table)
    halves = [FileSplit(str(path), 0, size // 2), FileSplit(str(path), size // 2, size - size // 2)]
    rows = [sum(b.num_rows for b in ParquetReader().batches(h, table.schema)) for h in halves]
    assert abs(rows[0] - rows[1]) <= 600


@pytest.mark.spark
@pytest.mark.parametrize("stored", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_oracle_files_that_spark_wrote_are_read_alike(
    stored: str, spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql(
        "select timestamp_micros(n * 7654321987654L - 3000000000000000L) as ts, n as key, "
        "case when n % 3 > 0 then n / 7.0d end as value, string(n) as name from "
        "(select id as n from range(0, 900))"
    )
    spark.conf.set("spark.sql.parquet.outputTimestampType", stored)
    try:
        frame.coalesce(1).write.parquet(f"{tmp_path}/out")
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    [path] = (tmp_path / "out").glob("*.parquet")
    wanted = pa.schema([("value", pa.float64()), ("ts", INSTANT), ("name", pa.string())])
    found = pa.Table.from_batches(ParquetReader().batches(whole(path), wanted))
    assert found.schema == wanted
    assert found.equals(spark.read.parquet(str(path)).toArrow().select(wanted.names).cast(wanted))


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (pa.array([1], pa.int32()), pa.int64()),
        (pa.array([1], pa.timestamp("us")), INSTANT),
        (pa.array([1], INSTANT), pa.timestamp("us")),
        (pa.array([1], pa.timestamp("ns", "UTC")), INSTANT),
        (pa.array([1], pa.decimal128(20, 2)), pa.decimal128(20, 3)),
    ],
    ids=str,
)
def test_other_types_are_left_to_spark(
    stored: pa.Array, wanted: pa.DataType, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": stored}), path)
    with pytest.raises(UnlikeSpark, match="'x' is not stored as"):
        list(ParquetReader().batches(whole(path), pa.schema([("x", wanted)])))
    with pytest.raises(UnlikeSpark, match="'y' is not stored as"):
        list(ParquetReader().batches(whole(path), pa.schema([("y", stored.type)])))


def test_int96_that_spark_did_not_write_is_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": pa.array([1], INSTANT)}), path, use_deprecated_int96_timestamps=True
    )
    with pytest.raises(UnlikeSpark):
        list(ParquetReader().batches(whole(path), pa.schema([("x", INSTANT)])))


@pytest.mark.parametrize("mark", ["legacyDateTime", "legacyINT96"])
def test_old_calendars_are_left_to_spark(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"x": [1]}).replace_schema_metadata({f"org.apache.spark.{mark}": ""})
    pq.write_table(table, path)
    with pytest.raises(UnlikeSpark, match="calendar"):
        list(ParquetReader().batches(whole(path), table.schema))


def test_columns_that_are_not_used_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), path)
    [batch] = ParquetReader().batches(whole(path), pa.schema([("y", pa.string())]))
    assert batch.to_pydict() == {"y": ["a", "b"]}
