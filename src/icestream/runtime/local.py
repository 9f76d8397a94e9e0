"""A query in one process, without Spark: for tests, figures and notebooks.

Idea: a `LocalQuery` feeds Arrow batches to the same driver as Spark queries, with an executor that
runs the tasks one after the other. Files, commits, arenas and budget are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from icestream.core.errors import IcestreamError
from icestream.plan.computation import Computation
from icestream.plan.fuse.running_fusion import Together
from icestream.runtime.driver import Delivery, Driver
from icestream.runtime.ingest.reception import IngestTask, RereadTask
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.writer import read_back
from icestream.runtime.version.parcelling import ParcellingExecutor
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.task import ShardReport, ShardTask, run_all
from icestream.runtime.version.work import Parcel
from icestream.state.files import Files, LocalFiles
from icestream.state.log.ipc import read_table
from icestream.state.log.reader import SegmentReader

#: a batch is a list of splits, each of them Arrow batches
Splits = Sequence[Iterable[pa.RecordBatch]]


class LocalExecutor(ParcellingExecutor):
    """Runs the tasks of a version one after the other in this process."""

    @property
    def parallel(self) -> int:
        """Return 1: tasks run one after the other."""
        return 1

    def ingest(self, ingest: IngestTask, batch: Splits, folder: str) -> list[Parcel]:
        parcels = self.parcelling(ingest.version, folder)
        return [parcels.fold(number, split, ingest)[1] for number, split in enumerate(batch)]

    def reread(self, task: RereadTask, folder: str) -> list[Parcel]:
        """Read the log in two parts, as tasks on two cores would."""
        parcels, parts = self.parcelling(task.version, folder), min(2, len(task.segments))
        return [parcels.reread(part, parts, task)[1] for part in range(parts)]

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        return run_all(tasks)

    def each(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do pieces of work in turn."""
        return [piece() for piece in work]


class LocalQuery:
    """A query that is fed by hand."""

    def __init__(
        self,
        plan: Computation,
        settings: Settings,
        files: Files | None = None,
        parcel_files: Files | None = None,
        tables: Sequence[AppendTable] = (),
    ) -> None:
        """Open the checkpoint and resume from it.

        By default parcels are also written to the files of the checkpoint. Rows of views with a
        table go to it.
        """
        self.plan = plan
        self.files = files or LocalFiles()
        executor = LocalExecutor(self.files, settings.root, parcel_files or self.files)
        self.driver: Driver[Splits] = Driver(plan, settings, self.files, executor, tables=tables)
        self._tables = {each.layout.view: each for each in tables}

    @property
    def next_batch(self) -> int:
        last = self.driver.last
        return 0 if last is None or last.batch is None else last.batch + 1

    def feed(self, splits: Splits, number: int | None = None) -> pa.Table:
        """Process one batch and return the rows it emits."""
        chosen = self.next_batch if number is None else number
        return self.rows(self.driver.batch(chosen, splits))

    def flush(self) -> pa.Table:
        """Close every window and return the rows it emits."""
        return self.rows(self.driver.flush())

    def clean_up(self, *, last: bool = False) -> pa.Table:
        """Let joins emit their deferred results, and return these.

        With `last` the stream has ended and the state of joins is discarded.
        """
        return self.rows(self.driver.clean_up(last=last))

    def rescale(self, parallelism: int | tuple[int, int], shards: int | None = None) -> None:
        """Set the number of tasks that run the shards, and of shards, from the next batch on."""
        self.driver.rescale(parallelism, shards)

    def fuse(self, together: Together) -> None:
        """Run some operators of a job in one task, from the next batch on."""
        self.driver.fuse(together)

    def close(self) -> None:
        """Remove the arenas of this run."""
        self.driver.close()

    def rows(self, deliveries: Sequence[Delivery], view: int = 0) -> pa.Table:
        """Return the rows of one view of deliveries in one table, and add them to its table."""
        table = self._tables.get(view)
        columns = self.plan.results(self.plan.views[view])
        if table is not None:
            files = [file for each in deliveries for file in each.commit.tables]
            for delivery in deliveries:
                table.add(delivery.commit.version - 1, delivery.commit.tables)
            return pa.concat_tables(
                [
                    columns.empty_table(),
                    *(read_back(file, columns, table.layout.files) for file in files),
                ]
            )
        try:
            tables = [
                table
                for delivery in deliveries
                for path in delivery.results
                for table in read_rows(self.files, path, view)
            ]
        except IcestreamError:
            self.driver.tell_if_taken_over()
            raise
        if not tables:
            return columns.empty_table()
        return pa.concat_tables(tables)


def read_rows(files: Files, path: str, view: int = 0) -> Iterator[pa.Table]:
    """Yield the tables of a view in a result file of a local query."""
    with closing(SegmentReader(files, path)) as reader:
        chosen = reader.directory["synopsis"] == view
        for record in reader.read_many(reader.directory["marker"][chosen]):
            yield read_table(record.payload)
