"""Frames as whole queries, beside the obvious computation and beside SQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import BudgetError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.frames import operator, tuples
from icestream.operators.grid import groups
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.runtime.version import quotas
from icestream.state import snapshot_schedule
from icestream.testing.sources import (
    SECOND,
    Item,
    StreamShape,
    batches_of,
    drive,
    generate,
    rebatch,
    shapes,
)
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.arrivals import Row
from tests.oracles.frames import ObviousFrames, frame_rows, frames_by_sql
from tests.oracles.grid import differences, same_multiset
from tests.suites.window_conformance import Oracle, QueryConformance

FRAMES = (
    Frame(range=5 * SECOND),
    Frame(range=5 * SECOND, slide=RowsSlide(3)),
    Frame(range=5 * SECOND, slide=RowsSlide(3), partition="stream"),
    Frame(rows=7, partition="stream"),
    Frame(rows=40, slide=RowsSlide(9), partition="stream"),
    Frame(rows=7, slide=2 * SECOND, partition="stream"),
    Frame(rows=1),
    Frame(rows=4),
    Frame(rows=3, slide=RowsSlide(2)),
    Frame(rows=30, slide=2 * SECOND),
)
INPUTS = pa.schema([("value", pa.float64()), ("whole", pa.int64())])
#: with and without an inverse, and by the order of events
AGGREGATES = (
    Aggregate("count", None, "events"),
    Aggregate("sum", "whole", "total"),
    Aggregate("sum", "value", "float_total"),
    Aggregate("min", "value", "least"),
    Aggregate("max", "whole", "most"),
    Aggregate("stddev_samp", "value", "spread"),
    Aggregate("first", "whole", "earliest"),
    Aggregate("last", "value", "latest"),
    Aggregate("max_by", "whole", "whole_of_most", ("value",)),
)
INVERTIBLE = AGGREGATES[:2]


@contextmanager
def small_blocks(block_bytes: int = 1024, snapshot: int = 2) -> Iterator[None]:
    """Let little data do what much data does: several blocks and chunks, snapshots often."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(snapshot_schedule, "AFTER", snapshot))
        stack.enter_context(mock.patch.object(snapshot_schedule, "AT_LATEST", snapshot + 1))
        for module in (operator, tuples):
            stack.enter_context(mock.patch.object(module, "BLOCK_BYTES", block_bytes))
        stack.enter_context(mock.patch.object(groups, "IMAGE_CHUNK", 16))
        stack.enter_context(mock.patch.object(quotas, "LEAST_QUOTA", 16 * block_bytes))
        yield


def plan_of(frame: Frame, aggregates: Sequence[Aggregate] = AGGREGATES) -> Plan:
    return window_plan(windows=frame, inputs=INPUTS, aggregates=aggregates)


def expected(plan: Plan, items: Sequence[Item]) -> list[list[Row]]:
    oracle = ObviousFrames(plan)
    return [*(oracle.feed(batch) for batch in batches_of(items)), oracle.flush()]


def check(plan: Plan, found: Sequence[pa.Table], items: Sequence[Item]) -> None:
    keys = len(plan.group_keys)
    for number, (table, rows) in enumerate(zip(found, expected(plan, items), strict=True)):
        wrong = differences(frame_rows(table, keys), rows, keys)
        assert not wrong, f"batch {number}: {wrong[:3]}"


@given(
    frame=st.sampled_from(FRAMES),
    shape=shapes(),
    seed=st.integers(0, 2**32 - 1),
    aggregates=st.sampled_from((AGGREGATES, INVERTIBLE)),
    shards=st.sampled_from((1, 3)),
)
@settings(max_examples=40)
def test_oracle_every_frame_equals_the_obvious_computation(
    frame: Frame, shape: StreamShape, seed: int, aggregates: Sequence[Aggregate], shards: int
) -> None:
    plan = plan_of(frame, aggregates)
    items = generate(plan, shape, seed)
    with small_blocks(), tempfile.TemporaryDirectory() as folder:
        anew = partial(open_query, plan, folder, budget=shards << 17, shards=shards)
        check(plan, drive(anew, items), items)


