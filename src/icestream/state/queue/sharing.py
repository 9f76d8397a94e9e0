"""One queue for several queries: values are stored once, every query takes them in its own order.

Idea: each reader has its own order and staleness totals over the same cells. An update
enters the order of every reader that does not already wait for its key. Its value is freed when the
last reader took it, and overwritten for all that still wait when a newer one arrives.

Invariants:
1. Every reader is served as if the queue were its own
   (`test_oracle_every_reader_has_its_own_queue`).
2. A value is in memory exactly while some reader waits for it (same test).

Cost: 88 bytes more per key and reader, and O(readers) per update of a key nobody waits for.

Limits: 63 readers; a new reader receives what arrives from then on.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.state.keys import Identity
from icestream.state.queue.arrays import Arrays
from icestream.state.queue.cells import KeyCells
from icestream.state.queue.order import KeyOrder
from icestream.state.queue.pages import OnDemandPages, PagePool
from icestream.state.queue.reader import QueueReader


class SharedQueue:
    """Keeps the newest value of every key that some reader waits for."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        arrays: Arrays | None = None,
        pool: PagePool | None = None,
        smoothing: int = 32,
        capacity: int = 0,
        name: str = "queue",
    ) -> None:
        """Attach to the arrays `name.*`, or start empty; `UpdateQueue` explains the arguments."""
        self.cells = KeyCells(
            schema,
            arrays=arrays,
            pool=pool,
            smoothing=smoothing,
            capacity=capacity,
            name=name,
        )
        self._name = name
        self._readers: dict[str, QueueReader] = {}

    def reader(self, name: str, *, schedule: str = "inplace", cost: Micros = 0) -> QueueReader:
        """Add a query that reads, from the next update on.

        Args:
            name: name of the query. Readers of a queue restored from an arena must be created
                again, in the same order, with the same names and schedules.
            schedule: which key it receives next: fifo, inplace or linecutting.
            cost: microseconds that it takes for one update, for linecutting.
        """
        if name in self._readers:
            msg = f"this queue already has a reader {name!r}; choose another name"
            raise DefinitionError(msg)
        order = KeyOrder(
            self.cells.arrays,
            schedule=schedule,
            cost=cost,
            bit=len(self._readers),
            name=f"{self._name}.{name}",
        )
        self._readers[name] = QueueReader(self.cells, order)
        return self._readers[name]

    def enqueue(
        self, id_high: Identity | None, id_low: Identity | None, arrived: Ints, rows: pa.RecordBatch
    ) -> None:
        """Add updates for all readers; `UpdateQueue.enqueue` explains the rest."""
        if id_high is None or id_low is None:
            id_high = id_low = np.zeros(rows.num_rows, dtype=np.uint64)
        self.cells.enqueue(id_high, id_low, arrived, rows)

    @property
    def pages(self) -> OnDemandPages:
        return self.cells.pages
