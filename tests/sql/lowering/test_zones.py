"""Statements in sessions of other zones than UTC, beside Spark's batch engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from bench.nexmark.answers import bag
from tests.fixtures.sql_runs import ran_here, streams_of, table_here

pytestmark = pytest.mark.spark

SECOND = 1_000_000
HOUR = 3600 * SECOND
#: zones, and seconds since 1970 at which their clocks change, or do not
ZONES = {
    "America/New_York": 1_699_164_000,
    "Europe/Berlin": 1_711_846_800,
    "Australia/Lord_Howe": 1_696_087_800,
    "GMT+05:45": 1_696_087_800,
}


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", str(before))


def _tables(around: int) -> dict[str, pa.Table]:
    dice = np.random.default_rng(around)

    def times(count: int) -> pa.Array:
        near = dice.integers(-40 * 3600, 40 * 3600, count - 12)
        hours = np.arange(-6, 6) * 1800
        drawn = np.sort(np.concatenate([near, hours]) + around) * SECOND
        return pa.array(drawn).cast(pa.timestamp("us", "UTC"))

    def keys(count: int) -> pa.Array:
        return pa.array([None if k > 4 else int(k) for k in dice.integers(0, 6, count)])

    return {
        "a": pa.table({"ts": times(60), "k": keys(60), "x": dice.integers(0, 9, 60)}),
        "b": pa.table({"ts": times(50), "k": keys(50), "y": dice.integers(0, 9, 50)}),
    }


JOINED = "(SELECT a.k, a.ts, b.ts AS other, x, y FROM a LEFT JOIN b ON a.k = b.k AND x < y) AS j"
STATEMENTS = (
    f"SELECT k, hour(ts), date_format(other, 'yyyy-MM-dd HH:mm'), CAST(ts AS DATE) FROM {JOINED}",
    f"SELECT CAST(other AS STRING), unix_seconds(date_trunc('day', ts)), dayofweek(ts)"
    f" FROM {JOINED}",
    f"SELECT CAST(ts AS DATE) AS d, hour(other) AS h, count(*), sum(x) FROM {JOINED} GROUP BY 1, 2",
    f"SELECT k, count(DISTINCT CAST(ts AS DATE)) FROM {JOINED} GROUP BY k",
    "SELECT k, hour(max(ts)), CAST(min(ts) AS DATE) FROM a GROUP BY k HAVING hour(min(ts)) >= 1",
    f"SELECT x, minute(ts) FROM {JOINED}"
    " WHERE coalesce(other, ts) >= TIMESTAMP '2024-03-31 00:30:00'",
    f"SELECT x, y FROM {JOINED} WHERE coalesce(other, ts) > '2023-11-05 01:30:00'",
    "SELECT a.k, x, y FROM a JOIN b ON a.k = b.k AND to_date(a.ts) = to_date(b.ts)",
    "SELECT k, x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND hour(b.ts) = hour(a.ts))",
    f"SELECT k, unix_seconds(ts + INTERVAL '1' DAY), unix_seconds(other - INTERVAL '36' HOUR)"
    f" FROM {JOINED}",
    f"SELECT k, d, x FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY d ORDER BY x DESC, k, s) AS n"
    f" FROM (SELECT k, x, to_date(coalesce(other, ts)) AS d, unix_seconds(ts) AS s FROM {JOINED}))"
    " WHERE n <= 2",
)


@pytest.mark.sample(14)
@pytest.mark.parametrize("number", range(len(STATEMENTS)))
def test_oracle_expressions_follow_the_zone_of_the_session(
    number: int, zone: str, spark: SparkSession, tmp_path: Path
) -> None:
    text, tables = STATEMENTS[number], _tables(ZONES[zone])
    query = ice.sql(text, **streams_of(spark, tables, "ts"))
    wanted = _by_spark(spark, text, tables)
    assert ran_here(query, tmp_path, batches=4, disorder=number) == wanted
    assert table_here(query, tmp_path, disorder=number) == wanted


def _by_spark(spark: SparkSession, text: str, tables: dict[str, pa.Table]) -> Any:
    for name, table in tables.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    return bag([tuple(row) for row in spark.sql(text).collect()])


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "bounds",
    [
        "b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' DAY",
        "b.ts > a.ts - INTERVAL '24' HOUR AND b.ts < a.ts + INTERVAL '25' HOUR",
        "b.ts - INTERVAL '1' DAY >= a.ts AND b.ts - INTERVAL '26' HOUR <= a.ts",
    ],
)
@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN"])
def test_oracle_days_of_a_zone(
    kind: str, bounds: str, zone: str, spark: SparkSession, tmp_path: Path
) -> None:
    text, tables = f"SELECT x, y FROM a {kind} b ON a.k = b.k AND {bounds}", _tables(ZONES[zone])
    # pairs about a day apart
    shifted = pa.array(tables["a"]["ts"].cast(pa.int64()).to_numpy() + 24 * HOUR)
    days = np.sort(np.concatenate([shifted, shifted.to_numpy() + HOUR, shifted.to_numpy() - HOUR]))
    dice = np.random.default_rng(3)
    tables["b"] = pa.table(
        {
            "ts": pa.array(days).cast(pa.timestamp("us", "UTC")),
            "k": pa.array(dice.integers(0, 3, len(days))),
            "y": pa.array(dice.integers(0, 9, len(days))),
        }
    )
    query = ice.sql(text, **streams_of(spark, tables, "ts"))
    wanted = _by_spark(spark, text, tables)
    assert ran_here(query, tmp_path, batches=4, disorder=1) == wanted
    assert ran_here(query, tmp_path, batches=4, disorder=1, mode="append") == wanted


def test_oracle_columns_of_events_follow_the_zone(
    zone: str, spark: SparkSession, tmp_path: Path
) -> None:
    tables = _tables(ZONES[zone])
    a, b = streams_of(spark, tables, "ts").values()
    right = b.events().select("k", "y", "ts AS other").forever()
    pairs = a.events().forever().join(right, on="k", where="hour(ts) = hour(other)")
    chosen = pairs.where(sf.hour("other") > 3).select("x", "y", "to_date(ts) AS d")
    text = (
        "SELECT x, y, to_date(a.ts) FROM a JOIN b ON a.k = b.k AND hour(a.ts) = hour(b.ts)"
        " AND hour(b.ts) > 3"
    )
    assert ran_here(chosen, tmp_path, disorder=2) == _by_spark(spark, text, tables)


def test_the_state_schema_has_the_zone_that_expressions_depend_on(spark: SparkSession) -> None:
    sources = streams_of(spark, _tables(0), "ts")

    def described(text: str) -> str:
        return repr(ice.sql(text, **sources)._built("changes").plan.describe())

    by_hour, by_length = (
        f"SELECT k, {text} AS x FROM {JOINED}" for text in ("hour(ts)", "ts + INTERVAL '1' HOUR")
    )
    in_utc = described(by_hour), described(by_length)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert described(by_length) == in_utc[1]
        assert "in Europe/Berlin" in described(by_hour)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert "in UTC" not in in_utc[0]
