"""The groups of a store, one row of words each, found through a hash index.

Idea: rows `int64[slots, words]` (columns in `kernels.groups.heap`) and an open-addressing index,
both in the arena. A slot that is given up joins a list of free ones and is used again only by
`open`, so what a caller holds stays valid as long as nobody closes it.

Invariants:
1. A group is found if and only if it is open (`test_oracle_a_directory_is_a_dictionary`).
2. Growing changes no slot; shrinking changes slots and nothing else (same test).
3. A refused `open` changes nothing (`test_a_refused_open_changes_nothing`).

Cost: `8 * width + 8 to 16` bytes per group; growing rebuilds the index.

Limits: 2**31 - 1 slots.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ids, Ints, Slots, Table
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.kernels import hash_index
from icestream.kernels.groups import directory_passes as kernels
from icestream.kernels.groups import heap, inline_groups
from icestream.state.arena import Arena
from icestream.state.budget import Refused

LEAST_SLOTS = 256
#: columns of a synopsis that describe its state on the log, in the order of an entry
ENTRY = (heap.ROOT, heap.COLD, heap.CHAIN, heap.ROOT_EXPIRY, heap.DUE)


def part(synopsis: int) -> int:
    """Return the column of the directory of groups where the words of a synopsis begin."""
    return heap.GROUP + synopsis * heap.PARTS


def entry_width(synopses: int) -> int:
    """Return the words of a group's entry in the directory: its id and its state on the log."""
    return 2 + synopses * len(ENTRY)


def slot_order(slots: Slots) -> Ints:
    """Return the sort order of distinct slots of the directory; duplicates may be lost."""
    if not len(slots) or int(slots.max()) > 8 * len(slots):
        return np.argsort(slots)
    places = np.full(int(slots.max()) + 1, -1, dtype=np.int64)
    places[slots] = np.arange(len(slots))
    return places[places >= 0]


def is_empty_entry(entries: Ints, watermark: int) -> npt.NDArray[np.bool_]:
    """Return which directory entries are of a group without a timer whose rows are all expired."""
    cold, expiry, due = (
        entries[:, 2 + ENTRY.index(c) :: len(ENTRY)]
        for c in (heap.COLD, heap.ROOT_EXPIRY, heap.DUE)
    )
    gone = (cold == 0) | (expiry <= min(watermark, INFINITY - 1))
    return np.asarray(gone.all(axis=1) & (due == INFINITY).all(axis=1))


