"""Warnings about joins of instants and late events, and the slack of a watermark."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api import query_warnings
from icestream.api.events import Events
from icestream.api.query_warnings import QueryWarning
from icestream.core.errors import DefinitionError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000


def rows_at(*seconds: int) -> pa.Table:
    times = pa.array([at * SECOND for at in seconds]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"at": times, "k": pa.array([1] * len(seconds))})


@pytest.fixture(scope="module")
def disordered(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    folder = tmp_path_factory.mktemp("late")
    return Feed(spark, f"{folder}/in", rows_at(10, 100), rows_at(20, 200))


@pytest.fixture(scope="module")
def df(disordered: Feed) -> DataFrame:
    return disordered.stream()


@pytest.fixture
def events(df: DataFrame) -> Events:
    return ice.stream(df, time="at").events()


def slack_of(df: DataFrame, **given: str) -> int:
    count = ice.stream(df, time="at", **given).window("1 minute").count()
    (source,) = count._built.plan.sources
    slack: int = source.slack
    return slack


def test_the_slack_is_that_of_the_watermark(df: DataFrame) -> None:
    late = df.withWatermark("at", "7 seconds")
    assert slack_of(df) == 0
    assert slack_of(late) == 7 * SECOND
    assert ice.stream(late).window("1 minute").count()._built.plan.sources[0].slack == 7 * SECOND
    assert slack_of(late.where("k > 0").withColumn("l", sf.col("k") + 1)) == 7 * SECOND
    assert slack_of(late, slack="1 second") == SECOND
    other = df.withColumn("other", sf.col("at")).withWatermark("other", "7 seconds")
    assert slack_of(other) == 0


def test_a_join_of_two_streams_of_instants_warns(events: Events) -> None:
    other = events.where("k > 0").select("k", "at AS then")
    for how in ("inner", "left", "anti"):
        with pytest.warns(QueryWarning, match="within='1 hour'.*last.*point"):
            events.join(other, on="k", how=how)
    with pytest.warns(QueryWarning, match="exactly equal times"):
        ice.join(events, other, events.select("k", "k AS l").forever(), on="k")


def test_a_join_of_events_that_live_does_not_warn(events: Events) -> None:
    other = events.select("k", "at AS then")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        events.join(other, on="k", within="1 hour")
        events.join(other.last("1 hour"), on="k")
        events.forever().join(other, on="k", how="left")
        events.point().join(other.point(), on="k")
        ice.join(events, other, on="k", within="1 hour", onPressure="defer")


def test_columns_and_text_mean_the_same(events: Events) -> None:
    rows = events.select("k", "at", "'x' AS name")
    pairs = [
        (rows.where(sf.col("k") > 10), rows.where("k > 10")),
        (rows.where((sf.col("name") == "it's") & sf.col("at").isNotNull()),) * 2,
        (rows.select(sf.col("k"), (sf.col("k") * 2).alias("l")), rows.select("k", "k * 2 AS l")),
        (rows.withColumn("l", sf.lower(sf.col("name"))), rows.withColumn("l", "lower(name)")),
    ]
    for one, other in pairs:
        assert one._node.payload == other._node.payload
    with pytest.raises(DefinitionError, match=r"where cannot read this column: .*price"):
        rows.where(sf.col("price") > 10)
    with pytest.raises(DefinitionError, match=r"where takes SQL text or a column.*got int"):
        rows.where(10)  # type: ignore[arg-type]
    sums = rows.forever().groupApply(
        "k", lambda g: g.agg(ice.sum(sf.col("k") * 2).alias("n"), ice.max("k + 1").alias("m"))
    )
    assert sums.columns == ["k", "n", "m"]


def test_a_missing_method_says_what_to_use(events: Events) -> None:
    with pytest.raises(AttributeError, match=r"no 'limit': use groupBy\('key'"):
        events.limit(1)
    with pytest.raises(AttributeError, match=r"no 'frobnicate': they have agg, .*where"):
        events.frobnicate()
    assert not hasattr(events, "__array__")


def test_a_join_without_columns_is_refused(events: Events) -> None:
    with pytest.raises(DefinitionError, match="needs columns with equal values: on='k'"):
        events.forever().join(events, on=[])


def test_a_batch_beside_a_stream_is_refused(spark: SparkSession, events: Events) -> None:
    prices = spark.sql("SELECT timestamp'2026-01-01' AS at, 1L AS k, 2L AS price")
    static = ice.stream(prices, time="at", name="prices").events().forever()
    with pytest.raises(DefinitionError, match=r"prices is a batch.*spark.readStream"):
        _ = events.forever().join(static.select("k", "price"), on="k").writeStream


def run(query: Events, folder: Path, **options: str) -> int:
    writer = query.writeStream.format("noop").memory("64 MB").outputMode("changes")
    writer = writer.option("checkpointLocation", f"{folder}/chk")
    for name, value in options.items():
        writer = writer.option(name, value)
    started = writer.trigger(availableNow=True).start()
    started.awaitTermination()
    assert started.lastProgress is not None
    return int(started.lastProgress["icestream"]["lateEvents"])


def counted(df: DataFrame) -> Events:
    events = ice.stream(df, time="at").events().forever()
    return events.groupApply("k", lambda group: group.agg(ice.count().alias("n")))


def test_late_events_are_counted_and_warned_of(df: DataFrame, tmp_path: Path) -> None:
    with pytest.warns(QueryWarning, match=r"chk drops events that are out of order.*slack"):
        assert run(counted(df), tmp_path) == 1


def test_late_events_that_are_kept_or_expected_are_not_warned_of(
    df: DataFrame, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(counted(df), tmp_path / "kept", lateEvents=f"{tmp_path}/late") == 1
        assert run(counted(df.withWatermark("at", "5 seconds")), tmp_path / "expected") == 1
        assert run(counted(df.withWatermark("at", "3 minutes")), tmp_path / "none") == 0


def test_many_changes_for_each_event_are_warned_of(
    df: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = df.withWatermark("at", "3 minutes")
    monkeypatch.setattr(query_warnings, "MANY_ROWS", 0)
    monkeypatch.setattr(query_warnings, "MANY_CHANGES", 0)
    with pytest.warns(QueryWarning, match=r"emitted \d+ changes for \d+ events.*'append'.*slide"):
        run(counted(expected), tmp_path)
