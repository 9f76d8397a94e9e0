"""The disk budget: a query that needs more stops, and goes on with more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import BudgetError
from icestream.plan.nodes.queries import Plan
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.disk_use import folder_bytes
from icestream.runtime.version.settings import Settings
from tests.fixtures.plans import QuickFiles, window_plan


def opened(plan: Plan, folder: Path, disk: int | None) -> LocalQuery:
    settings = Settings(
        root=str(folder / "checkpoint"),
        local=str(folder / "local"),
        budget=16 << 20,
        shards=2,
        disk=disk,
    )
    return LocalQuery(plan, settings, QuickFiles())


def events(plan: Plan, number: int) -> pa.RecordBatch:
    times = number * 1_000_000 + np.arange(5_000) * 200
    columns = [
        pa.array(times).cast(plan.batch_schema.types[0]),
        pa.array(np.zeros(len(times), dtype=np.int32)),
        pa.array(np.arange(len(times)) % 2_000),
        pa.array(times / 8.0),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)


def test_a_query_goes_on_with_more_disk(tmp_path: Path) -> None:
    plan = window_plan("5 seconds", slack=0)
    free, bound = tmp_path / "free", tmp_path / "bound"
    whole = opened(plan, free, None)
    expected, reports = [], []
    for number in range(12):
        (delivery,) = whole.driver.batch(number, [[events(plan, number)]])
        expected += whole.rows([delivery]).to_pylist()
        reports.append(delivery.progress["icestream"])
    used = [report["diskBytes"] for report in reports]
    assert reports[-1]["diskBudgetBytes"] is None
    assert 0 < reports[-1]["logBytes"] <= used[-1] <= folder_bytes(str(free)) + used[-1] // 2
    disk, found, raised = used[0] + (max(used) - used[0]) // 2, [], 0
    query = opened(plan, bound, disk)
    for number in range(12):
        try:
            (delivery,) = query.driver.batch(number, [[events(plan, number)]])
        except BudgetError as error:
            raised += '.disk("' in str(error)
            before = query.driver.last
            query = opened(plan, bound, 2 * max(used))
            assert query.driver.last == before
            (delivery,) = query.driver.batch(number, [[events(plan, number)]])
        assert delivery.progress["icestream"]["diskBytes"] <= (2 * max(used) if raised else disk)
        found += query.rows([delivery]).to_pylist()
    assert raised == 1
    assert found == expected


def test_a_version_beyond_the_disk_is_refused_again_and_again(tmp_path: Path) -> None:
    plan = window_plan("5 seconds", slack=0)
    query = opened(plan, tmp_path, 1)
    for _ in range(2):
        with pytest.raises(BudgetError, match="may take 1 B"):
            query.driver.batch(0, [[events(plan, 0)]])
        query = opened(plan, tmp_path, 1)
        assert query.driver.last is None