@given(
    frame=st.sampled_from((Frame(range=SECOND), Frame(range=20 * SECOND), Frame(rows=5))),
    seed=st.integers(0, 2**32 - 1),
    ties=st.sampled_from((1, SECOND)),
)
@pytest.mark.slow
@settings(max_examples=15)
def test_oracle_a_row_per_event_equals_sql_window_functions(
    frame: Frame, seed: int, ties: int
) -> None:
    chosen = ("count", "sum", "avg", "min", "max", "var_pop", "stddev_samp")
    aggregates = [Aggregate(f, c, f"{f}_{c}") for f in chosen for c in INPUTS.names]
    plan = window_plan(
        windows=frame,
        inputs=INPUTS,
        aggregates=aggregates,
        keys=pa.schema([("name", pa.string()), ("part", pa.int32())]),
        slack="3000 seconds",
    )
    shape = StreamShape(
        start=-30 * SECOND, disorder=9 * SECOND, duplicates=0.1, nulls=0.2, skew=1.2
    )
    items = _rounded(plan, generate(plan, shape, seed), ties)
    with small_blocks(), tempfile.TemporaryDirectory() as folder:
        found = drive(partial(open_query, plan, folder, budget="256 KB"), items)
    batches = [b for splits in batches_of(items) for split in splits for b in split]
    rows = frame_rows(pa.concat_tables(found), 2)
    assert not differences(rows, frames_by_sql(plan, batches), 2, tolerance=1e-6)


def _rounded(plan: Plan, items: Sequence[Item], step: int) -> list[Item]:
    """Round the times of events down, so that many are equal."""
    rounded: list[Item] = []
    for splits in batches_of(items):
        rounded.append([[_with_ties(plan, b, step) for b in split] for split in splits])
    return rounded


def _with_ties(plan: Plan, batch: pa.RecordBatch, step: int) -> pa.RecordBatch:
    times = batch.column(0).cast(pa.int64()).to_numpy() // step * step
    columns = [pa.array(times).cast(plan.time), *batch.columns[1:]]
    return pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)


class FrameConformance(QueryConformance):
    """The suite of all queries, for rows that begin with a time."""

    seeds: ClassVar[Sequence[int]] = (1,)

    @pytest.fixture(autouse=True)
    def _small(self) -> Iterator[None]:
        with small_blocks():
            yield

    def oracle(self) -> Oracle:
        return ObviousFrames(self.plan)

    def check(self, tables: Sequence[pa.Table], items: Sequence[Item]) -> None:
        check(self.plan, tables, items)

    def test_rows_do_not_depend_on_batch_boundaries(self, tmp_path: Path) -> None:
        items = generate(self.plan, replace(self.shape(), disorder=0), 9)
        keys = len(self.plan.group_keys)
        for size in (1000, 37):
            anew = partial(self.open, tmp_path / str(size))
            table = pa.concat_tables(drive(anew, rebatch(items, size)))
            whole = expected(self.plan, rebatch(items, 1000))
            found = frame_rows(table, keys)
            assert not differences(found, [row for rows in whole for row in rows], keys)

    def test_redelivery_returns_the_same_rows(self, tmp_path: Path) -> None:
        items = generate(self.plan, self.shape(), 10)
        query, tables, keys = self.open(tmp_path), [], len(self.plan.group_keys)
        for number, batch in enumerate(batches_of(items)):
            tables.append(query.feed(batch))
            again = query.feed(batch, number)
            assert same_multiset(frame_rows(again, keys), frame_rows(tables[-1], keys))
        tables.append(query.flush())
        self.check(tables, items)


class TestRange(FrameConformance):
    plan = plan_of(Frame(range=20 * SECOND))


@pytest.mark.slow
class TestRowsOfTheStream(FrameConformance):
    plan = plan_of(Frame(rows=900, slide=7 * SECOND, partition="stream"))


