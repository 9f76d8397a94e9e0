"""Filling the parcels of splits, in the tasks of any executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from icestream.runtime.exchange.parcels import ExchangeWriter, SplitReport
from icestream.runtime.ingest.reception import IngestTask, RereadTask
from icestream.runtime.tables.layout import TableLayout
from icestream.runtime.tables.writer import TableWriters
from icestream.runtime.version.work import Parcel
from icestream.state.files import Files
from icestream.state.versions.attempts import new_attempt


@dataclass(frozen=True)
class Parcelling:
    """Fills the parcels of a version, one at a time."""

    #: the checkpoint
    files: Files
    root: str
    version: int
    epoch: int
    #: where parcels go
    folder: str
    parcel_files: Files
    #: the table of refused rows, and the columns of stored bad rows, as the executor has them
    refused: TableLayout | None
    refused_columns: pa.Schema | None
    codec: str | None

    def fold(
        self, split: int, batches: Iterable[pa.RecordBatch], task: IngestTask
    ) -> tuple[int, Parcel]:
        """Fold a split; return its number and parcel."""
        return self._filled(split, lambda out: task.run(batches, out, split))

    def reread(self, part: int, parts: int, task: RereadTask) -> tuple[int, Parcel]:
        """Read one of `parts` parts of the log."""
        return self._filled(part, lambda out: task.run(part, parts, out))

    def _filled(
        self, number: int, fill: Callable[[ExchangeWriter], SplitReport]
    ) -> tuple[int, Parcel]:
        name = f"{self.version:012d}-{number:06d}-{new_attempt(self.epoch)}"
        path = os.path.join(self.folder, f"{name}.parcel")
        tables = None
        if self.refused is not None:
            tables = TableWriters([self.refused], self.version, number, self.epoch)
        out = ExchangeWriter(
            self.parcel_files,
            path,
            self.files,
            self.root,
            name,
            self.codec,
            tables,
            self.refused_columns,
        )
        try:
            report = fill(out)
            return number, Parcel(path, out.finish(), report)
        except BaseException:
            out.abandon()
            raise


class ParcellingExecutor:
    """What every executor has: the checkpoint, and where parcels go."""

    def __init__(
        self, files: Files, root: str, parcel_files: Files, codec: str | None = None
    ) -> None:
        """Write late events to the checkpoint at `root` and parcels to `parcel_files`."""
        self.parcel_files = parcel_files
        self.epoch = 0
        self.cores_to_come = 0
        self.refused: TableLayout | None = None
        self.refused_columns: pa.Schema | None = None
        self._files = files
        self._root = root
        self._codec = codec

    @property
    def hosts(self) -> int:
        """Return 1: everything runs on this host."""
        return 1

    def later(self, work: Callable[[], None]) -> None:
        """Do something at once: what follows in this process would wait for it anyway."""
        work()

    def await_later(self) -> None:
        """Return: nothing is left to do."""

    def parcelling(self, version: int, folder: str) -> Parcelling:
        """Return what fills the parcels of a version in tasks."""
        return Parcelling(
            self._files,
            self._root,
            version,
            self.epoch,
            folder,
            self.parcel_files,
            self.refused,
            self.refused_columns,
            self._codec,
        )
