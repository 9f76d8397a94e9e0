"""Windows on a grid inside of dataflows, beside aggregates over copies of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow import pane_step
from icestream.operators.grid import operator, slice_log
from icestream.plan.events import pane_windows
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery
from icestream.testing.sources import Item, batches_of
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import RATINGS, SECOND, PlanStream, dataflow
from tests.oracles.lifetimes import Bag
from tests.suites.crash_runs import CrashRuns
from tests.suites.dataflow_conformance import (
    DataflowConformance,
    bag_of_rows,
    expected_rows,
    open_dataflow,
    small_sizes,
)
from tests.suites.dataflow_crash_runs import DataflowScript


@contextmanager
def small_slices(size: int = 512) -> Iterator[None]:
    """Let little data fill several slices and tables, and let keys be found again."""
    with ExitStack() as stack:
        for module in (operator, slice_log, pane_step, pane_windows):
            stack.enter_context(mock.patch.object(module, "SLICE_BYTES", size))
        stack.enter_context(mock.patch.object(pane_step, "_KEYS", 0))
        yield


class _PaneConformance(DataflowConformance):
    """Rows beside those of the same query by copies."""

    exact = True
    copying: ClassVar[Dataflow]
    #: bytes of a component: those of joins need some
    share: ClassVar[int] = 256 << 10
    #: partitions of components with all groups in memory
    partitions: ClassVar[int] = 0

    def open(self, folder: Path, *, shards: int = 2) -> LocalQuery:
        return open_dataflow(self.flow, folder, shards=shards, budget=64 << 20)

    def expected(self, items: Sequence[Item]) -> list[Bag]:
        return expected_rows(self.copying, items)

    def check_cold(self, folder: Path, flow: Dataflow, *, reopen: bool = False) -> None:
        """Run with memory for a part of the groups, in partitions of them."""
        items, expected = self.many()
        budget, partitions, tables = self.share * len(flow.components), 0, []
        with small_sizes(quota=1024, chunk=256), small_slices():
            for number, batch in enumerate(batches_of(items)):
                if number == 0 or (reopen and number == 4):
                    query = open_dataflow(flow, folder, budget=budget, shards=1)
                (delivery,) = query.driver.batch(query.next_batch, batch)
                facts = delivery.progress["icestream"]
                assert facts["peakMemoryBytes"] <= budget
                partitions = max(partitions, facts["partitions"])
                tables.append(query.rows([delivery]))
            tables.append(query.flush())
        assert partitions > self.partitions, "no partition was evicted: nothing was tested"
        self.compare(tables, expected)


class TestWindowsBehindJoins(_PaneConformance):
    flow = plans.windows_behind_joins()
    copying = plans.windows_behind_joins(panes=False)


class TestObjectsBehindJoins(_PaneConformance):
    flow = plans.objects_behind_joins()
    copying = plans.objects_behind_joins(panes=False)


class TestSessionsBehindJoins(_PaneConformance):
    flow = plans.sessions_behind_joins()
    copying = plans.sessions_behind_joins(panes=False)


class TestWindowsOfWindows(_PaneConformance):
    flow = plans.windows_of_windows()
    copying = plans.windows_of_windows(panes=False)
    share = 48 << 10
    partitions = 2


def test_windows_that_are_read_when_final_are_panes() -> None:
    for mode in ("append", "changes"):
        assert str(plans.windows_of_windows(mode).describe()).count("panes of") == 2
    assert "panes of" not in str(plans.windows_of_windows("now").describe())
    assert str(plans.windows_of_windows("now").describe()).count("rows of Windows") == 2


def ratings_of(flow: Dataflow, times: Sequence[int]) -> pa.RecordBatch:
    count = len(times)
    instants = pa.array(np.array(times, np.int64) * SECOND).cast(flow.time)
    columns = [instants, pa.array([0] * count, pa.int32())]
    columns += [pa.array([1] * count), pa.array([1] * count), pa.array([0.5] * count)]
    return pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)


def test_events_late_for_one_of_two_windows_count_in_the_other(tmp_path: Path) -> None:
    """
    seconds   0    5    10   15   20
    short     [----)                    closed when the watermark is at 15: 3 is late here
    long      [-------------------)     still open
    """
    found, flows = {}, list[Dataflow]()
    for panes in (True, False):
        ratings, count = PlanStream.of(RATINGS), Aggregate("count", None, "n")
        short, long = (
            ratings.in_windows(Windows(size * SECOND, size * SECOND), ["user"], count, panes=panes)
            for size in (5, 20)
        )
        flow = dataflow(short.union(long), "append", slack=0)
        flows.append(plans.as_late(flow, flows[0] if flows else flow))
        query = open_dataflow(flows[-1], tmp_path / str(panes))
        tables = [query.feed([[ratings_of(flow, each)]]) for each in ([1, 15], [3], [])]
        tables.append(query.flush())
        found[panes] = bag_of_rows(flow, pa.concat_tables(tables))
    assert found[True] == found[False]
    assert sorted(event.payload[-1] for event in found[True]) == [1, 1, 3]


class _PaneScript(DataflowScript):
    """Windows over windows of the events of the crash runs."""

    @cached_property
    def plan(self) -> Dataflow:
        return replace(plans.windows_of_windows(), late="keep")


@pytest.mark.slow
def test_crash_at_a_sample_of_steps(tmp_path: Path) -> None:
    with small_sizes():
        runs = CrashRuns(_PaneScript(batches=4, budget=8 << 20), str(tmp_path))
        disk = runs.undisturbed()
        assert any(rows for rows, _ in runs.expected)
        every = disk.steps // 12
        runs.crash_everywhere(lambda step: step % every == 0)
    assert runs.points >= 12
    assert runs.differences == []
