from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.sql import SparkSession

from icestream.runtime.version import retention
from tests.faults.task_faults import FailAfter
from tests.fixtures.cluster import Cluster

if TYPE_CHECKING:
    from tests.cluster.conftest import Scene

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EXCHANGES = ("files", "storage")


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {}


@pytest.fixture
def undisturbed(expected: dict[str, Any], scene: Scene, spark: SparkSession) -> dict[int, Any]:
    """Return what a run gives that nothing happens to; it is run once."""
    if "rows" not in expected:
        expected["rows"] = scene.run(spark, "files")
        expected["late"] = scene.late(spark, scene.runs)
        assert sum(map(len, expected["rows"].values())) > 100
        assert expected["late"]
    rows: dict[int, Any] = expected["rows"]
    return rows


def test_oracle_both_exchanges_give_the_same_rows_on_a_cluster(
    undisturbed: dict[int, Any], expected: dict[str, Any], scene: Scene, spark: SparkSession
) -> None:
    assert scene.run(spark, "storage") == undisturbed
    assert scene.late(spark, scene.runs) == expected["late"]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_crash_an_executor_is_lost_between_commit_and_sink(
    exchange: str,
    undisturbed: dict[int, Any],
    scene: Scene,
    spark: SparkSession,
    cluster: Cluster,
) -> None:
    def lose(version: int) -> None:
        if version in (2, 4):
            cluster.kill_executor(version // 2 - 1)

    assert scene.run(spark, exchange, before_sink=lose) == undisturbed
    cluster.await_executors()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_crash_an_executor_is_lost_between_ingest_and_shards(
    exchange: str,
    undisturbed: dict[int, Any],
    expected: dict[str, Any],
    scene: Scene,
    spark: SparkSession,
    cluster: Cluster,
) -> None:
    def lose(version: int) -> None:
        if version == 3:
            cluster.kill_executor(0)

    assert scene.run(spark, exchange, before_shards=lose) == undisturbed
    assert scene.late(spark, scene.runs) == expected["late"]
    cluster.await_executors()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_crash_cached_handles_are_lost(
    exchange: str, undisturbed: dict[int, Any], scene: Scene, spark: SparkSession, cluster: Cluster
) -> None:
    def lose(version: int) -> None:
        if version == 3:
            for persisted in spark.sparkContext._jsc.getPersistentRDDs().values():
                if not persisted.name():
                    persisted.unpersist(True)
        if version == 5:
            cluster.kill_executor(1)

    found = scene.run(spark, exchange, before_shards=lose, apart=True)
    assert found == undisturbed
    assert any(scene.rebuilt())
    cluster.await_executors()


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("job", ["ingest", "shard"])
def test_crash_a_task_fails_after_its_work(
    exchange: str,
    job: str,
    undisturbed: dict[int, Any],
    expected: dict[str, Any],
    scene: Scene,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    scene.patch.setattr(retention, "SWEEP_EVERY", 1)
    mark = tmp_path / "struck"
    fault: dict[str, Any] = {job: FailAfter(3, 0, str(mark))}
    assert scene.run(spark, exchange, **fault) == undisturbed
    assert mark.exists()
    assert scene.late(spark, scene.runs) == expected["late"]
    assert scene.unnamed() == set()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_shards_return_to_their_arenas(exchange: str, scene: Scene, spark: SparkSession) -> None:
    scene.write_input(20)
    scene.run(spark, exchange, apart=True)
    assert len(scene.progress) == 21
    # of 40 times; where a shard is run does not depend on where its blobs come from
    assert sum(map(len, scene.rebuilt())) <= 4


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_shards_spread_again_when_an_executor_comes_back(
    exchange: str, undisturbed: dict[int, Any], scene: Scene, spark: SparkSession, cluster: Cluster
) -> None:
    def lose_and_wait(version: int) -> None:
        if version == 2:
            cluster.kill_executor(0)
        if version == 4:
            cluster.await_registered(spark)

    assert scene.run(spark, exchange, before_shards=lose_and_wait, apart=True) == undisturbed
    moved = [bool(shards) for shards in scene.rebuilt()]
    assert any(moved[1:3]), "the shards of the lost executor are rebuilt on the other"
    # on a slow machine the executor is back before the version that waits for it
    assert sum(moved[1:]) > 1, "some come back when there is room again"


def test_a_cluster_leaves_no_process_behind() -> None:
    with Cluster(workers=1) as own:
        pids = [process.pid for process in own._processes]
    assert not any(psutil.pid_exists(pid) for pid in pids)
