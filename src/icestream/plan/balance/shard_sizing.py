"""How many shards a query has while the load decides its tasks: hot ones split, idle ones merge.

Idea: a shard is the unit that tasks share out. It is too hot if it alone takes more than a task has
room for, and shards are too few for balancing if a task has fewer than four. Three batches in a row
of either split every shard in two. Each shard costs a few milliseconds in every batch; if for 64
batches in a row they take little more than that, and half of them would be enough for their tasks,
pairs of them merge.

A hot key cannot be split. If the hottest shard takes nearly as long after a split as before, no
further split is made for its sake, until the load is another.

Invariants:
1. The number stays between its bounds, and is a power of two times the first
   (`test_bounded_shards_stay_within_their_bounds`).
2. Under any steady load the number settles and stays (`test_shards_of_a_steady_load_settle`).
3. A hot key is split once and not again (`test_a_hot_key_splits_shards_once`).

Cost: O(shards).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

#: shards of a task at least, so that balancing has something to move
PER_TASK = 4
#: mean seconds of a shard in a batch below which it costs more than it does
IDLE = 0.005
#: part of the time of the hottest shard that it takes after a split which helped
HELPED = 0.8
#: consecutive batches that must want more shards, and fewer
SPLIT_AFTER, MERGE_AFTER = 3, 64


@dataclass(frozen=True)
class ShardSizing:
    """The number of shards, the reason, and for how long another number has been wanted."""

    shards: int
    why: str = "the start"
    #: consecutive batches that wanted more shards, and fewer
    more: int = 0
    fewer: int = 0
    #: seconds of the hottest shard when shards were last split because of it
    hottest: float = math.inf


def sized_shards(
    before: ShardSizing,
    loads: Sequence[float],
    *,
    tasks: int,
    room: float,
    bounds: tuple[int, int],
) -> ShardSizing:
    """Return the shards of the next batch.

    Args:
        before: the number until now; as many shards have loads.
        loads: seconds of each shard in a batch.
        tasks: tasks that run the shards.
        room: seconds of work that a task may have in a batch.
        bounds: the fewest shards and the most.
    """
    now, hottest = len(loads), max(loads)
    still = replace(before, more=0, fewer=0)
    in_vain = HELPED * before.hottest < hottest < before.hottest / HELPED
    is_hot = hottest > room and not in_vain
    if 2 * now <= bounds[1] and (is_hot or (tasks > 1 and now < PER_TASK * tasks)):
        if before.more + 1 < SPLIT_AFTER:
            return replace(still, more=before.more + 1)
        if is_hot:
            why = f"a shard takes {hottest:.2f} s of a batch, and a task has room for {room:.2f} s"
            return ShardSizing(2 * now, why, hottest=hottest)
        return replace(still, shards=2 * now, why=f"{tasks} tasks have {PER_TASK} shards each")
    enough = max(bounds[0], PER_TASK * tasks)
    if now % 2 == 0 and now // 2 >= enough and sum(loads) < now * IDLE:
        if before.fewer + 1 < MERGE_AFTER:
            return replace(still, fewer=before.fewer + 1)
        why = f"shards take {1000 * sum(loads) / now:.1f} ms of a batch each"
        return ShardSizing(now // 2, why)
    return still
