"""How many keys to serve at once, so that the time of a batch is used and not exceeded.

Idea: a call of the user's function takes a fixed time plus a time per key. Both are learnt from
past calls; newer ones count more. Each slice is planned to take half of the remaining time, so a
wrong estimate is noticed while half of the time is left; the last slices are small. Nothing is
known before the first call: it serves one key.

Invariants:
1. Slices of a function with steady cost end within the available time, and use most of it
   (`test_bounded_slices_end_within_the_time_there_is`).
2. A batch always serves at least one key (`test_a_batch_without_time_serves_one_key`).

Cost: five numbers, kept from batch to batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from icestream.core.times import Micros

#: factor by which the weight of older calls shrinks with each call
MEMORY = 0.9
#: a slice has at most this many times the keys of the largest one so far
GROWTH = 8
#: maximum number of keys in a slice
MOST_KEYS = 65_536


@dataclass
class Pace:
    """The cost of calls: sums over past calls, weighted by age."""

    #: weight, keys, keys squared, microseconds, keys times microseconds, largest slice
    sums: list[float] = field(default_factory=lambda: [0.0] * 6)

    def learn(self, keys: int, took: float) -> None:
        """Record a call that served `keys` keys in `took` microseconds."""
        weight, n, nn, t, nt, most = self.sums
        self.sums[:] = [
            weight * MEMORY + 1,
            n * MEMORY + keys,
            nn * MEMORY + keys * keys,
            t * MEMORY + took,
            nt * MEMORY + keys * took,
            max(most, keys),
        ]

    @property
    def cost(self) -> tuple[float, float]:
        """Return the fixed microseconds of a call, and those per key."""
        weight, n, nn, t, nt, _ = self.sums
        if weight == 0:
            return 0.0, 0.0
        spread = weight * nn - n * n
        each = (weight * nt - n * t) / spread if spread > 1e-9 * n * n else t / n
        each = min(max(each, 0.0), t / n)
        return max(0.0, (t - each * n) / weight), each

    def slice(self, left: Micros, *, first: bool) -> int:
        """Return how many keys to serve next in the time `left`; 0 to stop.

        The first slice of a batch has at least one key, whatever the time.
        """
        if self.sums[0] == 0:
            return 1
        call, each = self.cost
        if left < call + each:
            return int(first)
        most = min(MOST_KEYS, int(self.sums[5]) * GROWTH)
        if each == 0:
            return most
        half = (left / 2 - call) / each
        return min(most, max(1, int(half)))
