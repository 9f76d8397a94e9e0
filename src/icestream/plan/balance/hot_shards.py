"""Which shards split and merge while others stay: routes that follow where the load is.

Idea: balancing moves shards between tasks, so no task can take less time than its hottest shard. A
shard is *hot* if it takes more than twice the mean of all, and more than a task would if all took
the same. Three batches in a row of that split its key groups in halves. Two neighbours that have at
most as many key groups as the largest shard, and together take less than half of the mean for 64
batches in a row, merge.

A hot key cannot be split. If the hottest shard takes nearly as long after a split as before, no
further split is made for its sake, until the load is another.

Invariants:
1. Every shard has at least one key group, and there are at most as many shards as there may be
   (`test_bounded_shards_of_any_loads`).
2. A hot range of keys is split until tasks can take equal parts; once the load is even again, the
   parts merge (`test_a_hot_range_splits_and_merges_again`).
3. Under any steady load the routes settle and stay (`test_routes_of_a_steady_load_settle`).

Cost: O(key groups).

Limits: halves have the same number of key groups, not the same load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from icestream.plan.balance.shard_sizing import HELPED, MERGE_AFTER, SPLIT_AFTER

#: times the mean of all shards that a hot one takes at least, and that two take at most to merge
HOT, COLD = 2.0, 0.5
#: seconds of a shard in a batch that are not worth a split
LITTLE = 0.05


@dataclass(frozen=True)
class SkewSizing:
    """The shard of each key group, the reason, and for how long others have been wanted."""

    routes: tuple[int, ...]
    why: str = "the start"
    #: consecutive batches that wanted a split, and a merge
    more: int = 0
    fewer: int = 0
    #: seconds of the hottest shard when it was last split
    hottest: float = math.inf


def followed_skew(
    before: SkewSizing, loads: Sequence[float], *, tasks: int, bounds: tuple[int, int]
) -> SkewSizing:
    """Return the routes of the next batch.

    Args:
        before: the routes until now, whose shards have the loads.
        loads: seconds of each shard in a batch.
        tasks: tasks that run the shards.
        bounds: the fewest shards and the most.
    """
    routes, mean = before.routes, sum(loads) / len(loads)
    hot = max(range(len(loads)), key=loads.__getitem__)
    hottest, calm = loads[hot], replace(before, more=0, fewer=0)
    in_vain = HELPED * before.hottest < hottest < before.hottest / HELPED
    fair = max(HOT * mean, sum(loads) / tasks, LITTLE)
    if len(loads) < bounds[1] and routes.count(hot) > 1 and hottest > fair and not in_vain:
        if before.more + 1 < SPLIT_AFTER:
            return replace(calm, more=before.more + 1)
        why = f"shard {hot} takes {hottest:.2f} s of a batch, {hottest / mean:.1f} times the mean"
        return SkewSizing(split(routes, hot), why, hottest=hottest)
    cold = _coldest(routes, loads)
    if len(loads) > bounds[0] and cold is not None and sum(loads[cold : cold + 2]) < COLD * mean:
        if before.fewer + 1 < MERGE_AFTER:
            return replace(calm, fewer=before.fewer + 1)
        why = f"shards {cold} and {cold + 1} take less than {COLD} times the mean"
        return SkewSizing(merged(routes, cold), why, hottest=before.hottest)
    return calm


def split(routes: Sequence[int], shard: int) -> tuple[int, ...]:
    """Return routes with the key groups of one shard in two."""
    middle = routes.index(shard) + routes.count(shard) // 2
    return (*routes[:middle], *(each + 1 for each in routes[middle:]))


def merged(routes: Sequence[int], shard: int) -> tuple[int, ...]:
    """Return routes with the key groups of a shard and the next in one."""
    return tuple(each - (each > shard) for each in routes)


def _coldest(routes: Sequence[int], loads: Sequence[float]) -> int | None:
    """Return the first of two neighbours with the least load that are as small as others."""
    sizes = [0] * len(loads)
    for shard in routes:
        sizes[shard] += 1
    most = max(sizes)
    pairs = enumerate(zip(pairwise(sizes), pairwise(loads), strict=True))
    small = [(sum(load), first) for first, (size, load) in pairs if sum(size) <= most]
    return min(small)[1] if small else None
