"""The update queue: only the newest update of every key waits.

Idea: an arrival overwrites the waiting value of its key, so outdated values are never processed,
and memory is bounded by the number of waiting keys, whatever the load. The schedule decides which
key is served next.

Invariants:
1. Every key's newest update is dequeued exactly once, unless a newer one replaces it first
   (`test_oracle_any_sequence_follows_the_schedule`).
2. Memory holds one value per waiting key, on pages that are returned when empty
   (`test_oracle_pages_hold_what_waits`).
3. A refused `enqueue` changes nothing (`test_bounded_a_refused_enqueue_changes_nothing`).

Cost: see `kernels.queue.queue`; `bench update-queue` has rates.

References: update queues of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import Micros
from icestream.kernels.queue import queue as k
from icestream.state.keys import Identity
from icestream.state.queue.arrays import Arrays
from icestream.state.queue.cells import KeyCells
from icestream.state.queue.pages import OnDemandPages, PagePool
from icestream.state.queue.reader import QueueReader


class UpdateQueue(QueueReader):
    """Keeps the newest value of every waiting key, for one query.

    Examples:
        >>> import numpy as np, pyarrow as pa
        >>> queue = ice.UpdateQueue(pa.schema([("price", pa.float64())]))
        >>> key = np.array([7, 7, 9], np.uint64)
        >>> rows = pa.record_batch({"price": [20.0, 21.0, 5.0]})
        >>> queue.enqueue(key, key, np.array([1, 2, 3]), rows)
        >>> queue.dequeue(10, now=4).rows.to_pydict()
        {'price': [21.0, 5.0]}
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        schedule: str = "inplace",
        arrays: Arrays | None = None,
        pool: PagePool | None = None,
        cost: Micros = 0,
        smoothing: int = 32,
        capacity: int = 0,
        name: str = "queue",
    ) -> None:
        """Attach to the arrays `name.*`, or start empty.

        Args:
            schema: columns of the values, as `RowCodec` stores them.
            schedule: which key is served next: fifo, inplace or linecutting.
            arrays: an arena, or heap arrays of an account; by default the heap, without limit.
            pool: pages to share with other queues; by default its own.
            cost: microseconds that processing one update takes, for linecutting.
            smoothing: gaps between updates that a key's rate is averaged over.
            capacity: keys to make room for at once.
            name: prefix of the arrays' names.
        """
        cells = KeyCells(
            schema,
            arrays=arrays,
            pool=pool,
            smoothing=smoothing,
            capacity=capacity,
            name=name,
        )
        super().__init__(cells, schedule=schedule, cost=cost)

    def enqueue(
        self, id_high: Identity | None, id_low: Identity | None, arrived: Ints, rows: pa.RecordBatch
    ) -> None:
        """Add updates, in this order; a later one of a key replaces those before it.

        Args:
            id_high: high words of the keys' ids; None for a stream without a key, in which every
                update replaces the last.
            id_low: low words of the keys' ids.
            arrived: arrival times in microseconds; an update older than its key's is dropped.
            rows: the values.

        Raises `Refused`, and changes nothing, when there is not enough memory.

        Examples:
            >>> import numpy as np, pyarrow as pa
            >>> queue = ice.UpdateQueue(pa.schema([("price", pa.float64())]))
            >>> queue.enqueue(
            ...     None, None, np.array([1, 2]), pa.record_batch({"price": [20.0, 21.0]})
            ... )
            >>> queue.superseded
            1
        """
        if id_high is None or id_low is None:
            id_high = id_low = np.zeros(rows.num_rows, dtype=np.uint64)
        self.cells.enqueue(id_high, id_low, arrived, rows)

    def forget(self, before: Micros) -> int:
        """Forget keys that are not waiting and had no update since `before`; return how many.

        Examples:
            >>> taken = updates.dequeue(10, now=4)
            >>> updates.forget(before=3)
            2
        """
        return self.cells.forget(before)

    @property
    def keys(self) -> int:
        """Known keys, waiting or not.

        Examples:
            >>> updates.keys
            2
        """
        return self.cells.keys

    @property
    def pages(self) -> OnDemandPages:
        """The memory of its values: pages and locations in use, now and at the peak.

        Examples:
            >>> updates.pages.used
            2
        """
        return self.cells.pages

    @property
    def effective_use(self) -> float:
        """Fraction of the locations in use whose value some reader waits for.

        Examples:
            >>> updates.effective_use
            1.0
        """
        return len(self) / self.pages.used if self.pages.used else 1.0

    @property
    def superseded(self) -> int:
        """Updates that a newer one of their key replaced before they were dequeued.

        Examples:
            >>> updates.superseded
            0
        """
        return self.cells.fact(k.SUPERSEDED)

    @property
    def late(self) -> int:
        """Updates dropped because they went back in time.

        Examples:
            >>> updates.late
            0
        """
        return self.cells.fact(k.LATE)
