"""Changing the number of tasks while a query runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from bench.adaptation.operators_of_state import OPERATORS
from icestream.core.errors import DefinitionError
from icestream.plan.balance import sizing
from icestream.plan.balance.sizing import SHRINK_AFTER, Sizing
from icestream.plan.nodes.updates import Updates
from icestream.runtime import local
from icestream.runtime.local import LocalQuery
from icestream.runtime.spark.tasks import cores_to_come
from icestream.runtime.version.quotas import LEAST_QUOTA, least_quota
from icestream.runtime.version.scaling import (
    next_sizing,
    placed,
    placement_report,
    spare_shards,
    task_bounds,
)
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.testing.moving_shards import SeparateDisks, separate_disks
from icestream.testing.sources import StreamShape, batches_of, generate
from tests.fixtures.checkpoints import KINDS, events
from tests.fixtures.parquet_feed import Feed, rows
from tests.fixtures.plans import QuickFiles, open_query, window_plan


def report(shard: int, seconds: float) -> ShardReport:
    return ShardReport(
        shard, "", [], [], snapshot=False, rebuilt=False, statistics={"seconds": seconds}
    )


def test_what_shards_take_is_smoothed_and_added_up_over_components() -> None:
    reports = [report(0, 1.0), report(1, 2.0), report(2, 0.5), report(3, 0.5)]
    first = placement_report(None, (0, 1), Sizing(2), reports)
    assert (first["tasks"], first["loads"], first["moved"]) == ([0, 1], [1.5, 2.5], 0)
    reports = [report(0, 3.5), report(1, 2.5), report(2, 0.0), report(3, 0.0)]
    second = placement_report(first, (1, 1), Sizing(2), reports)
    assert (second["tasks"], second["loads"], second["moved"]) == ([1, 1], [2.7, 2.5], 1)


def test_a_long_version_says_more_than_a_short_one_before_it() -> None:
    first = placement_report(None, (0, 1), Sizing(2), [report(0, 1.0), report(1, 0.0)])
    long = placement_report(first, (0, 1), Sizing(2), [report(0, 0.0), report(1, 3.0)])
    assert long["loads"] == [0.25, 2.25]
    short = placement_report(long, (0, 1), Sizing(2), [report(0, 0.1), report(1, 0.0)])
    assert short["loads"] == [0.175, 1.125]


def test_shards_move_only_when_it_is_worth_it() -> None:
    busy = {"parallelism": 2, "tasks": [0, 0, 1, 1], "loads": [2.0, 2.0, 0.1, 0.1], "moved": 0}
    assert placed(busy, 4, 2, rebalance=False) == (0, 0, 1, 1)
    assert placed(busy, 4, 2, rebalance=True) in {(1, 0, 1, 1), (0, 1, 1, 1)}
    brief = {**busy, "loads": [0.04, 0.03, 0.02, 0.01]}
    assert placed(brief, 4, 2, rebalance=True) == (1, 0, 0, 1)
    idle = {**busy, "loads": [0.02, 0.02, 0.001, 0.001]}
    assert placed(idle, 4, 2, rebalance=True) == (0, 0, 1, 1)


def test_every_hot_shard_gets_a_task_to_itself() -> None:
    hot = {"parallelism": 3, "tasks": [0, 0, 1, 1, 2], "loads": [5.0, 0.1, 4.0, 0.1, 0.3]}
    assert placed(hot, 5, 3, rebalance=True) == (0, 2, 1, 2, 2)


def test_a_commit_without_reasons_is_gone_on_from() -> None:
    before = {"parallelism": 3, "tasks": [0, 1, 2], "loads": [0.01, 0.01, 0.01], "moved": 0}
    found = next_sizing(before, task_bounds((2, 3), 3), batch=None, interval=None, cores=8)
    assert (found.tasks, found.fewer) == (3, 1)


class Loaded(SeparateDisks):
    """Says of shards that they took as long as told."""

    seconds = 0.0

    @property
    def parallel(self) -> int:
        """Return a number of cores."""
        return 4

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run the shards in turn."""
        reports = super().run(tasks)
        for each in reports:
            each.statistics["seconds"] = Loaded.seconds
        return reports


def test_oracle_tasks_follow_the_load_between_bounds(tmp_path: Path) -> None:
    course = [0.0] * 2 + [0.5] * 4 + [0.0] * (SHRINK_AFTER + 6)
    plan = window_plan("4 seconds", "2 seconds")
    batches = batches_of(generate(plan, StreamShape(events=400, batches=len(course)), 3))
    found: list[dict[str, Any]] = []
    tables: dict[str, list[pa.Table]] = {}
    for name in ("scaled", "still"):
        with mock.patch.object(local, "LocalExecutor", Loaded):
            query = open_query(plan, f"{tmp_path}/{name}", shards=8)
        query.rescale((1, 6) if name == "scaled" else 1)
        tables[name] = []
        for number, (seconds, batch) in enumerate(zip(course, batches, strict=True)):
            Loaded.seconds = seconds
            [delivery] = query.driver.batch(number, batch)
            tables[name].append(query.rows([delivery]))
            if name == "scaled":
                found.append(delivery.progress["icestream"])
    assert tables["scaled"] == tables["still"]
    tasks = [each["parallelism"] for each in found]
    assert tasks[:4] == [1] * 4, "a batch that is slow once is no reason"
    assert tasks[4:8] == [4] * 4, "there are no more cores than four"
    assert tasks[-1] == 1, "tasks without work go"
    assert "room for 0.20 s" in found[4]["parallelismBecause"]


