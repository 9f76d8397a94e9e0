"""One reader of a queue: takes waiting keys in its order, measures the staleness of its results.

Idea: readers have orders and staleness totals of their own over the same cells. An update enters
the order of every reader that does not already wait for its key. Its value is freed when the last
reader took it, and overwritten for all that still wait when a newer one arrives.

Invariants:
1. `read` returns what `dequeue` would return, and changes nothing
   (`test_oracle_any_sequence_follows_the_schedule`).
2. A slice of `reading` has only values that are still waiting
   (`test_reading_skips_what_was_taken_meanwhile`).
3. Every reader is served as if the queue were its own
   (`test_oracle_every_reader_has_its_own_queue`).

Cost: `dequeue` and `read` are O(keys returned); `staleness` visits every key.

Limits: 63 readers; a new reader receives what arrives from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats, Ints
from icestream.core.times import Micros
from icestream.kernels.queue import queue as k
from icestream.kernels.queue import update_batches
from icestream.kernels.queue.order import SINCE, next_keys
from icestream.kernels.queue.staleness import NONE
from icestream.state.keys import Identity
from icestream.state.queue import staleness
from icestream.state.queue.cells import KeyCells
from icestream.state.queue.staleness import StalenessReport


@dataclass(frozen=True)
class Dequeued:
    """Updates in the order of processing."""

    id_high: Identity
    id_low: Identity
    #: arrival of the oldest update that each value replaces
    since: Ints
    #: arrival of the value itself
    arrived: Ints
    rows: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.id_high)

    def take(self, order: Ints) -> Dequeued:
        """Return the updates in another order."""
        return Dequeued(
            self.id_high[order],
            self.id_low[order],
            self.since[order],
            self.arrived[order],
            self.rows.take(pa.array(order)),
        )


class QueueReader:
    """Takes the newest value of every key that changed, in the order of a schedule."""

    def __init__(
        self, cells: KeyCells, name: str = "reader", *, schedule: str, cost: Micros = 0
    ) -> None:
        """Receive the updates of a queue's cells from now on.

        Readers of cells restored from an arena must be created again, in the same order, with the
        same names and schedules.
        """
        #: the keys and values, shared by all readers of the queue
        self.cells = cells
        self.order = cells.join(name, schedule, cost)

    def __len__(self) -> int:
        return self.order.waiting

    @property
    def schedule(self) -> str:
        """Name of the schedule.

        Examples:
            >>> updates.schedule
            'inplace'
        """
        return self.order.schedule

    @property
    def cost(self) -> float:
        """Microseconds that processing one update takes; LINECUTTING goes by it.

        Examples:
            >>> updates.cost
            0.0
        """
        return self.order.cost

    @cost.setter
    def cost(self, cost: float) -> None:
        self.order.cost = cost

    def dequeue(self, count: int, now: Micros) -> Dequeued:
        """Take up to `count` keys with their newest values, in the order of the schedule.

        Examples:
            >>> updates.dequeue(1, now=4).rows.to_pydict()
            {'price': [21.0]}
        """
        most = min(count, len(self))
        slots, since, arrived = (np.empty(most, dtype=np.int64) for _ in range(3))
        update_batches.take_batch(self.cells.kernel, self.order.kernel, now, slots, since, arrived)
        rows = self.cells.values(slots)
        id_high, id_low = self.cells.identities(slots)
        update_batches.release_batch(self.cells.kernel, slots)
        return Dequeued(id_high, id_low, since, arrived, rows)

    def read(self, count: int) -> Dequeued:
        """Return what `dequeue` would, but take nothing.

        Examples:
            >>> len(updates.read(10))
            2
        """
        return self._peeked(self._next(count))

    def reading(self, size: int = 1024) -> Iterator[Dequeued]:
        """Iterate over all keys that wait now, `size` at a time, and take nothing.

        Keys taken meanwhile are left out; values are the newest when their slice is made.

        Examples:
            >>> [len(some) for some in updates.reading(size=1)]
            [1, 1]
        """
        slots = self._next(len(self))
        for first in range(0, len(slots), size):
            some = slots[first : first + size]
            bits = self.cells.column(k.WAITED_FOR)[some] >> self.order.bit & 1
            yield self._peeked(some[bits != 0])

    def delivered(
        self,
        id_high: Identity,
        id_low: Identity,
        at: Micros | Ints,
        *,
        since: Ints | None = None,
        arrived: Ints | None = None,
    ) -> None:
        """Record that the application has what was dequeued of some keys, from `at` on.

        Args:
            id_high: high words of the keys' ids; unknown keys are ignored.
            id_low: low words of the keys' ids.
            at: time of delivery, one for all or one for each.
            since: that of the dequeued updates; needed if several updates of one key are being
                delivered at once.
            arrived: as `since`.

        Examples:
            >>> taken = updates.dequeue(10, now=4)
            >>> updates.delivered(taken.id_high, taken.id_low, at=5)
        """
        slots = self.cells.find(id_high, id_low)
        nothing = np.full(len(slots), NONE, dtype=np.int64)
        times = np.full(len(slots), at, dtype=np.int64) if np.isscalar(at) else np.asarray(at)
        update_batches.deliver_batch(
            self.order.kernel,
            slots,
            nothing if since is None else since,
            nothing if arrived is None else arrived,
            times,
        )

    def measure_from(self, at: Micros) -> None:
        """Discard staleness before a time, for instance the end of a warm-up.

        Examples:
            >>> updates.measure_from(2)
        """
        k.begin_measuring(self.order.kernel, self.cells.seen, at)

    def staleness(self, now: Micros) -> StalenessReport:
        """Measure the staleness of the queue and of the application, over all keys.

        Examples:
            >>> report = updates.staleness(now=10)
        """
        cells = np.flatnonzero(self.cells.column(k.COUNT) > 0)
        return staleness.report(self.order.kernel, cells, self._began(now), now)

    def staleness_of(
        self, id_high: Identity, id_low: Identity, now: Micros
    ) -> tuple[Floats, Floats]:
        """Measure the average staleness of some known keys, of the queue and of the application.

        Examples:
            >>> waiting = updates.read(10)
            >>> keys = waiting.id_high, waiting.id_low
            >>> of_queue, of_application = updates.staleness_of(*keys, now=10)
        """
        cells = self.cells.find(id_high, id_low)
        if (cells < 0).any():
            msg = "staleness is known only for keys that were updated; leave out the others"
            raise KeyError(msg)
        return staleness.by_key(self.order.kernel, cells, self._began(now), now)

    def _began(self, now: Micros) -> Micros:
        return min(max(self.order.began, -(2**62)), now)

    def _next(self, count: int) -> Ints:
        slots = np.empty(min(count, len(self)), dtype=np.int64)
        return slots[: next_keys(self.order.kernel, slots)]

    def _peeked(self, slots: Ints) -> Dequeued:
        since = self.order.kernel.keys[slots, SINCE]
        arrived = self.cells.column(k.ARRIVED)[slots]
        return Dequeued(*self.cells.identities(slots), since, arrived, self.cells.values(slots))
