"""One reader of a queue: takes waiting keys in its order, and measures how old its answers are.

Invariants:
1. `read` returns what `dequeue` would, and changes nothing
   (`test_oracle_any_sequence_follows_the_schedule`).
2. A slice of `reading` has only values that still wait
   (`test_reading_skips_what_was_taken_meanwhile`).

Cost: `dequeue` and `read` are O(keys returned); `staleness` looks at every key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.kernels.queue import batch
from icestream.kernels.queue import queue as k
from icestream.kernels.queue.order import SINCE, next_keys
from icestream.kernels.queue.staleness import NONE
from icestream.state.keys import Identity
from icestream.state.queue import staleness
from icestream.state.queue.cells import KeyCells
from icestream.state.queue.order import KeyOrder, Reals
from icestream.state.queue.staleness import KeyStaleness, StalenessReport


@dataclass(frozen=True)
class Dequeued:
    """Updates in the order they are to be processed."""

    hi: Identity
    lo: Identity
    #: arrival of the first update that each stands for
    since: Ints
    #: arrival of each value itself
    arrived: Ints
    rows: pa.RecordBatch

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.hi)


class QueueReader:
    """Takes the newest value of every key that changed, in the order of a schedule."""

    def __init__(self, cells: KeyCells, order: KeyOrder) -> None:
        """Wait for the updates of a queue's cells from now on."""
        #: the keys and values, shared by all readers of the queue
        self.cells = cells
        self.order = order
        cells.join(order)

    def __len__(self) -> int:
        """Return how many keys wait."""
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
        batch.take_batch(self.cells.kernel, self.order.kernel, now, slots, since, arrived)
        rows = self.cells.values(slots)
        hi, lo = self.cells.identities(slots)
        batch.release_batch(self.cells.kernel, slots)
        return Dequeued(hi, lo, since, arrived, rows)

    def read(self, count: int, now: Micros | None = None) -> Dequeued:
        """Return what `dequeue` would, and take nothing; `now` is the newest arrival if left out.

        Only the schedule "index" asks for the time.

        Examples:
            >>> len(updates.read(10))
            2
        """
        return self._peeked(self._next(count, now))

    def reading(self, size: int = 1024, now: Micros | None = None) -> Iterator[Dequeued]:
        """Go over all keys that wait now, `size` at a time, and take nothing.

        Keys taken meanwhile are left out; values are the newest when their slice is made.

        Examples:
            >>> [len(some) for some in updates.reading(size=1)]
            [1, 1]
        """
        slots = self._next(len(self), now)
        for first in range(0, len(slots), size):
            some = slots[first : first + size]
            bits = self.cells.column(k.WAITED_FOR)[some] >> self.order.bit & 1
            yield self._peeked(some[bits != 0])

    def delivered(
        self,
        hi: Identity,
        lo: Identity,
        at: Micros | Ints,
        *,
        since: Ints | None = None,
        arrived: Ints | None = None,
    ) -> None:
        """Tell that the application has what was dequeued of some keys, from `at` on.

        Args:
            hi: identities of the keys, with `lo`; unknown ones are ignored.
            lo: see `hi`.
            at: instant, one for all or one for each.
            since: of the dequeued updates; needed where several updates of one key are on their
                way at once.
            arrived: as `since`.

        Examples:
            >>> taken = updates.dequeue(10, now=4)
            >>> updates.delivered(taken.hi, taken.lo, at=5)
        """
        slots = self.cells.find(hi, lo)
        nothing = np.full(len(slots), NONE, dtype=np.int64)
        times = np.full(len(slots), at, dtype=np.int64) if np.isscalar(at) else np.asarray(at)
        batch.deliver_batch(
            self.order.kernel,
            slots,
            nothing if since is None else since,
            nothing if arrived is None else arrived,
            times,
        )

    def weigh(
        self,
        hi: Identity,
        lo: Identity,
        *,
        importance: Reals | float = 1.0,
        access: Reals | float = 1.0,
        cost: Reals | float = 1.0,
        gap: Reals | float = 0.0,
    ) -> None:
        """Say what the freshness of some keys is worth; "index" serves by it, reports weigh by it.

        Args:
            hi: identities of the keys, with `lo`.
            lo: see `hi`.
            importance: how much staleness of the key hurts, against 1 for others.
            access: how often the application looks at the key, against 1 for others.
            cost: what processing an update of the key costs, against 1 for others.
            gap: mean microseconds between updates where that is known; updates still correct it.

        Examples:
            >>> waiting = updates.read(10)
            >>> updates.weigh(waiting.hi, waiting.lo, importance=10.0)
        """
        weights = np.broadcast_to(np.asarray(importance * access / cost, np.float64), len(hi))
        if len(hi) and not (weights > 0).all():
            msg = "importance, access and cost must be positive; leave keys out that do not count"
            raise DefinitionError(msg)
        gaps = np.broadcast_to(np.asarray(gap, np.float64), len(hi))
        slots = self.cells.register(hi, lo)
        batch.weigh_batch(
            self.cells.kernel,
            self.order.kernel,
            slots,
            weights.copy()[:, None],
            gaps.copy()[:, None],
        )

    def measure_from(self, at: Micros) -> None:
        """Forget staleness before an instant, for instance that of a warm-up.

        Examples:
            >>> updates.measure_from(2)
        """
        k.begin_measuring(self.order.kernel, self.cells.seen, at)

    def staleness(self, now: Micros) -> StalenessReport:
        """Measure how old answers were, of the queue and of the application, over all keys.

        Examples:
            >>> report = updates.staleness(now=10)
        """
        cells = np.flatnonzero(self.cells.column(k.COUNT) > 0)
        return staleness.report(self.order.kernel, cells, self._began(now), now)

    def staleness_of(
        self, hi: Identity, lo: Identity, now: Micros
    ) -> tuple[KeyStaleness, KeyStaleness]:
        """Measure the queue's and the application's staleness of each of some known keys.

        Examples:
            >>> waiting = updates.read(10)
            >>> of_queue, of_application = updates.staleness_of(waiting.hi, waiting.lo, now=10)
        """
        cells = self.cells.find(hi, lo)
        if (cells < 0).any():
            msg = "staleness is known of keys that were updated; leave the others out"
            raise KeyError(msg)
        return staleness.by_key(self.order.kernel, cells, self._began(now), now)

    def _began(self, now: Micros) -> Micros:
        return min(max(self.order.began, -(2**62)), now)

    def _next(self, count: int, now: Micros | None) -> Ints:
        slots = np.empty(min(count, len(self)), dtype=np.int64)
        time = self.cells.newest if now is None else now
        return slots[: next_keys(self.order.kernel, self.cells.kernel.reals, k.GAP, time, slots)]

    def _peeked(self, slots: Ints) -> Dequeued:
        since = self.order.kernel.keys[slots, SINCE]
        arrived = self.cells.column(k.ARRIVED)[slots]
        return Dequeued(*self.cells.identities(slots), since, arrived, self.cells.values(slots))
