"""Small cold groups written again from the words stored inline with their index entries.

Idea: the segments that cleaning releases hold mostly groups that nobody reads. If the cold index
has all words of such a group inline, its extent is written again from there, and its entry gets a
new root: the group is never opened, and directory and heap are not involved.

Invariants:
1. The rows behind the new root are those that were behind the old one
   (`test_inline_groups_are_cleaned_without_reading`).

Cost: a copy of the words; the log is not read.

Limits: only rows of one size, because the number of rows is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Ints, Mask
from icestream.kernels.groups import heap as k
from icestream.kernels.groups import inline_groups
from icestream.kernels.groups.extents import HEADER
from icestream.state.groups.directory import ENTRY, entry_width
from icestream.state.groups.extents import Extents
from icestream.state.groups.writing import ExtentWriter


@dataclass(frozen=True)
class InlineGroupWriter:
    """Writes groups from rows of the cold index."""

    writer: ExtentWriter
    #: words of every row, by synopsis; 0 if they differ
    widths: Sequence[int]

    def consolidate(self, rows: Ints, last: int) -> Mask:
        """Write inline groups that are in segments up to an ordinal; return which groups are done.

        The rows are sorted, of groups whose rows never expire; their entries are updated.
        """
        done = self._is_inline(rows)
        some = rows[done]
        for synopsis, width in enumerate(self.widths):
            root, _, chain, _, _ = (self._column(synopsis, column) for column in ENTRY)
            old = (some[:, root] != k.NO_ROOT) & (some[:, chain] >> 32 <= last)
            if not old.any():
                continue
            written = some[old]
            headers = np.empty((len(written), HEADER), dtype=np.int64)
            begins = np.empty(len(written), dtype=np.int64)
            inline_groups.plan_extents(written, self._packed_at, synopsis, width, headers, begins)
            extents = Extents(headers, written.reshape(-1), begins)
            markers = self.writer.write_again(synopsis, extents)
            some[old, root] = markers
            share = some[old, chain] & inline_groups.ALL_WORN << inline_groups.LENGTH_BITS
            some[old, chain] = markers >> 32 << 32 | share | 1
        rows[done] = some
        return done

    def _is_inline(self, rows: Ints) -> Mask:
        """Return which groups have all their words inline."""
        there = rows[:, self._packed_at] != 0 if all(self.widths) else np.zeros(len(rows), bool)
        for synopsis in range(len(self.widths)):
            counts = (
                rows[:, self._packed_at] >> synopsis * inline_groups.BITS & inline_groups.MOST_WORDS
            )
            there &= counts == rows[:, self._column(synopsis, k.COLD)]
        return np.asarray(there)

    @property
    def _packed_at(self) -> int:
        return int(inline_groups.packed_at(entry_width(len(self.widths))))

    @staticmethod
    def _column(synopsis: int, column: int) -> int:
        """Return the position of a synopsis column in an entry."""
        return entry_width(synopsis) + ENTRY.index(column)
