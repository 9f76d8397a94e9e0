"""Aggregates without an inverse, with the store that keeps raw events."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.runtime.work.windows import raw_event_reader
from icestream.state.read_ahead import read_ahead
from icestream.testing.sources import (
    SECOND,
    Item,
    StreamShape,
    batches_of,
    drive,
    generate,
    restart,
    shapes,
)
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.grid import ObviousWindows, differences, rows_of
from tests.suites.window_conformance import QueryConformance, small_sizes

TWO = pa.schema([("x0", pa.float64()), ("x1", pa.int64())])
COUNT = Aggregate("count", None, "n")
MOST = Aggregate("max", "x1", "most")
FIRST = Aggregate("first", "x1", "earliest")


def plan_of(reach: str = "9 seconds", slide: str = "2 seconds") -> Plan:
    return window_plan(reach, slide, inputs=TWO, store="tuples")


def check(plan: Plan, items: list[Item], folder: str) -> None:
    oracle = ObviousWindows(plan)
    expected = [*(oracle.feed(batch) for batch in batches_of(items)), oracle.flush()]
    tables = drive(partial(open_query, plan, folder), items)
    for number, (table, rows) in enumerate(zip(tables, expected, strict=True)):
        assert not differences(rows_of(table), rows, len(plan.group_keys)), f"batch {number}"


@pytest.mark.slow
class TestRawEventsOfEveryAggregate(QueryConformance):
    """The suite, with raw events on the log."""

    plan = plan_of("10 seconds", "4 seconds")
    seeds = (1,)
    tiny_budget = 448 * 1024


def test_bounded_events_that_are_folded_again_come_through_the_pool(tmp_path: Path) -> None:
    plan = plan_of()
    shape = StreamShape(events=600, batches=5, span=60 * SECOND, aborts=0)
    pools: list[int] = []

    def noted(blocks: Generator[Any], pool: int) -> Generator[Any]:
        pools.append(pool)
        return read_ahead(blocks, pool)

    query = open_query(plan, str(tmp_path))
    with mock.patch.object(raw_event_reader, "read_ahead", noted):
        reported = [
            query.driver.batch(number, batch)[0].progress["icestream"]
            for number, batch in enumerate(batches_of(generate(plan, shape, 3)))
        ]
    assert set(pools) == {2}
    assert sum(each["blocksRead"] for each in reported) > len(reported)
    assert all((each["blocksRead"] > 0) == (each["blockBytesRead"] > 0) for each in reported)


@given(shape=shapes(span=30 * SECOND), seed=st.integers(0, 2**32))
@settings(max_examples=8)
def test_oracle_every_aggregate_from_raw_events(shape: StreamShape, seed: int) -> None:
    plan = plan_of()
    with tempfile.TemporaryDirectory() as folder, small_sizes():
        check(plan, generate(plan, shape, seed), folder)


def test_crash_rebuilt_shards_see_the_events_their_versions_saw(tmp_path: Path) -> None:
    plan = plan_of("7 seconds", "2 seconds")
    shape = StreamShape(events=300, groups=20, batches=12, disorder=6 * SECOND, gaps=1)
    for snapshot in (3, 30):
        items = restart(generate(plan, shape, snapshot), 3)
        with small_sizes(snapshot=snapshot):
            check(plan, items, str(tmp_path / str(snapshot)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("budget", ["16 MB", "440 KB"])
def test_oracle_views_of_raw_events_equal_views_alone(tmp_path: Path, budget: str) -> None:
    hopping = Windows(6 * SECOND, 2 * SECOND)
    views = (
        View(hopping, (COUNT, MOST), ((0, 1),), (0, 1)),
        View(hopping, (MOST,), ((1,),), (1,), mode="changes"),
        View(Windows(14 * SECOND, 4 * SECOND), (FIRST,), ((0,), ()), (0,), tells_grouping=True),
        View(Cumulative(8 * SECOND, 4 * SECOND), (MOST,), ((),), ()),
    )
    keys = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    plan = replace(
        window_plan(slack="1 second", inputs=TWO, keys=keys, aggregates=(COUNT,), store="tuples"),
        views=views,
    )
    shape = StreamShape(events=900, groups=500, batches=6, disorder=4 * SECOND, nulls=0.1, gaps=1)
    items = generate(plan, shape, 3)
    found: list[list[pa.Table]] = [[] for _ in views]
    with small_sizes(slice_bytes=4096):
        query = open_query(plan, str(tmp_path), budget=budget)
        for number, batch in enumerate(batches_of(items)):
            if number == 3:
                for run in os.listdir(tmp_path / "local"):
                    shutil.rmtree(tmp_path / "local" / run / "arenas")
            deliveries = query.driver.batch(query.next_batch, batch)
            for place, tables in enumerate(found):
                tables.append(query.rows(deliveries, place))
    for number, view in enumerate(views):
        oracle = ObviousWindows(plan, number)
        for table, batch in zip(found[number], batches_of(items), strict=True):
            known = len(view.keys) + view.tells_grouping
            assert not differences(rows_of(table), oracle.feed(batch), known), f"view {number}"
