from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from icestream.core.errors import InputError
from icestream.runtime.ingest.arrow import ArrowReader, rows_of_paths
from icestream.runtime.ingest.file_splits import FileSplit

WANTED = pa.schema([("x", pa.int64())])


def write(path: Path, table: pa.Table, rows: int | None = None, **options: Any) -> Path:
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, rows)
    return path


def whole(path: Path) -> FileSplit:
    return FileSplit(str(path), 0, path.stat().st_size)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_pieces_of_an_arrow_file_share_its_batches_without_overlap(
    codec: str | None, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"x": range(100)}), 7, compression=codec)
    size = path.stat().st_size
    for cuts in ([0, size], [0, size // 3, size], [*range(0, size, 90), size]):
        found = [
            value
            for start, end in itertools.pairwise(cuts)
            for batch in ArrowReader().batches(FileSplit(str(path), start, end - start), WANTED)
            for value in batch.column("x").to_pylist()
        ]
        assert found == list(range(100))


def test_columns_are_chosen_by_name_and_cast_without_loss(tmp_path: Path) -> None:
    table = pa.table(
        {
            "unused": ["a", "b"],
            "t": pa.array([1, 2], pa.timestamp("ms", "UTC")),
            "name": pa.array(["u", None]).dictionary_encode(),
            "x": pa.array([1, None], pa.int16()),
        }
    )
    path = write(tmp_path / "a.arrow", table)
    wanted = pa.schema([("x", pa.int64()), ("name", pa.string()), ("t", pa.timestamp("us", "UTC"))])
    [batch] = ArrowReader().batches(whole(path), wanted)
    assert batch.schema == wanted
    assert batch.column("t").cast(pa.int64()).to_pylist() == [1000, 2000]
    assert batch.column("name").to_pylist() == ["u", None]
    assert batch.column("x").to_pylist() == [1, None]


def test_files_that_do_not_fit_say_what_to_do(tmp_path: Path) -> None:
    text = tmp_path / "a.arrow"
    text.write_text("no Arrow file at all")
    with pytest.raises(InputError, match=r"not an Arrow file.*pyarrow\.ipc\.new_file"):
        list(ArrowReader().batches(whole(text), WANTED))
    other = write(tmp_path / "b.arrow", pa.table({"y": [1]}))
    with pytest.raises(InputError, match=r"has the columns \['y'\], but not \['x'\]"):
        list(ArrowReader().batches(whole(other), WANTED))
    wide = write(tmp_path / "c.arrow", pa.table({"x": [1.5]}))
    with pytest.raises(InputError, match="'x' is double and cannot be converted to int64"):
        list(ArrowReader().batches(whole(wide), WANTED))


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", WANTED.empty_table())
    assert list(ArrowReader().batches(whole(path), WANTED)) == []


def test_paths_become_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a b%20.arrow", pa.table({"x": [1, 2]}))
    paths = pa.RecordBatch.from_pydict({"path": [f"file:{path}", f"file://{path}"]})
    found = pa.Table.from_batches(rows_of_paths(WANTED)(iter([paths])))
    assert found.column("x").to_pylist() == [1, 2, 1, 2]
    with pytest.raises(InputError, match="mount the folder"):
        list(rows_of_paths(WANTED)(iter([pa.RecordBatch.from_pydict({"path": ["s3a://b/a"]})])))
