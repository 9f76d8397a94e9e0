"""How many tasks a query runs in: between bounds, by what its shards were measured to take.

Idea: a task has *room* for so much work in a batch: what a batch may take, less what it takes
beside the work of shards. Where batches follow one another at once, it is what makes a task worth
its start. The number of tasks wanted is the work over the room, but no more than there are cores,
and no more than the hottest shard, which cannot be cut, leaves something to do.

    interval 2 s, at most 0.7 of it; 0.4 s to read and commit: room for 1.0 s in a task
    shards take 3.1 s together, the hottest 0.9 s: 4 tasks

More tasks are taken when two batches in a row want them, fewer when eight in a row would do with
fewer that are filled by less.

Invariants:
1. The number stays within its bounds (`test_bounded_tasks_stay_within_their_bounds`).
2. A steady load settles, whatever it is: nothing changes any more
   (`test_a_steady_load_settles`).
3. One odd batch changes nothing (`test_one_odd_batch_changes_nothing`).

Cost: O(shards + tasks).

Limits: work is seconds of processor time; a query that waits for a disk looks idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from icestream.core.errors import DefinitionError
from icestream.plan.balance.rebalancing import totals

#: seconds of work in a batch that are worth a task
WORTH = 0.2
#: part of the interval between triggers that a batch should take at most
FILLED = 0.7
#: part of its room that a task should use after there are fewer
KEPT = 0.7
#: batches in a row that must want more tasks, and fewer
GROW_AFTER, SHRINK_AFTER = 2, 8


@dataclass(frozen=True)
class Bounds:
    """The fewest and the most tasks of a query; both are the same where their number is fixed."""

    least: int
    most: int

    def __post_init__(self) -> None:
        """Refuse bounds that nothing is between."""
        if not 1 <= self.least <= self.most:
            msg = (
                f"a query runs in at least 1 task, and in no fewer at most than at least; got "
                f"{self.least} to {self.most}"
            )
            raise DefinitionError(msg)

    @property
    def fixed(self) -> bool:
        """Tell whether there is nothing to choose."""
        return self.least == self.most

    def nearest(self, tasks: int) -> int:
        """Return the number of tasks within the bounds that is nearest to one."""
        return max(self.least, min(tasks, self.most))


@dataclass(frozen=True)
class Sizing:
    """How many tasks there are, why, and since when others are wanted."""

    tasks: int
    why: str = "the start"
    #: batches in a row that wanted more tasks, and fewer
    more: int = 0
    fewer: int = 0


@dataclass(frozen=True)
class BatchMeasurements:
    """What the batches before took."""

    #: seconds of each shard in a batch
    loads: Sequence[float]
    #: the task of each shard
    task_of: Sequence[int]
    #: seconds of the whole batch; None where nobody measured it
    batch: float | None
    #: seconds from trigger to trigger; None where batches follow one another at once
    interval: float | None
    #: tasks that can run at the same time
    cores: int


def sized(before: Sizing, bounds: Bounds, measured: BatchMeasurements) -> Sizing:
    """Return how many tasks the next batch is run in."""
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
    """Return the seconds of work that a task may have in a batch."""
    if measured.interval is None or measured.batch is None:
        return WORTH
    tasks = 1 + max(measured.task_of)
    longest = max(totals(measured.loads, measured.task_of, tasks))
    beside = max(0.0, measured.batch - longest)
    return max(WORTH, FILLED * measured.interval - beside)


def wanted_tasks(measured: BatchMeasurements, room: float) -> int:
    """Return the fewest tasks that hold the work, as far as more of them help."""
    work, hottest = sum(measured.loads), max(measured.loads)
    if work <= 0:
        return 1
    filled = math.ceil(work / room)
    useful = math.ceil(work / hottest)
    return max(1, min(filled, useful, measured.cores, len(measured.loads)))
