"""Which groups are in memory, in the directory, or in the cold index, and which ones make room.

Idea: a group that a chunk *accesses* stays in the directory until the chunk ends. A call *pins* the
groups whose rows it needs at once. When blocks run out, rows that were added to cold groups are
written first, then the cold state manager evicts groups; if that is not enough, the groups accessed
longest ago are evicted, but never pinned ones. When slots run out, the entries of the groups
accessed least often move to the cold index, a batch at a time, with their access counts. Rows of a
small group are stored inline with its entry, so that it comes back without reading the log.

Invariants:
1. A slot returned in a chunk belongs to the same group until the chunk ends
   (`TestTheContract`).
2. Pinned groups stay in memory (same test, with heaps of a few blocks).
3. If nothing can be evicted, the error lists who holds what
   (`test_a_group_too_large_is_a_budget_error`).
4. Groups accessed in every batch stay in the directory, whatever else passes through
   (`test_groups_named_often_stay_in_the_directory`).
5. A small group comes back without a read (`test_a_small_group_comes_back_without_a_read`).

Cost: making room scans all groups of the directory, and frees at least an eighth of the heap or
a sixteenth of the directory.

References: admission by frequency (TinyLFU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.errors import BudgetError
from icestream.core.times import INFINITY
from icestream.kernels.groups import cold, directory_passes, inline_groups
from icestream.kernels.groups import heap as k
from icestream.state.budget import Budget, Refused, fail
from icestream.state.groups.directory import GroupDirectory, is_empty_entry, part
from icestream.state.groups.facts import Fact, Facts
from icestream.state.groups.heap import Heap
from icestream.state.groups.options import Pressure
from icestream.state.identities import distinct, identities, in_order
from icestream.state.index.sorted_index import ColdIndex

#: at least one in this many directory entries moves to the cold index when slots run out
DEMOTED = 16
#: access counts are halved after this many accesses per place of the directory
HALVED = 16


class GroupEviction:
    """Keeps directory and heap inside their limits."""

    #: frees the memory of groups and returns the bytes freed
    evict: Callable[[Slots], int]
    #: writes the parts of groups that are not on the log
    save: Callable[[Slots], object]
    #: writes rows added to cold groups before this chunk, and frees their memory
    spill: Callable[[], object]
    #: writes the pending timers of groups that leave the directory
    settle: Callable[[Slots], object]

    def __init__(
        self,
        name: str,
        directory: GroupDirectory,
        heap: Heap,
        index: ColdIndex,
        facts: Facts,
        budget: Budget,
        work: int,
    ) -> None:
        self._name = name
        self._directory = directory
        self._heap = heap
        self._index = index
        self._facts = facts
        self._budget = budget
        #: bytes that can be gathered at once
        self.work = work
        #: frees memory on request
        self.pressure: Pressure | None = None
        self._pinned = 0
        #: slots of groups whose rows were requested; that were opened, or read from the log
        self.hits: list[Slots] = []
        self.opened: list[Slots] = []

    # -- the directory ---------------------------------------------------------------------

    def locate(self, id_high: Ids, id_low: Ids) -> Slots:
        """Return the slot of each group; it is opened if it is not in the directory."""
        slots = self._directory.find(id_high, id_low)
        known = slots >= 0
        self.touch(slots[known])
        if not known.all():
            new_id_high, new_id_low, numbers = distinct(id_high[~known], id_low[~known])
            slots[~known] = self._open(new_id_high, new_id_low)[numbers]
            self.touch(slots[~known])
        return slots

    def knows(self, id_high: Ids, id_low: Ids) -> Mask:
        """Return which groups are in the directory or in the cold index."""
        known: Mask = self._directory.find(id_high, id_low) >= 0
        if self._index.runs and not known.all():
            new_id_high, new_id_low, numbers = distinct(id_high[~known], id_low[~known])
            known[~known] = self._index.fetch(new_id_high, new_id_low)[0][numbers]
        return known

    def touch(self, slots: Slots) -> None:
        """Record that this chunk accesses groups."""
        directory_passes.stamp(self._directory.table, slots, self._facts[Fact.CHUNK])
        self._facts[Fact.NAMED] += len(slots)

    def _open(self, id_high: Ids, id_low: Ids) -> Slots:
        """Open groups that are not in the directory: from the cold index, or new ones."""
        found, rows = self._index.fetch(id_high, id_low)
        slots = self._slots_for(id_high, id_low)
        self._promote(slots[found], rows)
        self.opened.append(slots)
        return slots

    def _slots_for(self, id_high: Ids, id_low: Ids) -> Slots:
        """Return slots for new groups; others leave the directory if it cannot grow."""
        directory, chunk = self._directory, self._facts[Fact.CHUNK]
        with suppress(Refused):
            return directory.open(id_high, id_low, chunk)
        missing = directory.groups + len(id_high) - directory.most
        self.demote(max(missing, directory.groups // DEMOTED))
        with suppress(Refused):
            return directory.open(id_high, id_low, chunk)
        # fewer bytes are available than the limit allows
        self.demote(len(id_high) - directory.room)
        try:
            return directory.open(id_high, id_low, chunk)
        except Refused as refused:
            raise self._failed(directory.limit + refused.needed, directory.limit) from refused

    def _promote(self, slots: Slots, rows: Ints) -> None:
        """Fill in the cold index's entries of groups that were just opened."""
        directory, width = self._directory, len(self._directory.entry_columns)
        directory.adopt(slots, rows)
        inline_groups.warm(directory.table, width, slots, rows, self._facts[Fact.HALVED])
        self._heap.unpack(slots, rows)
        self._facts[Fact.PROMOTED] += len(slots)

    def demote(self, count: int) -> None:
        """Move the entries of up to `count` groups that this chunk does not use to the index."""
        slots = self._coldest(count)
        if not len(slots):
            return
        directory = self._directory
        for some in self.cut(slots, self.blocks_of(slots) * self._heap.block_words):
            self.save(some)
        self.settle(slots)
        rows = np.empty((len(slots), self._index.width), dtype=np.int64)
        self._heap.stow(slots, self._facts[Fact.HALVED], rows)
        # an empty entry is needed if it has to hide older ones
        places = np.empty(len(slots), dtype=np.int64)
        needed = places[: directory_passes.list_needed(directory.table, slots, places)]
        rows = rows[needed[in_order(*identities(rows[needed, :2]))]]
        outdated = int(np.count_nonzero(directory.table[slots, k.PAGED]))
        entries = rows[:, : len(directory.entry_columns)]
        gone = is_empty_entry(entries, self._facts[Fact.WATERMARK])
        self._index.merge(rows, outdated + int(np.count_nonzero(gone)))
        directory.close(slots)
        self._facts[Fact.DEMOTED] += len(slots)

    def shrink(self, size: int) -> None:
        """Shrink the directory to about `size` bytes, between two chunks."""
        directory = self._directory
        missing = directory.held - size + size // DEMOTED
        if missing > 0:
            self.demote(directory.groups * missing // directory.held)
        directory.shrink(size)

    def _coldest(self, count: int) -> Slots:
        """Return up to `count` slots that this chunk does not use, the least accessed ones."""
        table, chunk = self._directory.table, self._facts[Fact.CHUNK]
        if self._facts[Fact.NAMED] > HALVED * self._directory.most:
            table[:, k.HEAT] >>= 1
            self._facts[Fact.NAMED] = 0
            self._facts.next(Fact.HALVED)
        return self._directory.listed(cold.list_coldest, chunk, count)

    def sweep(self) -> None:
        """Close groups without rows."""
        self._directory.close(self._directory.listed(directory_passes.list_gone))

    def due(self, synopsis: int, watermark: int, most: int) -> Slots:
        """Return groups that are due; at most `most` of them come from the cold index."""
        unknown: list[Ints] = []
        for entries in self._index.due(synopsis, watermark):
            unknown.append(entries[self._directory.find(*identities(entries)) < 0][:most, :2])
            most -= len(unknown[-1])
            if most <= 0:
                break
        if unknown:
            self.locate(*identities(np.concatenate(unknown)))
        table = self._directory.table
        due = table[:, part(synopsis) + k.DUE] <= watermark
        slots = np.flatnonzero((table[:, k.STAMP] != 0) & due)
        self.touch(slots)
        return slots

    # -- memory ----------------------------------------------------------------------------

    @contextmanager
    def pins(self, slots: Slots) -> Iterator[None]:
        """Keep groups in memory while a call needs them there."""
        before, self._pinned = self._pinned, self._facts.next(Fact.CALL)
        self._directory.table[slots, k.PIN] = self._pinned
        try:
            yield
        finally:
            self._pinned = before

    def make_room(self, least: int, wished: int = 0) -> None:
        """Have at least `least` free blocks; evict groups if the heap cannot grow."""
        for blocks in (max(least, wished), least):
            try:
                self._heap.grow(blocks)
            except Refused:
                continue
            return
        wanted = max(least, self._heap.most // 8)
        if not self._pinned:
            self.spill()
        if self.pressure is not None and self._heap.free < wanted:
            self.pressure.free((wanted - self._heap.free) * self._heap.block_bytes)
        if self._heap.free < least:
            self._evict_oldest(wanted - self._heap.free)
        if self._heap.free < least and self.pressure is not None:
            self.pressure.take_back()
            with suppress(Refused):
                self._heap.grow(least)
        if self._heap.free < least:
            raise self.failure((self._heap.taken + least) * self._heap.block_bytes)

    def candidates(self) -> Slots:
        """Slots of groups in memory that may be evicted; during a call, none of this chunk."""
        return self._evictable(self._facts[Fact.CHUNK] if self._pinned else INFINITY)

    def blocks_of(self, slots: Slots) -> Ints:
        blocks, size = np.empty(len(slots), dtype=np.int64), self._heap.block_words
        directory = self._directory
        directory_passes.words_of(directory.table, directory.parts, slots, False, size, blocks)
        return blocks // size

    @property
    def at_once(self) -> int:
        return min(self.work // 3, self._heap.limit // 4) // 8

    def cut(self, slots: Slots, words: Ints) -> Iterator[Slots]:
        """Cut slots into parts whose words fit into work buffers and heap."""
        sums = np.concatenate(([0], np.cumsum(words)))
        first = 0
        while first < len(slots):
            last = int(np.searchsorted(sums, sums[first] + self.at_once, side="right")) - 1
            last = max(first + 1, last)
            yield slots[first:last]
            first = last

    def parts(self, slots: Slots, words: Ints) -> Iterator[Slots]:
        """Cut ascending slots like `cut`, but into ranges of ids, each ascending.

        No extent is read for two parts.
        """
        if int(words.sum()) <= self.at_once:
            yield slots
            return
        id_high, id_low = (
            self._directory.table[slots, c].view(np.uint64) for c in (k.ID_HIGH, k.ID_LOW)
        )
        order = in_order(id_high, id_low)
        for some in self.cut(slots[order], words[order]):
            yield np.sort(some)

    def _evictable(self, before: int = INFINITY) -> Slots:
        """Return slots with rows in memory that the call in progress does not need."""
        return self._directory.listed(directory_passes.list_held, self._pinned or -1, before)

    def _evict_oldest(self, blocks: int) -> None:
        """Evict the groups that were accessed longest ago."""
        slots = self._evictable()
        slots = slots[np.argsort(self._directory.table[slots, k.STAMP], kind="stable")]
        held = np.cumsum(self.blocks_of(slots))
        slots = slots[: int(np.searchsorted(held, blocks)) + 1]
        for some in self.cut(slots, self.blocks_of(slots) * self._heap.block_words):
            self.evict(some)

    def failure(self, needed: int, what: str = "") -> BudgetError:
        """Return the error for bytes of rows that must be in memory together and do not fit."""
        return self._failed(needed, self._heap.most * self._heap.block_bytes, what)

    def _failed(self, needed: int, limit: int, what: str = "") -> BudgetError:
        """Return the error for bytes beyond a limit that is a part of the budget."""
        error = fail(self._budget, needed, what or self._name)
        total = -(-self._budget.total * needed // max(1, limit))
        error.needed = max(error.needed, self._budget.whole(total))
        return error


def taken(parts: list[Slots]) -> Slots:
    """Empty a list of slots of groups to evict and return them as one."""
    together = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    parts.clear()
    return together
