"""The cells of a batch: events of one (group, pane), so that keys are hashed once per cell.

Idea: if keys are whole numbers in a narrow range, or there are none, every group has a small code,
its position in the range. A key that is null throughout the batch, as in a grouping without it,
changes no code. If the codes and panes of a batch form a small grid, cells are numbered by a lookup
in the grid; if not, every event is a cell of its own.

Invariant: the events of a cell have one pane and equal keys (`test_oracle_events_of_a_cell_agree`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.kernels.cells import number_cells, slots_of_cells

#: maximum size of a grid: of its 1 MB, the panes that come together stay in the processor's cache
GRID_PLACES = 1 << 18


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of the events of a batch, from one event on."""

    first: int
    #: events of the batch
    rows: int
    #: the first event of each cell, in order; None if each event is a cell of its own
    heads: Ints | None
    #: the cell of each event of the batch, and the events of each cell
    members: Ints | None
    sizes: Ints | None

    def one_each(self, keys: pa.RecordBatch, panes: Ints) -> tuple[pa.RecordBatch, Ints]:
        if self.heads is None:
            return keys.slice(self.first), panes[self.first :]
        some = keys.slice(0, len(self.heads))
        if keys.num_columns:
            some = keys.take(pa.array(self.heads))
        return some, panes[self.heads]

    def reached(self, done: int) -> int:
        """Return the event up to which all events are in the first `done` cells."""
        if self.heads is None:
            return self.first + done
        return self.rows if done == len(self.heads) else int(self.heads[done])

    def entries(self, numbers: Ints, last: int) -> Ints:
        """Return the entry of each event up to `last`, given that of each cell."""
        if self.members is not None:
            slots_of_cells(self.members, numbers, self.first, last)
            return self.members
        if self.first == 0:
            return numbers
        return np.concatenate([np.zeros(self.first, dtype=np.int64), numbers])


class CellFinder:
    """Finds the cells of one batch, for one grouping after the other."""

    def __init__(self, panes: Ints) -> None:
        """Take the pane of each event; there is at least one."""
        self._panes = panes
        self._earliest = int(panes.min())
        self._span = int(panes.max()) - self._earliest + 1

    def codes(self, keys: pa.RecordBatch) -> Codes | None:
        """Return codes that are equal exactly where keys are; None if there may be too many."""
        return _codes(keys, GRID_PLACES // self._span)

    def since(self, first: int, codes: Codes | None) -> Cells:
        """Return the cells of the events from `first` on, given the codes of their keys."""
        rows = len(self._panes)
        if codes is None:
            return Cells(first, rows, None, None, None)
        grid = np.zeros((self._span, codes.width), dtype=np.int32)
        members, heads, sizes = np.empty((3, rows), dtype=np.int64)
        count = number_cells(
            codes.numbers,
            codes.least,
            self._panes,
            self._earliest,
            first,
            grid,
            members,
            heads,
            sizes,
        )
        return Cells(first, rows, heads[:count], members, sizes[:count])


@dataclass(frozen=True, slots=True)
class Codes:
    """The code of each row, between `least` and `least + width`."""

    numbers: Ints
    least: int
    width: int


def _codes(keys: pa.RecordBatch, most: int) -> Codes | None:
    found = Codes(np.zeros(keys.num_rows, dtype=np.int64), 0, 1)
    for column in keys.columns:
        if column.null_count == keys.num_rows:
            continue
        if column.null_count or not pa.types.is_signed_integer(column.type):
            return None
        numbers = column.to_numpy().astype(np.int64, copy=False)
        least = int(numbers.min())
        extent = int(numbers.max()) - least + 1
        if found.width * extent > most:
            return None
        if extent == 1:
            continue
        if found.width == 1:
            found = Codes(numbers, least, extent)
        else:
            both = (found.numbers - found.least) * extent + (numbers - least)
            found = Codes(both, 0, found.width * extent)
    return found if found.width <= most else None