@pytest.mark.parametrize("wrong", [0, -1, 9])
def test_no_more_tasks_than_shards(wrong: int) -> None:
    with pytest.raises(DefinitionError, match="1 to 8 tasks"):
        task_bounds(wrong, 8)
    with pytest.raises(DefinitionError, match="1 to 8 tasks"):
        task_bounds((1, wrong), 8)


@pytest.mark.parametrize(
    ("memory", "components", "cores", "shards"),
    [
        (64, 1, 2, 8),
        (64, 3, 2, 2),
        (32, 1, 2, 4),
        (192, 3, 2, 8),
        (256, 1, 2, 8),
        (512, 1, 2, 8),
        (768, 1, 2, 12),
        (1024, 1, 2, 16),
        (8192, 1, 2, 16),
        (8192, 1, 32, 128),
        (8192, 3, 2, 8),
        (8192, 12, 1, 8),
        (4, 1, 2, 2),
        (4, 1, 16, 16),
    ],
)
def test_shards_leave_room_to_grow(memory: int, components: int, cores: int, shards: int) -> None:
    least = components * LEAST_QUOTA
    found = spare_shards(memory << 20, components, least, tasks=cores, cores=cores)
    assert found == shards


def grown(kind: str, folder: Path, course: Sequence[int]) -> list[str]:
    """Run a query that said nothing of shards with little memory, in so many tasks by batch.

    Each task of an update stream serves a key even without time, so which values are superseded
    depends on their number: only the last answer of each key, or group of its windows, is the same.
    """
    plan = KINDS[kind].plan()
    memory = plan.jobs * (64 << 20)
    shards = spare_shards(memory, plan.jobs, plan.jobs * least_quota(plan), tasks=2, cores=2)
    settings = Settings(f"{folder}/checkpoint", f"{folder}/local", memory, shards, parallelism=2)
    query = LocalQuery(plan, settings, QuickFiles())
    found = []
    for batch, tasks in enumerate(course):
        query.rescale(tasks)
        [delivery] = query.driver.batch(batch, events(plan, batch))
        assert delivery.progress["icestream"]["parallelism"] == tasks
        found += query.rows([delivery]).to_pylist()
    found += query.flush().to_pylist()
    query.close()
    if isinstance(plan, Updates):
        groups = ("key",) if plan.windowed is None else plan.windowed.by
        found = list({tuple(row[name] for name in groups): row for row in found}.values())
    return sorted(map(repr, found))


