"""Staleness of answers over windows, measured while they are served."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from bench.research.window_staleness import application_ramps
from icestream.kernels.queue.order import APPLICATION, QUEUE
from icestream.kernels.queue.windows import zones as z
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.report import ServingReport
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.operators.latest.window_staleness import WindowStaleness
from icestream.state.queue.arrays import HeapArrays
from icestream.state.queue.windows.spec import Semantics, UpdateWindows

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64())])
SPAN = 40


def opened(windows: UpdateWindows) -> tuple[WindowedUpdates, WindowStaleness]:
    core = WindowedUpdates(
        SCHEMA, keys=["k"], time="t", windows=windows, aggregates=[Aggregate("count", None, "n")]
    )
    return core, WindowStaleness(HeapArrays(), core.queue)


@pytest.mark.parametrize("semantics", ["lazy", "eager"])
@pytest.mark.parametrize("seed", range(3))
def test_oracle_staleness_of_windows_beside_its_definition(semantics: Semantics, seed: int) -> None:
    windows = UpdateWindows(10, 3 + seed, semantics)
    core, totals = opened(windows)
    dice = random.Random(seed)
    deliveries: dict[int, list[tuple[int, int]]] = {}
    made: list[tuple[int, int]] = []
    given: list[tuple[int, int]] = []
    areas, queued = 0.0, 0.0
    now = 1
    for batch in range(40):
        now = 1 + SPAN * (batch + 1)
        at = now - dice.randrange(1, 10)
        totals.delivered(at)
        for key, number in made:
            deliveries.setdefault(key, []).append((number, at))
        times = sorted(dice.sample(range(1 + SPAN * batch, now), dice.choice([0, 4, 20])))
        rows = [(int(3 * dice.random() ** 2), time) for time in times]
        given += rows
        totals.begins(1)
        core.enqueue(
            pa.RecordBatch.from_pylist([{"k": k, "t": t} for k, t in rows], schema=SCHEMA),
            np.array(times, dtype=np.int64),
        )
        made = []
        for count in [dice.randrange(1, 6)] * dice.randrange(3):
            since = core.queue.table[:, z.SINCE].copy()
            for row in core.serve(count).to_pylist():
                made.append((row["k"], row["window_start"] // windows.slide))
            totals.committed(core.committed, now)
            queued += float(((now - since[core.committed]) ** 2).sum() / 2)
        (whole, lately), (in_queue, queued_lately) = totals.close(now)
        areas += lately.area
        assert whole.area == pytest.approx(areas)
        assert lately.average <= lately.most <= whole.most
        assert queued_lately.average <= queued_lately.most <= in_queue.most
    keys = list(dict.fromkeys(key for key, _ in given))
    for cell, key in enumerate(keys):
        mine = np.array([time for each, time in given if each == key], dtype=np.int64)
        reported = np.array(deliveries.get(key, []), dtype=np.int64).reshape(-1, 2)
        ramps = application_ramps(windows, mine, mine, reported, now)
        assert totals.areas(APPLICATION)[cell] == pytest.approx(ramps.area)
    assert whole.most > SPAN
    waits = core.queue.table[(core.queue.table[:, z.STATES] & 1) != 0]
    queued += float(((now - waits[:, z.SINCE]) ** 2).sum() / 2)
    assert totals.areas(QUEUE).sum() == pytest.approx(queued)
    assert in_queue.area == pytest.approx(queued)
    assert sum(in_queue.averages.values()) == len(keys)
    assert in_queue.key_quantile(0.5) <= in_queue.key_quantile(1.0) <= in_queue.most


def test_the_cost_of_a_window_is_reported_beside_its_bounds() -> None:
    reported = ServingReport(served=10, tuples=300, serving=6_000, each=15.0)
    shown = reported.shown_windows(UpdateWindows(60, 20))
    assert shown["windowCost"] == {"tuples": 30.0, "ms": 0.6, "leastMs": 0.45, "mostMs": 0.9}
    assert "windowCost" not in ServingReport().shown_windows(UpdateWindows(60, 20))
