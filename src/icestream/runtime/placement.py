"""Keeping shards where their arenas are.

Idea: a *handle* is a cached partition per task with nothing in it; Spark runs a task on a cached
partition where that is cached. Blobs that come through a shuffle are united with the handles,
partition by partition. Handles are spread anew when executors have come while others hold several.

Invariants:
1. A shard is run where it was run before, also when its blobs come through a shuffle
   (`test_shards_return_to_their_arenas`).
2. Lost handles cost a rebuild of their shards and nothing else
   (`test_crash_cached_handles_are_lost`).
3. A shard that has moved away leaves no arena behind for longer than a version
   (`test_a_host_keeps_the_arenas_of_its_shards_only`).
4. Handles that a new executor came too late for are spread again, a few times at most
   (`test_bounded_handles_are_spread_until_all_executors_have_one`).

Limits: Spark weighs places by host; executors on one host share the disk with the arenas. What an
attempt that died held on a host other than the driver's goes with the next run of the query.

References: Spark's `PartitionerAwareUnionRDD` prefers the place that most parents of a partition
prefer. A shuffle can name a host only once, so handles are united twice.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.sql import SparkSession

from icestream.state.arena import is_working, sweep

#: seconds that making a handle takes, so that no executor makes all of them
_SPREADING = 0.05
#: times that handles are spread over the same executors: one that is known may not yet take tasks
_TRIES = 3


class Handles:
    """One cached partition per task."""

    def __init__(self, spark: SparkSession) -> None:
        """Hold none yet."""
        self._context = spark.sparkContext
        self._rdd: RDD[Any] | None = None
        self._tasks = 0
        self._known: frozenset[str] = frozenset()
        #: times that handles were spread over those
        self._tries = 0
        #: executors that the tasks were last run on
        self._used = 0

    def get(self, tasks: int) -> RDD[Any]:
        """Return so many partitions, to run a task on each; their items do not matter."""
        processes = self._processes()
        # one of them is the driver, which runs tasks only if it is alone
        executors = max(1, len(processes) - 1)
        if processes != self._known:
            self._known, self._tries = processes, 0
        spread = self._used >= min(tasks, executors) or self._tries >= _TRIES
        if self._rdd is None or tasks != self._tasks or not spread:
            if self._rdd is not None:
                self._rdd.unpersist()
            self._tasks = self._used = tasks
            self._tries += 1
            self._rdd = self._spread()
        return self._rdd

    def beside(self, blobs: RDD[tuple[int, Any]], tasks: int) -> RDD[Any]:
        """Return so many partitions with their blobs: pairs of task and content."""
        handles = self.get(tasks)
        shuffled = blobs.partitionBy(tasks, _itself)
        return self._context.union([handles, handles, shuffled])

    def note(self, places: Sequence[str]) -> None:
        """Take in where the tasks of a version were run."""
        self._used = len(set(places))

    def _spread(self) -> RDD[Any]:
        empty: list[tuple[int, Any]] = []
        handles = self._context.parallelize(empty, self._tasks).partitionBy(self._tasks, _itself)
        handles.persist(StorageLevel.MEMORY_ONLY)
        handles.mapPartitions(_linger).count()
        return handles

    def _processes(self) -> frozenset[str]:
        """Return host and port of the driver and of every executor."""
        status: Any = self._context._jsc.sc().getExecutorMemoryStatus().keys().iterator()
        found = set()
        while status.hasNext():
            found.add(str(status.next()))
        return frozenset(found)


def here() -> str:
    """Return a name of the executor that runs this task: all its workers have one parent."""
    return f"{os.uname().nodename}/{os.getppid()}"


def tidy_host(arenas: str, version: int, named: Collection[str | None]) -> None:
    """Remove from this host what tasks of `version` cannot want: other runs and unnamed arenas."""
    local, run = os.path.split(os.path.dirname(arenas))
    for other in _names(local):
        if other != run:
            shutil.rmtree(os.path.join(local, other), ignore_errors=True)
    in_use = [name for name in _names(arenas) if is_working(name) or f".v{version}." in name]
    sweep(arenas, {*in_use, *(name for name in named if name is not None)})


def _names(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _itself(task: int) -> int:
    return task


def _linger(items: Iterable[Any]) -> Iterable[Any]:
    time.sleep(_SPREADING)
    return items
