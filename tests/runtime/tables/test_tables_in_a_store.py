"""Tables in an object store behind a network that fails: every version is in them once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from icestream.core.errors import StorageError
from icestream.runtime.spark.parquet_sink import ParquetTable
from icestream.runtime.tables import compaction
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.compaction import compact
from icestream.runtime.tables.delta import DeltaAppendTable
from icestream.runtime.tables.iceberg import IcebergAppendTable
from icestream.runtime.tables.layout import OpenTableFile, TableLayout, TableTarget
from icestream.runtime.tables.sink_log import SinkLog
from icestream.runtime.tables.sweep import sweep_table
from icestream.runtime.tables.writer import TableWriters, read_back
from icestream.state.stores import bucket as buckets
from icestream.state.stores.bucket import open_bucket
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.commits import Commit
from icestream.state.versions.table_files import TableFile
from tests.fixtures.object_store import BUCKET, KEY, SECRET, ObjectStoreServer

WRITER = f"{'ab' * 16}-0"
COLUMNS = pa.schema([("n", pa.int64()), ("name", pa.string()), ("x", pa.float64())])

Opening = Callable[[ObjectStoreServer, Path], AppendTable]


def delta_in(store: ObjectStoreServer, folder: Path) -> AppendTable:
    place = f"s3://{BUCKET}{folder}/delta table"
    files = StoreFiles(store.options, limit=0)
    target = TableTarget(WRITER, partition_by=["name"], files=lambda _: files)
    return DeltaAppendTable(place, COLUMNS, target)


def iceberg_in(store: ObjectStoreServer, folder: Path) -> AppendTable:
    options = {
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalogue.db",
        "catalog.warehouse": f"s3://{BUCKET}{folder}/warehouse",
    }
    files = StoreFiles(store.options, limit=0)
    target = TableTarget(WRITER, options=options, files=lambda _: files)
    return IcebergAppendTable("db.calls", COLUMNS, target, store.options)


def parquet_in(store: ObjectStoreServer, folder: Path) -> AppendTable:
    files, place = StoreFiles(store.options, limit=0), f"s3a://{BUCKET}{folder}/a folder"
    layout = TableLayout(0, WRITER, place, COLUMNS, partition_by=("name",), files=files)
    return ParquetTable(layout, SinkLog(files, place))


def some_rows(version: int) -> pa.Table:
    numbers = range(6 * version, 6 * version + 6)
    names = [None if n % 6 == 5 else f"a/b={n % 2} ä" for n in numbers]
    return pa.table([[*numbers], names, [n / 7 for n in numbers]], schema=COLUMNS)


def written(table: AppendTable, version: int, epoch: int = 1) -> list[TableFile]:
    writers = TableWriters([table.layout], version + 1, 0, epoch)
    for batch in some_rows(version).to_batches():
        assert writers.write(0, batch)
    return writers.finish(sync=True)


def found_in(table: Any, store: ObjectStoreServer) -> list[int]:
    """Return the numbers that a reader of the table's own log finds."""
    if isinstance(table, DeltaAppendTable):
        options = {"allow_http": "true", **store.options}
        rows = DeltaTable(table.layout.folder, storage_options=options).to_pyarrow_table()
        return sorted(rows.column("n").to_pylist())
    if isinstance(table, IcebergAppendTable):
        table.latest()
        return sorted(table._table.scan().to_arrow().column("n").to_pylist())
    numbers: list[int] = []
    for path in table.log.files():
        with OpenTableFile(table.layout.files, path) as file:
            numbers += pq.ParquetFile(file).read().column("n").to_pylist()
    return sorted(numbers)


def stored(table: AppendTable) -> list[str]:
    layout = table.layout
    return [path for path in layout.files.walk(layout.folder) if path.endswith(".parquet")]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(buckets, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(buckets, "LONGEST_PAUSE", 0.01)
    open_bucket.cache_clear()
    yield
    open_bucket.cache_clear()


ALL = pytest.mark.parametrize(
    "opened", [delta_in, iceberg_in, parquet_in], ids=["delta", "iceberg", "parquet"]
)


@pytest.mark.sample(1)
@ALL
def test_crash_a_table_in_a_store(
    opened: Opening, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    owner, loser = (opened(object_store, tmp_path) for _ in range(2))
    commits = []
    with object_store.failing(0.1, 3) as faults:
        faults.delay = 0.01
        for version in range(12):
            written(owner, version)
            files = written(owner, version, epoch=2)
            commits.append(Commit(version + 1, version, tables=tuple(files), epoch=2))
            # whoever was the owner before delivers late, and again
            for table in (loser, owner, loser) if version % 2 else (owner,):
                table.add(version, files)
            newer = written(owner, version + 1, epoch=3)
            swept = sweep_table(owner, commits, 2)
            assert len(swept) == len(files)
            owner.layout.files.unlink(*(each.location for each in newer))
        assert faults.done.total() > 10
        assert faults.done["lose"]
    again = opened(object_store, tmp_path)
    assert again.latest() == 11
    assert found_in(again, object_store) == [*range(72)]
    named = {file.path for commit in commits for file in commit.tables}
    assert set(stored(again)) == named
    assert again.holds([*named, "other.parquet"]) == named
    back = [read_back(file, COLUMNS, again.layout.files) for file in commits[3].tables]
    assert sorted(pa.concat_tables(back).to_pylist(), key=repr) == sorted(
        some_rows(3).to_pylist(), key=repr
    )


@pytest.mark.sample(3)
@ALL
@pytest.mark.parametrize("fault", ["403", "drop"])
def test_a_store_that_refuses_is_named_without_secrets(
    opened: Opening,
    fault: str,
    object_store: ObjectStoreServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = opened(object_store, tmp_path)
    files = written(table, 0)
    bucket = table.layout.files._find(table.layout.folder)[0]  # type: ignore[attr-defined]
    monkeypatch.setattr(bucket, "_patience", 0.05)
    with object_store.failing(1.0, 0, fault), pytest.raises(StorageError) as refused:
        table.add(0, files)
    text = str(refused.value)
    assert f"://{BUCKET}" in text
    assert "storage.*" in text
    assert not any(secret in text for secret in (KEY, SECRET, object_store.endpoint))
    table.add(0, files)
    assert found_in(table, object_store) == [*range(6)]


def test_a_folder_in_a_store_is_compacted(
    object_store: ObjectStoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = parquet_in(object_store, tmp_path)
    for version in range(11):
        table.add(version, written(table, version))
    monkeypatch.setattr(compaction, "table_storage", lambda _: StoreFiles(object_store.options))
    done = compact(table.layout.folder)
    assert (done.before, done.after) == (30, 3)
    assert found_in(table, object_store) == [*range(66)]
    assert len(stored(table)) == 6
    table.add(11, written(table, 11))
    assert found_in(parquet_in(object_store, tmp_path), object_store) == [*range(72)]
