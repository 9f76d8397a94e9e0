"""Reads the result files of a query that is still running.

Idea: each result file is read once. For results with windows, the rows of the latest window end are
kept; for results per event, the latest row of each group. A file that is still being written has no
footer yet and is read the next time.

Invariants:
1. The rows are those of the latest complete window, each group once
   (`test_oracle_the_newest_window_of_the_result_files`).
2. The row of a group is its last one, in the order of time and then of arrival
   (`test_oracle_the_latest_row_of_each_group`).
3. An incomplete file is not an error (`test_crash_a_half_written_result_file_is_read_later`).

Cost: each result file is read once.

Limits: rows of one group and time are ordered by their position in a file, which is that of the
shard that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
        """Yield the new files that have rows."""
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

    def __init__(self, folder: Path, grouping: str) -> None:
        """Follow `folder`, which need not exist yet."""
        self._files = ResultFiles(folder)
        self._grouping = grouping
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
            self._groups[row[self._grouping]] = row


class LatestRows:
    """The latest row of each group of results with a `time` column."""

    def __init__(self, folder: Path, grouping: str) -> None:
        """Follow `folder`, which need not exist yet."""
        self._files = ResultFiles(folder)
        self._grouping = grouping
        #: by group; `time` is in microseconds
        self.rows: dict[Any, dict[str, Any]] = {}

    def refresh(self) -> None:
        """Read the new result files."""
        for table in self._files.new():
            self._take(table)

    def _take(self, table: pa.Table) -> None:
        """Keep the last row of each group of a file, if no later one is known."""
        times = micros_of(table.column("time").combine_chunks())
        order = np.argsort(times.to_numpy(), kind="stable")
        groups = table.column(self._grouping).combine_chunks().dictionary_encode()
        last = np.zeros(len(groups.dictionary), np.int64)
        # of several assignments to one key the last one wins
        last[groups.indices.to_numpy()[order]] = order
        place = table.schema.get_field_index("time")
        for row in table.set_column(place, "time", times).take(last).to_pylist():
            group = row[self._grouping]
            if group not in self.rows or row["time"] >= self.rows[group]["time"]:
                self.rows[group] = row


def micros_of(times: pa.Array) -> pa.Array:
    """Convert timestamps of any unit to microseconds since the epoch."""
    if times.type.tz is None:
        return times.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return times.cast(_MICROS, safe=False).cast(pa.int64())
