from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from icestream.runtime.spark.placement import CachedPartitions
from tests.fixtures.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_hosts_are_those_of_executors(spark: SparkSession, cluster: Cluster) -> None:
    cluster.await_registered(spark)
    assert CachedPartitions(spark).hosts == {cluster.host(0), cluster.host(1)}
