from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.cluster import Cluster

if TYPE_CHECKING:
    from tests.cluster.conftest import Scene

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

#: `python -m bench cluster` has twenty, every ten batches
KILLS = 4
EVERY = 4
#: seconds after the start of the shards' tasks in which the kill comes
MIDDLE = 0.2


def test_crash_an_executor_is_killed_in_every_fourth_batch(
    scene: Scene, spark: SparkSession, cluster: Cluster
) -> None:
    scene.write_input(EVERY * (KILLS + 1))
    undisturbed = scene.run(spark, "storage")
    dice, struck = random.Random(3), []

    def kill(version: int) -> None:
        if version % EVERY == 0 and version // EVERY <= KILLS and version not in struck:
            cluster.await_registered(spark)
            struck.append(version)
            worker = version // EVERY % 2
            later = dice.random() * MIDDLE
            threading.Timer(later, cluster.kill_executor, (worker,)).start()

    assert scene.run(spark, "storage", before_shards=kill, apart=True) == undisturbed
    assert len(struck) == KILLS
