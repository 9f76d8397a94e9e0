from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.demo.replay import write_files

PIECES = [
    (pa.table({"symbol": ["A"] * rows}), until) for rows, until in ((2, 10), (0, 20), (3, 30))
]


def test_spark_takes_the_files_in_their_order(tmp_path: Path) -> None:
    files = list(write_files(tmp_path, PIECES, ["symbol"]))
    assert [(file.events, file.until) for file in files] == [(2, 10), (0, 20), (3, 30)]
    millis = [file.path.stat().st_mtime_ns // 1_000_000 for file in files]
    assert millis == sorted(set(millis))
    assert [file.path for file in files] == sorted(tmp_path.glob("*.parquet"))
    assert [pq.read_table(file.path).num_rows for file in files] == [2, 0, 3]


def test_a_file_is_written_when_asked_for(tmp_path: Path) -> None:
    files = write_files(tmp_path, PIECES, ["symbol"])
    assert not list(tmp_path.glob("*.parquet"))
    next(files)
    assert [path.name for path in tmp_path.glob("*.parquet")] == ["000000.parquet"]
