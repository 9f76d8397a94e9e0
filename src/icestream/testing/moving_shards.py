"""Shards that change tasks, where every task has its own disk.

Idea: in one process all tasks share one disk, and a shard that changes its task finds its arena.
Here each task has its own folder of arenas, so a shard that moves to another task, or back after a
while, is rebuilt from the log, as on another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from icestream.runtime import local
from icestream.runtime.local import LocalExecutor, LocalQuery
from icestream.runtime.version.task import ShardReport, ShardTask

#: numbers of tasks through which a query with eight shards goes
COURSE = (2, 8, 3, 1, 5)


class SeparateDisks(LocalExecutor):
    """Runs tasks in turn, each with its own folder of arenas."""

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        return super().run([replace(task, arenas=f"{task.arenas}-{task.place}") for task in tasks])


@contextmanager
def separate_disks() -> Iterator[None]:
    """Let queries opened in this context move shards between tasks with separate disks."""
    with mock.patch.object(local, "LocalExecutor", SeparateDisks):
        yield


def rescale(query: LocalQuery, batch: int) -> None:
    """Move shards in a test: set the number of tasks of a query for a batch."""
    query.rescale(COURSE[batch % len(COURSE)])
