"""Shards that change tasks, where every task has a disk of its own.

Idea: in one process all tasks see one disk, and a shard that changes its task finds its arena. Here
each task looks for arenas in a folder of its own, so a shard that comes to another task, or back
after a while, is rebuilt from the log, as on another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from icestream.runtime import local
from icestream.runtime.local import LocalExecutor, LocalQuery
from icestream.runtime.version.task import ShardReport, ShardTask

#: numbers of tasks that a query with eight shards goes through
COURSE = (2, 8, 3, 1, 5)


class SeparateDisks(LocalExecutor):
    """Runs tasks in turn, each with its own folder of arenas."""

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run the shards in turn."""
        return super().run([replace(task, arenas=f"{task.arenas}-{task.place}") for task in tasks])


@contextmanager
def separate_disks() -> Iterator[None]:
    """Let queries that are opened inside run tasks with a disk for each."""
    with mock.patch.object(local, "LocalExecutor", SeparateDisks):
        yield


def rescale(query: LocalQuery, batch: int) -> None:
    """Give a query the number of tasks for a batch."""
    query.rescale(COURSE[batch % len(COURSE)])
