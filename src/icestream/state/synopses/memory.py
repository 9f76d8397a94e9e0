"""What a store has in memory of its groups: columns of the directory, words of the heap.

Idea: reading and writing both begin with the words of many groups, gathered from the heap, with
what has expired left out. That is all this does.

Invariants:
1. What is gathered has no row that the watermark has reached (`TestTheContract`).

Cost: one copy of the words and one pass over their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from icestream.kernels import extents as extent_kernels
from icestream.kernels import heap as k
from icestream.state.synopses.directory import Directory, part
from icestream.state.synopses.facts import Fact, Facts
from icestream.state.synopses.heap import Heap
from icestream.state.synopses.spec import Ids, Ints, Slots

Mask = npt.NDArray[np.bool_]


class Gathered(NamedTuple):
    """Words of groups that have not expired."""

    words: Ints
    #: where the words of each group begin, and where the last one's end
    offsets: Ints
    rows: Ints
    #: how many of the words were clean
    cleans: Ints
    latest: Ints


@dataclass
class Memory:
    """The groups of one store, as far as they are in memory."""

    directory: Directory
    heap: Heap
    facts: Facts
    #: word of a row with its expiry, by synopsis; -1 for none
    expiry_at: Sequence[int]

    @property
    def watermark(self) -> int:
        """What expires at or before it is gone."""
        return self.facts[Fact.WATERMARK]

    def column(self, synopsis: int, which: int, slots: Slots) -> Ints:
        """Return a column of some groups."""
        return np.asarray(self.directory.table[slots, part(synopsis) + which])

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        """Return hi and lo of groups."""
        table = self.directory.table
        return table[slots, k.HI].view(np.uint64), table[slots, k.LO].view(np.uint64)

    def gather(
        self, synopsis: int, slots: Slots, skipped: Ints, behind: tuple[Ints, Ints] | None = None
    ) -> Gathered:
        """Return the live words of groups without the first `skipped` ones in memory.

        Words from the log, if any are given, come before those in memory and count as clean.
        """
        table, at = self.directory.table, part(synopsis)
        sizes = table[slots, at + k.WORDS] - skipped
        cleans = np.maximum(table[slots, at + k.CLEAN] - skipped, 0)
        offsets = np.zeros(len(slots) + 1, dtype=np.int64)
        if behind is not None:
            cold_sizes = np.diff(behind[1])
            sizes = sizes + cold_sizes
            cleans = cold_sizes
        np.cumsum(sizes, out=offsets[1:])
        words = np.empty(int(offsets[-1]), dtype=np.int64)
        places = offsets[:-1].copy()
        if behind is not None:
            extent_kernels.copy_pieces(behind[0], behind[1][:-1], cold_sizes, words, places)
        self.heap.gather(synopsis, slots, skipped, words, places)
        rows, live, latest = (np.empty(len(slots), dtype=np.int64) for _ in range(3))
        expiry_at = self.expiry_at[synopsis]
        k.sift(words, offsets, cleans, expiry_at, self.watermark, rows, live, latest)
        return Gathered(words[: offsets[-1]], offsets, rows, live, latest)

    def has(self, synopsis: int, flag: int, slots: Slots) -> Mask:
        """Tell which groups have a flag."""
        return np.asarray(self.column(synopsis, k.FLAGS, slots) & flag != 0)
