"""The entries of the newest slices, in memory beside the groups of a shard.

Idea: in small batches, opening a segment costs far more than reading the few entries in it, and
windows soon need what came last: it enters them, gets suffixes and, if they are short, leaves them.
So the last slices stay in a page of the arena, each entry behind the marker of its slice.

Invariants:
1. What is found is what the log has (`test_parity_recent_slices_beside_the_log`).
2. At most a page is held (`test_bounded_recent_slices_take_a_page`).

Cost: one page for each shard, as far as its budget allows; a copy of each batch that is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from icestream.core.arrays import Ids, Table
from icestream.state.arena import PAGE, Arena
from icestream.state.budget import Refused
from icestream.state.table import CountedTable


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