class GroupDirectory:
    """The groups of one store."""

    def __init__(self, arena: Arena, name: str, synopses: int, limit: int) -> None:
        """Attach to the arena's rows, or start with none; the limit is `limit` bytes."""
        self.synopses = synopses
        self.limit = limit
        #: bytes above which it is too large; it then shrinks at the end of the version
        self.ample = sys.maxsize
        width = part(synopses)
        self._rows = arena.array(f"{name}.groups", np.int64, width)
        self._index = arena.array(f"{name}.places", np.int32)
        self._facts = arena.array(f"{name}.slots", np.int64, 1, 4)
        self._blank = np.zeros(width, dtype=np.int64)
        for synopsis in range(synopses):
            at = part(synopsis)
            self._blank[at + heap.FLAGS] = heap.WHOLE
            self._blank[at + heap.ROOT] = heap.NO_ROOT
            self._blank[at + heap.EXPIRY] = MINUS_INFINITY
            self._blank[at + heap.ROOT_EXPIRY] = MINUS_INFINITY
            self._blank[at + heap.DUE] = INFINITY
        #: columns where the words of each synopsis begin
        self.parts = np.array([part(synopsis) for synopsis in range(synopses)], dtype=np.int64)
        places = [part(s) + column for s in range(synopses) for column in ENTRY]
        #: columns of an entry
        self.entry_columns = np.array([heap.ID_HIGH, heap.ID_LOW, *places])

    @property
    def table(self) -> Table:
        """Rows of all slots ever used; do not keep it across `open`."""
        used: Table = self._rows.view[: self.used]
        return used

    @property
    def used(self) -> int:
        return int(self._facts.view[kernels.USED_SLOTS])

    @property
    def owned_blocks(self) -> Ints:
        """One number: the memory blocks that rows of these groups take."""
        view: Ints = self._facts.view[3:4]
        return view

    @property
    def room(self) -> int:
        """Groups that can be opened without growing."""
        facts = self._facts.view
        return self._rows.capacity - self.used + int(facts[kernels.FREE_SLOTS])

    @property
    def groups(self) -> int:
        return self.used - int(self._facts.view[kernels.FREE_SLOTS])

    @property
    def bytes(self) -> int:
        return self._rows.bytes + self._index.bytes

    @property
    def most(self) -> int:
        """About how many groups fit into the limit."""
        return self.fitting(self.limit)

    def fitting(self, size: int) -> int:
        """Return about how many groups fit into `size` bytes, or have room already."""
        return max(LEAST_SLOTS, self._rows.capacity, size // self._group_bytes)

    @property
    def held(self) -> int:
        """About how many bytes the open groups need."""
        return self.groups * self._group_bytes

    @property
    def _group_bytes(self) -> int:
        """Bytes of a row and its share of the index."""
        return int(self._rows.row_bytes) + 16

    def find(self, id_high: Ids, id_low: Ids) -> Slots:
        """Return the slot of each group, -1 for those that are not open."""
        slots = np.full(len(id_high), -1, dtype=np.int64)
        if self._index.capacity:
            hash_index.find(self._places, self._rows.view, id_high, id_low, slots)
        return slots

    def open(self, id_high: Ids, id_low: Ids, stamp: int) -> Slots:
        """Open new, distinct groups; raises `Refused` if there is no room for all of them."""
        slots = np.empty(len(id_high), dtype=np.int64)
        if not len(id_high):
            return slots
        if len(id_high) > self.room:
            self._grow(self.groups + len(id_high))
        rows, facts = self._rows.view, self._facts.view
        kernels.open_slots(self._places, rows, facts, self._blank, id_high, id_low, stamp, slots)
        return slots

    def close(self, slots: Slots) -> None:
        """Close groups; their slots may be reused."""
        if len(slots):
            hash_index.remove_all(self._places, self._rows.view, slots)
            kernels.close_slots(self._rows.view, self._facts.view, slots)

    def shrink(self, size: int) -> None:
        """Shrink to about `size` bytes, or to what open groups need; all slots change."""
        capacity = max(LEAST_SLOTS, self.groups, size // self._group_bytes)
        self._index.view[:] = 0
        kernels.compact_slots(self.table, self._facts.view)
        places = 1 << (2 * capacity - 1).bit_length()
        if places < self._index.capacity:
            self._index.resize(places)
        hash_index.insert_all(self._places, self._rows.view, np.arange(self.used))
        if capacity < self._rows.capacity:
            self._rows.resize(capacity)

    def every(self) -> Slots:
        return np.flatnonzero(self.table[:, heap.STAMP] != 0)

    def listed(self, chosen: Callable[..., int], *how: int) -> Slots:
        """Return the slots that a kernel selects in one pass over all groups, ascending."""
        slots = np.empty(self.used, dtype=np.int64)
        return slots[: chosen(self.table, *how, slots)]

    def clear(self) -> None:
        self._facts.view[:] = 0
        self._index.view[:] = 0

    # -- entries ---------------------------------------------------------------------------

    def entries(self, slots: Slots) -> Ints:
        """Return the entries of groups, a row each: their state on the log, not in memory."""
        entries = np.empty((len(slots), len(self.entry_columns)), dtype=np.int64)
        inline_groups.copy_entries(self.table, self.entry_columns, slots, entries)
        return entries

    def adopt(self, slots: Slots, entries: Ints) -> None:
        """Fill in the entries of groups that were just opened."""
        inline_groups.adopt(self.table, self.entry_columns, slots, entries)

    def forget(self, synopsis: int, slots: Slots) -> None:
        """Record that these groups have nothing of a synopsis on the log any more."""
        table, at = self.table, part(synopsis)
        table[slots, at + heap.ROOT] = heap.NO_ROOT
        table[slots, at + heap.ROOT_EXPIRY] = MINUS_INFINITY
        table[slots, at + heap.COLD] = 0
        table[slots, at + heap.CHAIN] = 0
        flags = table[slots, at + heap.FLAGS] & heap.PLAIN_FLAGS
        table[slots, at + heap.FLAGS] = flags | heap.WHOLE

    # -- growth ----------------------------------------------------------------------------

    @property
    def _places(self) -> npt.NDArray[np.int32]:
        """The index: its size is the largest power of two that fits into the array."""
        size = 1 << (self._index.capacity.bit_length() - 1)
        places: npt.NDArray[np.int32] = self._index.view[:size]
        return places

    def _grow(self, least: int) -> None:
        """Make room for `least` slots, and for more if the limit allows."""
        limit = self.most
        if least > limit:
            owner = "groups"
            raise Refused(owner, (least - limit) * self._rows.row_bytes, 0)
        capacity = min(limit, max(least, LEAST_SLOTS, least + least // 2))
        places = 1 << (2 * capacity - 1).bit_length()
        # index first: slots without a place in it could not be found
        if places > self._index.capacity:
            self._index.resize(places)
            self._index.view[:] = 0
            hash_index.insert_all(self._places, self._rows.view, self.every())
        self._rows.resize(capacity)
