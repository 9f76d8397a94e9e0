"""Keeping shards where their arenas are.

Idea: a *handle* is a cached partition per task with nothing in it; Spark runs a task on a cached
partition where that is cached. Blobs that come through a shuffle are united with the handles,
partition by partition. Handles are spread anew when executors have come while others hold several;
tasks are then given handles on the executors that have run them, as far as these go.

Invariants:
1. A shard is run where it was run before, also when its blobs come through a shuffle
   (`test_shards_return_to_their_arenas`).
2. Lost handles cost a rebuild of their shards and nothing else
   (`test_crash_cached_handles_are_lost`).
3. A shard that has moved away leaves no arena behind for longer than a version
   (`test_a_host_keeps_the_arenas_of_its_shards_only`); what other tasks make meanwhile stays
   (`test_a_host_leaves_arenas_alone_that_come_while_it_is_tidied`).
4. Handles that a new executor came too late for, for all or for its part, are spread again, a few
   times at most (`test_bounded_handles_are_spread_until_all_executors_have_one`,
   `test_bounded_handles_are_spread_until_executors_have_as_many`).
5. When they are, no more tasks leave an executor that lives than its handles are too few
   (`test_tasks_keep_their_executors_when_handles_are_spread`).

Limits: Spark weighs places by host; executors on one host share the disk with the arenas. What an
attempt that died held on a host other than the driver's goes with the next run of the query.

References: Spark's `PartitionerAwareUnionRDD` prefers the place that most parents of a partition
prefer. A shuffle can name a host only once, so handles are united twice.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.sql import SparkSession

from icestream.runtime.version.run_folders import remove_other_runs
from icestream.state.arena import discard, is_working

#: seconds that making a handle takes, so that no executor makes all of them
_SPREADING = 0.05
#: times that handles are spread over the same executors: one that is known may not yet take tasks
_TRIES = 3


@dataclass(frozen=True)
class TaskSlots:
    """Handles that tasks are run on."""

    #: as many partitions as tasks; their items do not matter
    handles: RDD[Any]
    #: the partition of each task
    partitions: tuple[int, ...]

    def beside(self, blobs: RDD[tuple[int, Any]]) -> RDD[Any]:
        """Return the partitions with their blobs: pairs of partition and content."""
        shuffled = blobs.partitionBy(len(self.partitions), _itself)
        return self.handles.context.union([self.handles, self.handles, shuffled])


class CachedPartitions:
    """One cached partition per task."""

    def __init__(self, spark: SparkSession) -> None:
        """Hold none yet."""
        self._context = spark.sparkContext
        self._seats: TaskSlots | None = None
        self._known: frozenset[str] = frozenset()
        #: times that handles were spread over those
        self._tries = 0
        #: executors that the tasks were last run on, and how many tasks the one with most had
        self._used = self._most = 0
        #: the executor that each task was last run on
        self._homes: dict[int, str] = {}

    def get(self, tasks: int) -> TaskSlots:
        """Return handles to run so many tasks on."""
        processes = self._processes()
        # one of them is the driver, which runs tasks only if it is alone
        executors = max(1, len(processes) - 1)
        if processes != self._known:
            self._known, self._tries = processes, 0
        busy = min(tasks, executors)
        even = self._used >= busy and self._most <= -(-tasks // busy)
        spread = even or self._tries >= _TRIES
        seats = self._seats
        if seats is None or tasks != len(seats.partitions) or not spread:
            if seats is not None:
                seats.handles.unpersist()
            self._used, self._most = tasks, 1
            self._tries += 1
            handles, held = self._spread(tasks, alone=executors == 1)
            homes = [self._homes.get(task) for task in range(tasks)]
            seats = self._seats = TaskSlots(handles, seated(homes, held))
        return seats

    def note(self, executors: Mapping[int, str]) -> None:
        """Take in where the tasks of a version were run."""
        crowds = Counter(executors.values())
        self._used, self._most = len(crowds), max(crowds.values())
        self._homes |= executors

    def _spread(self, tasks: int, *, alone: bool) -> tuple[RDD[Any], Sequence[str]]:
        """Return new handles, and the executors that have them; one that is alone has all."""
        empty: list[tuple[int, Any]] = []
        handles = self._context.parallelize(empty, 1).partitionBy(tasks, _itself)
        handles.persist(StorageLevel.MEMORY_ONLY)
        if alone:
            return handles, [""] * tasks
        return handles, handles.mapPartitions(_linger).collect()

    def _processes(self) -> frozenset[str]:
        """Return host and port of the driver and of every executor."""
        status: Any = self._context._jsc.sc().getExecutorMemoryStatus().keys().iterator()
        found = set()
        while status.hasNext():
            found.add(str(status.next()))
        return frozenset(found)


def seated(homes: Sequence[str | None], held: Sequence[str]) -> tuple[int, ...]:
    """Return a partition for each task: one on its home while there is one, else what is left.

    Args:
        homes: the executor that each task was last run on; None where it was on none.
        held: the executor that has each partition.
    """
    free: dict[str, list[int]] = {}
    for partition in reversed(range(len(held))):
        free.setdefault(held[partition], []).append(partition)
    found = [free[home].pop() if home and free.get(home) else None for home in homes]
    left = iter(sorted(partition for rest in free.values() for partition in rest))
    return tuple(next(left) if partition is None else partition for partition in found)


def here() -> str:
    """Return a name of the executor that runs this task: all its workers have one parent."""
    return f"{os.uname().nodename}/{os.getppid()}"


def tidy_host(arenas: str, version: int, named: Collection[str | None]) -> None:
    """Remove from this host what tasks of `version` cannot want: other runs and unnamed arenas."""
    remove_other_runs(os.path.dirname(arenas))
    # an arena that comes now is not among them: other tasks of this host are at work
    unnamed = set(_names(arenas)) - set(named)
    discard(arenas, (each for each in unnamed if not _is_in_use(each, version)))


def _is_in_use(arena: str, version: int) -> bool:
    """Tell whether a task of a version works in an arena, or has made it."""
    return is_working(arena) or f".v{version}." in arena


def _names(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _itself(task: int) -> int:
    return task


def _linger(items: Iterable[Any]) -> Iterable[str]:
    deque(items, maxlen=0)
    time.sleep(_SPREADING)
    return [here()]
