"""Shards that rest while a version has nothing to do for them: no row changes, and few run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Cumulative
from icestream.runtime.local import LocalExecutor, LocalQuery, Splits
from icestream.runtime.version import resting
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.state.snapshot_schedule import AT_LATEST
from icestream.state.versions.commits import VersionStore
from tests.fixtures.plans import QuickFiles, open_query, window_plan

SECOND = 1_000_000
SHARDS = 12
BATCHES = 60
SOME = (Aggregate("count", None, "n"), Aggregate("sum", "value", "total"))
#: with minima, which have fronts that are made when windows turn
MORE = (*SOME, Aggregate("min", "value", "least"))

PLANS = {
    "tumbling": window_plan("10 seconds", aggregates=SOME),
    "sliding": window_plan("10 seconds", "3 seconds", aggregates=SOME),
    "sliding, minima": window_plan("12 seconds", "3 seconds", aggregates=MORE),
    "cumulative": window_plan(windows=Cumulative(12 * SECOND, 4 * SECOND), aggregates=SOME),
    "updates": window_plan("10 seconds", "5 seconds", aggregates=SOME, mode="changes"),
}


def _batch(plan: Plan, number: int) -> Splits:
    """Return few events of few keys, some of them late, with pauses in between."""
    dice = np.random.default_rng(number)
    count = int(dice.integers(1, 6))
    begin = (number + 25 * (number // 20)) * 2 * SECOND
    times = begin + dice.integers(0, 2 * SECOND, count)
    times[dice.random(count) < 0.2] -= int(dice.integers(1, 15)) * SECOND
    keys = dice.integers(0, 4, count) + 4 * (number // 15)
    values = dice.integers(0, 100, count).astype(np.float64)
    columns = [pa.array(np.sort(times)).cast(plan.time), np.zeros(count, np.int32), keys, values]
    schema = plan.batch_schema
    arrays = [pa.array(each).cast(field.type) for each, field in zip(columns, schema, strict=True)]
    return [[pa.RecordBatch.from_arrays(arrays, schema=schema)]]


@contextmanager
def _counted() -> Iterator[list[list[int]]]:
    """Record the shards that each version runs."""
    ran: list[list[int]] = []
    run = LocalExecutor.run

    def running(executor: LocalExecutor, tasks: list[ShardTask]) -> list[ShardReport]:
        ran.append([task.shard for task in tasks])
        return run(executor, tasks)

    with mock.patch.object(LocalExecutor, "run", running):
        yield ran


def _lines(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


def _resting_not_at_all() -> mock._patch[int]:
    return mock.patch.object(resting, "AT_LATEST", 0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", PLANS)
def test_oracle_shards_that_rest_change_no_row(tmp_path: Path, kind: str) -> None:
    plan = PLANS[kind]
    first = open_query(plan, f"{tmp_path}/first", budget="64 MB", shards=SHARDS)
    second = open_query(plan, f"{tmp_path}/second", budget="64 MB", shards=SHARDS)
    with _counted() as ran:
        for number in range(BATCHES):
            batch = _batch(plan, number)
            found = _lines(first.feed(batch))
            with _resting_not_at_all():
                assert found == _lines(second.feed(batch)), number
    tasks = [len(shards) for shards in ran[::2]]
    if kind == "updates":
        assert set(tasks) == {SHARDS}, "windows without events are reported too"
    else:
        assert sum(tasks) < BATCHES * SHARDS / 2
    assert _lines(first.flush()) == _lines(second.flush())
    first.close()
    second.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["tumbling", "sliding, minima", "cumulative"])
def test_crash_shards_that_rest_are_restored(tmp_path: Path, kind: str) -> None:
    plan = PLANS[kind]
    calm = open_query(plan, f"{tmp_path}/calm", budget="64 MB", shards=SHARDS)
    query = open_query(plan, f"{tmp_path}/other", budget="64 MB", shards=SHARDS)
    for number in range(BATCHES):
        batch = _batch(plan, number)
        with _resting_not_at_all():
            expected = _lines(calm.feed(batch))
        if number % 7 == 3:
            # no arena is left, nor what is known of any shard
            query = open_query(plan, f"{tmp_path}/other", budget="64 MB", shards=SHARDS)
        if number % 7 == 6:
            shutil.rmtree(Path(query.driver._run) / "arenas")
        if number == BATCHES // 2:
            query.rescale(1, shards=SHARDS + 5)
        assert _lines(query.feed(batch)) == expected, number
    assert _lines(query.flush()) == _lines(calm.flush())
    query.close()
    calm.close()


def test_shards_rest_until_a_snapshot_is_due(tmp_path: Path) -> None:
    plan = PLANS["sliding"]
    query = open_query(plan, str(tmp_path), budget="64 MB", shards=SHARDS)
    store = VersionStore(QuickFiles(), query.driver.store.root)
    with _counted() as ran:
        for number in range(2 * AT_LATEST + 5):
            batch = _batch(plan, number % 2)
            query.feed([[each.slice(0, 1) for each in split] for split in batch])
            last = store.load(number + 1)
            assert min(last.bases) >= number + 1 - AT_LATEST
    assert sum(map(len, ran)) < len(ran) * SHARDS / 2
    assert {len(set(last.arenas))} == {SHARDS}
    query.close()


def test_a_version_without_work_runs_no_task(tmp_path: Path) -> None:
    plan = PLANS["sliding"]
    query = open_query(plan, str(tmp_path), budget="64 MB", shards=SHARDS)
    batch = _batch(plan, 0)
    query.feed(batch)
    before = query.driver.last
    none = [[each.slice(0, 0) for each in split] for split in batch]
    with _counted() as ran:
        (made,) = query.driver.batch(query.next_batch, none)
    assert ran == []
    assert before is not None
    assert made.commit.arenas == before.arenas
    facts = made.progress["icestream"]
    assert facts["groups"] > 0
    assert facts["shards"]["seconds"] == [0.0] * SHARDS
    query.close()


def test_a_failed_version_leaves_what_is_known_of_shards(tmp_path: Path) -> None:
    plan = PLANS["sliding"]
    query: LocalQuery = open_query(plan, str(tmp_path), budget="64 MB", shards=SHARDS)
    calm = open_query(plan, f"{tmp_path}/calm", budget="64 MB", shards=SHARDS)
    create = VersionStore.create
    for number in range(20):
        batch = _batch(plan, number)
        if number % 3 == 1:
            with (
                mock.patch.object(VersionStore, "create", side_effect=RuntimeError("stop")),
                pytest.raises(RuntimeError, match="stop"),
            ):
                query.feed(batch)
        assert VersionStore.create is create
        with _resting_not_at_all():
            expected = _lines(calm.feed(batch))
        assert _lines(query.feed(batch)) == expected, number
    query.close()
    calm.close()
