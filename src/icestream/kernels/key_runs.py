"""Where the tuples of each key and window begin, of tuples that lie by key and time.

Idea: one pass over identities and times. A window is looked up where a key begins or the last one
ends, so that there is no division for most tuples.

Invariants:
1. Runs are those of the obvious version, and tuples out of order are noticed
   (`test_parity_runs_of_keys_and_windows`).

Cost: O(tuples).

Limits: windows that tumble, of tuples that count where they begin. A key that comes again after
another one begins a run of its own: who calls must tell.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints
from icestream.kernels.compile import kernel


@kernel
def window_runs(
    hi: Ids, lo: Ids, times: Ints, length: int, offset: int, heads: Ints, starts: Ints
) -> int:
    """Write the first tuple of each run and the start of its window; return how many there are.

    Length 0 is one window for all time, which starts at 0. Returns -1 if the times of a key fall.
    """
    count = 0
    end = np.int64(0)
    for i in range(times.size):
        fresh = i == 0 or hi[i] != hi[i - 1] or lo[i] != lo[i - 1]
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
