"""Which events of a group are no duplicates of one that was kept before them.

Invariants:
1. An event is kept exactly if it begins after the time of the last one that was kept
   (`test_parity_first_events`).

Cost: O(events).
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Mask
from icestream.core.times import INFINITY
from icestream.kernels.compile import kernel


@kernel
def keep_first(owners: Ints, starts: Ints, within: int, until: Ints, kept: Mask) -> None:
    """Mark the first events of each group, given in order; `until` is when it keeps one again."""
    for row in range(owners.size):
        owner = owners[row]
        start = starts[row]
        if start >= until[owner]:
            kept[row] = True
            most = np.int64(INFINITY)
            until[owner] = most if start >= most - 1 - within else start + within + 1
