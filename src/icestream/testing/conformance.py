"""The tests that every query must pass, whatever it computes.

Idea: a suite defines how its query is opened, the shape of its streams and how rows are compared.
`EveryQuery` then runs the query with times before 1970 and long gaps, restarts between any two
batches, restores from snapshots, lost arenas and moving shards. Suites for one kind of query
subclass it and add the tests for that kind.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa

from icestream.runtime.local import LocalQuery
from icestream.state import snapshot_schedule
from icestream.testing.moving_shards import rescale, separate_disks
from icestream.testing.sources import SECOND, Item, StreamShape, batches_of, drive, restart


class EveryQuery(ABC):
    """The tests that all suites share."""

    #: number of streams that are tried
    seeds: ClassVar[Sequence[int]] = (1, 2)

    @abstractmethod
    def open(self, folder: Path, *, shards: int = 2) -> LocalQuery:
        """Open the query in a folder, new or at its last version."""

    def shape(self) -> StreamShape:
        """Return the shape of the streams."""
        return StreamShape()

    @abstractmethod
    def stream(self, seed: int, shape: StreamShape | None = None) -> list[Item]:
        """Return the items of one stream."""

    @abstractmethod
    def check(self, tables: Sequence[pa.Table], items: Sequence[Item]) -> None:
        """Compare the rows of each batch with those of the reference version."""

    def small(self) -> AbstractContextManager[Any]:
        """Return a context in which little data behaves like much: here, snapshots are frequent."""
        stack = ExitStack()
        stack.enter_context(mock.patch.object(snapshot_schedule, "AFTER", 2))
        stack.enter_context(mock.patch.object(snapshot_schedule, "AT_LATEST", 3))
        return stack

    def lose_arenas(self, folder: Path) -> None:
        """Delete the arenas of a query."""
        for run in os.listdir(folder / "local"):
            shutil.rmtree(folder / "local" / run / "arenas")

    # -- the suite -------------------------------------------------------------------------

    def test_oracle_random_streams(self, tmp_path: Path) -> None:
        """Rows of every batch are those of the reference version."""
        for seed in self.seeds:
            items = self.stream(seed)
            self.check(drive(partial(self.open, tmp_path / str(seed)), items), items)

    def test_oracle_streams_before_1970_with_long_gaps(self, tmp_path: Path) -> None:
        """Negative times and long gaps change nothing."""
        items = self.stream(3, replace(self.shape(), start=-3000 * SECOND + 777, gaps=3))
        self.check(drive(partial(self.open, tmp_path), items), items)

    def test_oracle_rescaling_at_any_batch_changes_no_row(self, tmp_path: Path) -> None:
        """Shards move between tasks with separate disks, and the rows stay the same."""
        items = self.stream(13)
        with self.small(), separate_disks():
            query = self.open(tmp_path, shards=8)
            tables = []
            for number, batch in enumerate(batches_of(items)):
                rescale(query, number)
                tables.append(query.feed(batch))
            tables.append(query.flush())
        self.check(tables, items)

    def test_crash_between_any_two_batches(self, tmp_path: Path) -> None:
        """A query that is reopened for every batch rebuilds its state and continues."""
        items = restart(self.stream(5))
        self.check(drive(partial(self.open, tmp_path), items), items)

    def test_crash_restores_from_snapshots(self, tmp_path: Path) -> None:
        """With snapshots every other version, a restart begins at one of them."""
        stream = self.stream(6, replace(self.shape(), batches=9))
        for every in (1, 3):
            items = restart(stream, every)
            with self.small():
                self.check(drive(partial(self.open, tmp_path / str(every)), items), items)

    def test_crash_lost_arenas_are_rebuilt(self, tmp_path: Path) -> None:
        """Arenas are a cache: deleted between two batches, they are rebuilt from the log."""
        items = self.stream(8)
        with self.small():
            query = self.open(tmp_path)
            tables = []
            for number, batch in enumerate(batches_of(items)):
                if number % 2:
                    self.lose_arenas(tmp_path)
                tables.append(query.feed(batch))
            self.lose_arenas(tmp_path)
            tables.append(query.flush())
        self.check(tables, items)
