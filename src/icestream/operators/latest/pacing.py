"""How many keys to serve at once, so that the time of a batch is used and not exceeded.

Idea: a call of the user's function takes a fixed time and a time per key. Both are learnt from the
calls made, newer ones counting more. Each slice is planned to take half of the time that is left,
so that a wrong guess is found out while half of the time is still there; the last slices are
small. Nothing is known of the first call: it serves one key.

Invariants:
1. Slices of a function with steady cost end within the time there is, and use most of it
   (`test_bounded_slices_end_within_the_time_there_is`).
2. A batch always serves at least one key (`test_a_batch_without_time_serves_one_key`).

Cost: five numbers, kept from batch to batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from icestream.core.times import Micros

#: how much of what older calls said remains after another one
MEMORY = 0.9
#: a slice has at most so many times the keys of the largest one so far
GROWTH = 8
#: keys of the largest slice
MOST_KEYS = 65_536


@dataclass
class Pace:
    """What calls cost: sums over the calls made, weighted by age."""

    #: weight, keys, keys squared, microseconds, keys times microseconds, largest slice
    sums: list[float] = field(default_factory=lambda: [0.0] * 6)

    def learn(self, keys: int, took: float) -> None:
        """Count a call that served some keys in so many microseconds."""
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
        """Return the microseconds of a call and of each of its keys."""
        weight, n, nn, t, nt, _ = self.sums
        if weight == 0:
            return 0.0, 0.0
        spread = weight * nn - n * n
        each = (weight * nt - n * t) / spread if spread > 1e-9 * n * n else t / n
        each = min(max(each, 0.0), t / n)
        return max(0.0, (t - each * n) / weight), each

    def slice(self, left: Micros, *, first: bool) -> int:
        """Return how many keys to serve next with so much time left; 0 to stop.

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
