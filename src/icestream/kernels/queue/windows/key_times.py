"""Times of keys over whole batches: late tuples, and the time of a watermark.

Idea: tuples of a key are in the order of time, so a tuple that is older than its key's latest is
late.

Invariants:
1. The tuples kept are those that a loop with a dict keeps (`test_parity_tuples_that_go_up`).

Cost: O(tuples), and O(keys) for a watermark.
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Mask
from icestream.kernels.compile import kernel
from icestream.kernels.queue.windows.transitions import advance_one
from icestream.kernels.queue.windows.zones import WindowQueueArrays


@kernel
def going_up(keys: Ints, times: Ints, last: Ints, keep: Mask) -> int:
    """Mark tuples as new as their key's time, or newer; return how many are not.

    `last` has the latest time of each key and is updated.
    """
    late = 0
    for i in range(keys.size):
        key = keys[i]
        keep[i] = times[i] >= last[key]
        if keep[i]:
            last[key] = times[i]
        else:
            late += 1
    return late


@kernel
def advance_all(windows: WindowQueueArrays, keys: int, time: int, arrived: int) -> int:
    """Advance all keys to the key time of a watermark; return how many have an update by it."""
    updates = 0
    for cell in range(keys):
        updates += advance_one(windows, cell, time - 1, arrived)
    return updates