class TestRowsOfEachGroup(FrameConformance):
    plan = plan_of(Frame(rows=5))


@pytest.mark.slow
class TestRowsOfEachGroupAtInstants(FrameConformance):
    plan = plan_of(Frame(rows=12, slide=4 * SECOND))


@pytest.mark.parametrize("frame", [Frame(range=5 * SECOND), Frame(rows=3)])
def test_oracle_grouping_sets_are_frames_of_their_own(frame: Frame, tmp_path: Path) -> None:
    plan = window_plan(
        windows=frame,
        inputs=INPUTS,
        aggregates=INVERTIBLE,
        keys=pa.schema([("name", pa.string()), ("part", pa.int32())]),
        grouping_sets=((0, 1), (1,), ()),
    )
    items = generate(plan, StreamShape(disorder=4 * SECOND, nulls=0.1), 3)
    check(plan, drive(partial(open_query, plan, str(tmp_path)), items), items)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Frame(range=100 * SECOND), marks=pytest.mark.slow),
        Frame(rows=30_000, slide=RowsSlide(20_000), partition="stream"),
        Frame(rows=40),
    ],
    ids=["range", "rows of the stream", "rows of each group"],
)
def test_bounded_state_of_ten_times_the_budget(frame: Frame, tmp_path: Path) -> None:
    # 40,000 tuples of 96 bytes in the window, over 4,000 groups, beside 256 KB
    aggregates = AGGREGATES[:5]
    plan = plan_of(frame, aggregates)
    shape = StreamShape(
        events=40_000, batches=8, groups=4000, span=90 * SECOND, disorder=2 * SECOND
    )
    items = generate(plan, shape, 1)
    quota, rows, most = 256 * 1024, 0, 0
    with small_blocks(4096):
        query = open_query(plan, str(tmp_path), budget=quota, shards=1)
        for number, batch in enumerate(batches_of(items)):
            if number == 5:
                query = open_query(plan, str(tmp_path), budget=quota, shards=1)
            (delivery,) = query.driver.batch(query.next_batch, batch)
            facts = delivery.progress["icestream"]
            assert facts["peakMemoryBytes"] <= quota
            most = max(most, facts["partitions"])
            rows += query.rows([delivery]).num_rows
        rows += query.flush().num_rows
    assert most > 2
    assert rows >= 40_000 if frame.slide is None else rows > 2000


def test_a_ring_that_exceeds_the_quota_is_a_budget_error(tmp_path: Path) -> None:
    plan = plan_of(Frame(rows=10**6))
    with pytest.raises(BudgetError, match="Give the query"):
        open_query(plan, str(tmp_path)).feed(batches_of(generate(plan, StreamShape(), 1))[0])


def test_segments_that_no_window_needs_are_released(tmp_path: Path) -> None:
    for frame in (Frame(rows=50, partition="stream"), Frame(rows=2)):
        plan = plan_of(frame, INVERTIBLE)
        items = generate(plan, StreamShape(events=3000, batches=30, groups=5), 2)
        with small_blocks():
            query = open_query(plan, str(tmp_path / str(frame.rows)), shards=1)
            live = []
            for batch in batches_of(items):
                [delivery] = query.driver.batch(query.next_batch, batch)
                live.append(delivery.progress["icestream"]["segments"])
        assert max(live) < 16, "the log of a window of fixed size grows"


def test_groups_without_events_in_the_window_are_closed(tmp_path: Path) -> None:
    plan = plan_of(Frame(range=SECOND), INVERTIBLE)
    shape = StreamShape(events=2000, batches=20, groups=500, span=200 * SECOND)
    query = open_query(plan, str(tmp_path))
    kept = []
    for batch in batches_of(generate(plan, shape, 1)):
        (delivery,) = query.driver.batch(query.next_batch, batch)
        kept.append(delivery.progress["icestream"]["groups"])
    # those of the last second, and of the slack of five
    assert max(kept) < 150
