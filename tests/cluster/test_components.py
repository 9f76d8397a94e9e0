from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from tests.fixtures.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EVENTS = 400


def streams(spark: SparkSession, folder: Path) -> list[DataFrame]:
    """Write three tables, joined one after the other on different columns."""
    found = []
    for number, columns in enumerate(("a", "a, b", "b")):
        path = str(folder / f"in-{number}")
        picked = {"a": f"id * {number + 3} % 40 AS a", "b": f"id * {number + 5} % 30 AS b"}
        rows = spark.range(EVENTS).selectExpr(
            "timestamp_seconds(id) AS ts",
            f"id AS id{number}",
            *(picked[name] for name in columns.split(", ")),
        )
        rows.repartition(4).write.parquet(path)
        found.append(
            spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 2).parquet(path)
        )
    return found


def test_oracle_joins_on_other_keys_on_a_cluster_without_a_shared_disk(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    one, two, three = (
        ice.stream(stream, time="ts", slack="1 hour")
        .events()
        .forever()
        .select(*(name for name in stream.columns if name != "ts"))
        for stream in streams(spark, tmp_path)
    )
    joined = one.join(two, on="a").join(three, on="b").select("id0", "id1", "id2")
    rows: list[Any] = []

    def collect(batch: DataFrame, version: int) -> None:
        if version == 2:
            cluster.kill_executor(0)
        rows.extend(tuple(row[name] for name in ("id0", "id1", "id2")) for row in batch.collect())

    query = (
        joined.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("localDir", "arenas")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    tables = [spark.read.parquet(str(tmp_path / f"in-{number}")).drop("ts") for number in range(3)]
    expected = tables[0].join(tables[1], "a").join(tables[2], "b").select("id0", "id1", "id2")
    assert sorted(rows) == sorted(map(tuple, expected.collect()))
    assert rows
    exchanged = (tmp_path / "checkpoint" / "icestream" / "exchange").rglob("*")
    assert not any(path.is_file() for path in exchanged)
