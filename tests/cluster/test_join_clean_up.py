"""Joins whose executors are killed while they clean up, beside DuckDB."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.api.writer import StreamWriter
from icestream.runtime.spark.tasks import SparkExecutor
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.work.dataflow import spilling
from tests.fixtures.cluster import Cluster
from tests.fixtures.parquet_feed import Feed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

BATCHES = 2
ROWS = 120
#: seconds after the start of the shards' tasks at which the kill comes
MIDDLE = 0.1


def rows_of(name: str, number: int) -> pa.Table:
    dice = np.random.default_rng([ord(name), number])
    times = 1_000_000 * (10 * number + np.sort(dice.integers(0, 10, ROWS)))
    return pa.table(
        {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            f"{name}1": dice.integers(0, 40, ROWS),
            f"{name}2": dice.integers(0, 40, ROWS),
            name: np.arange(number * ROWS, (number + 1) * ROWS),
        }
    )


def answer() -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for name in "abc":
            tables = [rows_of(name, number) for number in range(BATCHES)]
            connection.register(name, pa.concat_tables(tables).drop_columns(["ts"]))
        text = "SELECT a, b, c FROM a, b, c WHERE a1 = b1 AND b2 = c1"
        return Counter(connection.execute(text).fetchall())


@pytest.mark.parametrize("on_demand", [False, True])
def test_crash_executors_are_killed_in_the_middle_of_a_clean_up(
    spark: SparkSession,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_demand: bool,
) -> None:
    monkeypatch.setattr(spilling, "TURN_PARTITIONS", 8)
    struck: list[int] = []
    #: versions that clean up: all after the batches
    doomed = (BATCHES + 1,) if on_demand else (BATCHES + 2, BATCHES + 4)

    def kill(version: int) -> None:
        if version in doomed and version not in struck:
            cluster.await_registered(spark)
            struck.append(version)
            threading.Timer(MIDDLE, cluster.kill_executor, (len(struck) % 2,)).start()

    def run(self: SparkExecutor, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        kill(tasks[0].version)
        return run_tasks(self, tasks)

    run_tasks = SparkExecutor.run
    monkeypatch.setattr(SparkExecutor, "run", run)
    feeds = {
        name: Feed(spark, f"{tmp_path}/{name}", *(rows_of(name, n) for n in range(BATCHES)))
        for name in "abc"
    }

    def query() -> StreamWriter:
        a, b, c = (
            ice.stream(feed.stream(), time="ts", slack="1 hour")
            .events()
            .select(f"{name}1", f"{name}2", name)
            .forever()
            for name, feed in feeds.items()
        )
        how: Any = {"onPressure": "defer", "threshold": 0.001, "amount": 1.0}
        rows = a.join(b, on=[("a1", "b1")], **how).join(c, on=[("b2", "c1")], **how)
        made = rows.select("a", "b", "c").writeStream.format("parquet").shards(2).memory("64 MB")
        where = {"path": f"{tmp_path}/out", "checkpointLocation": f"{tmp_path}/chk"}
        return made.options(**where, localDir=f"{tmp_path}/local")

    if on_demand:
        query().trigger(availableNow=True).start().awaitTermination()
        cleaning = query().start()
        cleaning.cleanUp()
    else:
        cleaning = query().option("ticker", "100 milliseconds").start()
        cleaning.processAllAvailable()
    cleaning.stop()
    cluster.await_executors()
    assert struck == list(doomed)
    written = spark.read.parquet(f"{tmp_path}/out").select("a", "b", "c").toArrow().to_pylist()
    assert Counter(tuple(row.values()) for row in written) == answer()
