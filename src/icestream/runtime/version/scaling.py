"""Which task runs which shard: the assignment that may change at every batch.

Idea: a *shard* is the unit of state: some key groups, an arena, segments of the log. A *task* runs
one or more shards, one after the other. Every version decides how many tasks there are and which
shards each of them runs, from what the previous version took, and records it. A shard that changes
its task moves no data: its arena is used in place or, on another disk, rebuilt from the markers
that the commit names.

Invariants:
1. Rows do not depend on which task runs which shard
   (`test_oracle_rescaling_at_any_batch_changes_no_row`, for every kind of query).
2. A change of the number of tasks, or of loads, moves little more load than it must
   (`test_oracle_spreading_moves_little_more_than_it_must`).
3. The number of tasks follows the load between bounds, with the reason
   (`test_oracle_tasks_follow_the_load_between_bounds`).
4. A query with the default number of shards can grow to eight tasks if it has 64 MB for each of
   its components (`test_a_query_that_says_nothing_can_grow_to_eight_tasks`).

Cost: a list with one number per shard in every commit.

Limits: there cannot be more tasks than shards. Their number is set when the checkpoint is created,
by the user or by `spare_shards`, and changes with `rescale` (`runtime/version/resharding`).

References: key groups and their rebalancing (Shah et al., Flux, 2003; Madsen et al., 2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icestream.core.errors import DefinitionError
from icestream.plan.balance.rebalancing import isolated, rebalanced, spread
from icestream.plan.balance.sizing import BatchMeasurements, Bounds, Sizing, sized
from icestream.runtime.version.task import ShardReport

#: default shards per component: `SPARE` if each gets `ENOUGH` bytes, for a few large groups; more
#: if each gets `ROOMY` bytes, up to `MOST_SPARE` in all components together
SPARE = 8
ENOUGH = 8 << 20
MOST_SPARE = 16
ROOMY = 64 << 20
#: or, on many cores, up to this many per core in each component
SPARE_PER_CORE = 4
#: least weight of the last version in the expected load of a shard: one that took longer than those
#: before says more about the next
_SMOOTHING = 0.5
#: seconds of all shards together below which rebalancing does not pay
_WORTH = 0.05
#: most shards that change tasks between two versions
_MOVES = 4


def spare_shards(memory: int, components: int, least: int, *, tasks: int, cores: int) -> int:
    """Return the default number of shards of a query, with room to scale.

    Args:
        memory: bytes of the query.
        components: number of its components, each with this many shards.
        least: bytes that one shard of all components needs.
        tasks: the most tasks that it starts with.
        cores: tasks that can run at the same time.
    """
    most = max(MOST_SPARE // components, SPARE_PER_CORE * cores, SPARE)
    wanted = max(min(SPARE, memory // (components * ENOUGH)), memory // (components * ROOMY))
    return max(tasks, min(most, wanted, memory // least))


def task_bounds(parallelism: int | tuple[int, int], shards: int) -> Bounds:
    """Return the bounds for scaling the number of tasks; refuse more than there are shards."""
    least, most = parallelism if isinstance(parallelism, tuple) else (parallelism, parallelism)
    whole = all(isinstance(each, int) for each in (least, most))
    if not whole or not 1 <= least <= most <= shards:
        msg = (
            f"a query with {shards} shards runs in 1 to {shards} tasks; got {parallelism}. Set "
            "fewer tasks, or more shards with .shards(...) or query.rescale(..., shards=...)"
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
    """Scale: return the number of tasks of the next version, given the report of the last.

    Args:
        before: what `placement_report` returned.
        bounds: the minimum and the maximum.
        batch: seconds of the whole last batch; None if unknown.
        interval: seconds from trigger to trigger; None if batches follow each other at once.
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
    """Return the task of each shard after scaling, given the report of the last version."""
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


def placement_report(
    before: Mapping[str, Any] | None,
    placement: Sequence[int],
    sizing: Sizing,
    reports: Sequence[ShardReport],
    asked: int | None = None,
) -> dict[str, Any]:
    """Return the tasks of a version and the loads of its shards, to scale the next.

    `asked` is the number of shards that the program sets.
    """
    shards = len(placement)
    took = [0.0] * shards
    for report in reports:
        took[report.shard % shards] += report.statistics["seconds"]
    loads = took
    if before is not None:
        pairs = list(zip(before["loads"], took, strict=True))
        both = sum(before["loads"]) + sum(took)
        weight = max(_SMOOTHING, sum(took) / both) if both else _SMOOTHING
        loads = [old + weight * (new - old) for old, new in pairs]
    moved = 0 if before is None else sum(map(int.__ne__, before["tasks"], placement))
    return {
        "parallelism": sizing.tasks,
        "why": sizing.why,
        "wanted": {"more": sizing.more, "fewer": sizing.fewer},
        "tasks": list(placement),
        "loads": [round(load, 4) for load in loads],
        "moved": moved,
        "asked": shards if asked is None else asked,
    }


def placement_facts(decided: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the progress report about scaling tasks."""
    return {
        "shardsOfComponent": len(decided["tasks"]),
        "parallelism": decided["parallelism"],
        "parallelismBecause": decided["why"],
        "taskOfShard": decided["tasks"],
        "shardSeconds": decided["loads"],
        "movedShards": decided["moved"],
    }
