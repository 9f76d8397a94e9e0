"""Object aggregates over frames as whole queries, beside every window alone and beside SQL."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.features import (
    UP_TO_ROW,
    UP_TO_TIME,
    FeatureCall,
    rows_at_slides,
    with_features,
)
from icestream.plan.nodes.events import FromSource
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.testing.sources import SECOND
from tests.fixtures import dataflow_plans as plans
from tests.oracles.object_aggregates import settled
from tests.oracles.objects_over import obvious_features
from tests.runtime.test_over import PAYMENTS, batches, payments, small_blocks
from tests.suites.dataflow_conformance import DataflowConformance, open_dataflow, small_sizes

TYPES = {each.name: each.type for each in PAYMENTS}
SPREAD = UserAggregate(
    lift=lambda value: None if value is None else (value, value),
    combine=lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    lower=lambda state: state[1] - state[0],
    result=pa.int64(),
    title="spread",
)
FRAMES = (
    Frame(range=5 * SECOND, peers=True),
    Frame(range=70 * SECOND, peers=True),
    Frame(range=20 * SECOND),
    Frame(rows=1),
    Frame(rows=7),
    Frame(rows=4, range=30 * SECOND + 1),
    UP_TO_TIME,
    UP_TO_ROW,
)
FUNCTIONS: tuple[tuple[str, tuple[str, ...], tuple[object, ...]], ...] = (
    ("percentile", ("units",), ((0.25, 0.9),)),
    ("percentile", ("amount",), (0.5,)),
    ("percentile", ("amount", "card"), (0.3,)),
    ("median", ("units",), ()),
    ("count_distinct", ("shop",), ()),
    ("count_distinct", ("shop", "units"), ()),
    ("mode", ("units",), ()),
    ("mode", ("shop",), ()),
    ("collect_list", ("units",), ()),
    ("collect_list", ("shop",), ()),
    ("collect_set", ("shop",), ()),
    ("collect_set", ("units",), ()),
    ("min", ("shop",), ()),
    ("max", ("shop",), ()),
    ("first", ("shop",), ()),
    ("last", ("shop",), (True,)),
    ("min_by", ("shop", "amount"), ()),
    ("max_by", ("units", "shop"), ()),
    ("approx_count_distinct", ("units",), ()),
    ("approx_percentile", ("units",), (0.5,)),
    ("user", ("units",), (SPREAD,)),
    ("sum", ("units",), ()),
    ("avg", ("amount",), ()),
    ("max", ("units",), ()),
    ("count", (), ()),
)


class TestOverObjects(DataflowConformance):
    flow = plans.over_objects()
    exact = True

    def check_cold(self, folder: Path, flow: Dataflow, *, reopen: bool = False) -> None:
        with small_blocks():
            super().check_cold(folder, flow, reopen=reopen)


class TestObjectsAtSlides(TestOverObjects):
    flow = plans.objects_at_slides()


def drawn(dice: np.random.Generator, count: int) -> list[FeatureCall]:
    """Draw functions, each over a frame and by keys."""
    calls = []
    for number in range(count):
        function, columns, parameters = FUNCTIONS[int(dice.integers(len(FUNCTIONS)))]
        keys = (("card",), ("shop",), ("card", "shop"), ())[int(dice.integers(4))]
        frame = FRAMES[int(dice.integers(len(FRAMES)))]
        calls.append(FeatureCall(function, columns, f"f{number}", keys, frame, parameters))
    return calls


def check(
    folder: Path, calls: list[FeatureCall], table: pa.Table, step: int, slack: int, **sizes: Any
) -> None:
    """Run a query, restarted once, and compare its rows with those of every window alone."""
    node = with_features(FromSource(PAYMENTS), calls)
    flow = plans.dataflow(plans.PlanStream(node), "append", (PAYMENTS,), slack=slack)
    made = []
    query = open_dataflow(flow, folder, **sizes)
    for number, batch in enumerate(batches(flow, table, step)):
        if number == 2:
            query = open_dataflow(flow, folder, **sizes)
        made.append(query.feed([[batch]]))
    rows = pa.concat_tables([*made, query.flush()]).sort_by("no").to_pylist()
    expected = obvious_features(table.to_pylist(), calls, TYPES)
    assert len(rows) == len(expected)
    names = [each.name for each in calls]
    for row, wanted in zip(rows, expected, strict=True):
        for name, call in zip(names, calls, strict=True):
            assert settled([(row[name],)]) == settled([(wanted[name],)]), (row["no"], call)


@pytest.mark.parametrize(
    "seed", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))]
)
def test_oracle_objects_over_frames_beside_every_window_alone(seed: int, tmp_path: Path) -> None:
    dice = np.random.default_rng(seed)
    table, slack = payments(seed, int(dice.integers(50, 300))), 3 * SECOND
    if dice.random() < 0.3:
        # many events of equal time
        slack = 30 * SECOND
        times = np.asarray(table["t"]) // slack * slack
        table = table.set_column(0, "t", pa.array(times))
        slack += 3 * SECOND
    step, shards = int(dice.integers(20, 90)), int(dice.integers(1, 4))
    check(tmp_path, drawn(dice, 6), table, step, slack, shards=shards)


def test_oracle_every_aggregate_of_rows_within_a_range(tmp_path: Path) -> None:
    frame = Frame(rows=4, range=30 * SECOND + 1)
    calls = [
        FeatureCall(function, columns, f"f{number}", ("card",), frame, parameters)
        for number, (function, columns, parameters) in enumerate(FUNCTIONS)
    ]
    check(tmp_path, calls, payments(70, 200), 60, 3 * SECOND)


SLID = (
    Frame(range=20 * SECOND, slide=RowsSlide(3)),
    Frame(rows=7, slide=RowsSlide(4)),
    Frame(rows=2, slide=RowsSlide(5)),
    Frame(rows=4, range=30 * SECOND, slide=RowsSlide(3)),
    Frame(rows=5, slide=20 * SECOND),
    Frame(rows=40, slide=7 * SECOND),
)


@pytest.mark.parametrize("frame", SLID, ids=str)
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_oracle_objects_at_slides_beside_every_window_alone(
    seed: int, frame: Frame, tmp_path: Path
) -> None:
    """Every aggregate of a frame with a slide has the answer of the event where a window ends."""
    dice = np.random.default_rng(seed)
    keys = (("card",), ("shop",), ("card", "shop"), ())[int(dice.integers(4))]
    table, step = payments(seed, 250), int(dice.integers(20, 90))
    calls = [
        FeatureCall(function, columns, f"f{number}", keys, replace(frame, slide=None), parameters)
        for number, (function, columns, parameters) in enumerate(FUNCTIONS)
    ]
    asked = [Aggregate.of(e.function, e.texts, e.name, e.parameters) for e in calls]
    time = pa.field("time", pa.timestamp("us"))
    node = rows_at_slides(FromSource(PAYMENTS), frame, time, keys, asked)
    flow = plans.dataflow(plans.PlanStream(node), "append", (PAYMENTS,), slack=3 * SECOND)
    shards, found = int(dice.integers(1, 4)), []
    query = open_dataflow(flow, tmp_path, shards=shards)
    for number, batch in enumerate(batches(flow, table, step)):
        if number == 2:
            query = open_dataflow(flow, tmp_path, shards=shards)
        found.append(query.feed([[batch]]))
    rows = pa.concat_tables([*found, query.flush()])
    rows = rows.set_column(0, "time", rows.column("time").cast(pa.int64()))
    events = table.to_pylist()
    features = obvious_features(events, calls, TYPES)
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place in np.argsort(np.asarray(table["t"]), kind="stable").tolist():
        groups[tuple(events[place][key] for key in keys)].append(place)
    expected = []
    for key, places in groups.items():
        if isinstance(frame.slide, RowsSlide):
            every = frame.slide.rows
            chosen = [(events[each]["t"], each) for each in places[every - 1 :: every]]
        else:
            chosen = list({frame.due(events[each]["t"]): each for each in places}.items())
        expected += [(at, *key, *(features[each][e.name] for e in calls)) for at, each in chosen]
    made = settled([tuple(row.values()) for row in rows.to_pylist()])
    assert sorted(map(repr, made)) == sorted(map(repr, settled(expected)))


def test_bounded_little_memory_and_many_groups(tmp_path: Path) -> None:
    calls = drawn(np.random.default_rng(8), 8)
    with small_sizes(quota=1024, chunk=64), small_blocks():
        budget = 600 << 10
        check(tmp_path, calls, payments(9, 400), 50, 3 * SECOND, shards=1, budget=budget)


#: columns of DuckDB beside features
SQL = {
    "half": ("percentile", ("amount",), (0.5,), "quantile_cont(amount, 0.5)"),
    "ninth": ("percentile", ("units",), (0.9,), "quantile_cont(units, 0.9)"),
    "shops": ("count_distinct", ("shop",), (), "count(DISTINCT shop)"),
    "least": ("min", ("shop",), (), "min(shop)"),
    "most": ("max", ("shop",), (), "max(shop)"),
    "all": ("collect_list", ("shop",), (), "list(shop) FILTER (WHERE shop IS NOT NULL)"),
    "set": (
        "collect_set",
        ("units",),
        (),
        "list_sort(list(DISTINCT units) FILTER (WHERE units IS NOT NULL) {})",
    ),
}
OVER = {
    "OVER (PARTITION BY card ORDER BY t RANGE 60000000 PRECEDING)": Frame(
        range=60 * SECOND, peers=True
    ),
    "OVER (PARTITION BY card ORDER BY t, no ROWS 4 PRECEDING)": Frame(rows=5),
    "OVER (PARTITION BY card ORDER BY t)": UP_TO_TIME,
}


def test_oracle_objects_over_frames_are_those_of_sql(tmp_path: Path) -> None:
    calls, columns = [], []
    for place, (over, frame) in enumerate(OVER.items()):
        for name, (function, inputs, parameters, text) in SQL.items():
            called = text.format(over) if "{}" in text else f"{text} {over}"
            columns.append(f"{called} AS {name}{place}")
            given = (function, inputs, f"{name}{place}", ("card",), frame, parameters)
            calls.append(FeatureCall(*given))
    table = payments(31, 900)
    node = with_features(FromSource(PAYMENTS), calls)
    flow = plans.dataflow(plans.PlanStream(node), "append", (PAYMENTS,), slack=3 * SECOND)
    query = open_dataflow(flow, tmp_path)
    made = [query.feed([[batch]]) for batch in batches(flow, table, 250)]
    rows = pa.concat_tables([*made, query.flush()]).sort_by("no").to_pylist()
    with duckdb.connect() as database:
        database.register("payments", table)
        found = database.sql(f"SELECT no, {', '.join(columns)} FROM payments ORDER BY no")
        expected = found.to_arrow_table().to_pylist()
    for row, wanted in zip(rows, expected, strict=True):
        for name, value in wanted.items():
            if isinstance(value, float):
                assert row[name] == pytest.approx(value, rel=1e-12)
            else:
                # DuckDB lists nothing as null
                assert (row[name] or None) == (value or None), (row["no"], name)
