"""Times of keys over whole batches: late tuples, and groups that share a key's time.

Idea: tuples of a key are in the order of time, so a tuple that is not newer than its key's latest
is late. If a key has several groups, a tuple of one of them advances the time of all: a linked list
of its groups, newest first, is traversed once for each key of a batch.

Invariants:
1. The tuples kept are those that a loop with a dict keeps (`test_parity_tuples_that_go_up`).
2. All groups of a key get its time, and no others (`test_parity_groups_learn_the_time`).

Cost: O(tuples) and O(groups of the keys in the batch).
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Mask
from icestream.kernels.compile import kernel
from icestream.kernels.queue.windows.transitions import advance_one
from icestream.kernels.queue.windows.zones import NONE, WindowQueueArrays


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
def link_groups(keys: Ints, groups: Ints, known: int, first: Ints, after: Ints) -> int:
    """Add groups from number `known` on to the lists of their keys; return how many exist."""
    for i in range(keys.size):
        if groups[i] >= known:
            after[groups[i]] = first[keys[i]]
            first[keys[i]] = groups[i]
            known = groups[i] + 1
    return known


@kernel
def advance_all(windows: WindowQueueArrays, keys: int, time: int, arrived: int) -> int:
    """Advance all keys to the key time of a watermark; return how many have an update by it."""
    updates = 0
    for cell in range(keys):
        updates += advance_one(windows, cell, time - 1, arrived)
    return updates


@kernel
def advance_groups(
    windows: WindowQueueArrays, keys: Ints, times: Ints, arrived: Ints, first: Ints, after: Ints
) -> None:
    """Advance all groups of each key to the key's time, before which no tuple comes."""
    for i in range(keys.size):
        group = first[keys[i]]
        while group != NONE:
            advance_one(windows, group, times[i] - 1, arrived[i])
            group = after[group]
