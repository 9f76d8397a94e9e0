"""Writes groups to the log: which words, linked to which extents, and updates the directory.

Idea: a group is written whole, or only its new rows with a pointer to its previous extent. All
groups of a call are planned in the order in which they are in memory, and written together, sorted.
A large group with a rank is written in pieces, worst rows first, so that its root has the best.

Segments that cleaning releases hold mostly groups that nobody reads. If the cold index has all
words of such a group inline, its extent is written again from there, and its entry gets a new root:
the group is never opened.

Invariants:
1. Behind a root are the rows of the group up to the clean words (`TestTheContract`).
2. An extent that replaces others expires no earlier than they do: a restore never shows rows that
   were replaced (`test_crash_a_shorter_rewrite_does_not_bring_old_rows_back`).
3. The rows behind the new root are those that were behind the old one
   (`test_inline_groups_are_cleaned_without_reading`).

Cost: four visits to each group in the directory, one gather and one copy of its words.

Limits: only rows of one size, because the number of rows is not stored.

References: delta updates (ICE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.times import INFINITY
from icestream.kernels.groups import directory_passes, inline_groups
from icestream.kernels.groups import heap as k
from icestream.kernels.groups.extents import (
    BACK,
    BACK_LATEST,
    HEADER,
    IN_ORDER,
    LATEST,
    LENGTH,
    SHAPE,
)
from icestream.state.groups import ranked
from icestream.state.groups.directory import ENTRY, entry_width, part
from icestream.state.groups.extents import ExtentLog, Extents, picked
from icestream.state.groups.facts import Fact
from icestream.state.groups.memory import Gathered, Memory
from icestream.state.identities import identities, in_order


@dataclass
class ExtentPlan:
    """The extents to be written."""

    synopsis: int
    live: Gathered
    headers: Ints
    #: ordinal of the first extent of each chain; 0 if it is the planned one
    oldest: Ints
    #: which groups are whole on the log and are written again
    again: Mask
    #: places of groups with something to write
    written: Ints

    def extents(self) -> tuple[Ints, Extents]:
        """Return places of groups with an extent, in the order of ids, and the extents."""
        places = self.written[_order(self.headers[self.written])]
        begins = self.live.offsets[places]
        return places, Extents(self.headers[places], self.live.words, begins)


@dataclass
class ExtentWriter:
    """Writes groups of one store."""

    memory: Memory
    log: ExtentLog
    durability: str
    #: word of a row with its rank, by synopsis, and whether that is a float; -1 for none
    rank_at: Sequence[tuple[int, bool]]

    def write(
        self, synopsis: int, slots: Slots, whole: Mask, kind: Fact, *, mirrored: bool
    ) -> None:
        """Write all words of some groups, only new words of others, and move their roots.

        Groups are visited in the order given; ascending slots are the fastest.
        """
        if len(slots):
            live = self.memory.gather(synopsis, slots, self.memory.measure(synopsis, slots, whole))
            self.write_live(synopsis, slots, whole, live, kind, mirrored=mirrored)

    def write_live(
        self,
        synopsis: int,
        slots: Slots,
        whole: Mask,
        live: Gathered,
        kind: Fact,
        *,
        mirrored: bool,
    ) -> None:
        """Write words that were gathered before."""
        plan = self._plan(synopsis, slots, whole, live)
        sizes = np.diff(plan.live.offsets)
        if self.rank_at[synopsis][0] >= 0:
            large = np.flatnonzero(whole & (sizes > ranked.PIECE_WORDS))
            if len(large):
                large = large[_order(plan.headers[large])]
                self._write_worse(plan, large, kind, mirrored)
        markers = np.full(len(slots), k.NO_ROOT)
        if len(plan.written):
            places, extents = plan.extents()
            again = plan.again[places]
            markers[places] = self._append(synopsis, extents, again, kind, mirrored)
        table, at = self.memory.directory.table, part(synopsis)
        directory_passes.settle(table, at, slots, whole, plan.headers, sizes, plan.oldest, markers)

    def write_again(self, synopsis: int, extents: Extents) -> Ints:
        """Write groups that the directory does not have, whole and in order; return the markers."""
        every = np.ones(len(extents.headers), dtype=np.bool_)
        return self._append(synopsis, extents, every, Fact.CONSOLIDATED, mirrored=False)

    def _plan(self, synopsis: int, slots: Slots, whole: Mask, live: Gathered) -> ExtentPlan:
        memory = self.memory
        headers = np.empty((len(slots), HEADER), dtype=np.int64)
        oldest, written = np.empty((2, len(slots)), dtype=np.int64)
        again = np.empty(len(slots), dtype=np.bool_)
        count = directory_passes.describe(
            memory.directory.table,
            part(synopsis),
            slots,
            whole,
            live.offsets,
            live.rows,
            live.latest,
            memory.watermark,
            self.durability == "log",
            headers,
            oldest,
            again,
            written,
        )
        return ExtentPlan(synopsis, live, headers, oldest, again, written[:count])

    def _write_worse(self, plan: ExtentPlan, large: Ints, kind: Fact, mirrored: bool) -> None:
        """Write all but the best rows of large groups, and leave the best for their roots."""
        live, expiry_at = plan.live, self.memory.expiry_at[plan.synopsis]
        words, offsets = picked(live.words, live.offsets[large], np.diff(live.offsets)[large])
        pieces = ranked.cut(words, offsets, *self.rank_at[plan.synopsis], expiry_at, INFINITY)
        sizes = np.diff(pieces.offsets)
        for level in reversed(range(1, ranked.PIECES)):
            of_level = np.flatnonzero(pieces.levels == level)
            if not len(of_level):
                continue
            groups = large[pieces.groups[of_level]]
            headers = plan.headers[groups]
            headers[:, SHAPE] = headers[:, SHAPE] >> 32 << 32 | pieces.rows[of_level]
            headers[:, LENGTH] = sizes[of_level] | IN_ORDER
            headers[:, LATEST] = np.maximum(pieces.latest[of_level], headers[:, BACK_LATEST])
            extents = Extents(headers, pieces.words, pieces.offsets[of_level])
            markers = self._append(plan.synopsis, extents, plan.again[groups], kind, mirrored)
            new = headers[:, BACK] == k.NO_ROOT
            plan.oldest[groups[new]] = markers[new] >> 32
            plan.headers[groups, BACK] = markers
            plan.headers[groups, BACK_LATEST] = headers[:, LATEST]
        best = np.flatnonzero(pieces.levels == 0)
        plan.live = _with_best(live, large, pieces, best)
        plan.headers[large, SHAPE] = plan.headers[large, SHAPE] >> 32 << 32 | plan.live.rows[large]
        plan.headers[large, LENGTH] = np.diff(plan.live.offsets)[large] | IN_ORDER

    def _append(
        self, synopsis: int, extents: Extents, again: Mask, kind: Fact, mirrored: bool
    ) -> Ints:
        """Write extents and count their bytes; those written again count as consolidated."""
        facts, before = self.memory.facts, self.log.traffic.bytes
        sequence = facts.next(Fact.SEQUENCE)
        markers = self.log.write(synopsis, extents, sequence, mirrored=mirrored)
        facts[Fact.EXTENTS] += len(markers)
        total = self.log.traffic.bytes - before
        consolidated = 0
        if kind == Fact.LOGGED and again.any():
            consolidated = 8 * int(np.diff(extents.filled())[again].sum())
        facts[Fact.CONSOLIDATED] += consolidated
        facts[kind] += total - consolidated
        return markers


def _order(headers: Ints) -> Ints:
    """Return the order of extents by id."""
    return in_order(*identities(headers))


def _with_best(live: Gathered, large: Ints, pieces: ranked.Pieces, best: Ints) -> Gathered:
    """Return the words of groups; of large ones, only the best piece."""
    begins, sizes, rows = live.offsets[:-1].copy(), np.diff(live.offsets), live.rows.copy()
    begins[large] = len(live.words) + pieces.offsets[best]
    sizes[large] = np.diff(pieces.offsets)[best]
    rows[large] = pieces.rows[best]
    words, offsets = picked(np.concatenate((live.words, pieces.words)), begins, sizes)
    return Gathered(words, offsets, rows, live.cleans, live.latest)


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
