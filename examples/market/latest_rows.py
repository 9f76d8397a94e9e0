"""The latest row of each group in the result files of a query that is still running.

Invariant: the row of a group is its last one, in the order of time and then of arrival
(`test_oracle_the_latest_row_of_each_group`).

Cost: each result file is read once.

Limits: rows of one group and time are told apart by their order in a file, which is that of the
shard that wrote them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.demo.results import ResultFiles, micros_of


class LatestRows:
    """The latest row of each group of results with a `time` column."""

    def __init__(self, folder: Path, grouping: str) -> None:
        """Follow `folder`, which need not exist yet."""
        self._files = ResultFiles(folder)
        self._grouping = grouping
        #: by group; `time` is in microseconds
        self.rows: dict[Any, dict[str, Any]] = {}

    def refresh(self) -> None:
        """Read the result files that are new."""
        for table in self._files.new():
            self._take(table)

    def _take(self, table: pa.Table) -> None:
        """Keep the last row of each group of a file, where none is known that is later."""
        times = micros_of(table.column("time").combine_chunks())
        order = np.argsort(times.to_numpy(), kind="stable")
        groups = table.column(self._grouping).combine_chunks().dictionary_encode()
        last = np.zeros(len(groups.dictionary), np.int64)
        # of several assignments to one place the last one stays
        last[groups.indices.to_numpy()[order]] = order
        place = table.schema.get_field_index("time")
        for row in table.set_column(place, "time", times).take(last).to_pylist():
            group = row[self._grouping]
            if group not in self.rows or row["time"] >= self.rows[group]["time"]:
                self.rows[group] = row
