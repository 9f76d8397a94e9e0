"""The obvious versions of the kernels in `icestream.kernels.tallies`."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from icestream.core.arrays import Ints


def tally_runs_reference(keys: Ints, counts: Ints, bounds: Ints) -> list[list[tuple[int, int]]]:
    """Return the distinct keys of each group, ascending, with the sums of their counts."""
    found = []
    for first, last in pairwise(bounds.tolist()):
        sums: Counter[int] = Counter()
        for key, count in zip(keys[first:last].tolist(), counts[first:last].tolist(), strict=True):
            sums[key] += count
        found.append(sorted(sums.items()))
    return found
