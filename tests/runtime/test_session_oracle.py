"""Session windows beside Spark's own `session_window`, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api.functions import AggregateExpression
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.session import Session
from tests.fixtures.parquet_feed import Feed
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.arrivals import Row
from tests.oracles.grid import differences, rows_of

pytestmark = pytest.mark.spark

SECOND = 1_000_000
#: Spark's watermark starts in 1970, before all events
START = 1_700_000_000 * SECOND
INPUTS = pa.schema([("whole", pa.int64()), ("real", pa.float64())])
AGGREGATES = [
    Aggregate("count", None, "n"),
    Aggregate("sum", "whole", "total"),
    Aggregate("min", "real", "least"),
    Aggregate("avg", "real", "mean"),
    Aggregate("stddev_samp", "real", "spread"),
]


def _events(plan: Plan, number: int, dice: np.random.Generator) -> pa.RecordBatch:
    """Return events up to 12 seconds behind, in odd batches at whole seconds: pauses of the gap."""
    count = 40
    times = START + number * 6 * SECOND + dice.integers(-12 * SECOND, 6 * SECOND, count)
    if number % 2:
        times = times // SECOND * SECOND
    names = [None, "", *(f"name {i}" for i in range(10))]
    return pa.record_batch(
        [
            pa.array(times).cast(plan.time),
            pa.array(np.zeros(count, dtype=np.int32)),
            pa.array([names[i] for i in dice.integers(0, len(names), count)], pa.string()),
            pa.array(dice.integers(-9, 9, count), mask=dice.random(count) < 0.2),
            pa.array(dice.normal(size=count), mask=dice.random(count) < 0.2),
        ],
        schema=plan.batch_schema,
    )


#: a gap that depends on the event; some have none, or none that is positive
OWN_GAP = """CASE WHEN whole > 6 THEN '-1 seconds' WHEN whole > 5 THEN '0 seconds'
             WHEN whole > 0 THEN '1 second' WHEN whole < -7 THEN NULL
             WHEN real < 0 THEN '3 seconds 1 microsecond' ELSE '2 seconds' END"""


def _sparks(frame: DataFrame, gap: str | Column) -> DataFrame:
    sessions = sf.session_window("time", gap)
    return frame.groupBy(sessions, sf.col("k0").alias("name")).agg(
        sf.count("*").alias("n"),
        sf.sum("whole").alias("total"),
        sf.min("real").alias("least"),
        sf.avg("real").alias("mean"),
        sf.stddev_samp("real").alias("spread"),
    )


def _ours() -> list[AggregateExpression]:
    return [
        ice.count().alias("n"),
        ice.sum("whole").alias("total"),
        ice.min("real").alias("least"),
        ice.avg("real").alias("mean"),
        ice.stddev_samp("real").alias("spread"),
    ]


def _written(result: Any, folder: Path, *, flush: bool) -> DataFrame:
    """Return the rows of a result once all events were read."""
    writer = result.writeStream.option("checkpointLocation", f"{folder}/ours").options(flush=flush)
    writer.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
    return SparkSession.builder.getOrCreate().read.parquet(f"{folder}/out")


def _rows(frame: DataFrame) -> list[Row]:
    return rows_of(frame.toArrow())


def _plan(slack: str) -> Plan:
    return window_plan(
        windows=Session(2 * SECOND),
        slack=slack,
        keys=pa.schema([("name", pa.string())]),
        inputs=INPUTS,
        aggregates=AGGREGATES,
    )


def test_oracle_sessions_equal_those_of_sparks_streaming_append(
    spark: SparkSession, tmp_path: Path
) -> None:
    # a batch is followed by one without data, in which Spark emits what the watermark has closed
    plan, dice = _plan("3 seconds"), np.random.default_rng(5)
    batches = [_events(plan, number, dice) for number in range(6)]
    feed = Feed(spark, f"{tmp_path}/in", pa.table(batches[0]))
    theirs = (
        _sparks(feed.stream().withWatermark("time", "3 seconds"), "2 seconds")
        .writeStream.format("memory")
        .queryName("sessions")
        .option("checkpointLocation", f"{tmp_path}/theirs")
        .start()
    )
    ours = open_query(plan, f"{tmp_path}/ours")
    try:
        found: list[Row] = []
        for number, batch in enumerate(batches):
            if number:
                feed.add(pa.table(batch))
            theirs.processAllAvailable()
            found += rows_of(ours.feed([[batch]]))
            wrong = differences(found, _rows(spark.table("sessions")), 1, tolerance=1e-9)
            assert not wrong, f"batch {number}: {wrong[:3]}"
    finally:
        theirs.stop()
    assert len(found) > 40
    assert ours.driver.last is not None
    assert ours.driver.last.totals["late"] > 20


def test_oracle_sessions_of_own_gaps_equal_those_of_sparks_streaming_append(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan, dice = _plan("3 seconds"), np.random.default_rng(7)
    batches = [_events(plan, number, dice) for number in range(6)]
    feed = Feed(spark, f"{tmp_path}/in", pa.table(batches[0]))
    theirs = (
        _sparks(feed.stream().withWatermark("time", "3 seconds"), sf.expr(OWN_GAP))
        .writeStream.format("memory")
        .queryName("own_gaps")
        .option("checkpointLocation", f"{tmp_path}/theirs")
        .start()
    )
    theirs.processAllAvailable()
    for batch in batches[1:]:
        feed.add(pa.table(batch))
        theirs.processAllAvailable()
    theirs.stop()
    stream = ice.stream(feed.stream(), time="time", slack="3 seconds")
    keys = sf.col("k0").alias("name")
    result = stream.session(sf.expr(OWN_GAP)).groupBy(keys).agg(*_ours())
    found = _written(result, tmp_path, flush=False)
    expected = spark.table("own_gaps")
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert expected.count() > 30
    assert not differences(_rows(found), _rows(expected), 1, tolerance=1e-9)


def test_oracle_sessions_of_own_gaps_in_sql_equal_those_of_sparks_batch_engine(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan, dice = _plan("60 seconds"), np.random.default_rng(8)
    batches = [_events(plan, number, dice) for number in range(3)]
    feed = Feed(spark, f"{tmp_path}/in", *map(pa.table, batches))
    statement = f"""
        SELECT session_window, k0 AS name, count(*) AS n, sum(whole) AS total, min(real) AS least,
               avg(real) AS mean, stddev_samp(real) AS spread
        FROM events GROUP BY session_window(time, {OWN_GAP}), k0
    """
    stream = ice.stream(feed.stream(), time="time", slack="60 seconds")
    found = _written(ice.sql(statement, events=stream), tmp_path, flush=True)
    expected = _sparks(feed.batch(), sf.expr(OWN_GAP))
    assert expected.count() > 30
    assert not differences(_rows(found), _rows(expected), 1, tolerance=1e-9)


def test_oracle_sessions_of_the_api_equal_those_of_sparks_batch_engine(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan, dice = _plan("60 seconds"), np.random.default_rng(6)
    batches = [_events(plan, number, dice) for number in range(3)]
    feed = Feed(spark, f"{tmp_path}/in", *map(pa.table, batches))
    result = (
        ice.stream(feed.stream(), time="time", slack="60 seconds")
        .session("2 seconds")
        .groupBy(sf.col("k0").alias("name"))
        .agg(*_ours())
    )
    found = _written(result, tmp_path, flush=True)
    expected = _sparks(feed.batch(), "2 seconds")
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert expected.count() > 30
    assert not differences(_rows(found), _rows(expected), 1, tolerance=1e-9)
