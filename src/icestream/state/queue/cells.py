"""The cells of a queue: every key it has seen, and where the newest value of each waits.

Idea: a hash index finds the cell of an id; the cell has the page and offset of the key's value, the
time of its last update and its update rate. Keys, values and the orders of all readers are in
arrays of one provider, so that an arena can carry a queue from task to task.

Invariants:
1. A key is found from its first update until it is forgotten
   (`test_oracle_any_sequence_follows_the_schedule`, `test_forgotten_keys_are_new_keys`).
2. A refused `enqueue` changes nothing (`test_bounded_a_refused_enqueue_changes_nothing`).

Cost: 64 bytes of cell, 8 to 24 of index and 88 per reader for every key; values are on pages.

Limits: 2**31 - 1 keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels import hash_index
from icestream.kernels.queue import queue as k
from icestream.kernels.queue import update_batches
from icestream.kernels.queue.order import ReaderArrays
from icestream.kernels.queue.queue import CellArrays
from icestream.state.budget import Refused
from icestream.state.keys import Identity
from icestream.state.queue.arrays import Arrays, grow
from icestream.state.queue.order import KeyOrder
from icestream.state.queue.pages import OnDemandPages, PagePool
from icestream.state.rows import RowCodec

#: cells to make room for at first, and words of a chained location after a row's fixed part
_LEAST = 64
_SPARE_WORDS = 8


@dataclass(frozen=True)
class KeyUpdates:
    """Updates in the order of their arrival."""

    id_high: Identity
    id_low: Identity
    arrived: Ints
    #: where the order of service gets those that come to its tail
    turns: Ints
    #: for each how many it stands for, 0 for one, and the time they are spread over
    folded: Ints
    #: the values, and where each begins
    words: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.arrived)

    def take(self, chosen: Ints) -> KeyUpdates:
        sizes = np.diff(self.offsets)
        width = len(self.words) // max(1, len(self))
        if width and (sizes == width).all():
            words = self.words.reshape(-1, width)[chosen].reshape(-1)
            offsets = np.arange(len(chosen) + 1) * width
        else:
            sizes = sizes[chosen]
            offsets = np.zeros(len(chosen) + 1, dtype=np.int64)
            np.cumsum(sizes, out=offsets[1:])
            begins = np.repeat(self.offsets[chosen] - offsets[:-1], sizes)
            words = self.words[begins + np.arange(offsets[-1])]
        return KeyUpdates(
            self.id_high[chosen],
            self.id_low[chosen],
            self.arrived[chosen],
            self.turns[chosen],
            self.folded[chosen],
            words,
            offsets,
        )


class KeyCells:
    """Keys, their newest values, and the readers that wait for them."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        arrays: Arrays | None = None,
        pool: PagePool | None = None,
        smoothing: int = 32,
        capacity: int = 0,
        header: int = 0,
        name: str = "queue",
    ) -> None:
        """Attach to the arrays `name.*`, or start without keys.

        `header` words of every location are left free before the value; `UpdateQueue` explains the
        other arguments.
        """
        if pool is None:
            pool = PagePool(arrays, name=f"{name}.pool")
        self.arrays = pool.arrays if arrays is None else arrays
        self._name = name
        self.codec = RowCodec(schema)
        width = self.codec.width
        unit = header + width
        if not self.codec.is_fixed:
            unit = min(pool.page_words, unit + 1 + _SPARE_WORDS)
        #: pages of the values
        self.pages = OnDemandPages(pool, unit, f"{name}.values")
        self._facts = self.arrays.array(f"{name}.facts", np.int64, 1, k.STORE_FACTS)
        self._cells = self.arrays.array(f"{name}.cells", np.int64, k.CELL_WORDS)
        self._index = self.arrays.array(f"{name}.index", np.int32)
        self._facts.view[k.SMOOTHING] = smoothing
        self._facts.view[k.WIDTH] = width if self.codec.is_fixed else 0
        self._readers: list[KeyOrder] = []
        #: maximum number of keys; whoever lowers it evicts the excess
        self.most: int | None = None
        self._make_room(max(capacity, _LEAST))

    @property
    def kernel(self) -> CellArrays:
        """The arrays, for kernels; never keep them across a call that may grow them."""
        cells = self._cells.view[: self._room]
        return CellArrays(
            self._facts.view,
            cells,
            cells.view(np.float64),
            self._index.view[: self._places],
            self.pages.kernel,
            self.pages.pool.kernel,
        )

    @property
    def kernel_readers(self) -> tuple[ReaderArrays, ...]:
        return tuple(reader.kernel for reader in self._readers)

    @property
    def seen(self) -> int:
        """Cells ever used: all slots are below it."""
        return int(self._facts.view[k.CELLS_SEEN])

    @property
    def keys(self) -> int:
        return self.seen - int(self._facts.view[k.FREE_CELLS])

    @property
    def newest(self) -> Micros:
        facts = self._facts.view
        return int(facts[k.NEWEST]) if facts[k.ACCEPTED] else MINUS_INFINITY

    def fact(self, place: int) -> int:
        """Return a count that the kernels maintain."""
        return int(self._facts.view[place])

    def join(self, name: str, schedule: str, cost: Micros) -> KeyOrder:
        """Return the order of a further reader that waits for updates from the next one on."""
        number, name = len(self._readers), f"{self._name}.{name}"
        reader = KeyOrder(self.arrays, schedule=schedule, cost=cost, bit=number, name=name)
        grow(reader.targets(self._room))
        if reader.is_new:
            update_batches.blank_keys(reader.kernel, self.seen)
        self._readers.append(reader)
        return reader

    def find(self, id_high: Identity, id_low: Identity) -> Ints:
        """Return the cell of each key, -1 for unknown keys."""
        slots = np.empty(len(id_high), dtype=np.int64)
        store = self.kernel
        hash_index.find(store.places, store.cells, id_high, id_low, slots)
        return slots

    def register(self, id_high: Identity, id_low: Identity) -> Ints:
        """Return the cell of each key, created if it is new; it stays until it is forgotten."""
        slots = self.find(id_high, id_low)
        self._add(id_high, id_low, slots, np.flatnonzero(slots < 0))
        return slots

    def enqueue(
        self, id_high: Identity, id_low: Identity, arrived: Ints, rows: pa.RecordBatch
    ) -> None:
        """Add updates for all readers; a refusal changes nothing."""
        self.add(self.updates(id_high, id_low, arrived, rows))

    def updates(
        self,
        id_high: Identity,
        id_low: Identity,
        arrived: Ints,
        rows: pa.RecordBatch,
        folded: Ints | None = None,
    ) -> KeyUpdates:
        """Return updates with their turns, the next ones."""
        if not len(id_high) == len(id_low) == len(arrived) == rows.num_rows:
            msg = (
                f"{len(id_high)} keys and {len(arrived)} arrivals do not match {rows.num_rows} rows"
            )
            raise ValueError(msg)
        first = self.fact(k.NEXT_TURN)
        self._facts.view[k.NEXT_TURN] += len(arrived)
        turns = np.arange(first, first + len(arrived))
        if folded is None:
            folded = np.zeros((len(arrived), 2), dtype=np.int64)
        encoded = self.codec.encode(rows)
        return KeyUpdates(id_high, id_low, arrived, turns, folded, encoded.words, encoded.offsets)

    def add(self, updates: KeyUpdates, slots: Ints | None = None) -> None:
        """Add updates for all readers, to cells that `find` returned; a refusal changes nothing."""
        slots = self.place(updates, self._reserve_values, slots)
        update_batches.enqueue_batch(
            self.kernel,
            self.kernel_readers,
            slots,
            updates.arrived,
            updates.turns,
            updates.folded,
            updates.words,
            updates.offsets,
        )

    def place(
        self,
        updates: KeyUpdates,
        reserve: Callable[[Ints, Ints], None],
        slots: Ints | None = None,
    ) -> Ints:
        """Find or create the cells of updates, and make room for their values; all or nothing.

        `reserve` makes room for values of slots and offsets of words.
        """
        if slots is None:
            slots = self.find(updates.id_high, updates.id_low)
        missing = np.flatnonzero(slots < 0)
        self._add(updates.id_high, updates.id_low, slots, missing)
        arrived = updates.arrived
        try:
            reserve(slots, updates.offsets)
        except BaseException:
            self._drop(slots[missing])
            raise
        if len(arrived):
            self.begin(int(arrived[0]))
        return slots

    def begin(self, at: Micros) -> None:
        """Let readers measure staleness from the first update on."""
        for reader in self._readers:
            if reader.began == MINUS_INFINITY:
                k.begin_measuring(reader.kernel, self.seen, at)

    def values(self, slots: Ints) -> pa.RecordBatch:
        if self.codec.is_fixed:
            offsets = np.arange(len(slots) + 1) * self.codec.width
        else:
            offsets = np.zeros(len(slots) + 1, dtype=np.int64)
            np.cumsum(self._cells.view[slots, k.SIZE], out=offsets[1:])
        words = np.empty(int(offsets[-1]), dtype=np.int64)
        update_batches.copy_values(self.kernel, slots, offsets, words)
        return self.codec.decode(words, len(slots))

    def identities(self, slots: Ints) -> tuple[Identity, Identity]:
        """Return id_high and id_low of cells."""
        cells = self._cells.view
        return cells[slots, k.ID_HIGH].view(np.uint64), cells[slots, k.ID_LOW].view(np.uint64)

    def column(self, word: int) -> Ints:
        """Return one word of every cell ever used, `kernels.queue.queue` says which."""
        found: Ints = self._cells.view[: self.seen, word]
        return found

    def idle_since(self, before: Micros) -> Ints:
        """Return cells of keys without an update since `before` for which no reader waits."""
        idle = (self.column(k.WAITED_FOR) == 0) & (self.column(k.COUNT) >= 0)
        return np.flatnonzero(idle & (self.column(k.ARRIVED) < before))

    def drop(self, slots: Ints) -> None:
        """Forget keys for which no reader waits."""
        update_batches.drop_keys(self.kernel, slots)

    def forget(self, before: Micros) -> int:
        """Forget keys not updated since `before` for which no reader waits; return how many."""
        old = self.idle_since(before)
        self.drop(old)
        return len(old)

    def reserve(self, keys: int) -> None:
        """Make room for `keys` more keys; a refusal changes nothing."""
        self._make_room(self.keys + keys)

    def _reserve_values(self, slots: Ints, offsets: Ints) -> None:
        """Make room for the values of a batch, or just what surely suffices if memory is short."""
        most = len(slots)
        if not self.codec.is_fixed:
            most += int(offsets[-1]) // (self.pages.unit - 1)
        if self.pages.room >= most:
            return
        try:
            self.pages.reserve(most)
        except Refused:
            self.pages.reserve(int(update_batches.units_wanted(self.kernel, slots, offsets)))

    def _add(self, id_high: Identity, id_low: Identity, slots: Ints, missing: Ints) -> None:
        """Give cells to keys without one, to all or to none."""
        if not len(missing):
            return
        try:
            done = 0
            while done < len(slots):
                done = update_batches.add_keys(
                    self.kernel, self.kernel_readers, id_high, id_low, slots, done
                )
                if done < len(slots):
                    self._make_room(self._room + 1)
        except BaseException:
            self._drop(slots[missing])
            raise

    def _drop(self, slots: Ints) -> None:
        """Remove cells that were added in vain."""
        update_batches.drop_keys(self.kernel, np.unique(slots[slots >= 0]))

    def _make_room(self, keys: int) -> None:
        """Grow the arrays by key, by a 32nd if that fits."""
        if self._room >= keys:
            return
        ahead = self._room + self._room // 32
        try:
            self._grow(max(keys, ahead if self.most is None else min(ahead, self.most)))
        except Refused:
            self._grow(keys)

    @property
    def _places(self) -> int:
        """Places of the index: a power of two."""
        return 1 << self._index.capacity.bit_length() >> 1

    @property
    def capacity(self) -> int:
        """Keys that fit without growing."""
        return self._room

    @property
    def _room(self) -> int:
        counts = [reader.capacity for reader in self._readers]
        return min([self._cells.capacity, self._places // 2, *counts])

    def _grow(self, keys: int) -> None:
        if self._room >= keys:
            return
        places = 1 << (2 * keys - 1).bit_length()
        targets = [(self._index, places), (self._cells, keys)]
        for reader in self._readers:
            targets += reader.targets(keys)
        before = self._index.capacity
        grow(targets)
        if self._index.capacity != before:
            store = self.kernel
            store.places[:] = 0
            live = np.flatnonzero(self.column(k.COUNT) >= 0)
            hash_index.insert_all(store.places, store.cells, live)
