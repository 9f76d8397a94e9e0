from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.api import query_settings
from icestream.runtime.spark import tasks
from icestream.runtime.spark.tasks import SparkExecutor
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import RESULTS, SEGMENTS, VersionStore
from icestream.state.versions.live_segments import live_at
from tests.faults.task_faults import FaultyExecutor
from tests.fixtures.cluster import Cluster

EVENTS = 300
KEYS = 20

#: rows of a version as text, in a fixed order
Rows = list[str]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def spark(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    session = cluster.session(request.path.stem)
    yield session
    session.stop()


@dataclass
class Scene:
    """Input files, and runs of one query over them."""

    folder: Path
    patch: pytest.MonkeyPatch
    runs: int = 0
    #: progress of the last run
    progress: list[dict[str, Any]] = field(default_factory=list)

    def write_input(self, files: int) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        for number in range(files):
            dice = np.random.default_rng([7, number])
            # 5 seconds of events in a file, some behind the slack, some behind their windows
            times = number * 5_000_000 + dice.integers(-2_000_000, 5_000_000, EVENTS)
            times[:9] -= 30_000_000
            events = {
                "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "key": pa.array([f"key {key}" for key in dice.integers(0, KEYS, EVENTS)]),
                "value": dice.normal(size=EVENTS),
            }
            path = self.folder / "in" / f"{number:03d}.parquet"
            pq.write_table(pa.table(events), path)
            os.utime(path, (1e9 + number, 1e9 + number))

    def run(
        self,
        spark: SparkSession,
        exchange: str,
        *,
        before_sink: Callable[[int], None] = lambda _version: None,
        **mishaps: Any,
    ) -> dict[int, Rows]:
        """Run the query to its end and return the rows of each version."""
        self.runs += 1
        found: dict[int, Rows] = {}

        def collect(rows: DataFrame, version: int) -> None:
            before_sink(version)
            assert version not in found
            found[version] = sorted(repr(row) for row in rows.collect())

        def struck(kind: Any) -> Callable[..., FaultyExecutor]:
            return lambda *given, **named: FaultyExecutor(kind(*given, **named), **mishaps)

        # faults are those of tasks: the driver reads nothing itself
        self.patch.setattr(tasks, "LITTLE", -1)
        with self.patch.context() as patch:
            patch.setattr(query_settings, "SparkExecutor", struck(SparkExecutor))
            query = self._result(spark).writeStream.foreachBatch(collect)
            started = (
                query.option("checkpointLocation", str(self.checkpoint))
                .option("localDir", str(self.folder / f"local-{self.runs}"))
                .option("exchange", exchange)
                .option("lateEvents", str(self.folder / f"late-{self.runs}"))
                .option("flush", True)
                .shards(2)
                .trigger(availableNow=True)
                .start()
            )
        started.awaitTermination()
        self.progress = started.recentProgress
        return found

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{self.runs}"

    def late(self, spark: SparkSession, run: int) -> Rows:
        late = spark.read.parquet(str(self.folder / f"late-{run}"))
        return sorted(repr(row) for row in late.collect())

    def unnamed(self) -> set[str]:
        """Return the segments and results of the last run that no version names."""
        root = self.checkpoint / "icestream"
        store = VersionStore(LocalFiles(), str(root))
        oldest = max(1, store.versions()[-1] - 1)
        named = {each.info.name for each in live_at(store, oldest)}
        for version in store.versions():
            commit = store.load(version)
            named |= {each.info.name for each in commit.added}
            named |= {info.name for info in (*commit.results, *commit.late)}
        return {
            path.name
            for folder in (SEGMENTS, RESULTS)
            for path in (root / folder).iterdir()
            if path.name not in named
        }

    def rebuilt(self) -> list[list[int]]:
        return [each["icestream"]["rebuiltShards"] for each in self.progress]

    def _result(self, spark: SparkSession) -> Any:
        events = (
            spark.readStream.schema("ts timestamp, key string, value double")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.folder / "in"))
        )
        return (
            ice.stream(events, time="ts", slack="1 second")
            .window("20 seconds", slide="5 seconds")
            .groupBy("key")
            .agg(
                ice.count().alias("n"),
                ice.sum("value").alias("total"),
                ice.min("value").alias("least"),
            )
        )


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path, monkeypatch)
    made.write_input(6)
    return made
