"""How many tasks a query runs in: between bounds, by the measured work of its shards.

Idea: a task has *room* for a certain amount of work in a batch: the time that a batch may take,
less what it needs besides the work of shards. If batches follow each other at once, it is the work
that makes starting a task worthwhile. The wanted number of tasks is the work over the room, limited
by the number of cores and by the hottest shard, which cannot be divided.

    interval 2 s, at most 0.7 of it; 0.4 s to read and commit: room for 1.0 s in a task
    shards take 3.1 s together, the hottest 0.9 s: 4 tasks

Tasks are added when two consecutive batches want more, and removed when eight consecutive batches
would fit into fewer, even if those are filled less.

Invariants:
1. The number stays within its bounds (`test_bounded_tasks_stay_within_their_bounds`).
2. Under any steady load the number settles and stays
   (`test_a_steady_load_settles`).
3. A single odd batch changes nothing (`test_one_odd_batch_changes_nothing`).

Cost: O(shards + tasks).

Limits: work is seconds of processor time; a query that waits for a disk looks idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from icestream.core.errors import DefinitionError
from icestream.plan.balance.rebalancing import totals

#: seconds of work in a batch that make a task worthwhile
WORTH = 0.2
#: largest fraction of the interval between triggers that a batch should take
FILLED = 0.7
#: fraction of its room that a task should use after tasks were removed
KEPT = 0.7
#: consecutive batches that must want more tasks, and fewer
GROW_AFTER, SHRINK_AFTER = 2, 8


@dataclass(frozen=True)
class Bounds:
    """The minimum and maximum number of tasks of a query; equal if the number is fixed."""

    least: int
    most: int

    def __post_init__(self) -> None:
        """Refuse empty bounds."""
        if not 1 <= self.least <= self.most:
            msg = (
                f"max tasks must be >= min tasks, and min tasks >= 1; got {self.least} to "
                f"{self.most}"
            )
            raise DefinitionError(msg)

    @property
    def fixed(self) -> bool:
        """Return whether there is nothing to choose."""
        return self.least == self.most

    def within(self, shards: int) -> Bounds:
        """Return the bounds while there are so many shards."""
        return Bounds(min(self.least, shards), min(self.most, shards))

    def nearest(self, tasks: int) -> int:
        """Return the number of tasks within the bounds that is closest to the given one."""
        return max(self.least, min(tasks, self.most))


@dataclass(frozen=True)
class Sizing:
    """The number of tasks, the reason, and for how long another number has been wanted."""

    tasks: int
    why: str = "the start"
    #: consecutive batches that wanted more tasks, and fewer
    more: int = 0
    fewer: int = 0


@dataclass(frozen=True)
class BatchMeasurements:
    """Measurements of the previous batches."""

    #: seconds of each shard in a batch
    loads: Sequence[float]
    #: the task of each shard
    task_of: Sequence[int]
    #: seconds of the whole batch; None if it was not measured
    batch: float | None
    #: seconds from trigger to trigger; None if batches follow each other at once
    interval: float | None
    #: tasks that can run at the same time
    cores: int


def sized(before: Sizing, bounds: Bounds, measured: BatchMeasurements) -> Sizing:
    """Return the number of tasks of the next batch, by the measured work."""
    now = bounds.nearest(before.tasks)
    if now != before.tasks or bounds.fixed:
        return Sizing(now, f"the bounds are {bounds.least} to {bounds.most}")
    room = room_of(measured)
    wanted = bounds.nearest(wanted_tasks(measured, room))
    enough = bounds.nearest(wanted_tasks(measured, room * KEPT))
    work = sum(measured.loads)
    if wanted > now:
        if before.more + 1 < GROW_AFTER:
            return Sizing(now, before.why, more=before.more + 1)
        why = f"shards take {work:.2f} s of a batch, and a task has room for {room:.2f} s"
        return Sizing(wanted, why)
    if enough < now:
        if before.fewer + 1 < SHRINK_AFTER:
            return Sizing(now, before.why, fewer=before.fewer + 1)
        why = f"shards take {work:.2f} s of a batch, which {enough} tasks of {room:.2f} s hold"
        return Sizing(enough, why)
    return Sizing(now, before.why)


def room_of(measured: BatchMeasurements) -> float:
    """Return the seconds of work that a task may have in a batch, to size their number."""
    if measured.interval is None or measured.batch is None:
        return WORTH
    tasks = 1 + max(measured.task_of)
    longest = max(totals(measured.loads, measured.task_of, tasks))
    beside = max(0.0, measured.batch - longest)
    return max(WORTH, FILLED * measured.interval - beside)


def wanted_tasks(measured: BatchMeasurements, room: float) -> int:
    """Return the size of a query: the smallest number of tasks that fits its work, if more help."""
    work, hottest = sum(measured.loads), max(measured.loads)
    if work <= 0:
        return 1
    filled = math.ceil(work / room)
    useful = math.ceil(work / hottest)
    return max(1, min(filled, useful, measured.cores, len(measured.loads)))
