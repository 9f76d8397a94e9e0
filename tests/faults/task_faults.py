"""Faults in tasks on real executors, injected once.

Idea: an executor of the runtime is wrapped; on their way to Spark its tasks get a *fault*, which
affects the first attempt of one task of one version.

    FailAfter   the attempt does all its work, then fails, and Spark tries again
    Linger      the attempt sleeps while it holds its arena, and outlives the commit

Invariant: a fault affects only first attempts, so that the run ends
(`test_crash_a_task_fails_after_its_work`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from icestream.runtime.exchange.parcels import ExchangeWriter, ParcelReader, SplitReport
from icestream.runtime.ingest.reception import IngestTask
from icestream.runtime.tables.layout import TableLayout
from icestream.runtime.version.task import ShardReport, ShardTask, TaskFiles
from icestream.runtime.version.work import Executor, Parcel
from icestream.runtime.work.windows.ingest import Ingest
from icestream.state.arena import Arena
from icestream.state.files import Files
from icestream.state.versions.commits import VersionStore


class TaskFault(Protocol):
    """Does the work of a task, and fails."""

    #: version and place (shard or split) of the task it affects
    version: int
    place: int

    def __call__(self, work: Callable[[], Any]) -> Any:
        """Do the work in an affected attempt."""
        ...


@dataclass(frozen=True)
class FailAfter:
    """Fails when all work is done."""

    version: int
    place: int
    #: file that exists once the fault has happened
    mark: str

    def __call__(self, work: Callable[[], Any]) -> Any:
        """Do the work, then fail."""
        work()
        _leave(self.mark)
        msg = f"struck on purpose: version {self.version}, task {self.place}"
        raise RuntimeError(msg)


@dataclass(frozen=True)
class Linger:
    """Sleeps before it releases its arena, and then creates a file."""

    version: int
    place: int
    seconds: float
    #: file that exists once the attempt is over
    mark: str

    def __call__(self, work: Callable[[], Any]) -> Any:
        """Do the work, slowly at the end."""
        release = Arena.release

        def late(arena: Arena, name: str) -> None:
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                time.sleep(0.05)
            release(arena, name)

        try:
            with mock.patch.object(Arena, "release", late):
                return work()
        finally:
            _leave(self.mark)


@dataclass(frozen=True)
class FaultyShardTask(ShardTask):
    """A shard's task with a fault."""

    fault: TaskFault | None = None
    #: every executor has its own folder of arenas, as on separate hosts
    apart: bool = False

    def run(self, reader: ParcelReader, past: VersionStore, outputs: TaskFiles) -> ShardReport:
        """Run the task, or fail."""
        task = self
        if self.apart:
            task = replace(self, arenas=os.path.join(self.arenas, f"apart-{os.getppid()}"))
        work = partial(super(FaultyShardTask, task).run, reader, past, outputs)
        if self.fault is None or not _applies(self.fault, self.version, self.shard):
            return work()
        report: ShardReport = self.fault(work)
        return report


@dataclass(frozen=True)
class FaultyIngest(Ingest):
    """The ingest of a version with a fault in one split."""

    fault: TaskFault | None = None

    def run(
        self, batches: Iterable[pa.RecordBatch], out: ExchangeWriter, split: int = 0
    ) -> SplitReport:
        """Run it, or fail when the parcel is written."""

        def work() -> SplitReport:
            return super(FaultyIngest, self).run(batches, out, split)

        def written() -> None:
            work()
            out.finish()

        place = _context().partitionId()
        if self.fault is not None and _applies(self.fault, self.version, place):
            self.fault(written)
        return work()


class FaultyExecutor:
    """Runs tasks on another executor, with faults."""

    def __init__(
        self,
        executor: Executor[DataFrame],
        *,
        ingest: TaskFault | None = None,
        shard: TaskFault | None = None,
        apart: bool = False,
        before_shards: Callable[[int], None] = lambda _version: None,
    ) -> None:
        """Wrap an executor; `before_shards` is called in the driver, between its two jobs."""
        self.executor = executor
        self.cores_to_come = executor.cores_to_come
        self.parcel_files: Files = executor.parcel_files
        self._ingest = ingest
        self._shard = shard
        self._apart = apart
        self._before_shards = before_shards

    @property
    def epoch(self) -> int:
        """Return the epoch that the names of files which last tell."""
        return self.executor.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.executor.epoch = epoch

    @property
    def refused(self) -> TableLayout | None:
        """Return the table of refused rows."""
        return self.executor.refused

    @refused.setter
    def refused(self, table: TableLayout | None) -> None:
        self.executor.refused = table

    @property
    def parallel(self) -> int:
        """Return how many tasks run at the same time."""
        return self.executor.parallel

    @property
    def hosts(self) -> int:
        """Return the number of hosts that tasks run on."""
        return self.executor.hosts

    def ingest(self, ingest: IngestTask, batch: DataFrame, folder: str) -> list[Parcel]:
        """Fold a batch."""
        struck = FaultyIngest(**_fields(ingest), fault=self._ingest)
        return self.executor.ingest(struck, batch, folder)

    def each(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do pieces of work, without faults."""
        return self.executor.each(work)

    def later(self, work: Callable[[], None]) -> None:
        self.executor.later(work)

    def await_later(self) -> None:
        self.executor.await_later()

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run one task per shard."""
        self._before_shards(tasks[0].version)
        return self.executor.run(
            [
                FaultyShardTask(**_fields(task), fault=self._shard, apart=self._apart)
                for task in tasks
            ]
        )


def _applies(fault: TaskFault, version: int, place: int) -> bool:
    struck = (fault.version, fault.place) == (version, place)
    return struck and _context().attemptNumber() == 0


def _leave(mark: str) -> None:
    with open(mark, "w", encoding="utf-8") as file:
        file.write("struck")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _fields(task: Any) -> dict[str, Any]:
    return {field.name: getattr(task, field.name) for field in fields(task)}
