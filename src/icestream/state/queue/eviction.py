"""Which keys of an update queue are in memory if not all of them fit.

Idea: updates of keys outside memory change them there, in one pass for a whole batch. If more keys
are served than an eighth of those that fit, they are served there, too. Otherwise a key is loaded
when its turn is near, or by a small batch while none waits outside; then it is served at once. The
keys needed last make room: idle keys, those updated longest ago first; then keys whose result is
being delivered; then waiting keys that are served last. An evicted key goes to `ColdKeys` with
everything known about it, so the queue behaves as if all keys were in memory.

Invariants:
1. The same keys are served in the same order as without a limit, with the same staleness
   (`test_oracle_a_small_budget_serves_the_same`).
2. Keys in memory and the pages of their values stay within the limit
   (`test_bounded_ten_times_the_keys_that_fit`).

Cost: nothing while all keys fit. Otherwise an eighth of the keys are evicted at once, after a scan
of all in memory, and up to half are loaded at once; each is written once when it is evicted and
read once when it returns. `ColdKeys` has the cost of updates.

Limits: LINECUTTING goes by the rate of a key, so its keys are loaded before they are updated.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask
from icestream.core.times import Micros
from icestream.kernels.queue import queue as k
from icestream.kernels.queue import update_batches
from icestream.kernels.queue.order import (
    APPLICATION_STALENESS,
    FLYING,
    LINKS,
    QUEUE_STALENESS,
    READER_WORDS,
    SINCE,
    TURN,
    next_keys,
)
from icestream.kernels.queue.restore import count_ready, leave_lists, put_by_turn, put_values
from icestream.kernels.queue.staleness import BINS, FROM, NONE, PROFILE
from icestream.state.arena import Arena
from icestream.state.budget import Account, Refused
from icestream.state.identities import distinct, identities
from icestream.state.keys import Identity
from icestream.state.queue.cells import KeyCells, KeyUpdates
from icestream.state.queue.cold_keys import S_ARRIVED, S_SINCE, S_TURN, SPARE, ColdKeys
from icestream.state.queue.cold_table import marks_of
from icestream.state.queue.reader import Dequeued, QueueReader

#: fraction of a budget for keys and values; the rest is for batches
SHARE = 5 / 8
#: one in this many keys is evicted, or loaded, at once
PART = 8
#: minimum number of keys in memory
_LEAST = 64
#: bytes of the hash index for each key
_INDEX_BYTES = 16
_WORD = 8
#: bytes of an update beside its value
_UPDATE_BYTES = 64


class KeyEviction:
    """Evicts keys of a queue and loads them again."""

    def __init__(
        self,
        cells: KeyCells,
        readers: tuple[QueueReader, ...],
        arena: Arena,
        account: Account,
        name: str = "queue",
        *,
        loads: bool = False,
    ) -> None:
        """Attach to the arena's files, or start with all keys in memory.

        `account` holds the work buffers; its budget is the limit. If it `loads`, keys are loaded
        before they are updated.
        """
        self._loads = loads or any(reader.schedule == "linecutting" for reader in readers)
        self._cells = cells
        self._readers = readers
        self._account = account
        limit = int(account.budget.total * SHARE)
        #: maximum number of keys in memory
        self.most = cells.most = _fitting(cells, readers, limit)
        cells.pages.pool.limit = -(-self.most // cells.pages.per_page) + 1
        orders = tuple(reader.order for reader in readers)
        #: the keys that are not in memory
        self.cold = ColdKeys(arena, orders, limit // 16, name)

    @property
    def part(self) -> int:
        """Keys that are evicted or loaded at once."""
        return max(1, self.most // PART)

    def pieces(self, count: int) -> Iterator[slice]:
        """Cut the keys of a batch into parts, each of which fits into memory at once."""
        fits = not len(self.cold) and self._cells.keys + count <= self.most
        size = max(1, count if fits else self.part)
        for first in range(0, count, size):
            yield slice(first, min(first + size, count))

    def affordable(self, count: int, row: int) -> Iterator[slice]:
        """Cut a batch of updates of `row` bytes into parts for which there is memory."""
        each = row + _UPDATE_BYTES
        size = max(self.part, self._account.budget.free // (4 * each))
        for first in range(0, count, size):
            yield slice(first, min(first + size, count))

    def look(self, id_high: Identity, id_low: Identity) -> Ints:
        """Return what is known of distinct keys, in memory or not; zeros for unknown ones."""
        slots = self._cells.find(id_high, id_low)
        rows: Ints = self._rows(np.maximum(slots, 0))
        missing = np.flatnonzero(slots < 0)
        rows[missing] = 0
        if len(self.cold):
            for piece in self.pieces(len(missing)):
                some = missing[piece]
                found, cold = self.cold.look(id_high[some], id_low[some])
                rows[some[found]] = cold
        return rows

    def admit(self, id_high: Identity, id_low: Identity) -> None:
        """Load a piece of keys into memory, and make room for new ones."""
        slots = self._cells.find(id_high, id_low)
        missing = slots < 0
        if not missing.any():
            return
        id_high, id_low, _ = distinct(id_high[missing], id_low[missing])
        held = self._pinned(slots[~missing])
        self._make_room(len(id_high), held)
        if len(self.cold):
            self.install(*self.cold.pop(id_high, id_low), held)

    def enqueue(
        self,
        id_high: Identity,
        id_low: Identity,
        arrived: Ints,
        rows: pa.RecordBatch,
        folded: Ints | None = None,
    ) -> None:
        """Add updates for all readers; `KeyUpdates` explains `folded`."""
        if len(arrived):
            self._cells.begin(int(arrived[0]))
            self._enqueue(self._cells.updates(id_high, id_low, arrived, rows, folded))

    def _enqueue(self, updates: KeyUpdates) -> None:
        slots = self._cells.find(updates.id_high, updates.id_low)
        missing = slots < 0
        count = int(np.count_nonzero(missing))
        fits = not len(self.cold) and self._cells.keys + count <= self.most
        if fits or not count:
            self._add(updates, slots)
        elif not self._loads and (self.cold.waiting or count > self.part):
            chosen = np.flatnonzero(missing)
            self.cold.update(self._cells.kernel.facts, updates, chosen, self.part)
            if count < len(updates):
                here = np.flatnonzero(~missing)
                self._add(updates.take(here), slots[here])
        else:
            for piece in self.pieces(len(updates)):
                some = updates.take(np.arange(piece.start, piece.stop))
                self.admit(some.id_high, some.id_low)
                self._add(some)

    def _add(self, updates: KeyUpdates, slots: Ints | None = None) -> None:
        """Add updates of keys in memory, or new ones; make room for their values."""
        while True:
            try:
                self._cells.add(updates, slots)
            except Refused:
                # keys that make room leave their cells
                slots = None
                if not self._relieve(updates.id_high, updates.id_low):
                    break
            else:
                return
        half = len(updates) // 2
        if not half:
            self._cells.add(updates)
            return
        for some in (np.arange(half), np.arange(half, len(updates))):
            self._enqueue(updates.take(some))

    def dequeue(self, reader: int, count: int, now: Micros) -> Dequeued:
        """Take up to `count` keys in the order of a reader's schedule."""
        queue = self._readers[reader]
        if not self.cold.waits(reader):
            return queue.dequeue(count, now)
        taken = []
        left = min(count, len(queue))
        while left:
            if ready := self._ready(reader, left):
                taken.append(queue.dequeue(ready, now))
            elif self._loads or left <= self.part:
                self._bring_next(reader)
                continue
            else:
                taken.append(self._served_there(reader, left, now))
            left -= len(taken[-1])
        return taken[0] if len(taken) == 1 else _together(taken)

    def read(self, reader: int, count: int) -> Dequeued:
        """Return up to `count` keys that come next, as far as they are in memory."""
        return self._readers[reader].read(self._ready(reader, count))

    def delivered(self, at: Micros) -> None:
        """Record that all keys taken so far have reached the application."""
        for reader in self._readers:
            flying = reader.order.kernel.keys[: self._cells.seen, FLYING] != NONE
            reader.delivered(*self._cells.identities(np.flatnonzero(flying)), at)
        self.cold.delivered(at)

    def install(self, rows: Ints, words: Ints, offsets: Ints, held: Mask | None = None) -> None:
        """Put rows of keys, as `ColdKeys.pop` returns them, into memory.

        There must be room for the keys; `held` are cells that must not be evicted for their values.
        """
        if not len(rows):
            return
        cells = self._cells
        id_high, id_low = identities(rows)
        slots = cells.register(id_high, id_low)
        table = cells.kernel.cells
        table[slots, 2:] = rows[:, 2 : k.CELL_WORDS]
        table[slots, k.ADDRESS] = -1
        waits = rows[:, k.WAITED_FOR] != 0
        for number, reader in enumerate(self._readers):
            self._install_reader(reader, slots, self.cold.of_reader(rows, number))
        # keys whose values have no place yet must not be evicted
        pinned = self._pinned(slots) if held is None else self._pinned(slots, held)
        while True:
            units = int(update_batches.units_wanted(cells.kernel, slots[waits], offsets))
            try:
                cells.pages.reserve(units)
                break
            except Refused:
                if not self._evict_waiting(self.part, pinned):
                    raise
        put_values(cells.kernel, slots[waits], words, offsets)

    def make_room(self, keys: int) -> None:
        self._make_room(keys, self._pinned(np.empty(0, dtype=np.int64)))

    def portions(self, size: int, *, waiting: bool) -> Iterator[tuple[Ints, pa.RecordBatch | None]]:
        """Yield rows of all waiting keys with their values, or of all others, a batch at a time."""
        column = self._cells.column(k.WAITED_FOR)
        known = self._cells.column(k.COUNT) > 0
        slots = np.flatnonzero(column != 0 if waiting else known & (column == 0))
        for first in range(0, len(slots), size):
            some = slots[first : first + size]
            yield self._rows(some), self._cells.values(some) if waiting else None
        if not waiting:
            yield from ((rows, None) for rows in self.cold.idle_rows())
        for opened in self.cold.open_rows():
            rows = opened[(opened[:, k.WAITED_FOR] != 0) == waiting]
            values = self.cold.values_of(rows)[0] if waiting else None
            decode = self._cells.codec.decode
            yield rows, None if values is None else decode(values, len(rows))

    # -- internals -------------------------------------------------------------------------

    def _install_reader(self, reader: QueueReader, slots: Ints, keys: Ints) -> None:
        """Put one reader's rows of keys into memory, and waiting ones into its order."""
        kernel = reader.order.kernel
        for totals in (QUEUE_STALENESS, APPLICATION_STALENESS):
            keys[:, totals + FROM] = np.maximum(keys[:, totals + FROM], reader.order.began)
        keys[:, LINKS] = 0
        kernel.keys[slots] = keys
        order = np.argsort(keys[:, TURN], kind="stable")
        put_by_turn(kernel, slots[order[keys[order, SINCE] != NONE]])

    def _rows(self, slots: Ints) -> Ints:
        """Return everything known about keys in memory."""
        tables = [self._cells.kernel.cells]
        tables += [reader.order.kernel.keys for reader in self._readers]
        return np.hstack([table[slots] for table in tables])

    def _pinned(self, slots: Ints, more: Mask | None = None) -> Mask:
        pinned = np.zeros(self._cells.seen, dtype=np.bool_)
        if more is not None:
            pinned[: len(more)] = more
        pinned[slots] = True
        return pinned

    def _ready(self, reader: int, count: int) -> int:
        """Return how many of the next keys are in memory and come before all cold ones."""
        order = self._readers[reader].order
        most = min(count, order.waiting - self.cold.waits(reader))
        before = self.cold.next_turn(reader) if self.cold.waits(reader) else NONE
        return int(count_ready(order.kernel, before, most))

    def _served_there(self, reader: int, count: int, now: Micros) -> Dequeued:
        """Serve up to `count` next keys, those outside memory where they are."""
        queue, cold = self._readers[reader], self.cold
        turns = cold.next_turns(reader, count)
        before = 1 + int(turns.max(initial=cold.next_turn(reader) - 1))
        slots = np.empty(min(count, queue.order.waiting - cold.waits(reader)), dtype=np.int64)
        slots = slots[: next_keys(queue.order.kernel, slots)]
        mine = queue.order.kernel.keys[slots, TURN]
        turns = np.concatenate((turns, mine[mine < before]))
        if len(turns) > count:
            before = int(np.partition(turns, count)[count])
        mine = mine[mine < before]
        served, words, _ = cold.serve(reader, before, now)
        id_high, id_low = identities(served)
        rows = self._cells.codec.decode(words, len(served))
        since, arrived = (np.ascontiguousarray(served[:, at]) for at in (S_SINCE, S_ARRIVED))
        there = Dequeued(id_high, id_low, since, arrived, rows)
        if not len(mine):
            return there
        both = _together([queue.dequeue(len(mine), now), there])
        return both.take(np.argsort(np.concatenate((mine, served[:, S_TURN]))))

    def _bring_next(self, reader: int) -> None:
        """Load waiting keys whose turn is near, as many as the free memory has room to load."""
        row = int(SPARE * _WORD * self.cold.width)
        count = min(self.most // 2, self.cold.waits(reader))
        # a quarter is left for the pages of values
        self.make_room(min(count, max(_LEAST, self._account.budget.free * 3 // 4 // row)))
        count = min(count, max(_LEAST, self._account.budget.free * 3 // 4 // row))
        self._account.reserve(count * row)
        try:
            for rows in self.cold.pop_next(reader, count, self.part):
                self.install(*rows)
        finally:
            self._account.release(count * row)

    def _make_room(self, keys: int, pinned: Mask) -> None:
        """Make room for keys; if others hold memory that should be free, lower the limit."""
        while True:
            self._shrink(keys, pinned)
            try:
                self._cells.reserve(keys)
            except Refused:
                if self.most <= self._cells.capacity:
                    raise
                self.most = self._cells.most = self._cells.capacity
            else:
                return

    def _shrink(self, keys: int, pinned: Mask) -> None:
        """Evict keys until `keys` more fit; Refused if there are not enough to evict."""
        missing = keys - (self.most - self._cells.keys)
        if missing <= 0:
            return
        left = max(missing, self.part)
        left -= self._evict(self._idle(left, pinned))
        if left > 0:
            self._evict_waiting(left, pinned)
        free = self.most - self._cells.keys
        if keys > free:
            owner, row = "keys of updates", _WORD * self.cold.width
            raise Refused(owner, keys * row, max(0, free) * row)

    def _relieve(self, id_high: Identity, id_low: Identity) -> bool:
        """Evict keys other than these; False if there are no others."""
        slots = self._cells.find(id_high, id_low)
        pinned = self._pinned(slots[slots >= 0])
        idle = self._evict(self._idle(self.part, pinned))
        return idle + self._evict_waiting(self.part, pinned) > 0

    def _idle(self, count: int, pinned: Mask) -> Ints:
        """Return cells of keys that do not wait, those needed last first."""
        free = (self._cells.column(k.WAITED_FOR) == 0) & (self._cells.column(k.COUNT) >= 0)
        slots = np.flatnonzero(free & ~pinned)
        flies = np.zeros(len(slots), dtype=np.bool_)
        for reader in self._readers:
            flies |= reader.order.kernel.keys[slots, FLYING] != NONE
        if len(slots) > count:
            order = np.lexsort((self._cells.column(k.ARRIVED)[slots], flies))
            slots = slots[order[:count]]
        return slots

    def _evict_waiting(self, count: int, pinned: Mask) -> int:
        """Evict the waiting keys that are served last, by the reader that serves them first."""
        rank = np.full(self._cells.seen, -1, dtype=np.int64)
        for reader in self._readers:
            order = reader.order
            slots = np.empty(order.waiting, dtype=np.int64)
            listed = slots[: next_keys(order.kernel, slots)]
            places = np.arange(len(listed))
            known = rank[listed]
            rank[listed] = np.where(known < 0, places, np.minimum(known, places))
        rank[pinned] = -1
        slots = np.flatnonzero(rank >= 0)
        if len(slots) > count:
            slots = slots[np.argpartition(rank[slots], len(slots) - count)[-count:]]
        return self._evict(slots[np.argsort(rank[slots])])

    def _evict(self, slots: Ints) -> int:
        """Evict keys, a part at a time in the order of the files; return how many.

        Parts are smaller where a batch leaves less memory to copy them.
        """
        slots = slots[np.argsort(marks_of(*self._cells.identities(slots)))]
        table = self._cells.kernel.cells[slots]
        words = np.where(table[:, k.WAITED_FOR] != 0, table[:, k.SIZE], 0)
        bounds = np.append(0, np.cumsum(_WORD * (2 * self.cold.width + words)))
        first = 0
        while first < len(slots):
            fits = bounds[first] + self._account.budget.free // 2
            last = int(np.searchsorted(bounds, fits, side="right")) - 1
            last = max(first + 1, min(last, first + self.part))
            self._leave(slots[first:last])
            first = last
        return len(slots)

    def _leave(self, slots: Ints) -> None:
        cells = self._cells
        table = cells.kernel.cells
        waits = slots[table[slots, k.WAITED_FOR] != 0]
        offsets = np.zeros(len(waits) + 1, dtype=np.int64)
        np.cumsum(table[waits, k.SIZE], out=offsets[1:])
        needed = _WORD * (2 * len(slots) * self.cold.width + int(offsets[-1]))
        self._account.reserve(needed)
        try:
            words = np.empty(int(offsets[-1]), dtype=np.int64)
            update_batches.copy_values(cells.kernel, waits, offsets, words)
            rows = self._rows(slots)
            for reader in self._readers:
                leave_lists(reader.order.kernel, waits)
            table[waits, k.WAITED_FOR] = 0
            cells.drop(slots)
            self.cold.put(rows, words, offsets)
        finally:
            self._account.release(needed)


def _fitting(cells: KeyCells, readers: tuple[QueueReader, ...], limit: int) -> int:
    """Return how many keys, each with a value, fit into `limit` bytes."""
    pages = cells.pages
    page = pages.pool.page_bytes
    fixed = 2 * page + len(readers) * 4 * BINS * PROFILE * _WORD
    key = _WORD * (k.CELL_WORDS + len(readers) * READER_WORDS) + _INDEX_BYTES
    return max(_LEAST, (limit - fixed) // (key + -(-page // pages.per_page)))


def _together(parts: list[Dequeued]) -> Dequeued:
    """Return what was dequeued one after the other."""
    id_high, id_low, since, arrived = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("id_high", "id_low", "since", "arrived")
    )
    return Dequeued(
        id_high, id_low, since, arrived, pa.concat_batches([part.rows for part in parts])
    )
