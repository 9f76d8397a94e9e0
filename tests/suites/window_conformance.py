"""The suite that every query must pass, whatever its operators do.

Idea: a subclass sets the query; `QueryConformance` does to it what happens to every query
(`every_query`), cuts batches elsewhere, sends a batch again, takes its memory away. The rows must
be those of the obvious computation each time.

    class TestMyOperator(QueryConformance):
        plan = window_plan("10 seconds", "2 seconds")

Rows are compared batch by batch: a row that comes in the wrong batch is a wrong row.

Limits: streams are short; effects of size belong to the operator's own tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol
from unittest import mock

import pyarrow as pa
import pytest

from icestream.operators.grid import groups, operator, slice_log
from icestream.plan.nodes.queries import Plan
from icestream.runtime.exchange import parcels as exchange_parcels
from icestream.runtime.local import LocalQuery, Splits
from icestream.runtime.version import quotas
from icestream.state import snapshot_schedule
from icestream.testing.conformance import EveryQuery
from icestream.testing.simulated_disk import SimulatedDisk
from icestream.testing.sources import (
    SECOND,
    Item,
    StreamShape,
    batches_of,
    drive,
    generate,
    rebatch,
    restart,
)
from tests.fixtures.plans import open_query
from tests.oracles.arrivals import Row
from tests.oracles.grid import ObviousWindows, differences, rows_of, same_multiset


class Oracle(Protocol):
    """The slow version of a query."""

    def feed(self, splits: Splits) -> list[Row]:
        """Process a batch and return the rows that become final."""
        ...

    def flush(self) -> list[Row]:
        """Return the remaining rows."""
        ...


def small_sizes(*, slice_bytes: int = 1024, image_rows: int = 16, snapshot: int = 2) -> ExitStack:
    """Make little data act like much: several slices, images in chunks, frequent snapshots.

    Returns a context that is already entered; use `with` to leave it.
    """
    stack = ExitStack()
    stack.enter_context(mock.patch.object(snapshot_schedule, "AFTER", snapshot))
    stack.enter_context(mock.patch.object(snapshot_schedule, "AT_LATEST", snapshot + 1))
    for module in (slice_log, operator):
        stack.enter_context(mock.patch.object(module, "SLICE_BYTES", slice_bytes))
    stack.enter_context(mock.patch.object(groups, "IMAGE_CHUNK", image_rows))
    stack.enter_context(mock.patch.object(exchange_parcels, "RECORD_BYTES", slice_bytes))
    stack.enter_context(mock.patch.object(quotas, "LEAST_QUOTA", 16 * slice_bytes))
    return stack


class QueryConformance(EveryQuery):
    """Subclass it, name the subclass `Test...`, and set `plan`; override more where needed."""

    #: the query
    plan: ClassVar[Plan]
    #: bytes for two shards, too few for all of `many_groups` at once
    tiny_budget: ClassVar[int] = 192 * 1024
    many_groups: ClassVar[int] = 1500

    def open(self, folder: Path, *, shards: int = 2, budget: str | int = "16 MB") -> LocalQuery:
        """Open the query in a folder, new or existing."""
        return open_query(self.plan, str(folder), budget=budget, shards=shards)

    def oracle(self) -> Oracle:
        """Return the slow version, before its first batch."""
        return ObviousWindows(self.plan)

    def shape(self) -> StreamShape:
        """Return the shape of the streams."""
        return StreamShape(
            events=180,
            batches=5,
            disorder=4 * SECOND,
            duplicates=0.1,
            nulls=0.1,
            specials=0.05,
            skew=1.1,
            gaps=1,
            empty=0.2,
        )

    def stream(self, seed: int, shape: StreamShape | None = None) -> list[Item]:
        """Return the items of one stream."""
        return generate(self.plan, shape or self.shape(), seed)

    def small(self) -> AbstractContextManager[Any]:
        """Make little data act like much."""
        return small_sizes()

    def expected(self, items: Sequence[Item]) -> list[list[Row]]:
        """Return the rows of the oracle for each batch, and at the end."""
        oracle = self.oracle()
        rows = [oracle.feed(batch) for batch in batches_of(items)]
        return [*rows, oracle.flush()]

    def check(self, tables: Sequence[pa.Table], items: Sequence[Item]) -> None:
        """Compare the rows of each batch with the oracle's."""
        expected = self.expected(items)
        assert len(tables) == len(expected)
        for number, (table, rows) in enumerate(zip(tables, expected, strict=True)):
            wrong = differences(rows_of(table), rows, len(self.plan.group_keys))
            assert not wrong, f"batch {number}: {wrong[:3]}"

    # -- the suite -------------------------------------------------------------------------

    @pytest.mark.sample(4)
    def test_oracle_one_shard_or_five(self, tmp_path: Path) -> None:
        """The number of shards does not change the rows."""
        items = self.stream(4)
        for shards in (1, 5):
            anew = partial(self.open, tmp_path / str(shards), shards=shards)
            self.check(drive(anew, items), items)

    def test_crash_in_the_data(self, tmp_path: Path) -> None:
        """Streams with `ABORT` inside give the rows of streams without."""
        items = self.stream(7, replace(self.shape(), aborts=0.5))
        self.check(drive(partial(self.open, tmp_path), items), items)

    def test_rows_do_not_depend_on_batch_boundaries(self, tmp_path: Path) -> None:
        """If nothing is late, the same events in other batches give the same rows."""
        items = self.stream(9, replace(self.shape(), disorder=0))
        whole = [row for rows in self.expected(items) for row in rows]
        for size in (1000, 37):
            anew = partial(self.open, tmp_path / str(size))
            found = rows_of(drive(anew, rebatch(items, size)))
            assert not differences(found, whole, len(self.plan.group_keys))

    def test_redelivery_returns_the_same_rows(self, tmp_path: Path) -> None:
        """A batch that comes again is not counted again: its rows are returned once more."""
        items = self.stream(10)
        query = self.open(tmp_path)
        tables = []
        for number, batch in enumerate(batches_of(items)):
            tables.append(query.feed(batch))
            if number % 2:
                query = self.open(tmp_path)
            again = query.feed(batch, number)
            assert same_multiset(rows_of(again), rows_of(tables[-1]))
        tables.append(query.flush())
        self.check(tables, items)

    @pytest.mark.sample(4)
    def test_bounded_rows_do_not_depend_on_the_budget(self, tmp_path: Path) -> None:
        """Groups that exceed the budget take turns in memory, and the rows stay the same."""
        shape = replace(self.shape(), groups=self.many_groups, skew=0.0, events=2500, batches=6)
        items = self.stream(11, shape)
        with small_sizes(slice_bytes=4096):
            tables, most = [], 0
            query = self.open(tmp_path, budget=self.tiny_budget)
            for number, batch in enumerate(batches_of(items)):
                if number == 4:
                    query = self.open(tmp_path, budget=self.tiny_budget)
                (delivery,) = query.driver.batch(query.next_batch, batch)
                facts = delivery.progress["icestream"]
                assert facts["peakMemoryBytes"] <= self.tiny_budget
                most = max(most, facts["partitions"])
                tables.append(query.rows([delivery]))
            tables.append(query.flush())
        assert self.splits_expected(most), f"at most {most} partitions: nothing was tested"
        self.check(tables, items)

    @pytest.mark.sample(2)
    def test_no_file_stays_open(self, tmp_path: Path) -> None:
        """Every file opened for reading is closed again, also during a rebuild."""
        disk = SimulatedDisk()
        items = restart(self.stream(12, replace(self.shape(), batches=7)))
        with small_sizes():
            drive(lambda: open_query(self.plan, str(tmp_path), files=disk), items)
        assert disk.open_handles == 0

    # -- details a subclass may change -----------------------------------------------------

    def splits_expected(self, partitions: int) -> bool:
        """Return whether a tiny budget made groups take turns in memory, as it should."""
        return partitions > 2
