"""Which task runs which shard: the part of a query that may change at every batch.

Idea: a *shard* is the unit of state: some key groups, an arena, segments of the log. A *task* runs
one or more shards, one after the other. How many tasks there are and which shards each of them runs
is decided anew for every version from what the one before took, and recorded with it. A shard that
changes its task takes nothing along: its arena is claimed where it lies, or, where the disk is
another one, rebuilt from the markers that the commit names.

Invariants:
1. Rows do not depend on who runs what
   (`test_oracle_rescaling_at_any_batch_changes_no_row`, for every kind of query).
2. A change of the number of tasks, or of loads, moves little more load than it must
   (`test_oracle_spreading_moves_little_more_than_it_must`).
3. How many tasks there are follows the load between bounds, and says why
   (`test_oracle_tasks_follow_the_load_between_bounds`).
4. A query that did not say how many shards it has can grow to eight tasks if it has 64 MB for each
   of its components (`test_a_query_that_says_nothing_can_grow_to_eight_tasks`).

Cost: a list of as many numbers as shards in every commit.

Limits: there are no more tasks than shards, whose number is fixed when the checkpoint is made: by
its user, or by `spare_shards`.

References: key groups and their rebalancing (Shah et al., Flux, 2003; Madsen et al., 2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icestream.core.errors import DefinitionError
from icestream.plan.balance.rebalancing import isolated, rebalanced, spread
from icestream.plan.balance.sizing import BatchMeasurements, Bounds, Sizing, sized
from icestream.runtime.version.task import ShardReport

#: shards of a query that did not say how many, in each component: so many where each has what a few
#: large groups take, more where memory is roomy, so many at most in all components together
SPARE = 8
ENOUGH = 8 << 20
MOST_SPARE = 16
ROOMY = 64 << 20
#: on many cores the most in a component are so many for each
SPARE_PER_CORE = 4
#: weight of the last version in what a shard is expected to take
_SMOOTHING = 0.5
#: seconds of all shards together below which evening out is not worth it
_WORTH = 0.2
#: shards that change tasks between two versions, at most
_MOVES = 4


def spare_shards(memory: int, components: int, least: int, *, tasks: int, cores: int) -> int:
    """Return how many shards a query has that did not say it: room to grow.

    Args:
        memory: bytes of the query.
        components: components that it has, each with as many shards.
        least: bytes that one shard of all components needs.
        tasks: the most tasks that it begins with.
        cores: tasks that can run at the same time.
    """
    most = max(MOST_SPARE // components, SPARE_PER_CORE * cores, SPARE)
    wanted = max(min(SPARE, memory // (components * ENOUGH)), memory // (components * ROOMY))
    return max(tasks, min(most, wanted, memory // least))


def task_bounds(parallelism: int | tuple[int, int], shards: int) -> Bounds:
    """Return the bounds of a number of tasks; refuse those that shards cannot be shared out to."""
    least, most = (parallelism, parallelism) if isinstance(parallelism, int) else parallelism
    if not 1 <= least <= most <= shards:
        msg = (
            f"a query with {shards} shards runs in 1 to {shards} tasks; got {parallelism}. Start "
            f"a new checkpoint with .shards({max(least, most, 1)}) for more"
        )
        raise DefinitionError(msg)
    return Bounds(least, most)


def next_sizing(
    before: Mapping[str, Any] | None,
    bounds: Bounds,
    *,
    batch: float | None,
    interval: float | None,
    cores: int,
) -> Sizing:
    """Return how many tasks the next version has, given what was told of the last.

    Args:
        before: what `told` returned.
        bounds: the fewest and the most.
        batch: seconds of the last batch, all of it; None where they are not known.
        interval: seconds from trigger to trigger; None where batches follow one another at once.
        cores: tasks that can run at the same time.
    """
    if bounds.fixed:
        return Sizing(bounds.least, "asked for")
    if before is None:
        return Sizing(bounds.least)
    waiting = before.get("wanted", {})
    last = Sizing(before["parallelism"], before.get("why", ""), **waiting)
    return sized(
        last, bounds, BatchMeasurements(before["loads"], before["tasks"], batch, interval, cores)
    )


def placed(
    before: Mapping[str, Any] | None, shards: int, parallelism: int, *, rebalance: bool
) -> tuple[int, ...]:
    """Return the task of each shard for the next version, given what was told of the last."""
    if before is None:
        return tuple(shard * parallelism // shards for shard in range(shards))
    tasks, loads = tuple(before["tasks"]), before["loads"]
    if before["parallelism"] != parallelism:
        return spread(loads, parallelism, task_of=tasks)
    if not rebalance or sum(loads) < _WORTH:
        return tasks
    evened = rebalanced(loads, tasks, parallelism, most_moves=_MOVES)
    left = _MOVES - sum(map(int.__ne__, tasks, evened))
    return isolated(loads, evened, parallelism, most_moves=left)


def told(
    before: Mapping[str, Any] | None,
    placement: Sequence[int],
    sizing: Sizing,
    reports: Sequence[ShardReport],
) -> dict[str, Any]:
    """Return what a version tells the next one of its tasks and of what its shards took."""
    shards = len(placement)
    took = [0.0] * shards
    for report in reports:
        took[report.shard % shards] += report.statistics["seconds"]
    loads = took
    if before is not None:
        pairs = zip(before["loads"], took, strict=True)
        loads = [old + _SMOOTHING * (new - old) for old, new in pairs]
    moved = 0 if before is None else sum(map(int.__ne__, before["tasks"], placement))
    return {
        "parallelism": sizing.tasks,
        "why": sizing.why,
        "wanted": {"more": sizing.more, "fewer": sizing.fewer},
        "tasks": list(placement),
        "loads": [round(load, 4) for load in loads],
        "moved": moved,
    }


def placement_facts(decided: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the progress report tells of tasks."""
    return {
        "parallelism": decided["parallelism"],
        "parallelismBecause": decided["why"],
        "taskOfShard": decided["tasks"],
        "shardSeconds": decided["loads"],
        "movedShards": decided["moved"],
    }
