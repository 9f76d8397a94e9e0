"""Tables that tasks write: rows, partitions, statistics, versions added once, dead attempts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from icestream.commands.sql_shell import watched_rows
from icestream.core.errors import DefinitionError, StorageError
from icestream.runtime.tables import writer as table_writer
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.delta import DeltaAppendTable
from icestream.runtime.tables.iceberg import IcebergAppendTable
from icestream.runtime.tables.layout import TableFiles, TableLayout, TableTarget
from icestream.runtime.tables.sweep import sweep_table
from icestream.runtime.tables.writer import TableWriter, TableWriters, read_back
from icestream.state.versions.commits import Commit
from icestream.state.versions.table_files import TableFile

WRITER = f"{'ab' * 16}-0"
TIME = pa.timestamp("us", "UTC")
COLUMNS = pa.schema(
    [
        ("window", pa.struct([("start", TIME), ("end", TIME)])),
        ("name", pa.string()),
        ("small", pa.int32()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("list", pa.list_(pa.int64())),
    ]
)

Opening = Callable[..., AppendTable]


def delta_at(folder: Path, schema: pa.Schema = COLUMNS, **more: Any) -> AppendTable:
    return DeltaAppendTable(f"{folder}/a table", schema, TableTarget(WRITER, **more))


def iceberg_at(folder: Path, schema: pa.Schema = COLUMNS, **more: Any) -> AppendTable:
    options = {
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalogue.db",
        "catalog.warehouse": f"file://{folder}/warehouse",
    }
    return IcebergAppendTable("db.calls", schema, TableTarget(WRITER, options=options, **more))


def found_in(table: AppendTable) -> list[dict[str, Any]]:
    """Return the rows of a table, as its own reader sees them."""
    known: Any = table
    known.latest()
    if isinstance(table, DeltaAppendTable):
        rows = pa.table(DeltaTable(table.layout.folder).to_pyarrow_table())
    else:
        rows = known._table.scan().to_arrow()
    return sorted_rows(rows)


def sorted_rows(rows: pa.Table) -> list[dict[str, Any]]:
    names = [each.name for each in COLUMNS if each.name in rows.column_names]
    return sorted(rows.select(names).to_pylist(), key=repr)


def some_rows(count: int = 5, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    times = [1_700_000_000_000_000 + n for n in numbers]
    return pa.table(
        [
            [{"start": t, "end": t + 1} for t in times],
            [None if n % 5 == 4 else f"a/b={n % 3}" for n in numbers],
            [n % 2 for n in numbers],
            [*numbers],
            [n / 7 for n in numbers],
            [19_000 + n for n in numbers],
            [[n, None] for n in numbers],
        ],
        schema=COLUMNS,
    )


def written(table: AppendTable, rows: pa.Table, version: int, epoch: int = 1) -> list[TableFile]:
    """Write rows as a task of a version does."""
    writers = TableWriters([table.layout], version + 1, 0, epoch)
    for batch in rows.to_batches():
        assert writers.write(0, batch)
    return writers.finish()


BOTH = pytest.mark.parametrize("opened", [delta_at, iceberg_at], ids=["delta", "iceberg"])


@BOTH
@pytest.mark.parametrize("partitions", [(), ("name", "small"), ("day",)], ids=str)
def test_oracle_tables_have_the_rows_of_the_query(
    opened: Opening, partitions: Sequence[str], tmp_path: Path
) -> None:
    table = opened(tmp_path, partition_by=partitions)
    for version in range(3):
        table.add(version, written(table, some_rows(20, 20 * version), version))
    assert table.latest() == 2
    assert found_in(opened(tmp_path)) == sorted_rows(some_rows(60))
    glob = f"{table.layout.folder}/**/*.parquet"
    [(count, total)] = duckdb.execute(f"select count(*), sum(n) from '{glob}'").fetchall()
    assert (count, total) == (60, sum(range(60)))


@BOTH
def test_a_version_is_added_once_by_whoever_delivers_it(opened: Opening, tmp_path: Path) -> None:
    owner, loser = opened(tmp_path), opened(tmp_path)
    files = written(owner, some_rows(), 0)
    # both looked before either added
    assert (owner.latest(), loser.latest()) == (-1, -1)
    owner.add(0, files)
    loser.add(0, files)
    owner.add(0, files)
    owner.add(1, written(owner, some_rows(5, 5), 1))
    loser.add(0, files)
    loser.add(1, written(loser, some_rows(5, 5), 1))
    assert found_in(owner) == sorted_rows(some_rows(10))


@BOTH
def test_two_that_add_at_the_same_moment_add_once(
    opened: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    files = written(first, some_rows(), 0)
    commit = type(second)._commit  # type: ignore[attr-defined]

    def late(table: Any, version: int, own: Sequence[TableFile]) -> None:
        monkeypatch.undo()
        first.add(0, files)
        commit(table, version, own)

    monkeypatch.setattr(type(second), "_commit", late)
    second.add(0, files)
    assert found_in(first) == sorted_rows(some_rows())


@BOTH
def test_another_writer_of_the_table_is_no_hindrance(opened: Opening, tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.add(0, written(table, some_rows(), 0))
    other = opened(tmp_path)
    other.layout = replace(other.layout, writer=f"{'cd' * 16}-0")  # type: ignore[misc]
    if isinstance(other, IcebergAppendTable):
        other._property = "icestream.other"
    assert other.latest() == -1
    other.add(0, written(other, some_rows(5, 5), 0))
    table.add(1, written(table, some_rows(5, 10), 1))
    assert found_in(table) == sorted_rows(some_rows(15))


@BOTH
def test_a_table_with_other_columns_is_refused(opened: Opening, tmp_path: Path) -> None:
    opened(tmp_path)
    other = pa.schema([("name", pa.int64()), ("new", pa.string())])
    with pytest.raises(DefinitionError, match=r"new .* is missing in it.*the query has no window"):
        opened(tmp_path, other)
    with pytest.raises(DefinitionError, match="partitioned by"):
        opened(tmp_path, partition_by=("name",))


@BOTH
def test_a_file_that_is_gone_is_not_added(opened: Opening, tmp_path: Path) -> None:
    table = opened(tmp_path)
    [file] = written(table, some_rows(), 0)
    os.unlink(file.location)
    with pytest.raises((StorageError, FileNotFoundError)):
        table.add(0, [file])
    assert table.latest() == -1


def test_deltas_log_has_statistics_of_files(tmp_path: Path) -> None:
    table = delta_at(tmp_path)
    table.add(0, written(table, some_rows(), 0))
    [log] = [*Path(table.layout.folder, "_delta_log").glob("*1.json")]
    [add] = [json.loads(line)["add"] for line in log.read_text().splitlines() if '"add"' in line]
    found = json.loads(add["stats"])
    assert found["numRecords"] == 5
    assert found["minValues"]["n"] == 0
    assert found["maxValues"]["window"]["end"].startswith("2023-11-14T22:13:20.000005")
    assert found["nullCount"]["name"] == 1
    assert "list" not in found["nullCount"]


def test_a_file_with_nan_is_not_skipped_by_readers_of_great_values(tmp_path: Path) -> None:
    # NaN is greater than any number in Spark, and footers of Parquet leave it out
    table = delta_at(tmp_path)
    rows = some_rows(2)
    x = COLUMNS.get_field_index("x")
    table.add(0, written(table, rows.set_column(x, "x", pa.array([1.5, float("nan")])), 0))
    bounds = pa.table(DeltaTable(table.layout.folder).get_add_actions(flatten=True))
    assert bounds.column("min.x").to_pylist() == [1.5]
    assert "max.x" not in bounds.column_names or bounds.column("max.x").to_pylist() == [None]


@pytest.mark.parametrize("partitions", [(), ("name", "small")], ids=str)
def test_parity_rows_of_a_task_beside_its_files(partitions: Sequence[str], tmp_path: Path) -> None:
    table = delta_at(tmp_path, partition_by=partitions)
    rows = some_rows(40)
    files = written(table, rows, 0)
    assert sum(each.rows for each in files) == 40
    assert [each.bytes for each in files] == [os.path.getsize(each.location) for each in files]
    back = pa.concat_tables([read_back(each, COLUMNS) for each in files])
    assert sorted_rows(back) == sorted_rows(rows)
    for file in files:
        numbers = read_back(file, COLUMNS).column("n").to_pylist()
        assert numbers == sorted(numbers)


def test_bounded_files_and_rows_that_a_task_has_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "GROUP_BYTES", 2_000)
    monkeypatch.setattr(table_writer, "MOST_OPEN", 3)
    layout = TableLayout(0, WRITER, str(tmp_path), COLUMNS, partition_by=("day",), target=1)
    writing = TableWriter(layout, lambda number: f"file-{number}")
    for first in range(0, 40, 5):
        writing.write(some_rows(5, first))
        assert len(writing._open) <= 3
        assert writing._waiting < 2_000
    files = writing.finish()
    back = pa.concat_tables([read_back(each, COLUMNS) for each in files])
    assert sorted_rows(back) == sorted_rows(some_rows(40))


def test_only_columns_that_repeat_get_dictionaries(tmp_path: Path) -> None:
    rows = pa.table(
        {"time": pa.array(range(3000)).cast(TIME), "symbol": [n % 100 for n in range(3000)]}
    )
    layout = TableLayout(0, WRITER, str(tmp_path), rows.schema, int96=True)
    writing = TableWriter(layout, lambda number: f"file-{number}")
    writing.write(rows)
    (file,) = writing.finish()
    group = pq.read_metadata(file.location).row_group(0)
    assert [group.column(place).has_dictionary_page for place in range(2)] == [False, True]
    assert read_back(file, rows.schema).equals(rows)


def test_instants_of_any_year_come_back_from_sparks_oldest_format(tmp_path: Path) -> None:
    years = [datetime(year, 3, 1, 12, 0, 0, 1, tzinfo=UTC) for year in (1, 1582, 1969, 2262, 9999)]
    rows = pa.table({"time": pa.array(years, TIME)})
    layout = TableLayout(0, WRITER, str(tmp_path), rows.schema, int96=True)
    writing = TableWriter(layout, lambda number: f"file-{number}")
    writing.write(rows)
    (file,) = writing.finish()
    assert read_back(file, rows.schema).equals(rows)
    shown = watched_rows(tmp_path)[1]
    assert [each.replace(tzinfo=UTC) for (each,) in shown] == years


def test_a_task_starts_another_file_at_the_target_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "GROUP_BYTES", 1)
    table = delta_at(tmp_path, options={"targetFileSize": 100})
    writers = TableWriters([table.layout], 1, 0, 1)
    for first in range(3):
        writers.write(0, some_rows(5, 5 * first).to_batches()[0])
    files = writers.finish()
    assert len(files) == 3
    table.add(0, files)
    assert found_in(table) == sorted_rows(some_rows(15))


@BOTH
def test_only_files_of_dead_attempts_are_swept(opened: Opening, tmp_path: Path) -> None:
    table = opened(tmp_path, partition_by=("name",))
    kept, dead = (written(table, some_rows(), 0) for _ in range(2))
    table.add(0, kept)
    beyond, newer = written(table, some_rows(), 1), written(table, some_rows(), 1, epoch=2)
    foreign = TableWriter(table.layout, lambda number: f"part-00000-foreign-{number}")
    foreign.write(some_rows())
    foreign.finish()
    commits = [Commit(1, 0, tables=tuple(kept), epoch=1)]
    named = {each.path for each in kept}
    assert table.holds([*named, *(each.path for each in dead)]) == named
    assert set(sweep_table(table, commits, 1)) == {each.path for each in (*dead, *beyond)}
    assert all(os.path.exists(each.location) for each in (*kept, *newer))
    assert os.path.exists(foreign.written[0])
    assert found_in(table) == sorted_rows(some_rows())


@BOTH
def test_a_repaired_checkpoint_leaves_the_tables_files(opened: Opening, tmp_path: Path) -> None:
    table = opened(tmp_path, partition_by=("name",))
    for version in range(2):
        table.add(version, written(table, some_rows(5, 5 * version), version))
    # the repair went back before version 2, and computed it again
    again = written(table, some_rows(5, 5), 1, epoch=2)
    assert sweep_table(table, [Commit(2, 1, tables=tuple(again), epoch=2)], 2) == []
    table.add(1, again)
    assert found_in(table) == sorted_rows(some_rows(10))


def test_files_of_tables_are_for_everyone_the_user_lets(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        [file] = written(delta_at(tmp_path, partition_by=("small",)), some_rows(1), 0)
    finally:
        os.umask(before)
    assert os.stat(file.location).st_mode & 0o777 == 0o644
    assert os.stat(os.path.dirname(file.location)).st_mode & 0o777 == 0o755
    assert TableFiles().list(os.path.dirname(file.location))


@pytest.mark.parametrize(("opening", "packs"), [(delta_at, True), (iceberg_at, False)])
def test_integers_that_are_close_together_are_packed_where_all_readers_know_that(
    opening: Opening, packs: bool, tmp_path: Path
) -> None:
    dice = np.random.default_rng(3)
    close, far = dice.integers(-(1 << 40), 1 << 40, 3000), dice.integers(-(1 << 62), 1 << 62, 3000)
    least = np.array([-(1 << 63), (1 << 63) - 1] * 1500)
    columns = {
        "close": pa.array(close, mask=close % 7 == 0),
        "far": pa.array(far),
        "wrapping": pa.array(least + np.arange(3000) // 2),
        "small": pa.array((close % 100_000).astype(np.int32)),
        "repeating": pa.array(close % 3),
        "nothing": pa.nulls(3000, pa.int64()),
        "x": pa.array(far / 3),
    }
    rows = pa.table(columns)
    table = opening(tmp_path, rows.schema)
    writers = TableWriters([table.layout], 1, 0, 1)
    for batch in rows.to_batches(max_chunksize=700):
        assert writers.write(0, batch)
    (file,) = writers.finish(sync=True)
    path = f"{table.layout.folder}/{file.path}"
    group = pq.ParquetFile(path).metadata.row_group(0)
    found = [group.column(n) for n in range(group.num_columns)]
    packed = {c.path_in_schema for c in found if "DELTA_BINARY_PACKED" in c.encodings}
    assert packed == ({"close", "wrapping", "small"} if packs else set())
    assert read_back(file, rows.schema, table.layout.files).equals(rows)
    read = duckdb.execute(f"select * from read_parquet('{path}')").fetchall()
    assert read == [tuple(each.values()) for each in rows.to_pylist()]
