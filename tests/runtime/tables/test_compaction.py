"""Small files of a Parquet folder become few, and the table stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from icestream.core.errors import DefinitionError, StorageError
from icestream.runtime.spark.parquet_sink import ParquetTable
from icestream.runtime.tables import compaction
from icestream.runtime.tables.compaction import compact
from icestream.runtime.tables.layout import TableFiles, TableTarget
from icestream.runtime.tables.writer import TableWriters

pytestmark = pytest.mark.spark

COLUMNS = (
    "id as n",
    "id % 3 as part",
    "timestamp_micros(id) as at",
    "cast(id as decimal(9, 2)) as money",
)


def table_of(spark: SparkSession, folder: Path, versions: int, first: int = 0) -> DataFrame:
    """Write some versions of two files each; return the table as Spark reads it."""
    rows = spark.range(0).selectExpr(*COLUMNS)
    table = ParquetTable.of(spark, f"{folder}/a b", rows.schema, TableTarget(partition_by=["part"]))
    assert table is not None
    for version in range(first, versions):
        frame = spark.range(6 * version, 6 * version + 6).selectExpr(*COLUMNS)
        writers = TableWriters([table.layout], version + 1, 0, 1)
        for batch in frame.toArrow().to_batches():
            writers.write(0, batch)
        table.add(version, writers.finish())
    return spark.read.parquet(f"{folder}/a b")


def test_oracle_a_compacted_folder_has_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    before = table_of(spark, tmp_path, 12)
    schema, rows = before.schema, sorted(map(repr, before.collect()))
    done = compact(f"{tmp_path}/a b")
    assert (done.before, done.after) == (30, 3)
    assert len([*(tmp_path / "a b").rglob("*.parquet")]) == 9
    for versions in (12, 25):
        found = table_of(spark, tmp_path, versions, 12)
        assert found.schema == schema
        part = found.where("n < 72").collect()
        assert sorted(map(repr, part)) == rows
    assert found.count() == 150
    assert compact(f"{tmp_path}/a b").after == 3


class Killed(BaseException):
    """The process is dead."""


def test_crash_a_compaction_at_every_step(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_of(spark, tmp_path, 11)
    for step in range(1, 100):
        taken = 0

        def take(step: int = step) -> None:
            nonlocal taken
            taken += 1
            if taken >= step:
                raise Killed

        class Dying(TableFiles):
            def unlink(self, *paths: str) -> None:
                take()
                super().unlink(*paths)

            def rename(self, source: str, target: str) -> None:
                take()
                super().rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(compaction, "table_storage", lambda _: Dying())
            try:
                compact(f"{tmp_path}/a b")
            except Killed:
                assert spark.read.parquet(f"{tmp_path}/a b").count() == 66
                continue
        break
    assert step > 3
    assert spark.read.parquet(f"{tmp_path}/a b").count() == 66


def test_a_busy_folder_is_not_compacted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_of(spark, tmp_path, 10)
    merged = compaction._merged

    def meanwhile(*args: object) -> object:
        table_of(spark, tmp_path, 11, 10)
        monkeypatch.undo()
        return merged(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "_merged", meanwhile)
    with pytest.raises(StorageError, match="a query writes to"):
        compact(f"{tmp_path}/a b")
    assert spark.read.parquet(f"{tmp_path}/a b").count() == 66
    assert len([*(tmp_path / "a b").rglob("*.parquet")]) == 33


def test_only_folders_with_a_log_are_compacted(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="no log"):
        compact(str(tmp_path))
