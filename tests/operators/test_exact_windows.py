"""Sums of doubles over windows of every kind are exact: equal to fractions, rounded once.

Values are spread over all exponents of doubles, cancel each other, and some are infinite or NaN.
Rows must have the same bits whatever the batches and restarts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative
from icestream.plan.windows.session import Session
from icestream.testing.sources import (
    SECOND,
    Item,
    StreamShape,
    batches_of,
    drive,
    random_events,
    restart,
)
from tests.fixtures.plans import open_query, window_plan
from tests.operators.frames.test_operator import small_blocks
from tests.oracles.arrivals import Row
from tests.oracles.frames import ObviousFrames, frame_rows
from tests.oracles.grid import ObviousWindows, differences, rows_of
from tests.oracles.sessions import ObviousSessions
from tests.suites.window_conformance import small_sizes

INPUTS = pa.schema([("x", pa.float64()), ("y", pa.float64())])
SUMS = (
    Aggregate("sum", "x", "total"),
    Aggregate("avg", "x", "mean"),
    Aggregate("var_pop", "x", "variance"),
    Aggregate("covar_samp", "x", "covariance", ("y",)),
    Aggregate("weighted_avg", "x", "weighted", ("y",)),
)
WITH_EXTREMES = (*SUMS, Aggregate("max", "x", "most"))


def windows(*args: Any, aggregates: Sequence[Aggregate] = SUMS, **options: Any) -> Plan:
    return window_plan(*args, inputs=INPUTS, aggregates=aggregates, slack="2 seconds", **options)


PLANS = {
    "sliding": windows("8 seconds", "2 seconds"),
    "sliding beside extremes": windows("7 seconds", "3 seconds", aggregates=WITH_EXTREMES),
    "sliding from tuples": windows("8 seconds", "2 seconds", store="tuples"),
    "extremes from tuples": windows(
        "8 seconds", "2 seconds", aggregates=WITH_EXTREMES, store="tuples"
    ),
    "updates": windows("8 seconds", "2 seconds", mode="changes"),
    "tumbling": windows("5 seconds"),
    "cumulative": windows(windows=Cumulative(12 * SECOND, 3 * SECOND, SECOND)),
    "range": windows(windows=Frame(range=6 * SECOND)),
    "range beside extremes": windows(windows=Frame(range=6 * SECOND), aggregates=WITH_EXTREMES),
    "rows of a key": windows(windows=Frame(rows=4, partition="key"), aggregates=WITH_EXTREMES),
    "rows of the stream": windows(windows=Frame(rows=9, partition="stream")),
    "sessions": windows(windows=Session(2 * SECOND)),
}


def doubles(dice: np.random.Generator, count: int) -> pa.Array:
    """Return values over the whole range of doubles, most of them twice with either sign."""
    kinds = [
        np.ldexp(dice.uniform(1, 2, count), dice.integers(-1074, 1024, count)),
        dice.choice([1e308, 1e36, 1e18, 1.0, 0.1, 5e-324, 0.0], count),
        np.round(dice.uniform(0, 1000, count), 2),
    ]
    values = np.choose(dice.integers(0, 3, count), kinds) * dice.choice([-1.0, 1.0], count)
    values[1::2] = np.where(dice.random(len(values[1::2])) < 0.4, -values[:-1:2], values[1::2])
    special = dice.random(count) < 0.03
    values[special] = dice.choice([np.inf, -np.inf, np.nan], int(special.sum()))
    return pa.array(values, mask=dice.random(count) < 0.05)


def stream(plan: Plan, seed: int, events: int = 270) -> pa.RecordBatch:
    dice = np.random.default_rng(seed)
    shape = StreamShape(events=events, groups=3, span=60 * SECOND)
    batch = random_events(plan, shape, dice)
    batch = batch.take(pa.array(np.argsort(batch.column("time").cast(pa.int64()), kind="stable")))
    for name in INPUTS.names:
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(name), doubles(dice, batch.num_rows))
    return batch


def cut(batch: pa.RecordBatch, batches: int) -> list[Item]:
    step = -(-batch.num_rows // batches)
    return [[[batch.slice(at, step)]] for at in range(0, batch.num_rows, step)]


def rows_in(plan: Plan, table: pa.Table) -> list[Row]:
    if isinstance(plan.views[0].windows, Frame):
        return frame_rows(table, len(plan.group_keys))
    return rows_of(table)


def found(plan: Plan, items: Sequence[Item]) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, small_sizes(), small_blocks():
        tables = drive(partial(open_query, plan, folder, budget="16 MB"), items)
    return [row for table in tables for row in rows_in(plan, table)]


def expected(plan: Plan, items: Sequence[Item]) -> list[Row]:
    kind = plan.views[0].windows
    oracle: Any = ObviousWindows(plan)
    if isinstance(kind, Session):
        oracle = ObviousSessions(plan)
    elif isinstance(kind, Frame):
        oracle = ObviousFrames(plan)
    rows = [row for batch in batches_of(items) for row in oracle.feed(batch)]
    return [*rows, *oracle.flush()]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", PLANS)
def test_oracle_sums_of_doubles_are_exact_whatever_the_batches(name: str) -> None:
    plan = PLANS[name]
    batch = stream(plan, len(name))
    whole = cut(batch, 1)
    once = found(plan, whole)
    wrong = differences(once, expected(plan, whole), len(plan.group_keys), tolerance=0.0)
    assert not wrong, wrong[:3]
    if plan.views[0].mode == "changes":
        return
    for batches in (9, 90):
        items = restart(cut(batch, batches), every=batches // 3)
        assert sorted(map(repr, found(plan, items))) == sorted(map(repr, once)), batches
