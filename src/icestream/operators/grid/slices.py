"""The directory of pane slices: which records of the log hold which pane.

Idea: a slice is a record; the directory has its pane, marker, number of entries and range of
`id_high`, sorted by pane and, within a pane, by arrival. It is all that memory holds for state that
waits on the log: 40 bytes for up to 64 KB.

In small batches, opening a segment costs far more than reading the few entries in it, and windows
soon need what came last. So the last slices also stay in a page of the arena.

Invariants:
1. Slices are returned by (pane, arrival), whatever the order in which they were added
   (`test_parity_directory_beside_a_sorted_list`).
2. Recent slices are those of the log (`test_parity_recent_slices_beside_the_log`), and at most a
   page is held (`test_bounded_recent_slices_take_a_page`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ids, Ints, Table, slice_bounds
from icestream.state.arena import PAGE, Arena
from icestream.state.budget import Refused
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


class RecentSlices:
    """Entries of slices by the order of their markers; a cache of the log."""

    def __init__(self, arena: Arena, width: int) -> None:
        """Attach to those of an arena, whose entries have `width` words."""
        self._arena = arena
        self._open(width)

    def _open(self, width: int) -> None:
        #: entries that there may be
        self.most = PAGE // (8 * (1 + width))
        self._table = CountedTable(self._arena, f"recent-{width}", 1 + width)

    def restart(self, width: int) -> None:
        """Forget all; entries have another width from now on."""
        self._keep_from(len(self._table))
        self._table.trim()
        self._open(width)

    def add(self, markers: Sequence[int], rows: Sequence[int], entries: Table) -> None:
        """Take new slices, given the marker and number of entries of each, if there is room.

        There is for `most` entries: slices that were added before are forgotten.
        """
        many = len(self._table) + len(entries) - self.most
        if many > 0:
            # half of them at least, so that it is done rarely
            last = self._markers[max(many, len(self._table) // 2) - 1]
            self._keep_from(int(self._markers.searchsorted(last, side="right")))
        column = np.repeat(np.array(markers, dtype=np.uint64).view(np.int64), rows)
        with suppress(Refused):
            self._table.append(np.column_stack([column, entries]))

    def fill(self, places: dict[int, Table]) -> None:
        """Copy the entries of slices that are here to their places, by marker; remove these."""
        table, known, wanted = self._table.rows, self._markers, np.array([*places], dtype=np.uint64)
        first = known.searchsorted(wanted).tolist()
        last = known.searchsorted(wanted, side="right").tolist()
        for marker, begin, end in zip([*places], first, last, strict=True):
            if begin < end:
                places.pop(marker)[:] = table[begin:end, 1:]

    @property
    def _markers(self) -> Ids:
        """Return the marker of each entry's slice."""
        return self._table.rows[:, 0].view(np.uint64)

    def _keep_from(self, first: int) -> None:
        self._table.replace(self._table.rows[first:])
