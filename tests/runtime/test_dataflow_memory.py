from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from icestream.runtime.holdings import Holdings
from icestream.runtime.local import LocalExecutor
from icestream.runtime.shard import ShardReport, ShardTask
from icestream.testing import dataflow_plans as plans
from icestream.testing.dataflow_conformance import open_dataflow, stream_of
from icestream.testing.sources import Shape, batches_of


def test_bounded_memory_goes_to_components_that_miss_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    run = LocalExecutor.run

    def noted(self: LocalExecutor, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        given.extend(task.quota for task in tasks)
        return run(self, tasks)

    monkeypatch.setattr(LocalExecutor, "run", noted)
    flow = plans.recommender()
    budget = 8 << 20
    query = open_dataflow(flow, tmp_path, budget=budget, shards=1)
    told: list[list[int]] = []
    for batch in batches_of(stream_of(flow, Shape(events=900, groups=40, batches=6), 1)):
        given.clear()
        (delivery,) = query.driver.batch(query.next_batch, batch)
        told.append(list(given))
        assert sum(given) <= budget
        assert delivery.progress["icestream"]["peakMemoryBytes"] <= budget
    alike = budget // flow.jobs
    assert set(told[0]) == {alike // 2}
    last: Any = query.driver.last
    held = Holdings.from_json(last.decisions["holdings"]).of
    most = max(held, key=lambda shard: held[shard].held)
    assert told[-1][most] > alike
    assert min(told[-1]) >= alike // 2


def test_a_query_goes_on_with_less_memory(tmp_path: Path) -> None:
    flow = plans.recommender()
    batches = list(batches_of(stream_of(flow, Shape(events=200, groups=20, batches=4), 1)))
    query = open_dataflow(flow, tmp_path, budget=24 << 20, shards=1)
    for batch in batches[:2]:
        query.feed(batch)
    query.close()
    query = open_dataflow(flow, tmp_path, budget=5 << 20, shards=1)
    for batch in batches[2:]:
        (delivery,) = query.driver.batch(query.next_batch, batch)
        assert delivery.progress["icestream"]["peakMemoryBytes"] <= 5 << 20
