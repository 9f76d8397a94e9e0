"""The append queue: every update is processed, in order of arrival, unless some are shed at random.

Idea: streams without update semantics do this; benches compare update queues with it. Staleness is
measured as in an update queue: an update is pending until it, or a later one of its key, is served
or delivered. This includes updates that were shed.

Invariants:
1. Updates are dequeued in the order they were enqueued, less those shed
   (`test_oracle_append_is_a_list`).
2. Staleness counts shed updates (`test_oracle_staleness_counts_what_was_shed`).
3. The same seed sheds the same updates (`test_shedding_is_repeatable`).

Cost: the row's location and 48 bytes for every waiting update.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bench.research import append_queue_kernels as k
from bench.research.append_queue_kernels import LineArrays
from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.state.keys import Identity
from icestream.state.queue.arrays import Arrays
from icestream.state.queue.cells import KeyCells
from icestream.state.queue.pages import OnDemandPages, PagePool
from icestream.state.queue.reader import Dequeued, QueueReader


class AppendQueue(QueueReader):
    """Keeps every update, or all but a part of them chosen at random, in order of arrival."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        shed: float = 0.0,
        seed: int = 0,
        arrays: Arrays | None = None,
        pool: PagePool | None = None,
        capacity: int = 0,
        name: str = "queue",
    ) -> None:
        """Attach to the arrays `name.*`, or start empty.

        Args:
            schema: columns of the values, as `RowCodec` stores them.
            shed: part of the updates that is dropped at random; may be changed at any time.
            seed: seed of the random choice.
            arrays: an arena, or heap arrays of an account; by default the heap, without limit.
            pool: pages to share with other queues; by default its own.
            capacity: keys to make room for at once.
            name: prefix of the arrays' names.
        """
        cells = KeyCells(
            schema,
            arrays=arrays,
            pool=pool,
            capacity=capacity,
            header=k.ENTRY_WORDS,
            name=name,
        )
        super().__init__(cells, schedule="fifo")
        self._facts = cells.arrays.array(f"{name}.line", np.int64, 1, k.LINE_FACTS)
        self._shedding = cells.arrays.array(f"{name}.shedding", np.float64, 1, 1)
        self._facts.view[k.SEED] = seed
        self.shed = shed

    @property
    def line(self) -> LineArrays:
        """The arrays of the line, for kernels."""
        return LineArrays(self._facts.view, self._shedding.view)

    @property
    def shed(self) -> float:
        """Part of the updates that is dropped at random."""
        return float(self._shedding.view[0])

    @shed.setter
    def shed(self, part: float) -> None:
        if not 0.0 <= part <= 1.0:
            msg = f"shed must be between 0 and 1; got {part}"
            raise DefinitionError(msg)
        self._shedding.view[0] = part

    @property
    def dropped(self) -> int:
        """Updates shed so far."""
        return int(self._facts.view[k.SHED])

    @property
    def keys(self) -> int:
        """Keys that are known."""
        return self.cells.keys

    @property
    def pages(self) -> OnDemandPages:
        """The memory of its entries."""
        return self.cells.pages

    def __len__(self) -> int:
        """Return the number of waiting updates."""
        return int(self._facts.view[k.ENTRIES])

    def enqueue(
        self, id_high: Identity | None, id_low: Identity | None, arrived: Ints, rows: pa.RecordBatch
    ) -> None:
        """Let updates arrive, in this order; `UpdateQueue.enqueue` explains the rest."""
        if id_high is None or id_low is None:
            id_high = id_low = np.zeros(rows.num_rows, dtype=np.uint64)
        updates = self.cells.updates(id_high, id_low, arrived, rows)
        slots = self.cells.place(updates, self._reserve)
        store, reader = self.cells.kernel, self.order.kernel
        k.append_batch(store, reader, self.line, slots, arrived, updates.words, updates.offsets)

    def dequeue(self, count: int, now: Micros) -> Dequeued:
        """Take up to `count` updates, in order of arrival."""
        entries = np.empty(min(count, len(self)), dtype=np.int64)
        k.leave_batch(self.cells.kernel, self.order.kernel, self.line, now, entries)
        taken = self._entries(entries)
        k.free_entries(self.cells.kernel, entries)
        return taken

    def read(self, count: int) -> Dequeued:
        """Return what `dequeue` would, and take nothing."""
        entries = np.empty(min(count, len(self)), dtype=np.int64)
        k.first_entries(self.cells.kernel, self.line, entries)
        return self._entries(entries)

    def reading(self, size: int = 1024) -> Iterator[Dequeued]:
        """Go over all updates that wait, `size` at a time; nothing may be dequeued meanwhile."""
        entries = np.empty(len(self), dtype=np.int64)
        k.first_entries(self.cells.kernel, self.line, entries)
        for first in range(0, len(entries), size):
            yield self._entries(entries[first : first + size])

    def _entries(self, entries: Ints) -> Dequeued:
        words = self.cells.pages.pool.kernel.words
        heads = entries if self.cells.codec.is_fixed else entries + 1
        offsets = np.zeros(len(entries) + 1, dtype=np.int64)
        np.cumsum(words[heads + k.WORDS], out=offsets[1:])
        out = np.empty(int(offsets[-1]), dtype=np.int64)
        k.copy_entries(self.cells.kernel, entries, offsets, out)
        rows = self.cells.codec.decode(out, len(entries))
        id_high, id_low = self.cells.identities(words[heads + k.CELL])
        return Dequeued(id_high, id_low, words[heads + k.BEGUN], words[heads + k.AT], rows)

    def _reserve(self, slots: Ints, offsets: Ints) -> None:
        """Make room for an entry of every update."""
        most = len(slots)
        if not self.cells.codec.is_fixed:
            most += int(offsets[-1]) // (self.pages.unit - 1)
        self.pages.reserve(most)
