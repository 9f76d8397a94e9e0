"""Keeps shards on the executors that have their arenas.

Idea: a *handle* is an empty cached partition per task; Spark runs a task on a cached partition
where it is cached. Handles are redistributed when new executors have none while others have
several; tasks then get handles on the executors that ran them before, if there are enough of these.

Invariants:
1. A shard runs where it ran before (`test_shards_return_to_their_arenas`).
2. Lost handles cost a rebuild of their shards and nothing else
   (`test_crash_cached_handles_are_lost`).
3. A shard that has moved away leaves its arena behind for at most one version
   (`test_a_host_keeps_the_arenas_of_its_shards_only`); arenas that other tasks create meanwhile
   stay (`test_a_host_leaves_arenas_alone_that_come_while_it_is_tidied`).
4. If a new executor joined too late to get its part of the handles, they are redistributed, a few
   times at most (`test_bounded_handles_are_spread_until_all_executors_have_one`,
   `test_bounded_handles_are_spread_until_executors_have_as_many`).
5. A redistribution moves a task off a live executor only if the executor has too few handles
   (`test_tasks_keep_their_executors_when_handles_are_spread`).

Limits: Spark chooses places by host; executors on one host share the disk with the arenas. Files of
a failed attempt on a host other than the driver's are removed by the next run of the query.
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

#: seconds that creating a handle takes, so that no executor creates all of them
_SPREADING = 0.05
#: attempts to distribute handles over the same executors: a new one may not accept tasks yet
_TRIES = 3


@dataclass(frozen=True)
class TaskSlots:
    """The handles on which tasks run."""

    #: as many partitions as tasks; their items are ignored
    handles: RDD[Any]
    #: the partition of each task
    partitions: tuple[int, ...]


class CachedPartitions:
    """One cached partition per task."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._slots: TaskSlots | None = None
        self._known: frozenset[str] = frozenset()
        #: times that handles were distributed over these executors
        self._tries = 0
        #: number of executors of the last tasks, and the largest number of tasks on one of them
        self._used = self._most = 0
        #: the executor that last ran each task
        self._homes: dict[int, str] = {}

    def get(self, tasks: int) -> TaskSlots:
        processes = self._processes()
        # one of them is the driver, which runs tasks only if there is no other
        executors = max(1, len(processes) - 1)
        if processes != self._known:
            self._known, self._tries = processes, 0
        busy = min(tasks, executors)
        even = self._used >= busy and self._most <= -(-tasks // busy)
        spread = even or self._tries >= _TRIES
        slots = self._slots
        if slots is None or tasks != len(slots.partitions) or not spread:
            if slots is not None:
                slots.handles.unpersist()
            self._used, self._most = tasks, 1
            self._tries += 1
            handles, held = self._spread(tasks, alone=executors == 1)
            homes = [self._homes.get(task) for task in range(tasks)]
            slots = self._slots = TaskSlots(handles, slots_for(homes, held))
        return slots

    @property
    def hosts(self) -> frozenset[str]:
        """Return the hosts that have executors."""
        found = Counter(each.rpartition(":")[0] for each in self._processes())
        if found.total() > 1:
            # one of them is the driver
            found[str(self._context.getConf().get("spark.driver.host"))] -= 1
        return frozenset(+found)

    def note(self, executors: Mapping[int, str]) -> None:
        """Record where the tasks of a version ran."""
        crowds = Counter(executors.values())
        self._used, self._most = len(crowds), max(crowds.values())
        self._homes |= executors

    def _spread(self, tasks: int, *, alone: bool) -> tuple[RDD[Any], Sequence[str]]:
        """Return new handles, and their executors; a single executor has all."""
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


def slots_for(homes: Sequence[str | None], held: Sequence[str]) -> tuple[int, ...]:
    """Place each task in a partition: on its last executor if possible, else any other.

    Args:
        homes: the executor that last ran each task; None if there is none.
        held: the executor of each partition.
    """
    free: dict[str, list[int]] = {}
    for partition in reversed(range(len(held))):
        free.setdefault(held[partition], []).append(partition)
    found = [free[home].pop() if home and free.get(home) else None for home in homes]
    left = iter(sorted(partition for rest in free.values() for partition in rest))
    return tuple(next(left) if partition is None else partition for partition in found)


def here() -> str:
    """Return a name of the executor where this task is placed: the parent of its workers."""
    return f"{os.uname().nodename}/{os.getppid()}"


def tidy_host(arenas: str, version: int, named: Collection[str | None]) -> None:
    """Remove from this host, where tasks are placed, other runs and unnamed arenas."""
    remove_other_runs(os.path.dirname(arenas))
    # the list excludes arenas that are created from now on: other tasks of this host are running
    unnamed = set(_names(arenas)) - set(named)
    discard(arenas, (each for each in unnamed if not _is_in_use(each, version)))


def _is_in_use(arena: str, version: int) -> bool:
    """Return whether a task of a version uses an arena, or has created it."""
    return is_working(arena) or f".v{version}." in arena


def _names(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _itself(task: int) -> int:
    return task


def _linger(items: Iterable[Any]) -> Iterable[str]:
    deque(items, maxlen=0)
    time.sleep(_SPREADING)
    return [here()]
