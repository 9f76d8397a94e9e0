"""The same query in one process, without Spark: for tests, figures and notebooks.

Idea: a `LocalQuery` feeds Arrow batches to the driver that Spark queries use, with an executor that
runs every task in turn. Files, commits, arenas and budget are the real ones.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from icestream.plan.nodes import Plan
from icestream.runtime.driver import Delivery, Driver, Parcel, Settings
from icestream.runtime.exchange import ExchangeWriter
from icestream.runtime.ingest import Ingest
from icestream.runtime.shard import ShardReport, ShardTask
from icestream.state.files import Files, LocalFiles
from icestream.state.log.ipc import read_table
from icestream.state.log.reader import SegmentReader
from icestream.state.versions import RESULTS

#: a batch is a list of splits, each of them Arrow batches
Splits = Sequence[Iterable[pa.RecordBatch]]


class LocalExecutor:
    """Runs the tasks of a version one after the other in this process."""

    def __init__(self, files: Files, root: str, parcel_files: Files) -> None:
        """Keep late events in the checkpoint at `root`, parcels where `parcel_files` puts them."""
        self.parcel_files = parcel_files
        self._files = files
        self._root = root

    def ingest(self, ingest: Ingest, batch: Splits, folder: str) -> list[Parcel]:
        """Fold each split into a parcel of its own."""
        parcels = []
        for number, split in enumerate(batch):
            path = os.path.join(folder, f"{number:06d}.parcel")
            late = f"{self._root}/{RESULTS}/{ingest.version:012d}-late-{uuid.uuid4().hex[:16]}.rows"
            out = ExchangeWriter(self.parcel_files, path, self._files, late)
            try:
                report = ingest.run(split, out)
                parcels.append(Parcel(path, out.finish()[1], report))
            except BaseException:
                out.abandon()
                raise
        return parcels

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run the shards in turn."""
        return [task.run() for task in tasks]


class LocalQuery:
    """A query that is fed by hand."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        files: Files | None = None,
        parcel_files: Files | None = None,
    ) -> None:
        """Open the checkpoint, resuming where it stands.

        Parcels go through the files of the checkpoint too, unless told otherwise.
        """
        self.plan = plan
        self.files = files or LocalFiles()
        executor = LocalExecutor(self.files, settings.root, parcel_files or self.files)
        self.driver: Driver[Splits] = Driver(plan, settings, self.files, executor)

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

    def close(self) -> None:
        """Remove the arenas of this run."""
        self.driver.close()

    def rows(self, deliveries: Sequence[Delivery]) -> pa.Table:
        """Return the rows of deliveries in one table."""
        tables = [
            table
            for delivery in deliveries
            for path in delivery.results
            for table in read_rows(self.files, path)
        ]
        if not tables:
            return self.plan.results.empty_table()
        return pa.concat_tables(tables)


def read_rows(files: Files, path: str) -> Iterator[pa.Table]:
    """Yield the tables of a result file."""
    with closing(SegmentReader(files, path)) as reader:
        for record in reader.scan():
            yield read_table(record.payload)
