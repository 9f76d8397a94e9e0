"""Moves groups between memory and the log: what an eviction writes, what a return reads.

Idea: a synopsis of a group has a *root*, the marker of its newest extent, and words in memory, of
which the first `CLEAN` are also on the log. Memory is *whole*, or has only the rows added on top of
a cold root. Eviction writes the words that are not clean and keeps the root; reading a cold group
follows its chain and appends the rows added meanwhile. A group that was read is *kept* in memory or
*passed by*. A rewrite makes everything behind the root *stale*: the next extent has no back
pointer, and if there are no rows, an empty extent records that.

Invariants:
1. Eviction and return change no rows (`TestTheContract`).
2. A clean group is evicted without a write (`test_a_clean_group_leaves_for_free`), unless it is
   on the log in many small pieces (`test_a_chain_of_small_pieces_is_made_one_when_it_leaves`).
3. A group that is passed by stays cold; if it is on the log in many small pieces, they are merged
   into one (`test_a_chain_of_small_pieces_is_made_one_when_it_is_read`).
4. A large group is read in pieces (`test_a_group_beyond_memory_is_read_in_pieces`).
5. Reading the best rows of a cold group does not make it hot: they are not mistaken for all of its
   rows (`test_the_best_rows_of_a_large_group_are_read_alone`).

References: migration of dirty state only, add-only access, partial reconstruction (ICE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from icestream.core.arrays import Ints, Mask, Slots
from icestream.kernels.groups import directory_passes, eviction
from icestream.kernels.groups import heap as k
from icestream.state.groups.directory import part
from icestream.state.groups.extents import REMINDERS, ChainPieces, Chains
from icestream.state.groups.facts import Fact
from icestream.state.groups.memory import Gathered, Memory
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.ranked import Best
from icestream.state.groups.writing import ExtentWriter
from icestream.state.rows import RowCodec

#: average words per extent below which a chain of several is merged into one when its group is
#: evicted or passed by: finding the pieces once more would cost more
SCATTERED = 64
#: minimum extents of such a chain
FEW = 8
#: extents on the log allowed for a group in memory, per one allowed for a cold group
HOT_CHAIN = 8


_NONE = np.empty(0, dtype=np.int64)


class LoadedRows(NamedTuple):
    """Rows of groups, and where they came from."""

    live: Gathered
    #: words of each group that is whole in memory, including expired ones
    held: Ints
    #: which groups were cold
    cold: Ints


@dataclass
class Mover:
    """Moves groups of one store."""

    memory: Memory
    writer: ExtentWriter
    options: StoreOptions
    #: codec of the rows, by synopsis
    codecs: Sequence[RowCodec]

    # -- coming back -----------------------------------------------------------------------

    def read(self, synopsis: int, slots: Slots) -> LoadedRows:
        """Return all rows of groups; cold ones stay cold."""
        memory, measured = self.memory, self.memory.measure(synopsis, slots)
        held = np.diff(measured.offsets)
        if not measured.cold:
            return LoadedRows(memory.gather(synopsis, slots, measured), held, _NONE)
        cold = np.flatnonzero(~memory.has(synopsis, k.WHOLE, slots))
        held[cold] = 0
        memory.facts[Fact.RETURNED] += len(cold)
        chains = self._follow(synopsis, slots, cold)
        return LoadedRows(memory.gather(synopsis, slots, measured, chains), held, cold)

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> Gathered:
        """Return at least the best rows of groups; cold ones stay cold."""
        memory, rank = self.memory, self.writer.rank_at[synopsis]
        best = Best(counts, *rank, memory.expiry_at[synopsis], memory.watermark)
        cold = np.flatnonzero(~memory.has(synopsis, k.WHOLE, slots))
        added = memory.gather(synopsis, slots[cold], memory.measure(synopsis, slots[cold]))
        best.add(cold, added.words, added.offsets)
        chains = self._follow(synopsis, slots, cold, best)
        return memory.gather(synopsis, slots, memory.measure(synopsis, slots), chains)

    def pieces(self, synopsis: int, slot: int, most: int) -> ChainPieces:
        """Return all rows of a cold group, about `most` words at a time; it stays cold."""
        memory, slots = self.memory, np.array([slot])
        memory.facts[Fact.RETURNED] += 1
        return self.writer.log.pieces(
            *memory.identities(slots),
            self._live_root(synopsis, slot),
            memory.watermark,
            most,
            self.codecs[synopsis],
        )

    def piece(self, synopsis: int, pieces: ChainPieces, number: int) -> Gathered:
        """Return the rows of one piece of a group that have not expired."""
        words = pieces.words(number)
        size = np.array([len(words)])
        return self.memory.live(synopsis, words, np.array([0, len(words)]), size)

    def _live_root(self, synopsis: int, slot: int) -> int:
        """Return the root of a group; none if everything behind it has expired."""
        slots, memory = np.array([slot]), self.memory
        is_over = memory.column(synopsis, k.ROOT_EXPIRY, slots)[0] <= memory.watermark
        return k.NO_ROOT if is_over else int(memory.column(synopsis, k.ROOT, slots)[0])

    def is_scattered(self, synopsis: int, slot: int) -> bool:
        """Return whether a group has more extents on the log than it may have, and small ones."""
        slots = np.array([slot])
        length = int(self.memory.column(synopsis, k.CHAIN, slots)[0]) & 0xFFFFFFFF
        cold = int(self.memory.column(synopsis, k.COLD, slots)[0])
        return length > self.options.chain_limit and cold < length * eviction.LARGE

    def rewrite_pieces(self, synopsis: int, slot: int, *, mirrored: bool) -> None:
        """Write a large group again, in as few extents as it can be read in; it must be cold."""
        slots, whole = np.array([slot]), np.ones(1, dtype=np.bool_)
        pieces = self.pieces(synopsis, slot, self.memory.at_once)
        for number in range(pieces.count):
            live = self.piece(synopsis, pieces, number)
            if len(live.words):
                self.writer.write_live(
                    synopsis, slots, whole, live, Fact.CONSOLIDATED, mirrored=mirrored
                )
                whole = np.zeros(1, dtype=np.bool_)

    def keep(self, synopsis: int, slots: Slots, live: Gathered) -> None:
        """Put rows that were read into memory, replacing what is there; there must be room."""
        heap, table = self.memory.heap, self.memory.directory.table
        heap.drop(synopsis, slots)
        heap.install(synopsis, slots, live.words, live.offsets, live.cleans)
        table[slots, part(synopsis) + k.FLAGS] |= k.WHOLE

    def pass_by(self, synopsis: int, slots: Slots, places: Ints, live: Gathered) -> None:
        """Leave some of the cold groups read on the log, as one extent if that is worth it."""
        table, at, passed = self.memory.directory.table, part(synopsis), slots[places]
        table[passed, at + k.FLAGS] |= k.ASKED
        if self.options.durability != "log":
            return
        apart = np.empty(len(passed), dtype=np.int64)
        apart = apart[: eviction.list_apart(table, at, passed, FEW, SCATTERED, apart)]
        if len(apart):
            some, every = passed[apart], np.ones(len(apart), dtype=np.bool_)
            words = live.of(places[apart])
            self.writer.write_live(synopsis, some, every, words, Fact.LOGGED, mirrored=True)
            self.release(synopsis, some)

    def _follow(self, synopsis: int, slots: Slots, cold: Ints, best: Best | None = None) -> Chains:
        memory = self.memory
        roots = np.full(len(slots), k.NO_ROOT)
        roots[cold] = memory.column(synopsis, k.ROOT, slots[cold])
        expiries = memory.column(synopsis, k.ROOT_EXPIRY, slots)
        id_high, id_low = memory.identities(slots)
        return self.writer.log.read_chains(
            id_high, id_low, roots, expiries, memory.watermark, best, self.codecs[synopsis]
        )

    # -- leaving ---------------------------------------------------------------------------

    def evict(self, slots: Slots) -> int:
        """Write words that are not clean, then free the groups' memory; return the bytes freed."""
        before = self.memory.heap.taken
        for synopsis in range(self.memory.directory.synopses):
            held = self._save(synopsis, slots)
            if len(held):
                self.release(synopsis, held)
        return (before - self.memory.heap.taken) * self.memory.heap.block_bytes

    def save(self, slots: Slots) -> None:
        """Write the words that are not clean of groups about to be evicted."""
        for synopsis in range(self.memory.directory.synopses):
            self._save(synopsis, slots)

    def _save(self, synopsis: int, slots: Slots) -> Slots:
        """Write the unclean words of a synopsis; return the groups with something in memory."""
        held, dirty, whole = self._judge(synopsis, slots)
        if len(dirty):
            whole = self._read_for(synopsis, held, dirty, whole)
            self.writer.write(synopsis, held[dirty], whole[dirty], self._leaving, mirrored=True)
        self.memory.facts[Fact.LEFT] += len(held)
        return held

    def is_clean(self, slots: Slots) -> Mask:
        """Return which groups can be evicted without being written.

        All of them if a version writes the new rows of every group anyway.
        """
        clean = np.ones(len(slots), dtype=np.bool_)
        if self.options.durability == "log":
            return clean
        for synopsis in range(self.memory.directory.synopses):
            held, known = (self.memory.column(synopsis, c, slots) for c in (k.WORDS, k.CLEAN))
            clean &= held <= (known if self.options.clean_is_free else 0)
            clean &= ~self.memory.has(synopsis, k.STALE, slots)
        return clean

    def release(self, synopsis: int, slots: Slots) -> None:
        """Free the memory of groups; all their rows are on the log."""
        self.memory.heap.drop(synopsis, slots)
        eviction.let_go(self.memory.directory.table, part(synopsis), slots)

    def log_news(self, synopsis: int, slots: Slots, *, mirrored: bool = False) -> None:
        """Write the new rows of groups that have some; those that were cold become cold again."""
        table, at, limit = self.memory.directory.table, part(synopsis), self.options.chain_limit
        whole = np.empty(len(slots), dtype=np.bool_)
        count, lacking = eviction.judge(
            table, at, slots, limit, HOT_CHAIN * limit, self.options.deltas, whole
        )
        cold = slots[~self.memory.has(synopsis, k.WHOLE, slots)] if count else slots[:0]
        if lacking:
            whole = self._read_for(synopsis, slots, np.ones_like(whole), whole)
        self.writer.write(synopsis, slots, whole, self._leaving, mirrored=mirrored)
        self.release(synopsis, cold)
        if mirrored:
            self.memory.facts[Fact.LEFT] += len(cold)

    def log_reminders(self, slots: Slots | None = None) -> None:
        """Write the timers that changed, of some groups or of all."""
        directory = self.memory.directory
        for synopsis in range(directory.synopses if self.options.durability == "log" else 0):
            table, at = directory.table, part(synopsis)
            some = directory.every() if slots is None else slots
            some = some[self.memory.has(synopsis, k.REMINDED, some)]
            if len(some):
                table[some, at + k.FLAGS] &= ~k.REMINDED
                columns = [table[some, c] for c in (k.ID_HIGH, k.ID_LOW, at + k.DUE)]
                rows = np.column_stack((*columns, np.full(len(some), synopsis)))
                self.writer.log.save(REMINDERS, rows)

    @property
    def _leaving(self) -> Fact:
        """The counter for bytes written by evictions."""
        return Fact.LOGGED if self.options.durability == "log" else Fact.EVICTED

    def consolidate(self, synopsis: int, slots: Slots) -> None:
        """Write groups whole, in one extent each; they must be in memory and not stale.

        Those of which half has expired shrink in memory too.
        """
        memory, every = self.memory, np.ones(len(slots), dtype=np.bool_)
        live = memory.gather(synopsis, slots, memory.measure(synopsis, slots))
        before = memory.column(synopsis, k.WORDS, slots)
        self.writer.write_live(synopsis, slots, every, live, Fact.CONSOLIDATED, mirrored=False)
        less = np.flatnonzero(2 * np.diff(live.offsets) < before)
        if len(less):
            left = live.of(less)
            memory.heap.drop(synopsis, slots[less])
            memory.heap.install(
                synopsis, slots[less], left.words, left.offsets, np.diff(left.offsets)
            )

    def _judge(self, synopsis: int, slots: Slots) -> tuple[Slots, Mask, Mask]:
        """Return the groups with words to free; which must be written, and which of them whole.

        No masks if none must be written. Chains are merged only if versions write new rows: extents
        written by evictions are never scattered.
        """
        options, held = self.options, np.empty(len(slots), dtype=np.int64)
        dirty, whole = np.empty((2, len(slots)), dtype=np.bool_)
        count, written = eviction.judge_eviction(
            self.memory.directory.table,
            part(synopsis),
            slots,
            options.chain_limit,
            FEW,
            SCATTERED if options.durability == "log" else 0,
            options.deltas,
            options.clean_is_free,
            held,
            dirty,
            whole,
        )
        there = count if written else 0
        return held[:count], dirty[:there], whole[:there]

    def _read_for(self, synopsis: int, slots: Slots, dirty: Mask, whole: Mask) -> Mask:
        """Read groups that must be written whole and are not in memory, while there is room.

        Returns which can be written whole.
        """
        lacking = dirty & whole & ~self.memory.has(synopsis, k.WHOLE, slots)
        if lacking.any():
            blocks = self.memory.heap.blocks_for(
                self.memory.column(synopsis, k.COLD, slots)
                + self.memory.column(synopsis, k.WORDS, slots)
            )
            fits = lacking & (blocks * self.memory.heap.block_words <= self.memory.at_once)
            fits &= np.cumsum(np.where(fits, blocks, 0)) <= self.memory.heap.free
            self.keep(synopsis, slots[fits], self.read(synopsis, slots[fits]).live)
            whole = whole & ~(lacking & ~fits)
        return whole

    # -- expiring ------------------------------------------------------------

    def expire(self) -> None:
        """Free rows that have expired as a whole."""
        for synopsis, expiry_at in enumerate(self.memory.expiry_at):
            if expiry_at < 0:
                continue
            slots = self.memory.directory.listed(
                directory_passes.list_over, part(synopsis), self.memory.watermark
            )
            if not len(slots):
                continue
            self.memory.heap.drop(synopsis, slots)
            over = slots[~self.memory.has(synopsis, k.STALE, slots)]
            self.memory.directory.forget(synopsis, over)
