"""The numbers of many ranges in one array, for one take instead of a loop over slices.

Invariants:
1. Ranges follow each other, each ascending; empty ones contribute nothing
   (`test_oracle_ranges_one_after_the_other`).

Cost: O(ranges + numbers).
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints


def numbers_of(begins: Ints, ends: Ints) -> Ints:
    """Return the numbers of the half-open ranges, one range after the other."""
    sizes = ends - begins
    skipped: Ints = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
    return skipped + np.arange(len(skipped))
