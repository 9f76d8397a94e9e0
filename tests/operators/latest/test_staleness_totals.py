from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.kernels.queue.order import APPLICATION
from icestream.operators.latest.staleness_totals import ReaderStaleness
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.queue.queue import UpdateQueue
from tests.oracles.queue import PlainUpdateQueue

VALUES = pa.schema([("n", pa.int64())])


def test_oracle_versions_add_up_to_the_whole(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(64 << 20).account("test"))
    queue = UpdateQueue(VALUES, schedule="inplace", arrays=arena)
    plain = PlainUpdateQueue("inplace")
    dice = np.random.default_rng(2)
    areas = [0.0, 0.0]
    for version in range(12):
        count = int(dice.integers(1, 30))
        keys = dice.integers(0, 10, count).astype(np.uint64)
        times = np.sort(dice.integers(version * 1000, (version + 1) * 1000, count))
        queue.enqueue(keys, keys, times, pa.record_batch([np.arange(count)], schema=VALUES))
        now = (version + 1) * 1000
        taken = queue.dequeue(4, now)
        for key, at in zip(keys.tolist(), times.tolist(), strict=True):
            plain.enqueue(key, at, None)
        served = plain.dequeue(4, now)
        report = queue.staleness(now)
        kinds = zip(
            ReaderStaleness(arena, queue).close(now),
            (report.application, report.queue),
            strict=True,
        )
        for kind, ((whole, lately), reported) in enumerate(kinds):
            areas[kind] += lately.area
            assert whole.area == pytest.approx(areas[kind])
            exact = plain.staleness(now, application=kind == APPLICATION).values()
            averages = sorted(float(average) for average, _ in exact)
            assert whole.average == pytest.approx(sum(averages) / len(averages))
            assert whole.most == reported.most == max(most for _, most in exact)
            assert whole.quantile(0.99) == pytest.approx(reported.p99, rel=0.05)
            assert sum(whole.averages.values()) == len(averages)
            assert whole.key_quantile(1.0) == pytest.approx(averages[-1], rel=0.1, abs=1)
            middle = averages[-(-len(averages) // 2) - 1]
            assert whole.key_quantile(0.5) == pytest.approx(middle, rel=0.1, abs=1)
        queue.delivered(taken.id_high, taken.id_low, now + 100)
        for each in served:
            plain.deliver(each, now + 100)


def test_an_average_is_never_above_the_largest(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(64 << 20).account("test"))
    queue = UpdateQueue(VALUES, schedule="inplace", arrays=arena)
    for version in range(1, 6):
        now = version * 1_000_000
        keys = np.arange(version, dtype=np.uint64)
        # what comes new in a version was due long before it
        times = np.full(version, now - 900_000 * version, dtype=np.int64)
        queue.enqueue(keys, keys, times, pa.record_batch([np.arange(version)], schema=VALUES))
        taken = queue.dequeue(version, now)
        queue.delivered(taken.id_high, taken.id_low, now)
        for stale in chain(*ReaderStaleness(arena, queue).close(now)):
            assert stale.average <= stale.most
