from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.core.times import MINUS_INFINITY
from icestream.demo.results import NewestWindow

SECOND = 1_000_000


def write(path: Path, rows: list[tuple[int, int, int]], unit: pa.DataType) -> None:
    """Write (end in seconds, serviceId, calls) as a result file; windows are 60 s long."""
    times = [datetime.fromtimestamp(end, UTC) for end, _, _ in rows]
    begins = [datetime.fromtimestamp(end - 60, UTC) for end, _, _ in rows]
    window = pa.StructArray.from_arrays(
        [
            pa.array(begins, pa.timestamp("us", tz="UTC")).cast(unit),
            pa.array(times, pa.timestamp("us", tz="UTC")).cast(unit),
        ],
        names=["start", "end"],
    )
    table = pa.table(
        {
            "window": window,
            "serviceId": pa.array([service for _, service, _ in rows], pa.int32()),
            "calls": [calls for _, _, calls in rows],
        }
    )
    pq.write_table(table, path)


@pytest.mark.parametrize("unit", [pa.timestamp("us", tz="UTC"), pa.timestamp("ns")])
def test_oracle_the_newest_window_of_the_result_files(tmp_path: Path, unit: pa.DataType) -> None:
    newest = NewestWindow(tmp_path, "serviceId")
    newest.refresh()
    assert (newest.end, newest.rows) == (MINUS_INFINITY, [])

    # one batch in two files, the newest window spread over both
    write(tmp_path / "part-0.parquet", [(100, 1, 5), (110, 1, 6)], unit)
    write(tmp_path / "part-1.parquet", [(110, 2, 7), (90, 2, 1)], unit)
    newest.refresh()
    assert newest.end == 110 * SECOND
    assert newest.start == 50 * SECOND
    assert {row["serviceId"]: row["calls"] for row in newest.rows} == {1: 6, 2: 7}

    # a later batch without service 2; an empty file changes nothing
    write(tmp_path / "part-2.parquet", [(120, 1, 8)], unit)
    write(tmp_path / "part-3.parquet", [], unit)
    newest.refresh()
    newest.refresh()
    assert newest.end == 120 * SECOND
    assert newest.rows == [{"serviceId": 1, "calls": 8}]


def test_crash_a_half_written_result_file_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    write(path, [(100, 1, 5)], pa.timestamp("ns"))
    whole = path.read_bytes()
    newest = NewestWindow(tmp_path, "serviceId")
    for length in (0, 3, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        newest.refresh()
        assert newest.rows == []
    path.write_bytes(whole)
    newest.refresh()
    assert newest.rows == [{"serviceId": 1, "calls": 5}]
