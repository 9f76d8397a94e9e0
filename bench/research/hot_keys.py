"""How a hot key of an aggregate that can be merged is split over tasks.

Idea: a key that alone loads a task too much is cut into parts, which are merged when results are
emitted; as many as reduce the load of the busiest task more than they cost.

References: Nasir et al. (2015).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from icestream.plan.balance.rebalancing import TOLERANCE


def key_parts(
    loads: Sequence[float],
    tasks: int,
    *,
    total: float | None = None,
    tolerance: float = TOLERANCE,
    merging: float = 0.0,
) -> tuple[int, ...]:
    """Return into how many parts, for balance, each key of a mergeable aggregate is split.

    Args:
        loads: the measured costs of the hottest keys.
        tasks: the number of tasks.
        total: the load of all keys, including those not given; by default the sum.
        tolerance: a key that loads a task less than this above the mean is not split.
        merging: the cost of storing and consolidating one more part, in the unit of loads.
    """
    mean = (sum(loads) if total is None else total) / tasks
    parts = []
    for load in loads:
        count = 1
        if load > mean * (1 + tolerance):
            fitting = range(2, min(tasks, math.ceil(load / mean)) + 1)
            # the remaining load of the busiest task, and the cost of all parts
            count = min((1, *fitting), key=lambda many: load / many + merging * (many - 1))
        parts.append(count)
    return tuple(parts)
