"""The obvious versions of the kernels in `icestream.kernels.queue.cold_rows`."""

from __future__ import annotations

from icestream.core.arrays import Table


class RowsReference:
    """The same rows in a dictionary."""

    def __init__(self) -> None:
        """Start without rows."""
        self.rows: dict[tuple[int, int], list[int]] = {}

    def put(self, rows: Table) -> None:
        """Put rows of keys that are not there, or overwrite those that are."""
        self.rows.update({(int(row[0]), int(row[1])): row.tolist() for row in rows})

    def collect(self, word: int, before: int) -> list[list[int]]:
        """Remove and return the rows with a word below a limit."""
        return self.take([key for key, row in self.rows.items() if row[word] < before])

    def take(self, keys: list[tuple[int, int]]) -> list[list[int]]:
        """Remove and return the rows of keys that are there."""
        return [self.rows.pop(key) for key in keys if key in self.rows]


visit_rows_reference = put_rows_reference = collect_rows_reference = RowsReference
