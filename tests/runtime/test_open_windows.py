"""Rows of windows while these are open, beside aggregates over copies of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.windows.grid import Windows
from icestream.testing.sources import Item, StreamShape, drive
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import RATINGS, SECOND, PlanStream, dataflow
from tests.oracles.lifetimes import Bag
from tests.suites.dataflow_conformance import (
    DataflowConformance,
    bag_of_rows,
    expected_rows,
    open_dataflow,
    small_sizes,
    stream_of,
)


class _OpenConformance(DataflowConformance):
    """Rows beside those of the same query by copies, retracted ones included."""

    exact = True
    copying: ClassVar[Dataflow]

    def expected(self, items: Sequence[Item]) -> list[Bag]:
        return expected_rows(self.copying, items)


class TestOpenWindows(_OpenConformance):
    flow = plans.open_windows()
    copying = plans.open_windows(copies=True)


class TestOpenWindowsOfTops(_OpenConformance):
    flow = plans.open_windows_of_tops()
    copying = plans.open_windows_of_tops(copies=True)


class TestOpenWindowsOfObjects(_OpenConformance):
    flow = plans.open_windows_of_objects()
    copying = plans.open_windows_of_objects(copies=True)


@pytest.mark.parametrize("mode", ["update", "now"])
@pytest.mark.parametrize("make", [plans.open_windows, plans.open_windows_of_objects])
@pytest.mark.parametrize("chunk", [8, 64])
def test_oracle_rows_by_key_are_those_that_a_version_changed(
    mode: str, make: Callable[..., Dataflow], chunk: int, tmp_path: Path
) -> None:
    flow, copying = make(mode), make(copies=True)
    shape = StreamShape(
        events=300, batches=6, disorder=9 * SECOND, nulls=0.1, skew=1.5, gaps=1, groups=8
    )
    items = stream_of(flow, shape, chunk)
    with small_sizes(chunk=chunk):
        tables = drive(partial(open_dataflow, flow, tmp_path), items)
    before: Bag = Counter()
    for table, bag in zip(tables, expected_rows(copying, items), strict=True):
        wanted = Counter(event.payload for event in (bag - before).elements())
        found = Counter(event.payload for event in bag_of_rows(flow, table).elements())
        assert found == wanted
        before = bag
    assert len(before) > 100


def ratings(flow: Dataflow, times: Sequence[int], count: int = 1) -> pa.RecordBatch:
    """Return events of one user at some seconds, so many at each."""
    instants = np.repeat(np.array(times, np.int64) * SECOND, count)
    columns = [pa.array(instants).cast(flow.time), pa.array(np.zeros(len(instants), np.int32))]
    columns += [pa.array(np.ones(len(instants), np.int64))] * 2
    columns.append(pa.array(np.full(len(instants), 0.5)))
    return pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)


@pytest.mark.parametrize("mode", ["update", "now"])
def test_a_window_that_stays_the_same_is_not_emitted(mode: str, tmp_path: Path) -> None:
    """
    seconds     -20  -10   0    10   20   30
    maxima 0.5      |--------------)             windows of the event at 0
    0.5 again                 |--------------)   those of the event at 12 that are new
    """
    most = (Aggregate("max", "rating", "most"),)
    stream = PlanStream.of(RATINGS)
    rows = stream.open_windows(Windows(20 * SECOND, 2 * SECOND), ["user"], *most)
    flow = dataflow(rows, mode, slack=60 * SECOND)
    query = open_dataflow(flow, tmp_path)
    first, second, third = (query.feed([[ratings(flow, [at])]]) for at in (0, 12, 4))
    assert (first.num_rows, second.num_rows, third.num_rows) == (10, 6, 0)


def test_bounded_an_event_is_stored_once_however_many_windows_it_is_in(tmp_path: Path) -> None:
    stored = []
    for overlap, count in ((60, 50), (360, 50), (360, 500)):
        windows = Windows(overlap * SECOND, SECOND)
        sums = (Aggregate("count", None, "n"), Aggregate("sum", "rating", "total"))
        flow = dataflow(PlanStream.of(RATINGS).open_windows(windows, ["user"], *sums))
        query = open_dataflow(flow, tmp_path / f"{overlap} {count}", shards=1)
        (delivery,) = query.driver.batch(0, [[ratings(flow, range(400, 420), count)]])
        stored.append(delivery.progress["icestream"]["logBytes"])
    assert max(stored) < 1.1 * min(stored)
