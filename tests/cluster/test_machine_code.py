from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.conftest import Scene
from tests.fixtures.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def executor_cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def spark(cluster: Cluster, executor_cache: Path) -> Iterator[SparkSession]:
    session = cluster.session("code", {"spark.executorEnv.XDG_CACHE_HOME": str(executor_cache)})
    yield session
    session.stop()


def test_executors_compile_nothing_that_the_driver_has(
    spark: SparkSession, scene: Scene, executor_cache: Path
) -> None:
    """The driver has warmed code; executors have an empty folder of their own."""
    rows = scene.run(spark, "storage")
    assert any(rows.values())
    folder = executor_cache / "icestream" / "kernels"
    [archive] = (folder / "received").iterdir()
    assert list(archive.glob("0/*/*.nbc"))
    own = [path for path in folder.rglob("*.nbc") if not path.is_relative_to(archive)]
    assert own == []
