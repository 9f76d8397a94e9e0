from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from icestream.runtime.version import retention
from tests.faults.task_faults import Linger
from tests.fixtures.cluster import Cluster

if TYPE_CHECKING:
    from tests.cluster.conftest import Scene

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

#: seconds that an attempt goes on after it has lost
LINGERING = 6.0


@pytest.fixture(scope="module")
def spark(cluster: Cluster) -> Iterator[SparkSession]:
    session = cluster.session(
        "speculation",
        {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.minTaskRuntime": "1s",
            "spark.locality.wait": "200ms",
            # a worker whose attempt was killed is left alone for so long
            "spark.python.task.killTimeout": "60s",
        },
    )
    yield session
    session.stop()


@pytest.mark.parametrize("exchange", ["files", "storage"])
def test_crash_an_attempt_that_lost_outlives_the_commit(
    exchange: str, scene: Scene, spark: SparkSession, tmp_path: Path
) -> None:
    """The attempt has claimed the arena of version 2 and still holds it when 3 and 4 are made.

    version        2         3                4        5
    first attempt            claim ....... sleep ....... release
    second attempt              rebuild, win  claim, go on
    """
    scene.patch.setattr(retention, "SWEEP_EVERY", 1)
    mark = tmp_path / "over"
    over_at_commit: dict[int, bool] = {}

    def look(version: int) -> None:
        over_at_commit[version] = mark.exists()
        if version == 4:
            _await(mark)

    struck = scene.run(spark, exchange, shard=Linger(3, 0, LINGERING, str(mark)), before_sink=look)
    assert not over_at_commit[2], "the attempt must outlive the commit of its version"
    assert scene.rebuilt()[2] == [0]
    assert scene.unnamed() == set()
    assert scene.run(spark, exchange) == struck


def _await(mark: Path) -> None:
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
