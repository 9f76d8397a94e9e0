"""The suite that every dataflow must pass, whatever its sub-queries compute.

Idea: a subclass sets a dataflow; `DataflowConformance` does to it what happens to every query
(`every_query`), cuts chunks elsewhere, sends a batch again, takes its memory away. The rows of each
batch must be changes that add up, together with all before, to the result of `PlainDataflow`: the
same events at every time, however their lifetimes are cut.

    class TestMyDataflow(DataflowConformance):
        flow = running_aggregate("changes")

Limits: streams are short; effects of size belong to tests of the state.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.times import INFINITY
from icestream.operators.dataflow import component
from icestream.operators.dataflow.results import CHANGE, LIFETIME
from icestream.plan.events.dataflow import Dataflow
from icestream.runtime.exchange import change_sender
from icestream.runtime.local import LocalQuery
from icestream.runtime.version import quotas
from icestream.runtime.version.settings import Settings
from icestream.state import snapshot_schedule
from icestream.state.files import Files
from icestream.state.groups import directory, heap
from icestream.testing.conformance import EveryQuery
from icestream.testing.simulated_disk import SimulatedDisk
from icestream.testing.sources import (
    SECOND,
    Item,
    StreamShape,
    arrival_times,
    batches_of,
    drive,
    group_numbers,
    items_of,
    restart,
)
from tests.fixtures.plans import QuickFiles
from tests.oracles.lifetimes import (
    Bag,
    Event,
    assert_same_bag,
    assert_same_snapshots,
    plain,
    without_zeros,
)
from tests.oracles.plain_dataflow import PlainDataflow

#: all rows count as one group: their columns include the keys
_EVERYONE = (0, 0)


def stream_of(flow: Dataflow, shape: StreamShape, seed: int) -> list[Item]:
    """Generate a stream for a dataflow: integers are keys, numbers have few values."""
    dice = np.random.default_rng(seed)
    times = arrival_times(shape, dice)
    count = len(times)
    columns = [
        pa.array(times).cast(flow.time),
        pa.array(dice.integers(0, len(flow.sources), count), pa.int32()),
    ]
    for number, schema in enumerate(flow.columns):
        other = np.asarray(columns[1]) != number
        for place, each in enumerate(schema):
            missing = other | (dice.random(count) < shape.nulls)
            columns.append(pa.array(_values(each, place, count, shape, dice), mask=missing))
    events = pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)
    again = np.repeat(np.arange(count), 1 + (dice.random(count) < shape.duplicates))
    return items_of(events.take(pa.array(again)), shape, dice)


def _values(
    field: pa.Field, place: int, count: int, shape: StreamShape, dice: np.random.Generator
) -> np.ndarray[Any, Any]:
    if pa.types.is_floating(field.type):
        return dice.integers(1, 20, count) / 2
    return group_numbers(shape if place == 0 else replace(shape, groups=5), count, dice)


def bag_of_rows(flow: Dataflow, rows: pa.Table) -> Bag:
    """Return the bag that result rows add up to."""
    bag: Bag = Counter()
    starts = ends = [0] * len(rows)
    if LIFETIME in rows.schema.names:
        lifetimes = rows.column(LIFETIME).combine_chunks()
        starts, ends = (
            lifetimes.field(edge).cast(pa.int64()).fill_null(INFINITY).to_pylist()
            for edge in ("start", "end")
        )
    payload = [rows.column(name).to_pylist() for name in flow.views[0].payload.names]
    counts = rows.column(CHANGE).to_pylist() if CHANGE in rows.schema.names else [1] * len(rows)
    for start, end, count, *values in zip(starts, ends, counts, *payload, strict=True):
        bag[Event(_EVERYONE, start, end, tuple(map(plain, values)))] += count
    return without_zeros(bag)


def sums_of(flow: Dataflow, tables: Sequence[pa.Table]) -> list[Bag]:
    """Return the sum of result rows after each table."""
    total: Bag = Counter()
    found = []
    for table in tables:
        for event, count in bag_of_rows(flow, table).items():
            total[event] += count
        total = without_zeros(total)
        found.append(Counter(total))
    return found


def expected_rows(flow: Dataflow, items: Sequence[Item]) -> list[Bag]:
    """Return the sum of the rows of a `PlainDataflow` after each batch, and at the end."""
    slow, schema = PlainDataflow(flow), flow.results(flow.views[0])
    made = [slow.feed(batch) for batch in batches_of(items)]
    return sums_of(flow, [pa.Table.from_batches(rows, schema) for rows in (*made, slow.flush())])


@contextmanager
def small_sizes(*, quota: int = 64 << 10, chunk: int = 64, snapshot: int = 2) -> Iterator[None]:
    """Make little data act like much: small chunks, small shards, frequent snapshots."""
    sizes = (
        (component, "CHUNK_ROWS", chunk),
        (component, "ENOUGH_ROWS", chunk // 4),
        (change_sender, "ENOUGH_ROWS", chunk // 4),
        (change_sender, "ENOUGH_BYTES", 0),
        (snapshot_schedule, "AFTER", snapshot),
        (snapshot_schedule, "AT_LATEST", snapshot + 1),
        (quotas, "LEAST_QUOTA", quota),
        (quotas, "LEAST_SHARE", 0),
        (directory, "LEAST_SLOTS", 32),
        (heap, "LEAST_BLOCKS", 16),
    )
    with ExitStack() as stack:
        for module, name, size in sizes:
            stack.enter_context(mock.patch.object(module, name, size))
        yield


def open_dataflow(
    flow: Dataflow,
    folder: Path | str,
    *,
    budget: int = 32 << 20,
    shards: int = 2,
    files: Files | None = None,
) -> LocalQuery:
    """Open the query whose checkpoint and arenas are in `folder`, new or existing."""
    settings = Settings(
        root=os.path.join(folder, "checkpoint"),
        local=os.path.join(folder, "local"),
        budget=budget,
        shards=shards,
    )
    return LocalQuery(flow, settings, files or QuickFiles())


class DataflowConformance(EveryQuery):
    """Subclass it, name the subclass `Test...`, and set `flow`; override more where needed."""

    #: the query
    flow: ClassVar[Dataflow]
    #: whether lifetimes are cut the same way whatever the chunks
    exact: ClassVar[bool] = False
    #: bytes for each grouping of a component, too few for all of `many_groups` at once
    tiny_share: ClassVar[int] = 224 << 10
    many_groups: ClassVar[int] = 500
    many_events: ClassVar[int] = 2000

    def open(self, folder: Path, *, shards: int = 2) -> LocalQuery:
        """Open the query in a folder, new or existing."""
        return open_dataflow(self.flow, folder, shards=shards)

    def shape(self) -> StreamShape:
        """Return the shape of the streams."""
        return StreamShape(
            events=150,
            batches=5,
            disorder=7 * SECOND,
            duplicates=0.1,
            nulls=0.1,
            skew=1.1,
            gaps=1,
            empty=0.2,
        )

    def stream(self, seed: int, shape: StreamShape | None = None) -> list[Item]:
        """Return the items of one stream."""
        return stream_of(self.flow, shape or self.shape(), seed)

    def small(self) -> AbstractContextManager[Any]:
        """Make little data act like much."""
        return small_sizes()

    def expected(self, items: Sequence[Item]) -> list[Bag]:
        """Return the sum of all rows after each batch, and at the end."""
        return expected_rows(self.flow, items)

    def sums(self, tables: Sequence[pa.Table]) -> list[Bag]:
        """Return the sum of rows after each table."""
        return sums_of(self.flow, tables)

    def check(self, tables: Sequence[pa.Table], items: Sequence[Item]) -> None:
        """Compare the sum of the rows after each batch."""
        self.compare(tables, self.expected(items))

    def compare(self, tables: Sequence[pa.Table], expected: Sequence[Bag]) -> None:
        """Compare the sum of the rows after each batch with the expected one."""
        assert len(tables) == len(expected)
        assert any(expected), "the stream has no results: nothing was tested"
        for found, bag in zip(self.sums(tables), expected, strict=True):
            if self.exact:
                assert_same_bag(found, bag)
            else:
                assert_same_snapshots(found, bag)

    # -- the suite -------------------------------------------------------------------------

    @pytest.mark.sample(3)
    def test_oracle_one_shard_or_five_in_small_chunks(self, tmp_path: Path) -> None:
        """Neither the number of shards nor the size of chunks changes the rows."""
        items = self.stream(4)
        for shards, chunk in ((1, 8), (5, 64)):
            with small_sizes(chunk=chunk):
                tables = drive(partial(self.open, tmp_path / str(shards), shards=shards), items)
            self.check(tables, items)

    def test_redelivery_returns_the_same_rows(self, tmp_path: Path) -> None:
        """A batch that comes again is not counted again: its rows are returned once more."""
        items = self.stream(10)
        query = self.open(tmp_path)
        tables = []
        for number, batch in enumerate(batches_of(items)):
            tables.append(query.feed(batch))
            if number % 2:
                query = self.open(tmp_path)
            assert query.feed(batch, number).equals(tables[-1])
        tables.append(query.flush())
        self.check(tables, items)

    @pytest.mark.sample(4)
    def test_bounded_groups_go_cold_and_come_back(self, tmp_path: Path) -> None:
        """Groups that exceed the budget take turns in memory, and the rows stay the same."""
        self.check_cold(tmp_path, self.flow, reopen=True)

    @pytest.mark.sample(3)
    def test_bounded_with_rows_written_when_groups_leave(self, tmp_path: Path) -> None:
        """The same if only evicted groups are written."""
        self.check_cold(tmp_path, self.with_store(durability="evict"))

    @pytest.mark.sample(3)
    def test_bounded_without_any_of_the_shortcuts(self, tmp_path: Path) -> None:
        """The same with each way to save writes and reads switched off."""
        for name, durability in (
            ("deltas", "log"),
            ("deltas", "evict"),
            ("clean_is_free", "evict"),
            ("second_ask", "log"),
        ):
            flow = self.with_store(**{name: False}, durability=durability)
            self.check_cold(tmp_path / f"{name}-{durability}", flow)

    @pytest.mark.sample(2)
    def test_no_file_stays_open(self, tmp_path: Path) -> None:
        """Every file opened for reading is closed again, also during a rebuild."""
        disk = SimulatedDisk()
        items = restart(self.stream(12, replace(self.shape(), batches=7)), 2)
        with small_sizes():
            drive(lambda: open_dataflow(self.flow, tmp_path, files=disk), items)
        assert disk.open_handles == 0

    # -- cold state ------------------------------------------------------------------------

    def check_cold(self, folder: Path, flow: Dataflow, *, reopen: bool = False) -> None:
        """Run with a budget for only a part of the groups."""
        items, expected = self.many()
        stores = max(sum(map(bool, spec.groupings)) for spec in flow.specs)
        quota = self.tiny_share * stores
        budget = quota * len(flow.components)
        tables, left = [], 0
        with small_sizes(quota=quota, chunk=256):
            query = open_dataflow(flow, folder, budget=budget, shards=1)
            for number, batch in enumerate(batches_of(items)):
                if reopen and number == 4:
                    query = open_dataflow(flow, folder, budget=budget, shards=1)
                (delivery,) = query.driver.batch(query.next_batch, batch)
                facts = delivery.progress["icestream"]
                assert facts["peakMemoryBytes"] <= budget
                left += facts["coldState"]["left"]
                tables.append(query.rows([delivery]))
            tables.append(query.flush())
        assert self.evictions_expected(left), f"{left} groups were evicted: nothing was tested"
        self.compare(tables, expected)

    @classmethod
    @cache
    def many(cls) -> tuple[list[Item], list[Bag]]:
        """Return a stream of many groups, and the sum of its rows, for all tests of a suite."""
        suite = cls()
        shape = replace(
            suite.shape(),
            groups=cls.many_groups,
            events=cls.many_events,
            batches=6,
            skew=0.0,
            gaps=0,
        )
        items = suite.stream(11, shape)
        return items, suite.expected(items)

    def with_store(self, **options: Any) -> Dataflow:
        """Return the dataflow with other options of its stores."""
        cold = self.flow.cold
        return replace(self.flow, cold=replace(cold, store=replace(cold.store, **options)))

    # -- details a subclass may change -----------------------------------------------------

    def evictions_expected(self, left: int) -> bool:
        """Return whether a tiny budget caused evictions, as it should."""
        return left > 0


__all__ = ["DataflowConformance", "bag_of_rows", "open_dataflow", "small_sizes", "stream_of"]
