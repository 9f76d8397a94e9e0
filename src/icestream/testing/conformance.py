"""What happens to every query in its life, whatever it computes.

Idea: a suite says how its query is opened, what its streams are like and how rows are compared.
`EveryQuery` lets the query live: times before 1970 and long gaps, restarts between any two batches,
snapshots to begin at, arenas that are lost, shards that move. Suites of one kind of query subclass
it and add what happens to that kind alone.
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

    #: streams that are tried
    seeds: ClassVar[Sequence[int]] = (1, 2)

    @abstractmethod
    def open(self, folder: Path, *, shards: int = 2) -> LocalQuery:
        """Open the query in a folder, new or where it stands."""

    def shape(self) -> StreamShape:
        """Return what the streams are like."""
        return StreamShape()

    @abstractmethod
    def stream(self, seed: int, shape: StreamShape | None = None) -> list[Item]:
        """Return the items of one stream."""

    @abstractmethod
    def check(self, tables: Sequence[pa.Table], items: Sequence[Item]) -> None:
        """Compare the rows of each batch with those of the slow version."""

    def small(self) -> AbstractContextManager[Any]:
        """Let little data do what much data does: here, let snapshots come often."""
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
        """Rows of every batch are those of the slow version."""
        for seed in self.seeds:
            items = self.stream(seed)
            self.check(drive(partial(self.open, tmp_path / str(seed)), items), items)

    def test_oracle_streams_before_1970_with_long_gaps(self, tmp_path: Path) -> None:
        """Negative times and stretches without events change nothing."""
        items = self.stream(3, replace(self.shape(), start=-3000 * SECOND + 777, gaps=3))
        self.check(drive(partial(self.open, tmp_path), items), items)

    def test_oracle_rescaling_at_any_batch_changes_no_row(self, tmp_path: Path) -> None:
        """Shards move between tasks with disks of their own, and the rows stay the same."""
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
        """A query that is opened anew for every batch rebuilds itself and goes on."""
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
        """Arenas are a cache: deleted between two batches, they come back from the log."""
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
