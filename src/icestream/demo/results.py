"""Reads the result files of a query that is still running.

Idea: each result file is read once, and the rows of the latest window end are kept. A file that is
still being written has no footer yet and is read the next time.

Invariants:
1. The rows are those of the latest complete window, each group once
   (`test_oracle_the_newest_window_of_the_result_files`).
2. An incomplete file is not an error (`test_crash_a_half_written_result_file_is_read_later`).

Cost: each result file is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.core.times import MINUS_INFINITY, Micros

_MICROS = pa.timestamp("us", tz="UTC")


class ResultFiles:
    """Follows a folder of result files."""

    def __init__(self, folder: Path) -> None:
        """Follow `folder`, which need not exist yet."""
        self._folder = folder
        self._read: set[Path] = set()

    def new(self) -> Iterator[pa.Table]:
        for path in sorted(self._folder.glob("part-*.parquet")):
            if path in self._read:
                continue
            try:
                table = pq.ParquetFile(path).read()
            except (pa.ArrowInvalid, FileNotFoundError):
                continue
            self._read.add(path)
            if table.num_rows:
                yield table


class NewestWindow:
    """The newest window of results with a `window` column and one row per group."""

    def __init__(self, folder: Path, *keys: str) -> None:
        """Follow `folder`, which need not exist yet; a group is the values of all keys."""
        self._files = ResultFiles(folder)
        self._keys = keys
        self._groups: dict[Any, dict[str, Any]] = {}
        #: end of the newest window; `MINUS_INFINITY` before there is one
        self.end: Micros = MINUS_INFINITY
        #: its start
        self.start: Micros = MINUS_INFINITY

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the newest window, one per group."""
        return list(self._groups.values())

    def refresh(self) -> None:
        """Read the new result files."""
        for table in self._files.new():
            self._take(table)

    def _take(self, table: pa.Table) -> None:
        """Keep the rows of the newest window of a file, if no newer one is known."""
        window = table.column("window").combine_chunks()
        ends = micros_of(window.field("end"))
        end = pc.max(ends).as_py()
        if end < self.end:
            return
        newest = pc.equal(ends, end)
        if end > self.end:
            self._groups = {}
            self.end = end
            self.start = pc.min(micros_of(window.field("start")).filter(newest)).as_py()
        for row in table.drop_columns(["window"]).filter(newest).to_pylist():
            self._groups[tuple(row[key] for key in self._keys)] = row


def micros_of(times: pa.Array) -> pa.Array:
    """Convert timestamps in result files, of any unit, to microseconds since the epoch."""
    if times.type.tz is None:
        return times.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return times.cast(_MICROS, safe=False).cast(pa.int64())
