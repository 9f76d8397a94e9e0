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

Cost: a list of as many numbers as shards in every commit.

Limits: there are no more tasks than shards, whose number is fixed when the checkpoint is made.

References: key groups and their rebalancing (Shah et al., Flux, 2003; Madsen et al., 2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icestream.core.errors import DefinitionError
from icestream.plan.adaptation.rebalancing import rebalanced, spread
from icestream.runtime.shard import ShardReport

#: weight of the last version in what a shard is expected to take
_SMOOTHING = 0.5
#: how much more than the average a task may take before a shard leaves it
_TOLERANCE = 0.25
#: seconds of all shards together below which evening out is not worth it
_WORTH = 0.2
#: shards that change tasks between two versions, at most
_MOVES = 4


def check_parallelism(parallelism: int, shards: int) -> None:
    """Refuse a number of tasks that shards cannot be shared out to."""
    if not 1 <= parallelism <= shards:
        msg = (
            f"a query with {shards} shards runs in 1 to {shards} tasks; got {parallelism}. Start "
            f"a new checkpoint with .shards({max(parallelism, 1)}) for more"
        )
        raise DefinitionError(msg)


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
    return rebalanced(loads, tasks, parallelism, tolerance=_TOLERANCE, most_moves=_MOVES)


def told(
    before: Mapping[str, Any] | None,
    placement: Sequence[int],
    parallelism: int,
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
        "parallelism": parallelism,
        "tasks": list(placement),
        "loads": [round(load, 4) for load in loads],
        "moved": moved,
    }


def placement_facts(decided: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the progress report tells of tasks."""
    return {
        "parallelism": decided["parallelism"],
        "taskOfShard": decided["tasks"],
        "shardSeconds": decided["loads"],
        "movedShards": decided["moved"],
    }
