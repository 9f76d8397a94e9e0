"""The obvious versions of the kernels in `icestream.kernels.sliding_counts`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from icestream.core.arrays import Ints


def slide_counts_reference(
    codes: Ints, counts: Ints, starts: Ints, first: Ints, last: Ints, fractions: Sequence[float]
) -> list[tuple[list[int], int, list[int]]]:
    """Return the codes of each window, the one of the greatest count, and those of ranks."""
    found = []
    for low, high in zip(first.tolist(), last.tolist(), strict=True):
        sums: Counter[int] = Counter()
        for entry in range(low, high):
            for at in range(starts[entry], starts[entry + 1]):
                sums[int(codes[at])] += int(counts[at])
        every = sorted(sums.elements())
        most = min(sums, key=lambda code: (-sums[code], code), default=-1)
        ranks = [max(len(every) - 1, 0) * each for each in fractions]
        around = [place for rank in ranks for place in (math.floor(rank), math.ceil(rank))]
        found.append((sorted(sums), most, [every[at] for at in around] if every else []))
    return found


def frame_begins_reference(
    owners: Ints, times: Ints, ends: Ints, reach: int, rows: int
) -> list[int]:
    """Return where the window of each row begins, by looking at all rows."""
    every = list(zip(owners.tolist(), times.tolist(), strict=True))
    found = []
    for at, (owner, time) in enumerate(every):
        inside = [
            n for n, (other, when) in enumerate(every[: at + 1])
            if other == owner and when > time - reach
        ]  # fmt: skip
        found.append(max(inside[0], int(ends[at]) - rows))
    return found
