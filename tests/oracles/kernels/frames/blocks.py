"""The obvious versions of the kernels in `bench.research.window_blocks.block_kernels`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.research.window_blocks.block_kernels import SmallInts
from icestream.core.arrays import Floats, Ints
from tests.oracles.kernels.exact_sums import average_reference


def first_unfit_reference(times: Ints, groups: SmallInts, last: int, limit: int) -> int:
    """Return what `first_unfit` does."""
    before = [last, *times.tolist()]
    for i, (time, group) in enumerate(zip(times.tolist(), groups.tolist(), strict=True)):
        if time < before[i] or not 0 <= group < limit:
            return i
    return -1


def slide_averages_reference(
    times: Ints,
    groups: SmallInts,
    values: Floats,
    weights: SmallInts,
    extents: Sequence[int],
    by_rows: Sequence[bool],
) -> Floats:
    """Compute the result of every event from all events before it."""
    events = list(
        zip(times.tolist(), groups.tolist(), values.tolist(), weights.tolist(), strict=True)
    )
    out = np.empty((len(extents), len(events)))
    for w, (extent, counted) in enumerate(zip(extents, by_rows, strict=True)):
        for i, (now, group, _, _) in enumerate(events):
            inside = [
                (value, weight)
                for j, (time, other, value, weight) in enumerate(events[: i + 1])
                if other == group and (i - j < extent if counted else now - time < extent)
            ]
            out[w, i] = average_reference(inside)
    return out


def slide_totals_reference(
    times: Ints, weights: SmallInts, extents: Sequence[int], by_rows: Sequence[bool]
) -> list[int]:
    """Return the sum of weights of each window at the last event of a stream."""
    events = list(zip(times.tolist(), weights.tolist(), strict=True))
    return [
        sum(
            weight
            for j, (time, weight) in enumerate(events)
            if (len(events) - 1 - j < extent if counted else times[-1] - time < extent)
        )
        for extent, counted in zip(extents, by_rows, strict=True)
    ]
