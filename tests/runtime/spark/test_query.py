"""A running query as its user sees it: start, stop, restart, progress, errors."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError, InputError, StorageError
from icestream.runtime.spark.query import Query
from tests.fixtures.parquet_feed import Feed, rows

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("key", pa.string())])


def events(*seconds: float | None, key: str = "a") -> pa.Table:
    times = [None if each is None else int(each * SECOND) for each in seconds]
    return pa.table([pa.array(times).cast(SCHEMA[0].type), [key] * len(times)], schema=SCHEMA)


def counted(feed: Feed, **options: Any) -> ice.Result:
    stream = ice.stream(feed.stream(), time="ts", slack="1 second", **options)
    return stream.window("2 seconds").groupBy("key").count()


class Collector:
    """A callback that keeps the rows of every version it sees, by version."""

    def __init__(self, before: Callable[[int], None] = lambda version: None) -> None:
        self.versions: dict[int, list[tuple[int, int]]] = {}
        self.calls: list[int] = []
        self._before = before

    def __call__(self, frame: DataFrame, version: int) -> None:
        self.calls.append(version)
        self._before(version)
        found = rows(frame, ["key"])
        self.versions[version] = sorted((int(row[0].timestamp()), row[3]) for row in found)

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for found in self.versions.values() for row in found)


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, f"{tmp_path}/in")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ice.Query]]:
    """Start queries in one checkpoint; the last one is stopped at the end."""
    started: list[ice.Query] = []

    def begin(result: ice.Result, sink: Any, **options: Any) -> ice.Query:
        writer = result.writeStream.option("checkpointLocation", f"{tmp_path}/chk")
        now = {} if "ticker" in options or options.pop("keep_on", False) else {"availableNow": True}
        writer = writer.options(**options).memory("64 MB").foreachBatch(sink).queryName("counts")
        started.append((writer.trigger(**now) if now else writer).start())
        return started[-1]

    yield begin
    for query in started:
        query.stop()


def wait_until(reached: Callable[[], bool], query: ice.Query) -> None:
    while not reached():
        query.awaitTermination(timeout=0.05)
        assert query.isActive


def test_a_query_is_watched_stopped_and_continued(
    feed: Feed, start: Callable[..., ice.Query], capsys: pytest.CaptureFixture[str]
) -> None:
    #   windows   [0,2)  [2,4)  [4,6)  [6,8)
    #   batch 1    0 1.5   3.9 <- watermark 2.9 closes the first
    #   batch 2            2.5   4    7.0 <- watermark 6 closes two more
    feed.add(events(0, 1.5, 3.9))
    first = Collector()
    query = start(counted(feed), first, keep_on=True)
    query.processAllAvailable()
    assert query.awaitTermination(timeout=0.05) is False
    was_active = query.isActive
    assert first.versions == {0: [(0, 2)]}
    progress = query.lastProgress
    assert progress is not None
    assert progress["name"] == query.name == "counts"
    assert progress["numInputRows"] == 3
    assert progress["version"] == 1
    assert progress["batchId"] == 0
    assert progress["processedRowsPerSecond"] > 0
    assert {"ingest", "component", "commit", "sink", "triggerExecution"} <= set(
        progress["durationMs"]
    )
    own = progress["icestream"]
    assert own["watermark"].startswith("1970-01-01T00:00:02.9")
    assert own["budgetBytes"] == 64 << 20
    assert 0 < own["stateMemoryBytes"] <= own["peakMemoryBytes"] <= own["budgetBytes"]
    assert own["logBytes"] > 0
    assert own["lateEvents"] == 0
    assert own["resultRows"] == 1
    assert own["groups"] == 1
    query.explain()
    assert "Scan" in capsys.readouterr().out
    assert set(query.status) >= {"message", "isTriggerActive"}
    query.stop()
    assert (was_active, query.isActive) == (True, False)
    assert query.awaitTermination() is None
    assert query.exception() is None

    feed.add(events(2.5, 4, 7))
    second = Collector()
    again = start(counted(feed), second)
    again.awaitTermination()
    assert again.id == query.id
    assert again.runId != query.runId
    assert second.versions == {1: [(2, 2), (4, 1)]}


def test_late_events_are_counted_and_kept(
    feed: Feed, start: Callable[..., ice.Query], spark: SparkSession, tmp_path: Path
) -> None:
    #   batch 1 leaves the watermark at 9: windows up to [6, 8) have closed. In batch 2 the event at
    #   8.5 is in time, 7.9 is not, whatever else the batch brings.
    for table in (events(10), events(20, 8.5, 7.9, key="b")):
        feed.add(table)
    seen = Collector()
    query = start(counted(feed), seen, flush=True, lateEvents=f"{tmp_path}/late")
    query.awaitTermination()
    assert seen.rows == [(8, 1), (10, 1), (20, 1)]
    assert query.lastProgress is not None
    assert query.lastProgress["icestream"]["lateEvents"] == 1
    kept = spark.read.parquet(f"{tmp_path}/late")
    assert kept.columns == ["ts", "key", "_source", "_reason"]
    found = kept.selectExpr("unix_millis(ts)", "key", "_source", "_reason").collect()
    assert [tuple(row) for row in found] == [(7900, "b", "stream", "late")]


def test_oracle_late_and_refused_rows_are_whole_and_can_be_replayed(
    feed: Feed, start: Callable[..., ice.Query], spark: SparkSession, tmp_path: Path
) -> None:
    def wide(*seconds: float | None) -> pa.Table:
        count = len(seconds)
        other = pa.array([[n, None] for n in range(count)], pa.list_(pa.int64()))
        return events(*seconds).append_column("unused", other).append_column("n", [[*range(count)]])

    feed.add(wide(10))
    feed.add(wide(20, 8.5, 7.9, None, 3))
    for options in ({}, {"input": "rows"}):
        folder = f"{tmp_path}/late{len(options)}"
        result = counted(feed, nulls="drop")
        writer = result.writeStream.format("noop").options(lateEvents=folder, flush=True, **options)
        writer = writer.option("checkpointLocation", f"{folder}-chk").trigger(availableNow=True)
        writer.memory("64 MB").start().awaitTermination()
        kept = spark.read.parquet(folder)
        expected = feed.batch().where("n in (2, 3, 4)")
        assert kept.drop("_source", "_reason").schema == expected.schema
        assert kept.drop("_source", "_reason").exceptAll(expected).count() == 0
        reasons = [row[0] for row in kept.orderBy("n").select("_reason").collect()]
        assert reasons == ["late", "without time", "late"]


def test_bad_rows_are_quarantined_with_the_late_ones(
    feed: Feed, start: Callable[..., ice.Query], spark: SparkSession, tmp_path: Path
) -> None:
    def fails(value: int | None) -> int:
        return 1 // (0 if value is None else value)

    broken = ice.UserAggregate(
        fails, lambda a, b: a + b, lambda state: state, pa.int64(), title="broken"
    )
    table = events(10, 10.5, 20, None)
    feed.add(table.append_column("n", pa.array([1, 0, 1, 1])))
    windows = ice.stream(feed.stream(), time="ts", nulls="error").window("2 seconds")
    result = windows.groupBy("key").agg(ice.user(broken, "n").alias("total"))
    folder = f"{tmp_path}/late"
    with pytest.raises(DefinitionError, match="lateEvents"):
        result.writeStream.options(
            onBadRow="quarantine", checkpointLocation=f"{tmp_path}/chk"
        ).start(folder)
    seen = Collector()
    query = start(result, seen, flush=True, lateEvents=folder, onBadRow="quarantine")
    query.awaitTermination()
    assert query.lastProgress is not None
    assert query.lastProgress["icestream"]["badRows"] == 1
    assert seen.rows == [(10, 1), (20, 1)]
    kept = spark.read.parquet(folder)
    assert kept.columns == ["ts", "key", "n", "_source", "_reason", "_row"]
    found = kept.orderBy("_reason").select("n", "_source", "_reason", "_row").collect()
    assert found[0]["_row"] is not None
    assert "ZeroDivisionError" in found[0]["_reason"]
    assert tuple(found[1]) == (1, "stream", "without time", None)


def test_bad_input_in_a_task_is_the_error_the_user_sees(
    feed: Feed, start: Callable[..., ice.Query]
) -> None:
    feed.add(events(1, None))
    query = start(counted(feed, name="calls"), Collector())
    with pytest.raises(InputError, match=r"1 events of calls have no time.*nulls='drop'"):
        query.awaitTermination()
    assert isinstance(query.exception(), InputError)
    assert not query.isActive
    with pytest.raises(InputError):
        query.processAllAvailable()


def test_events_without_a_time_may_be_dropped(feed: Feed, start: Callable[..., ice.Query]) -> None:
    feed.add(events(1, None))
    seen = Collector()
    query = start(counted(feed, nulls="drop"), seen, flush=True)
    query.awaitTermination()
    assert seen.rows == [(0, 1)]
    assert query.lastProgress is not None
    assert query.lastProgress["icestream"]["eventsWithoutTime"] == 1


def test_crash_a_flush_that_was_committed_is_delivered_after_restart(
    feed: Feed, start: Callable[..., ice.Query]
) -> None:
    feed.add(events(0, 3))

    def fail(version: int) -> None:
        if version == 1:
            msg = "the sink is down"
            raise OSError(msg)

    broken = start(counted(feed), Collector(before=fail), flush=True)
    with pytest.raises(OSError, match="the sink is down"):
        broken.awaitTermination()
    healed = Collector()
    start(counted(feed), healed, flush=True).awaitTermination()
    assert healed.versions == {1: [(2, 1)]}
    quiet = Collector()
    start(counted(feed), quiet, flush=True).awaitTermination()
    assert quiet.versions == {}


def test_a_callback_sees_a_version_once_across_restarts(
    feed: Feed, start: Callable[..., ice.Query], tmp_path: Path
) -> None:
    feed.add(events(0, 3))
    first, second = Collector(), Collector()
    start(counted(feed), first).awaitTermination()
    shutil.rmtree(tmp_path / "chk" / "spark" / "commits")
    query = start(counted(feed), second)
    query.awaitTermination()
    assert first.calls == [0]
    assert second.calls == []
    assert query.recentProgress == []


def test_a_callback_may_stop_its_query(feed: Feed, start: Callable[..., ice.Query]) -> None:
    for second in (0, 10, 20):
        feed.add(events(second))
    running: list[ice.Query] = []

    def stop(version: int) -> None:
        while not running:
            time.sleep(0.01)
        running[0].stop()

    seen = Collector(before=stop)
    running.append(start(counted(feed), seen, keep_on=True))
    assert running[0].awaitTermination(timeout=60)
    assert running[0].exception() is None
    assert seen.calls == [0]


def test_stop_waits_for_the_batch_under_way(feed: Feed, start: Callable[..., ice.Query]) -> None:
    for second in (0, 10):
        feed.add(events(second))
    reached: list[int] = []

    def linger(version: int) -> None:
        reached.append(version)
        time.sleep(0.3)

    seen = Collector(before=linger)
    query = start(counted(feed), seen, keep_on=True)
    wait_until(lambda: bool(reached), query)
    query.stop()
    assert seen.versions == {0: []}
    assert query.exception() is None


def test_a_batch_that_begins_while_the_query_is_stopped_ends_without_an_error(
    feed: Feed, start: Callable[..., ice.Query]
) -> None:
    feed.add(events(0, 3))
    seen = Collector()
    query = start(counted(feed), seen, ticker="100 milliseconds")
    wait_until(lambda: 0 in seen.versions, query)
    with query._busy:
        query._stopping = True
    feed.add(events(5))
    wait_until(query._busy.locked, query)
    query._query.stop()
    assert query.awaitTermination(timeout=10)
    assert query._query.exception() is None
    again = start(counted(feed), seen, ticker="100 milliseconds")
    wait_until(lambda: 1 in seen.versions, again)
    assert seen.versions == {0: [(0, 1)], 1: [(2, 1)]}
    again.stop()


def test_the_slower_source_of_a_union_holds_the_watermark(
    spark: SparkSession, tmp_path: Path, start: Callable[..., ice.Query]
) -> None:
    quick = Feed(spark, f"{tmp_path}/quick", events(0, 10))
    slow = Feed(spark, f"{tmp_path}/slow", SCHEMA.empty_table())

    def both() -> ice.Result:
        one = ice.stream(quick.stream(), "ts", "1 second", name="quick")
        other = ice.stream(slow.stream(), "ts", "5 seconds", name="slow")
        return one.union(other).window("2 seconds").groupBy("key").count()

    seen = Collector()
    query = start(both(), seen, keep_on=True)
    query.processAllAvailable()
    slow.add(events(8, key="b"))
    query.processAllAvailable()
    marks = [progress["icestream"]["watermark"] for progress in query.recentProgress]
    assert marks[0] is None
    assert marks[-1].startswith("1970-01-01T00:00:03")
    assert seen.rows == [(0, 1)]
    query.stop()


def test_a_ticker_calls_on_idle_triggers_and_makes_no_versions(
    feed: Feed, start: Callable[..., ice.Query], tmp_path: Path
) -> None:
    feed.add(events(0, 3))
    seen = Collector()
    query = start(counted(feed), seen, ticker="100 milliseconds")
    batches = tmp_path / "chk" / "spark" / "commits"
    wait_until((batches / "3").exists, query)
    assert seen.versions == {0: [(0, 1)]}
    assert [p["numInputRows"] for p in query.recentProgress] == [2]
    query.stop()

    feed.add(events(5))
    again = start(counted(feed), seen, ticker="100 milliseconds")
    wait_until(lambda: 1 in seen.versions, again)
    assert seen.versions[1] == [(2, 1)]
    again.stop()


def test_a_damaged_file_is_named_and_may_be_skipped(spark: SparkSession, tmp_path: Path) -> None:
    counts = counted(Feed(spark, f"{tmp_path}/in", events(1, 2), events(3, 9)))
    damaged = tmp_path / "in" / "000000.parquet"
    damaged.write_bytes(damaged.read_bytes()[:100])

    seen = Collector()

    def run() -> None:
        writer = counts.writeStream.foreachBatch(seen).trigger(availableNow=True)
        writer.option("checkpointLocation", f"{tmp_path}/chk").start().awaitTermination()

    with pytest.raises(InputError, match=r"000000\.parquet\. Repair or remove the file") as failed:
        run()
    assert "\n" not in str(failed.value)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        run()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert seen.rows == [(2, 1)]


def test_a_disk_that_is_full_for_spark_is_a_storage_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "java.io.IOException: No space left on device\n\tat java.base/java.io"

    def begin(*_: object) -> None:
        raise StreamingQueryException(said)

    monkeypatch.setattr(StreamWriter, "_begin", begin)
    writer = counted(Feed(spark, f"{tmp_path}/in", events(1))).writeStream.format("noop")
    with pytest.raises(StorageError, match="the disk is full; free space on it, then restart"):
        writer.option("checkpointLocation", f"{tmp_path}/chk").start()


def test_rescale_takes_a_number_of_tasks_or_two_that_the_load_decides_between() -> None:
    query = Mock()
    for asked in ((4,), (2, 8), ("auto", 2, 8)):
        Query.rescale(query, *asked)
    Query.rescale(query, 2, shards=16)
    assert [call.args for call in query._driver.rescale.call_args_list] == [
        (4, None),
        ((2, 8), None),
        ((2, 8), None),
        (2, 16),
    ]
    wrong: list[tuple[Any, ...]] = [(), ("auto",), ("auto", 4), (2, 4, 8), (2, "auto"), ("most", 2)]
    for asked in wrong:
        with pytest.raises(DefinitionError, match=r'rescale\("auto", 2, 8\)'):
            Query.rescale(query, *asked)