FAST = ("windows", "groups", "joins", "updates")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "kind",
    [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in KINDS],
)
def test_a_query_that_says_nothing_can_grow_to_eight_tasks(tmp_path: Path, kind: str) -> None:
    with separate_disks():
        found = grown(kind, tmp_path / "grown", (2, 8, 8, 3))
    assert found == grown(kind, tmp_path / "still", (2, 2, 2, 2))
    assert found


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    "kind", ["windows of panes", "groups: join", "multi-join, defer", "updates"]
)
def test_a_query_on_spark_with_little_memory_can_grow_to_eight_tasks(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    instants = pa.array(np.arange(0, 40_000_000, 20_000)).cast(pa.timestamp("us", "UTC"))
    numbers = np.arange(len(instants))
    table = pa.table({"ts": instants, "key": numbers % 50, "value": numbers})
    feed = Feed(spark, f"{tmp_path}/in", table)
    kept = OPERATORS[kind]
    writer = kept.query(feed.stream()).writeStream.options(
        checkpointLocation=f"{tmp_path}/chk", **kept.options
    )
    query = writer.format("noop").memory("64 MB").start()
    query.processAllAvailable()
    query.rescale(8)
    feed.add(table)
    query.processAllAvailable()
    assert (query.lastProgress or {})["icestream"]["parallelism"] == 8
    query.stop()


def tables_of_events(count: int, seed: int) -> list[pa.Table]:
    """Return events of 50 keys, four seconds in each table."""
    dice = np.random.default_rng(seed)
    tables = []
    for batch in range(count):
        times = np.sort(dice.integers(batch * 4_000_000, (batch + 1) * 4_000_000, 400))
        column = pa.array(times).cast(pa.timestamp("us", "UTC"))
        tables.append(pa.table({"ts": column, "key": dice.integers(0, 50, 400)}))
    return tables


@pytest.mark.spark
def test_oracle_shards_of_a_running_query_split_and_merge(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = tables_of_events(7, seed=6)
    feed = Feed(spark, f"{tmp_path}/in", tables[0])
    result = ice.stream(feed.stream(), "ts").window("8 seconds", "2 seconds").groupBy("key").count()
    writer = result.writeStream.option("checkpointLocation", f"{tmp_path}/chk")
    writer = writer.option("path", f"{tmp_path}/out").memory("64 MB").shards(2).parallelism(2)
    query = writer.start()
    seen = []
    for number, table in enumerate(tables[1:]):
        query.processAllAvailable()
        if number == 0:
            query.rescale(8)
        if number == 2:
            query.rescale(1, 3, shards=3)
        if number == 4:
            query.stop()
            query = writer.start()
        feed.add(table)
        query.processAllAvailable()
        facts = (query.lastProgress or {})["icestream"]
        seen.append((facts["shardsOfComponent"], facts["parallelism"]))
    query.stop()
    shards, tasks = zip(*seen, strict=True)
    assert shards == (2, 8, 8, 3, 3, 3)
    assert tasks[:2] == (2, 8)
    window = sf.window("ts", "8 seconds", "2 seconds")
    closed = "window.end <= timestamp '1970-01-01 00:00:24Z'"
    expected = feed.batch().groupBy(window, "key").count().where(closed)
    found = spark.read.parquet(f"{tmp_path}/out").where(closed)
    assert sorted(rows(found, ("key",))) == sorted(rows(expected, ("key",)))


@pytest.mark.spark
def test_oracle_shards_follow_the_load_of_a_running_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = tables_of_events(7, seed=8)
    feed = Feed(spark, f"{tmp_path}/in", tables[0])
    result = ice.stream(feed.stream(), "ts").window("8 seconds", "2 seconds").groupBy("key").count()
    writer = result.writeStream.option("checkpointLocation", f"{tmp_path}/chk")
    writer = writer.option("path", f"{tmp_path}/out").memory("64 MB").shards(2).parallelism(1, 2)
    seen = []
    with mock.patch.object(sizing, "WORTH", 1e-4):
        query = writer.start()
        for table in tables[1:]:
            feed.add(table)
            query.processAllAvailable()
            facts = (query.lastProgress or {})["icestream"]
            seen.append((facts["shardsOfComponent"], facts["shardsWanted"]))
        query.stop()
    assert seen[0] == (2, 2)
    assert seen[-1][0] > 2, seen
    assert "a task has room for" in facts["shardsBecause"]
    window = sf.window("ts", "8 seconds", "2 seconds")
    closed = "window.end <= timestamp '1970-01-01 00:00:24Z'"
    expected = feed.batch().groupBy(window, "key").count().where(closed)
    found = spark.read.parquet(f"{tmp_path}/out").where(closed)
    assert sorted(rows(found, ("key",))) == sorted(rows(expected, ("key",)))


def test_executors_are_asked_for_with_dynamic_allocation() -> None:
    on = {"spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4"}

    def settings(**more: str) -> SparkConf:
        return SparkConf(loadDefaults=False).setAll(list({**on, **more}.items()))

    limited = {"spark.dynamicAllocation.maxExecutors": "5"}
    assert cores_to_come(settings(**limited)) == 20
    assert cores_to_come(settings()) > 1_000_000, "as many as the bounds of the query allow"
    assert cores_to_come(settings(**{"spark.dynamicAllocation.enabled": "false"})) == 0


@pytest.mark.spark
@pytest.mark.parametrize("exchange", ["files", pytest.param("storage", marks=pytest.mark.slow)])
def test_oracle_a_running_query_is_rescaled_without_a_trace(
    spark: SparkSession, tmp_path: Path, exchange: str
) -> None:
    tables = tables_of_events(6, seed=5)
    feed = Feed(spark, f"{tmp_path}/in", tables[0])
    result = ice.stream(feed.stream(), "ts").window("8 seconds", "2 seconds").groupBy("key").count()
    writer = result.writeStream.option("checkpointLocation", f"{tmp_path}/chk")
    writer = writer.option("path", f"{tmp_path}/out").option("exchange", exchange)
    query = writer.parallelism(2).memory("256 MB").start()
    seen = []
    for table, tasks in zip(tables[1:], (8, 3, 1, 5, 2), strict=True):
        query.processAllAvailable()
        query.rescale(tasks)
        feed.add(table)
        query.processAllAvailable()
        seen.append((query.lastProgress or {})["icestream"]["parallelism"])
    query.stop()
    assert seen == [8, 3, 1, 5, 2]
    window = sf.window("ts", "8 seconds", "2 seconds")
    closed = "window.end <= timestamp '1970-01-01 00:00:20Z'"
    expected = feed.batch().groupBy(window, "key").count().where(closed)
    found = spark.read.parquet(f"{tmp_path}/out").where(closed)
    assert sorted(rows(found, ("key",))) == sorted(rows(expected, ("key",)))
