"""Groups between memory and the log: what is written when they leave, what is read when they come.

Idea: a synopsis of a group has a *root*, the marker of its newest extent, and words in memory, of
which the first `CLEAN` are on the log as well. Memory is *whole*, or has only what was added on top
of a cold root. Leaving memory writes what is not clean and keeps the root; coming back reads the
chain and puts what was added meanwhile behind it. Rewriting makes what is behind the root *stale*:
the next extent has no back pointer, and if there are no rows an empty one says so.

Invariants:
1. Leaving and coming back changes no rows (`TestTheContract`).
2. A clean group leaves without a byte written (`test_a_clean_group_leaves_for_free`).
3. The best rows of a cold group are read without making it hot: what was read of it is not taken
   for all of it (`test_the_best_rows_of_a_large_group_are_read_alone`).

References: migrating dirty state only, add-only access, partial reconstruction (ICE).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icestream.core.times import MINUS_INFINITY
from icestream.kernels import heap as k
from icestream.state.synopses.directory import part
from icestream.state.synopses.facts import Fact
from icestream.state.synopses.memory import Gathered, Memory
from icestream.state.synopses.options import StoreOptions
from icestream.state.synopses.ranked import Best
from icestream.state.synopses.spec import Ints, Slots
from icestream.state.synopses.writing import ExtentWriter

#: extents that a group in memory may have on the log, for each that a cold one may have
HOT_CHAIN = 8

Mask = npt.NDArray[np.bool_]


@dataclass
class Mover:
    """Moves groups of one store."""

    memory: Memory
    writer: ExtentWriter
    options: StoreOptions
    #: makes room for so many blocks
    make_room: Callable[[int], None]

    # -- coming back -----------------------------------------------------------------------

    def bring_in(self, synopsis: int, slots: Slots) -> Slots:
        """Have all rows of some pinned groups in memory; return those that were not."""
        flags = self.memory.column(synopsis, k.FLAGS, slots)
        cold: Slots = slots[flags & k.WHOLE == 0]
        if not len(cold):
            return cold
        at = part(synopsis)
        hi, lo = self.memory.identities(cold)
        roots, expiries = (self.memory.column(synopsis, c, cold) for c in (k.ROOT, k.ROOT_EXPIRY))
        behind = self.writer.log.read_chains(hi, lo, roots, expiries, self.memory.watermark)
        live = self.memory.gather(synopsis, cold, np.zeros_like(cold), behind)
        self.make_room(int(self.memory.heap.blocks_for(np.diff(live.offsets)).sum()))
        self.memory.heap.drop(synopsis, cold)
        self.memory.heap.install(synopsis, cold, live.words, live.offsets)
        table = self.memory.directory.table
        table[cold, at + k.ROWS] = live.rows
        table[cold, at + k.CLEAN] = live.cleans
        table[cold, at + k.FLAGS] |= k.WHOLE
        self.memory.facts[Fact.RETURNED] += len(cold)
        return cold

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> Gathered:
        """Return at least the best rows of groups; cold ones stay cold."""
        memory, rank = self.memory, self.writer.rank_at[synopsis]
        best = Best(counts, *rank, memory.expiry_at[synopsis], memory.watermark)
        roots, expiries = (memory.column(synopsis, c, slots) for c in (k.ROOT, k.ROOT_EXPIRY))
        cold = np.flatnonzero(~memory.has(synopsis, k.WHOLE, slots))
        added = memory.gather(synopsis, slots[cold], np.zeros_like(cold))
        best.add(cold, added.words, added.offsets)
        behind = np.full(len(slots), k.NO_ROOT)
        behind[cold] = roots[cold]
        hi, lo = memory.identities(slots)
        found = self.writer.log.read_chains(hi, lo, behind, expiries, memory.watermark, best)
        return memory.gather(synopsis, slots, np.zeros_like(slots), found)

    # -- leaving ---------------------------------------------------------------------------

    def evict(self, slots: Slots) -> int:
        """Write what is not clean, then free the memory of groups; return the bytes freed."""
        before = self.memory.heap.taken
        kind = Fact.LOGGED if self.options.durability == "log" else Fact.EVICTED
        for synopsis in range(self.memory.directory.synopses):
            held = slots[self._has_work(synopsis, slots)]
            if not len(held):
                continue
            dirty, whole = self._judge(synopsis, held, leaving=True)
            if not self.options.clean_is_free:
                dirty |= self.memory.column(synopsis, k.WORDS, held) > 0
                whole |= self.memory.has(synopsis, k.WHOLE, held) & dirty
            whole = self._read_for(synopsis, held, dirty, whole)
            self.writer.write(synopsis, held[dirty], whole[dirty], kind, mirrored=True)
            self.release(synopsis, held)
            self.memory.facts[Fact.LEFT] += len(held)
        return (before - self.memory.heap.taken) * self.memory.heap.block_bytes

    def release(self, synopsis: int, slots: Slots) -> None:
        """Free the memory of groups; what is on the log is all there is."""
        at = part(synopsis)
        self.memory.heap.drop(synopsis, slots)
        table = self.memory.directory.table
        gone = table[slots, at + k.ROOT] != k.NO_ROOT
        table[slots[gone], at + k.FLAGS] &= ~k.WHOLE
        table[slots[~gone], at + k.FLAGS] |= k.WHOLE

    def log_news(self, synopsis: int, slots: Slots) -> None:
        """Write what is new of groups; what lies on top of a cold root leaves memory."""
        dirty, whole = self._judge(synopsis, slots, leaving=False)
        news, whole = slots[dirty], whole[dirty]
        whole = self._read_for(synopsis, news, np.ones_like(whole), whole)
        self.writer.write(synopsis, news, whole, Fact.LOGGED, mirrored=False)
        self.release(synopsis, news[~self.memory.has(synopsis, k.WHOLE, news)])

    def consolidate(self, synopsis: int, slots: Slots) -> None:
        """Write groups whole, in one extent each; they must be in memory and not stale."""
        every = np.ones(len(slots), dtype=np.bool_)
        self.writer.write(synopsis, slots, every, Fact.CONSOLIDATED, mirrored=False)

    def _has_work(self, synopsis: int, slots: Slots) -> Mask:
        held = self.memory.column(synopsis, k.WORDS, slots) > 0
        return np.asarray(held | self.memory.has(synopsis, k.STALE, slots))

    def _judge(self, synopsis: int, slots: Slots, *, leaving: bool) -> tuple[Mask, Mask]:
        """Return which groups have to be written, and which of them whole."""
        words, clean, chain, root = (
            self.memory.column(synopsis, which, slots)
            for which in (k.WORDS, k.CLEAN, k.CHAIN, k.ROOT)
        )
        whole_here, stale = (self.memory.has(synopsis, flag, slots) for flag in (k.WHOLE, k.STALE))
        limit = self.options.chain_limit
        limits = np.where(whole_here & (not leaving), HOT_CHAIN * limit, limit)
        dirty = (words > clean) | stale
        length = chain & 0xFFFFFFFF
        if leaving:
            dirty |= whole_here & (words > 0) & (length > limits)
        whole = stale | (root == k.NO_ROOT) | (length >= limits)
        if not self.options.deltas:
            whole[:] = True
        return dirty, whole

    def _read_for(self, synopsis: int, slots: Slots, dirty: Mask, whole: Mask) -> Mask:
        """Read what has to be written whole and is not in memory, as far as there is room.

        Returns what can be written whole.
        """
        lacking = dirty & whole & ~self.memory.has(synopsis, k.WHOLE, slots)
        if lacking.any():
            blocks = self.memory.heap.blocks_for(
                self.memory.column(synopsis, k.COLD, slots)
                + self.memory.column(synopsis, k.WORDS, slots)
            )
            fits = lacking & (np.cumsum(np.where(lacking, blocks, 0)) <= self.memory.heap.free)
            self.bring_in(synopsis, slots[fits])
            whole = whole & ~(lacking & ~fits)
        return whole

    # -- replacing and expiring ------------------------------------------------------------

    def empty(self, synopsis: int, slots: Slots) -> None:
        """Take all rows of groups away; what is on the log is stale."""
        self.memory.heap.drop(synopsis, slots)
        table, at = self.memory.directory.table, part(synopsis)
        table[slots, at + k.EXPIRY] = MINUS_INFINITY
        table[slots, at + k.COLD] = 0
        table[slots, at + k.CHAIN] = 0
        table[slots, at + k.FLAGS] |= k.WHOLE
        root = table[slots, at + k.ROOT]
        if self.options.durability == "evict":
            self.writer.forget(synopsis, slots)
        else:
            table[slots[root != k.NO_ROOT], at + k.FLAGS] |= k.STALE

    def expire(self) -> None:
        """Free what has expired as a whole."""
        for synopsis, expiry_at in enumerate(self.memory.expiry_at):
            if expiry_at < 0:
                continue
            table, at = self.memory.directory.table, part(synopsis)
            used = table[:, k.STAMP] != 0
            something = (table[:, at + k.WORDS] > 0) | (table[:, at + k.ROOT] != k.NO_ROOT)
            over = used & something & (table[:, at + k.EXPIRY] <= self.memory.watermark)
            slots = np.flatnonzero(over)
            self.memory.heap.drop(synopsis, slots)
            self.writer.forget(synopsis, slots[~self.memory.has(synopsis, k.STALE, slots)])
