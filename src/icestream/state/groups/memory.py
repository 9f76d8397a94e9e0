"""The part of a store's groups that is in memory: columns of the directory, words of the heap.

Idea: reading and writing both start by gathering the words of many groups: first those of their
chains on the log, then those of the heap, without expired rows. That is all this module does. If
nothing expires and rows are of one size, they are counted without being read.

Invariants:
1. Gathered words contain no row whose expiry the watermark has reached (`TestTheContract`).

Cost: two visits to each group, one copy of the words, one pass over rows that may have expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.kernels.groups import directory_passes as passes
from icestream.kernels.groups import heap as k
from icestream.state.groups.directory import GroupDirectory, part
from icestream.state.groups.extents import Chains, picked
from icestream.state.groups.facts import Fact, Facts
from icestream.state.groups.heap import Heap

#: words of rows that operators get at once, however much memory there is; their copies as columns
#: and what is computed from them take about ten times as much, outside of the budget
PORTION = 1 << 18


class GatherSizes(NamedTuple):
    """Where the words of groups in memory go when they are gathered."""

    #: words of each group that are skipped
    skipped: Ints
    #: where the words of each group begin, and where the last one's end
    offsets: Ints
    #: number of clean words
    cleans: Ints
    #: groups that are only partly in memory
    cold: int


class Gathered(NamedTuple):
    """Words of groups that have not expired."""

    words: Ints
    #: where the words of each group begin, and where the last one's end
    offsets: Ints
    rows: Ints
    #: number of words that were clean
    cleans: Ints
    latest: Ints

    def of(self, places: Ints) -> Gathered:
        words, offsets = picked(self.words, self.offsets[places], np.diff(self.offsets)[places])
        rest = (each[places] for each in (self.rows, self.cleans, self.latest))
        return Gathered(words, offsets, *rest)


@dataclass
class Memory:
    """The groups of one store that are in memory."""

    directory: GroupDirectory
    heap: Heap
    facts: Facts
    #: word of a row with its expiry, by synopsis; -1 for none
    expiry_at: Sequence[int]
    #: words of every row, by synopsis; 0 if they differ
    widths: Sequence[int]
    #: bytes of the work buffers
    work: int

    @property
    def at_once(self) -> int:
        """Words that work buffers and heap can hold at once."""
        return min(self.work // 3, self.heap.limit // 4) // 8

    @property
    def portion(self) -> int:
        """Words that operators get at once: with what they make of them, a small process."""
        return min(self.at_once, PORTION)

    @property
    def watermark(self) -> int:
        """Rows that expire at or before it are gone."""
        return self.facts[Fact.WATERMARK]

    def column(self, synopsis: int, which: int, slots: Slots) -> Ints:
        return np.asarray(self.directory.table[slots, part(synopsis) + which])

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        table = self.directory.table
        return table[slots, k.ID_HIGH].view(np.uint64), table[slots, k.ID_LOW].view(np.uint64)

    def words(self, slots: Slots, synopses: Sequence[int] = ()) -> Ints:
        """Return the words of groups in some synopses or all, in memory and on the log."""
        parts = self.directory.parts[list(synopses)] if synopses else self.directory.parts
        words = np.empty(len(slots), dtype=np.int64)
        passes.words_of(self.directory.table, parts, slots, True, 1, words)
        return words

    def news(self, synopsis: int, slots: Slots) -> Ints:
        """Return the words of groups that are not on the log."""
        return self.column(synopsis, k.WORDS, slots) - self.column(synopsis, k.CLEAN, slots)

    def blocks_of(self, slots: Slots) -> Ints:
        """Return the blocks that the rows of groups take in memory."""
        words, size = np.empty(len(slots), dtype=np.int64), self.heap.block_words
        directory = self.directory
        passes.words_of(directory.table, directory.parts, slots, False, size, words)
        return words // size

    def measure(self, synopsis: int, slots: Slots, whole: Mask | None = None) -> GatherSizes:
        """Return where the words of groups in memory go: all, or only new ones if not whole."""
        whole = np.ones(len(slots), dtype=np.bool_) if whole is None else whole
        skipped, cleans = np.empty((2, len(slots)), dtype=np.int64)
        offsets = np.empty(len(slots) + 1, dtype=np.int64)
        table = self.directory.table
        cold = passes.measure(table, part(synopsis), slots, whole, skipped, offsets, cleans)
        return GatherSizes(skipped, offsets, cleans, cold)

    def gather(
        self, synopsis: int, slots: Slots, measured: GatherSizes, behind: Chains | None = None
    ) -> Gathered:
        """Return the live words of groups that were measured.

        Words from the log, if chains are given, are clean and come first.
        """
        offsets, cleans = measured.offsets, measured.cleans
        if behind is not None:
            offsets = offsets + np.concatenate(([0], np.cumsum(behind.sizes)))
            cleans = cleans + behind.sizes
        words, places = np.empty(int(offsets[-1]), dtype=np.int64), offsets[:-1].copy()
        if behind is not None:
            behind.copy(words, places)
        self.heap.gather(synopsis, slots, measured.skipped, words, places)
        return self.live(synopsis, words, offsets, cleans)

    def live(self, synopsis: int, words: Ints, offsets: Ints, cleans: Ints) -> Gathered:
        """Remove expired rows."""
        expiry_at, width = self.expiry_at[synopsis], self.widths[synopsis]
        if expiry_at < 0 and width:
            sizes = np.diff(offsets)
            latest = np.where(sizes > 0, INFINITY, MINUS_INFINITY)
            return Gathered(words, offsets, sizes // width, cleans, latest)
        rows, live, latest = np.empty((3, len(offsets) - 1), dtype=np.int64)
        k.sift(words, offsets, cleans, expiry_at, self.watermark, rows, live, latest)
        return Gathered(words[: offsets[-1]], offsets, rows, live, latest)

    def has(self, synopsis: int, flag: int, slots: Slots) -> Mask:
        return np.asarray(self.column(synopsis, k.FLAGS, slots) & flag != 0)
