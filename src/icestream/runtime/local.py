"""A query in one process, without Spark: for tests, figures and notebooks.

Idea: a `LocalQuery` feeds Arrow batches to the same driver as Spark queries, with an executor that
runs the tasks one after the other. Files, commits, arenas and budget are the real ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa

from icestream.core.errors import IcestreamError
from icestream.plan.computation import Computation
from icestream.plan.fuse.running_fusion import Together
from icestream.runtime.driver import Delivery, Driver
from icestream.runtime.exchange.parcels import ExchangeWriter, SplitReport
from icestream.runtime.ingest.reception import IngestTask, RereadTask
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.layout import TableLayout
from icestream.runtime.tables.writer import TableWriters, read_back, refused_rows
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.task import ShardReport, ShardTask, run_all
from icestream.runtime.version.work import Parcel
from icestream.state.files import Files, LocalFiles
from icestream.state.log.ipc import read_table
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.attempts import new_attempt

#: a batch is a list of splits, each of them Arrow batches
Splits = Sequence[Iterable[pa.RecordBatch]]


class LocalExecutor:
    """Runs the tasks of a version one after the other in this process."""

    def __init__(self, files: Files, root: str, parcel_files: Files) -> None:
        """Write late events to the checkpoint at `root` and parcels to `parcel_files`."""
        self.parcel_files = parcel_files
        self.epoch = 0
        self.refused: TableLayout | None = None
        self.refused_columns: pa.Schema | None = None
        self._files = files
        self._root = root

    @property
    def parallel(self) -> int:
        """Return 1: tasks run one after the other."""
        return 1

    def ingest(self, ingest: IngestTask, batch: Splits, folder: str) -> list[Parcel]:
        """Fold each split into its own parcel."""
        return [
            self._parcel(
                f"{number:06d}",
                ingest.version,
                folder,
                partial(_fold, ingest, split, number),
                refused_rows(self.refused, ingest.version, number, self.epoch),
            )
            for number, split in enumerate(batch)
        ]

    def reread(self, task: RereadTask, folder: str) -> list[Parcel]:
        """Read the log in two parts, as tasks on two cores would."""
        parts = min(2, len(task.segments))
        return [
            self._parcel(f"reread-{part}", task.version, folder, partial(task.run, part, parts))
            for part in range(parts)
        ]

    def _parcel(
        self,
        name: str,
        version: int,
        folder: str,
        run: Callable[[ExchangeWriter], SplitReport],
        tables: TableWriters | None = None,
    ) -> Parcel:
        path = os.path.join(folder, f"{name}.parcel")
        label = f"{version:012d}-{new_attempt(self.epoch)}"
        out = ExchangeWriter(
            self.parcel_files,
            path,
            self._files,
            self._root,
            label,
            tables=tables,
            refused=self.refused_columns,
        )
        try:
            report = run(out)
            return Parcel(path, out.finish(), report)
        except BaseException:
            out.abandon()
            raise

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run the shards in turn."""
        return run_all(tasks)

    def each(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do pieces of work in turn."""
        return [piece() for piece in work]


def _fold(
    ingest: IngestTask, split: Iterable[pa.RecordBatch], number: int, out: ExchangeWriter
) -> SplitReport:
    return ingest.run(split, out, number)


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
        """Return the number of the batch to feed next."""
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
