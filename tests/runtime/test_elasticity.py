"""The memory of shards: of those in preparation, and of those on each host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from icestream.runtime.elasticity import Elasticity, buffers
from icestream.runtime.local import LocalExecutor, LocalQuery
from icestream.runtime.version.quotas import least_quota
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.task import OpenShard, ShardReport, ShardTask
from tests.fixtures.checkpoints import KINDS, events
from tests.fixtures.plans import QuickFiles

MB = 1 << 20


@pytest.mark.parametrize("kind", ["windows", "groups", "sessions"])
@pytest.mark.parametrize("budget", [12 * MB, 64 * MB])
def test_bounded_shards_are_prepared_in_the_memory_of_the_query(
    tmp_path: Path, kind: str, budget: int
) -> None:
    plan = KINDS[kind].plan()
    settings = Settings(f"{tmp_path}/checkpoint", f"{tmp_path}/local", budget, shards=3)
    prepared: list[int] = []
    running: dict[tuple[int, int], int] = {}
    opened, prepare = OpenShard.__init__, ShardTask.prepare

    def opening(shard: OpenShard, task: ShardTask, *rest: Any) -> None:
        opened(shard, task, *rest)
        running[task.version, task.shard] = task.quota
        beside_arena = shard._budget.held - shard._arena.bytes
        assert beside_arena >= buffers(task.quota), "a shard that waits has none of them"

    def preparing(task: ShardTask) -> str:
        prepared.append(task.quota)
        return prepare(task)

    query = LocalQuery(plan, settings, QuickFiles())
    with (
        mock.patch.object(OpenShard, "__init__", opening),
        mock.patch.object(ShardTask, "prepare", preparing),
    ):
        for batch in range(3):
            query.feed(events(plan, batch, 80, keys=30))
            query.rescale(1, shards=6)
    assert len(prepared) == 6
    # one of the three shards runs while others wait and one more is prepared
    quotas = [running[2, shard] for shard in range(3)]
    assert max(prepared) + sum(quotas) - 2 * buffers(min(quotas)) <= budget
    query.close()


def test_shards_are_not_prepared_without_memory(tmp_path: Path) -> None:
    plan = KINDS["windows"].plan()
    settings = Settings(f"{tmp_path}/checkpoint", f"{tmp_path}/local", 2 * MB, shards=1)
    query = LocalQuery(plan, settings, QuickFiles())
    query.rescale(1, shards=2)
    facts = []
    for batch in range(3):
        (made,) = query.driver.batch(batch, events(plan, batch, 80, keys=30))
        facts.append(made.progress["icestream"])
        query.rescale(1, shards=1)
    assert "one in preparation needs 1.0 MB" in facts[2]["shardsNotPrepared"]
    assert facts[2]["shardsOfComponent"] == facts[2]["shardsWanted"] == 1
    query.close()


@pytest.mark.parametrize("kind", ["windows", "groups"])
def test_a_part_of_the_memory_is_set_aside_if_it_is_enough(tmp_path: Path, kind: str) -> None:
    plan = KINDS[kind].plan()
    least = plan.jobs * least_quota(plan)
    settings = Settings(f"{tmp_path}/checkpoint", f"{tmp_path}/local", 64 * least, shards=4)
    executor: Any = SimpleNamespace(each=None, parallel=2, cores_to_come=0)
    elasticity = Elasticity(plan, settings, executor)
    assert elasticity.memory == 62 * least
    assert elasticity.memory_of(31 * least) == 31 * least, "too little for a shard"
    many = Elasticity(plan, replace(settings, budget=32 * least, shards=32), executor)
    assert many.memory == 32 * least, "too little for those that run"


@pytest.mark.parametrize("kind", ["windows", "groups", "sessions"])
def test_bounded_the_memory_of_each_host(tmp_path: Path, kind: str) -> None:
    """Four tasks run on one host, on three, and on one again; on three, one of them runs two.

    hosts      1    3    3    1    2
    memory   24 MB  48   48   24   48
    """
    plan, budget, shards = KINDS[kind].plan(), 24 * MB, 8
    quotas: list[int] = []
    run = LocalExecutor.run

    def running(executor: LocalExecutor, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        quotas.extend(each.quota for each in tasks)
        return run(executor, tasks)

    found = []
    for per_host in (False, True):
        settings = Settings(f"{tmp_path}/{per_host}", f"{tmp_path}/local", budget, shards=shards)
        settings = replace(settings, parallelism=4, rebalance=False, per_host=per_host)
        query = LocalQuery(plan, settings, QuickFiles())
        rows, memory = [], []
        for batch, hosts in enumerate((1, 3, 3, 1, 2)):
            quotas.clear()
            with (
                mock.patch.object(LocalExecutor, "hosts", hosts),
                mock.patch.object(LocalExecutor, "run", running),
            ):
                (made,) = query.driver.batch(batch, events(plan, batch, 80, keys=30))
            rows.append(query.rows([made]).to_pylist())
            memory.append(made.progress["icestream"]["budgetBytes"])
            of_host = shards if hosts == 1 else shards // 2
            assert not per_host or max(quotas) * of_host * plan.jobs <= budget
        query.close()
        found.append(rows)
        assert memory == [budget * (2 if per_host and n > 1 else 1) for n in (1, 3, 3, 1, 2)]
    assert found[0] == found[1]
    assert any(map(len, found[0]))
