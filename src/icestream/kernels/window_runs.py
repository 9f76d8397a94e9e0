"""Where the tuples of each key and window begin, for tuples sorted by key and time.

Idea: one pass over ids and times. A window is computed only where a key begins or the last window
ends, so that most tuples need no division.

Invariants:
1. Runs are those of the obvious version, and tuples out of order are detected
   (`test_parity_runs_of_keys_and_windows`).

Cost: O(tuples).

Limits: tumbling windows; a tuple belongs to the window in which it begins. A key that recurs after
another one begins a run of its own: the caller must handle that.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints
from icestream.kernels.compile import kernel


@kernel
def window_runs(
    id_high: Ids, id_low: Ids, times: Ints, length: int, offset: int, heads: Ints, starts: Ints
) -> int:
    """Find the runs of tuples of one key and window: first tuple and start; return how many.

    Length 0 is one window for all time, which starts at 0. Returns -1 if times of a key decrease.
    """
    count = 0
    end = np.int64(0)
    for i in range(times.size):
        fresh = i == 0 or id_high[i] != id_high[i - 1] or id_low[i] != id_low[i - 1]
        time = times[i]
        if not fresh and time < times[i - 1]:
            return -1
        if fresh or (length > 0 and time >= end):
            start = np.int64(0)
            if length > 0:
                start = (time - offset) // length * length + offset
                end = start + length
            heads[count] = i
            starts[count] = start
            count += 1
    return count
