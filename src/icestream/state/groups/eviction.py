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
from icestream.state.groups.directory import is_empty_entry, part
from icestream.state.groups.facts import Fact
from icestream.state.groups.memory import Gathered
from icestream.state.groups.migration import Mover
from icestream.state.groups.options import Pressure
from icestream.state.identities import distinct, identities, in_order
from icestream.state.index.sorted_index import ColdIndex

#: at least one in this many directory entries moves to the cold index when slots run out
DEMOTED = 16
#: rows added to cold groups are written between chunks when less than this part of the heap is
#: free and they take at least this part of it
SPILL = 4
RESIDUE = 256
#: access counts are halved after this many accesses per place of the directory
HALVED = 16


class GroupEviction:
    """Keeps directory and heap inside their limits."""

    def __init__(self, name: str, mover: Mover, index: ColdIndex, budget: Budget) -> None:
        self.name = name
        self._mover = mover
        self._memory = memory = mover.memory
        self._directory, self._heap, self._facts = memory.directory, memory.heap, memory.facts
        self._index = index
        self._budget = budget
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
        for some in self._fitting(slots):
            self._mover.save(some)
        self._mover.log_reminders(slots)
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

    # -- what the cold state manager sees --------------------------------------------------

    @property
    def stats(self) -> Ints:
        """Two words per slot, for a classifier."""
        return self._directory.table[:, k.SCORES : k.SCORES + 2]

    def bytes_held(self) -> int:
        return self._heap.owned * self._heap.block_bytes

    def candidates(self) -> Slots:
        """Slots of groups in memory that may be evicted; during a call, none of this chunk."""
        return self._evictable(self._facts[Fact.CHUNK] if self._pinned else INFINITY)

    def is_clean(self, slots: Slots) -> Mask:
        return self._mover.is_clean(slots)

    def resident(self, slots: Slots) -> Ints:
        """Return the bytes of memory that the rows of groups occupy."""
        return self._memory.blocks_of(slots) * self._heap.block_bytes

    def evict(self, slots: Slots) -> int:
        """Evict groups; return the bytes freed."""
        return sum(map(self._mover.evict, self._fitting(slots)))

    def take_hits(self) -> Slots:
        """Return the groups whose rows were read since the last call.

        Appending to a group needs none of its rows in memory, and is not a hit.
        """
        return _taken(self.hits)

    def take_opened(self) -> Slots:
        """Return the groups opened in the directory or read back since the last call."""
        return _taken(self.opened)

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
            self._spill()
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

    def keep(self, synopsis: int, slots: Slots, live: Gathered) -> None:
        """Put the rows read of some pinned groups into memory, replacing what is there."""
        heap = self._heap
        blocks = heap.blocks_for(np.diff(live.offsets)) - heap.blocks_for(
            self._memory.column(synopsis, k.WORDS, slots)
        )
        self.make_room(max(0, int(blocks.sum())))
        self._mover.keep(synopsis, slots, live)

    def bring_in(self, synopsis: int, slots: Slots) -> Slots:
        """Load all rows of some pinned groups into memory; return those that were not there."""
        cold = slots[~self._memory.has(synopsis, k.WHOLE, slots)]
        if len(cold):
            self.keep(synopsis, cold, self._mover.read(synopsis, cold).live)
        return cold

    def relieve(self) -> None:
        """Write rows added to cold groups, between two chunks, if they fill a heap that is full."""
        heap, before = self._heap, self._facts[Fact.CHUNK]
        if SPILL * heap.taken <= (SPILL - 1) * heap.most:
            return
        words = 0
        for synopsis in range(self._directory.synopses):
            slots = self._directory.listed(directory_passes.list_residue, part(synopsis), before)
            words += int(self._memory.column(synopsis, k.WORDS, slots).sum())
        if RESIDUE * words > heap.most * heap.block_words:
            self._spill()
            heap.sort_free()

    def _spill(self) -> None:
        """Write rows added to groups before this chunk, as the end of the version would.

        Rows on top of a cold root are freed; any other group is clean when evicted later. If only
        evicted groups are written, only rows on top of a cold root are written here.
        """
        is_logged = self._mover.options.durability == "log"
        some = directory_passes.list_news if is_logged else directory_passes.list_residue
        self.write_news(some, self._facts[Fact.CHUNK], mirrored=True)

    def write_news(
        self,
        some: Callable[..., int] = directory_passes.list_news,
        before: int = INFINITY,
        *,
        mirrored: bool = False,
    ) -> None:
        """Write the new rows of groups that were accessed before a chunk."""
        for synopsis in range(self._directory.synopses):
            slots = self._directory.listed(some, part(synopsis), before)
            for portion in self.parts(slots, self._memory.news(synopsis, slots)):
                with self.pins(portion):
                    self._mover.log_news(synopsis, portion, mirrored=mirrored)

    def _fitting(self, slots: Slots) -> Iterator[Slots]:
        """Cut slots into parts whose rows in memory fit into work buffers."""
        return self.cut(slots, self._memory.blocks_of(slots) * self._heap.block_words)

    def cut(self, slots: Slots, words: Ints) -> Iterator[Slots]:
        """Cut slots into parts whose words fit into work buffers and heap."""
        sums, at_once = np.concatenate(([0], np.cumsum(words))), self._memory.portion
        first = 0
        while first < len(slots):
            last = int(np.searchsorted(sums, sums[first] + at_once, side="right")) - 1
            last = max(first + 1, last)
            yield slots[first:last]
            first = last

    def parts(self, slots: Slots, words: Ints) -> Iterator[Slots]:
        """Cut ascending slots like `cut`, but into ranges of ids, each ascending.

        No extent is read for two parts.
        """
        if int(words.sum()) <= self._memory.portion:
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
        held = np.cumsum(self._memory.blocks_of(slots))
        self.evict(slots[: int(np.searchsorted(held, blocks)) + 1])

    def failure(self, needed: int, what: str = "", enough: int = 0) -> BudgetError:
        """Return the error for bytes of rows that must be in memory together and do not fit.

        Its advice is for `enough` bytes, if these are more.
        """
        return self._failed(needed, self._heap.most * self._heap.block_bytes, what, enough)

    def _failed(self, needed: int, limit: int, what: str = "", enough: int = 0) -> BudgetError:
        """Return the error for bytes beyond a limit that is a part of the budget."""
        error = fail(self._budget, needed, what or self.name)
        total = -(-self._budget.total * max(needed, enough) // max(1, limit))
        error.needed = max(error.needed, self._budget.whole(total))
        return error


def _taken(parts: list[Slots]) -> Slots:
    """Empty a list of slots of groups to evict and return them as one."""
    together = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    parts.clear()
    return together
