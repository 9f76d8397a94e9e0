"""The order in which one reader receives the keys that wait for it.

Idea: FIFO moves a key to the tail with every update; IN-PLACE keeps the position of its first
waiting update; LINECUTTING moves a key to the front if its updates are so rare that every waiting
key can be served between two of them, so other keys may wait for ever.

Invariant: the order is a function of arrivals, services, rates and cost, whatever the sizes of the
batches (`test_oracle_any_sequence_follows_the_schedule`).

Cost: 88 bytes for each key of each reader; O(1) per call.

References: decision 53 says why these three.
"""

from __future__ import annotations

import numpy as np

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels.queue import order as k
from icestream.kernels.queue.order import ReaderArrays
from icestream.kernels.queue.staleness import BINS, PROFILE
from icestream.state.queue.arrays import Arrays, GrowingArray

#: names of the schedules
SCHEDULES = {"fifo": k.FIFO, "inplace": k.INPLACE, "linecutting": k.LINECUTTING}
#: readers of one queue
MOST_READERS = 62


class KeyOrder:
    """The rows of one reader: order and staleness totals of every key."""

    def __init__(
        self, arrays: Arrays, *, schedule: str, cost: Micros = 0, bit: int = 0, name: str = "reader"
    ) -> None:
        """Attach to the arrays `name.*`, or start with no key.

        Args:
            arrays: provider of the arrays.
            schedule: fifo, inplace or linecutting.
            cost: microseconds that serving a key takes; may be changed at any time.
            bit: number of the reader in its queue.
            name: prefix of the arrays' names.
        """
        if schedule not in SCHEDULES:
            msg = f"there is no schedule {schedule!r}; choose one of: {', '.join(SCHEDULES)}"
            raise DefinitionError(msg)
        if bit > MOST_READERS:
            msg = f"a queue has at most {MOST_READERS + 1} readers; use another queue for the rest"
            raise DefinitionError(msg)
        self.schedule = schedule
        #: whether its arrays are new
        self.is_new = arrays.array(f"{name}.facts", np.int64).capacity == 0
        self._facts = arrays.array(f"{name}.facts", np.int64, 1, k.READER_FACTS)
        self._settings = arrays.array(f"{name}.settings", np.float64, 1, k.SETTINGS)
        self._keys = arrays.array(f"{name}.keys", np.int64, k.READER_WORDS)
        self._profiles = arrays.array(f"{name}.profiles", np.float64, PROFILE, 2 * BINS)
        if self.is_new:
            self._facts.view[k.BEGAN] = MINUS_INFINITY
        self._facts.view[k.SCHEDULE] = SCHEDULES[schedule]
        self._facts.view[k.BIT] = bit
        self.cost = cost

    @property
    def kernel(self) -> ReaderArrays:
        """The arrays, for kernels; never keep them across a call that may grow them."""
        keys, profiles = self._keys.view, self._profiles.view
        return ReaderArrays(
            self._facts.view,
            self._settings.view,
            keys,
            keys.view(np.float64),
            keys.view(np.int32),
            profiles[:BINS],
            profiles[BINS : 2 * BINS],
        )

    @property
    def cost(self) -> float:
        """Microseconds that serving a key takes, as LINECUTTING assumes."""
        return float(self._settings.view[k.COST])

    @cost.setter
    def cost(self, cost: float) -> None:
        self._settings.view[k.COST] = cost

    @property
    def waiting(self) -> int:
        return int(self._facts.view[k.WAITING])

    @property
    def began(self) -> Micros:
        """Start of the staleness measurement; MINUS_INFINITY before the first update."""
        return int(self._facts.view[k.BEGAN])

    @property
    def bit(self) -> int:
        """Its number among the readers of the queue."""
        return int(self._facts.view[k.BIT])

    @property
    def capacity(self) -> int:
        return self._keys.capacity

    def targets(self, keys: int) -> list[tuple[GrowingArray, int]]:
        return [(self._keys, keys)]
