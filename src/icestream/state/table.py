"""A table of records in an arena: its rows and their number.

Idea: an array of an arena has a capacity; how much of it is in use is a number in the arena's
header. This class changes both together, so that operators append, replace and drop records and
never handle a capacity.

Invariants:
1. A table has the same content as a list, after any changes and after the arena moved to another
   task (`test_parity_a_table_beside_a_list`).
2. A refused change leaves the table as it was (`test_a_refused_change_leaves_the_table_alone`).

Cost: appending is O(new records), amortised; everything else is O(records).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Mask, Table
from icestream.state.arena import Arena


class CountedTable:
    """Records of whole words, in the order they were added."""

    def __init__(self, arena: Arena, name: str, record: np.dtype[Any] | int) -> None:
        """Attach to the table `name` of an arena, or create it; `record` is a type or its words."""
        self._record: np.dtype[Any] = np.dtype(np.int64) if isinstance(record, int) else record
        self._words = record if isinstance(record, int) else record.itemsize // 8
        self._array = arena.array(name, np.int64, self._words)
        self._counts: dict[str, Any] = arena.header
        self._count = f"{name}.count"
        self._counts.setdefault(self._count, 0)

    def __len__(self) -> int:
        return int(self._counts[self._count])

    @property
    def rows(self) -> Table:
        """Return every record as a row of words; do not keep it across a change."""
        view: Table = self._array.view.reshape(-1, self._words)[: len(self)]
        return view

    @property
    def records(self) -> npt.NDArray[np.void]:
        """Return every record by its type; do not keep it across a change."""
        found: npt.NDArray[np.void] = self.rows.reshape(-1).view(self._record)
        return found

    def reserve(self, more: int) -> None:
        """Make room for more records; raises `Refused` and changes nothing if there is none."""
        needed = len(self) + more
        if needed > self._array.capacity:
            self._array.resize(needed + needed // 4)

    def append(self, records: npt.NDArray[Any]) -> None:
        """Append records; raises `Refused` and changes nothing if there is no room."""
        rows = self._as_rows(records)
        self.reserve(len(rows))
        count = len(self)
        self._array.view.reshape(-1, self._words)[count : count + len(rows)] = rows
        self._counts[self._count] = count + len(rows)

    def replace(self, records: npt.NDArray[Any]) -> None:
        """Replace all records; raises `Refused` and changes nothing if there is no room."""
        rows = np.array(self._as_rows(records))
        self.reserve(len(rows) - len(self))
        self._array.view.reshape(-1, self._words)[: len(rows)] = rows
        self._counts[self._count] = len(rows)

    def keep(self, chosen: Mask) -> None:
        """Drop all records but the chosen ones."""
        if not chosen.all():
            self.replace(self.rows[chosen])

    def trim(self) -> None:
        """Release memory that no record needs."""
        self._array.resize(len(self))

    def _as_rows(self, records: npt.NDArray[Any]) -> Table:
        flat: Table = np.ascontiguousarray(records).view(np.int64).reshape(-1, self._words)
        return flat
