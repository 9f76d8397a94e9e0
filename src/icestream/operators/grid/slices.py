"""The directory of pane slices: which records of the log hold which pane.

Idea: a slice is a record; the directory has its pane, marker, number of entries and range of
`id_high`, sorted by pane and, within a pane, by arrival. It is all that memory holds for state that
waits on the log: 40 bytes for up to 64 KB.

Invariant: slices are returned by (pane, arrival), whatever the order in which they were added
(`test_parity_directory_beside_a_sorted_list`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints
from icestream.operators.equal_rows import slice_bounds
from icestream.state.arena import Arena
from icestream.state.table import CountedTable

SLICE = np.dtype(
    [
        ("pane", np.int64),
        ("marker", np.uint64),
        ("rows", np.int64),
        ("first_id_high", np.uint64),
        ("last_id_high", np.uint64),
    ]
)

Slices = npt.NDArray[np.void]


def in_order(slices: Slices) -> Slices:
    """Return pane slices sorted by pane and, within a pane, by arrival."""
    return slices[np.argsort(slices["pane"], kind="stable")]


def distinct_panes(slices: Slices) -> Ints:
    """Return the panes of slices that are in order, each once."""
    panes = np.ascontiguousarray(slices["pane"])
    return panes[slice_bounds(panes)[:-1]] if len(panes) else panes


class SliceDirectory:
    """Slices of one shard, in an arena."""

    def __init__(self, arena: Arena) -> None:
        self._table = CountedTable(arena, "slices", SLICE)
        #: computed on first use
        self._panes: Ints | None = None

    def __len__(self) -> int:
        return len(self._table)

    @property
    def all(self) -> Slices:
        return self._table.records

    def append(self, slices: Slices) -> None:
        """Add new slices; raises `Refused`, with nothing changed, if the budget is full."""
        if len(slices) == 0:
            return
        self._table.replace(in_order(np.concatenate([self.all, slices])))
        self._panes = None

    def between(self, first: int, last: int) -> Slices:
        """Return a copy of the slices with `first <= pane < last`."""
        slices = self.all
        panes = slices["pane"]
        return slices[panes.searchsorted(first) : panes.searchsorted(last)].copy()

    @property
    def panes(self) -> Ints:
        if self._panes is None:
            self._panes = distinct_panes(self.all)
        return self._panes

    def first_from(self, pane: int) -> int | None:
        """Return the least pane at or after `pane` that has a slice."""
        at = self.panes.searchsorted(pane)
        return int(self.panes[at]) if at < len(self.panes) else None

    def drop_before(self, pane: int) -> None:
        """Remove the slices of panes before `pane`."""
        if len(self) and self.all["pane"][0] < pane:
            self._table.replace(self.between(pane, np.iinfo(np.int64).max))
            self._panes = None
