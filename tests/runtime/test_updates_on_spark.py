from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.core.errors import DefinitionError
from tests.fixtures.parquet_feed import Feed

SECOND = 1_000_000
SCORES = "symbol string, price long"


def quotes(first: int, last: int, symbols: int = 50) -> pa.Table:
    numbers = list(range(first, last))
    return pa.table(
        {
            "ts": pa.array([n * SECOND // 10 for n in numbers], pa.timestamp("us", "UTC")),
            "symbol": [f"s{n % symbols}" for n in numbers],
            "price": pa.array(numbers, pa.int64()),
        }
    )


def slow(rows: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.005 * rows.num_rows)
    return rows.select(["symbol", "price"])


class Collected:
    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self.rows = 0

    def __call__(self, rows: DataFrame, version: int) -> None:
        for row in rows.collect():
            assert self.newest.get(row["symbol"], -1) <= row["price"]
            self.newest[row["symbol"]] = row["price"]
            self.rows += 1


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, str(tmp_path / "in"), quotes(0, 1000))


def expected(count: int, symbols: int = 50) -> dict[str, int]:
    return {f"s{n % symbols}": n for n in range(count)}


def test_oracle_available_now_ends_with_the_newest_of_every_key(feed: Feed, tmp_path: Path) -> None:
    seen = Collected()
    stream = ice.stream(feed.stream(), time="ts")
    query = (
        stream.latestBy("symbol", budget="20 milliseconds")
        .apply(slow, SCORES)
        .writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(tmp_path / "chk"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert seen.newest == expected(1000)
    assert seen.rows <= 50


def test_waiting_keys_are_served_while_no_events_come_and_after_a_restart(
    feed: Feed, tmp_path: Path
) -> None:
    seen = Collected()

    def start() -> Any:
        stream = ice.stream(feed.stream(), time="ts")
        served = stream.latestBy("symbol", schedule="fifo", budget="30 milliseconds")
        return (
            served.map(lambda row: {"symbol": row["symbol"], "price": row["price"]}, SCORES)
            .writeStream.foreachBatch(seen)
            .option("checkpointLocation", str(tmp_path / "chk"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )

    query = start()
    _wait(lambda: seen.rows > 0, query)
    query.stop()
    feed.add(quotes(1000, 2000))
    again = start()
    _wait(lambda: seen.newest == expected(2000) and again.lastProgress is not None, again)
    reported = again.lastProgress["icestream"]["updates"]
    assert reported["keys"] == 50
    assert reported["totalStaleness"]["averageMs"] > 0
    again.stop()


def test_oracle_keys_are_served_between_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Answers take longer than tasks served, yet every key has its newest one in the end."""
    feed, seen = Feed(spark, str(tmp_path / "in"), quotes(0, 1000, 400)), Collected()
    query = (
        ice.stream(feed.stream(), time="ts")
        .latestBy("symbol")
        .apply(slow, SCORES)
        .writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(tmp_path / "chk"))
        .trigger(processingTime="300 milliseconds")
        .start()
    )
    _wait(lambda: seen.rows > 200, query)
    feed.add(quotes(1000, 1500, 400))
    _wait(lambda: seen.newest == expected(1500, 400), query)
    query.stop()
    reports = [each["icestream"]["updates"] for each in query.recentProgress]
    tasks = spark.sparkContext.defaultParallelism
    assert any(5 * each["served"] > tasks * each["servingMs"] for each in reports)
    assert not list((tmp_path / "chk").rglob("ahead"))


class Held(Collected):
    """A sink that keeps its first version waiting, and records the versions it gets."""

    def __init__(self, *, free: bool) -> None:
        super().__init__()
        self.versions: list[int] = []
        self.first: set[Any] = set()
        self.free = threading.Event()
        if free:
            self.free.set()

    def __call__(self, rows: DataFrame, version: int) -> None:
        self.versions.append(version)
        assert self.free.wait(timeout=180)
        if version == 0:
            self.first = set(rows.collect())
        super().__call__(rows, version)


def test_crash_a_version_on_its_way_to_the_sink_is_delivered_after_restart(
    feed: Feed, tmp_path: Path, spark: SparkSession
) -> None:
    #   version  1  2 ...    the sink holds 1: Spark counts its batch as done, 2 is computed
    #   sink        1 ...    but not committed
    checkpoint, image, served = tmp_path / "chk", tmp_path / "image", tmp_path / "served"

    def step(rows: pa.RecordBatch) -> pa.RecordBatch:
        if max(rows.column("price").to_pylist()) >= 1000:
            served.touch()
        return rows.select(["symbol", "price"])

    def writer(at: Path) -> ice.StreamWriter:
        latest = ice.stream(feed.stream(), time="ts").latestBy("symbol").apply(step, SCORES)
        return latest.writeStream.option("checkpointLocation", str(at)).memory("64 MB")

    feed.add(quotes(1000, 2000))
    first = Held(free=False)
    query = writer(checkpoint).foreachBatch(first).trigger(processingTime="50 milliseconds").start()
    _wait(lambda: served.exists() and (checkpoint / "spark/commits/0").exists(), query)
    shutil.copytree(checkpoint, image)
    commits = [each.name for each in (image / "icestream/commits").iterdir()]
    assert max(int(name[:12]) for name in commits) == 1
    assert (first.versions, first.rows) == ([0], 0)
    first.free.set()
    query.processAllAvailable()
    assert first.newest == expected(2000)
    query.stop()

    def drained(at: Path, **options: bool) -> Held:
        found = Held(free=True)
        started = writer(at).options(**options).foreachBatch(found).trigger(availableNow=True)
        started.start().awaitTermination()
        return found

    crashed = drained(image, takeOver=True)
    assert crashed.versions == list(range(len(crashed.versions)))
    assert crashed.newest == expected(2000)
    assert crashed.first == first.first != set()
    feed.add(quotes(2000, 2050))
    again = drained(checkpoint)
    versions = first.versions + again.versions
    assert versions == sorted(set(versions))
    assert again.newest == {f"s{n % 50}": n for n in range(2000, 2050)}
    shown = writer(checkpoint).format("memory").queryName("shown").trigger(availableNow=True)
    shown.start().awaitTermination()
    assert spark.table("shown").count() == 0


def test_a_sink_that_fails_behind_the_query_ends_it_and_gets_the_version_again(
    feed: Feed, tmp_path: Path
) -> None:
    def start(sink: Any) -> ice.Query:
        latest = ice.stream(feed.stream(), time="ts").latestBy("symbol").apply(slow, SCORES)
        writer = latest.writeStream.option("checkpointLocation", str(tmp_path / "chk"))
        return writer.foreachBatch(sink).trigger(availableNow=True).start()

    def full(rows: DataFrame, version: int) -> None:
        msg = "no room"
        raise OSError(msg)

    feed.add(quotes(1000, 1010))
    failing = start(full)
    with pytest.raises(OSError, match="no room"):
        failing.awaitTermination()
    seen = Held(free=True)
    start(seen).awaitTermination()
    assert seen.versions[0] == 0
    assert seen.newest == expected(1010)


def test_an_append_stream_serves_every_event(feed: Feed, tmp_path: Path) -> None:
    prices: list[int] = []
    query = (
        ice.stream(feed.stream(), time="ts")
        .apply(lambda rows: rows.select(["symbol", "price"]), SCORES)
        .where("price >= 500")
        .writeStream.foreachBatch(lambda rows, _: prices.extend(r["price"] for r in rows.collect()))
        .option("checkpointLocation", str(tmp_path / "chk"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(prices) == list(range(500, 1000))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda s: s.latestBy("name"), r"latestBy names \['name'\]; the columns are"),
        (lambda s: s.latestBy("symbol", schedule="inplce"), "did you mean 'inplace'"),
        (lambda s: s.latestBy("symbol", budget="0 seconds"), "must be positive"),
        (lambda s: s.latestBy("symbol").apply(slow, "price long"), "must keep the update key"),
        (lambda s: s.latestBy("symbol").apply(3, SCORES), "apply takes a function"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_written(
    feed: Feed, make: Any, complaint: str
) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        make(ice.stream(feed.stream(), time="ts"))


def _wait(done: Any, query: Any) -> None:
    until = time.monotonic() + 180
    while not done():
        assert time.monotonic() < until
        assert query.isActive, query.exception()
        time.sleep(0.05)
