"""The rows of a query beside those of Spark's own batch engine over the same events."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api.result import Windowed
from icestream.runtime.work.windows import prefold
from tests.fixtures.parquet_feed import Feed, rows
from tests.oracles.grid import differences

pytestmark = pytest.mark.spark

SECOND = 1_000_000
ZONED = pa.timestamp("us", "UTC")
DAY = dt.date(2024, 2, 29)


def _events(seed: int = 1, start: int = 0, time: pa.DataType = ZONED) -> list[pa.Table]:
    """Return two micro-batches, two seconds out of order, across 40 seconds."""
    dice = np.random.default_rng(seed)
    count = 240
    times = np.sort(dice.integers(0, 40 * SECOND, count)) + dice.integers(0, 2 * SECOND, count)
    pick = dice.integers(0, 4, count)
    other = dice.integers(0, 3, count)

    def drawn(values: list[Any], kind: pa.DataType, by: np.ndarray[Any, Any]) -> pa.Array:
        return pa.array([values[i] for i in by], kind)

    hour = dt.datetime(2023, 11, 5, 5, 30, tzinfo=dt.UTC)  # ambiguous in New York
    pair = pa.struct([("a", pa.int32()), ("b", pa.string())])
    table = pa.table(
        {
            "ts": pa.array(times + start).cast(time),
            "name": drawn(["x", "yy", "", None], pa.string(), pick),
            "price": drawn(
                [Decimal("1.50"), None, Decimal("-7.25"), Decimal(0)], pa.decimal128(9, 2), pick
            ),
            "day": drawn([DAY, dt.date(1960, 1, 1), None], pa.date32(), other),
            "at": drawn([hour, hour + dt.timedelta(hours=1), None], ZONED, other),
            "flag": drawn([True, False, None], pa.bool_(), other),
            "pair": drawn(
                [{"a": 1, "b": "u"}, {"a": None, "b": None}, None, {"a": 1, "b": None}], pair, pick
            ),
            "raw": drawn([b"\0\1", b"", None], pa.binary(), other),
            "ratio": drawn([math.nan, 0.0, -0.0, None], pa.float64(), pick),
            "small": drawn([1, -3, None], pa.int8(), other),
            "n": pa.array(dice.integers(-(2**40), 2**40, count)),
            "i": pa.array([None if v % 9 == 0 else int(v) for v in times], pa.int32()),
            "v": pa.array([None if v % 7 == 0 else float(v % 1009) - 500 for v in times]),
            "odd": pa.array([math.nan if v % 31 == 0 else -0.0 if v % 2 else 1.5 for v in times]),
            "amount": pa.array([Decimal(int(v) % 997) / 8 for v in times], pa.decimal128(12, 3)),
        }
    )
    return [table.slice(0, 150), table.slice(150)]


Functions = Any
Answers = Callable[[Functions], list[Any]]


def _many(f: Functions) -> list[Any]:
    return [
        f.count("*").alias("events"),
        f.count("v").alias("some"),
        f.sum("n").alias("sum_n"),
        f.avg("n").alias("avg_n"),
        f.sum("i").alias("sum_i"),
        f.sum("v").alias("sum_v"),
        f.avg("v").alias("avg_v"),
        f.min("v").alias("min_v"),
        f.max("v").alias("max_v"),
        f.var_pop("v").alias("var_pop_v"),
        f.stddev("v").alias("stddev_v"),
        f.sum("odd").alias("sum_odd"),
        f.max("odd").alias("max_odd"),
        f.min("i").alias("min_i"),
        f.max("day").alias("max_day"),
        f.min("at").alias("min_at"),
        f.max("flag").alias("max_flag"),
    ]


def _exact(f: Functions) -> list[Any]:
    return [
        f.count("*").alias("events"),
        f.count("v").alias("some"),
        f.sum("n").alias("sum_n"),
        f.avg("n").alias("avg_n"),
        f.sum("i").alias("sum_i"),
        f.min("v").alias("min_v"),
        f.max("odd").alias("max_odd"),
        f.min("i").alias("min_i"),
        f.max("day").alias("max_day"),
        f.min("at").alias("min_at"),
        f.max("flag").alias("max_flag"),
    ]


def _decimals(f: Functions) -> list[Any]:
    return [f.sum("amount").alias("s"), f.avg("amount").alias("a"), f.max("amount").alias("m")]


def _pairs(f: Functions) -> list[Any]:
    v, n, i = sf.col("v"), sf.col("n"), sf.col("i")
    return [
        f.covar_pop("v", "i").alias("covar_pop"),
        f.covar_samp("v", "i").alias("covar_samp"),
        f.corr("v", "i").alias("corr"),
        f.corr("n", "i").alias("corr_n"),
        f.corr("small", "v").alias("corr_small"),
        f.covar_pop("odd", "i").alias("covar_odd"),
        f.min_by("v", "n").alias("least"),
        f.max_by("day", "n").alias("most"),
        f.max_by("amount", sf.col("n") % 1_000_003).alias("most_amount"),
        f.bool_and(v > -400).alias("all"),
        f.bool_or("flag").alias("any"),
        f.count_if((n > 0) & (i > 0)).alias("how_many"),
        # the same in one function of Icestream and in several of Spark
        f.weighted_avg("v", "i").alias("weighted")
        if hasattr(f, "weighted_avg")
        else (f.sum(v * i) / f.sum(sf.when(v.isNotNull(), i))).alias("weighted"),
    ]


def _expressions(f: Functions) -> list[Any]:
    return [
        f.sum(sf.col("v") * 2 + sf.col("i")).alias("mixed"),
        f.max(sf.length("name")).alias("longest"),
        f.count(sf.when(sf.col("v") > 0, 1)).alias("positive"),
        f.avg("pair.a").alias("inner"),
    ]


@dataclass(frozen=True)
class Case:
    keys: tuple[str, ...]
    range: str
    slide: str | None = None
    offset: str = "0 seconds"
    answers: Answers = _many
    start: int = 1_700_000_000 * SECOND
    time: pa.DataType = ZONED
    zone: str = "UTC"
    sets: tuple[tuple[str, ...], ...] | None = None
    options: tuple[tuple[str, str], ...] = ()
    folded: bool = False


CASES = {
    "tumbling": Case(("name", "pair", "raw", "flag"), "10 seconds"),
    "hopping, zone with an hour twice, before 1970": Case(
        ("price", "day", "at"),
        "10 seconds",
        "4 seconds",
        "1 second",
        answers=_decimals,
        start=-60 * SECOND,
        zone="America/New_York",
        options=(("input", "rows"),),
    ),
    "sliding, expressions": Case(
        ("ratio", "small"), "20 seconds", "1 second", answers=_expressions
    ),
    "pairs and choices": Case(("name",), "10 seconds", "4 seconds", answers=_pairs),
    "no keys, no zone": Case((), "10 seconds", "5 seconds", time=pa.timestamp("us")),
    "grouping sets": Case(
        ("name", "flag"),
        "20 seconds",
        "5 seconds",
        answers=_decimals,
        sets=(("name", "flag"), ("flag",), ()),
    ),
    "storage": Case(("name", "day"), "10 seconds", "2 seconds", options=(("exchange", "storage"),)),
    "folded by Spark": Case(
        ("ratio", "at", "pair"),
        "10 seconds",
        "3 seconds",
        "-1 second",
        answers=_exact,
        start=-60 * SECOND,
        folded=True,
        options=(("input", "rows"),),
    ),
    "folded by Spark, no zone, storage": Case(
        (),
        "10 seconds",
        "5 seconds",
        answers=_exact,
        time=pa.timestamp("us"),
        folded=True,
        zone="America/New_York",
        options=(("exchange", "storage"), ("input", "rows")),
    ),
}


def _ours(case: Case, feed: Feed) -> ice.Result:
    windows = ice.stream(feed.stream(), time="ts", slack="5 seconds").window(
        case.range, case.slide, case.offset
    )
    grouped: Windowed = (
        windows.groupBy(*case.keys)
        if case.sets is None
        else windows.groupingSets(case.sets, *case.keys)
    )
    return grouped.agg(*case.answers(ice))


def _sparks(case: Case, frame: DataFrame) -> DataFrame:
    # Spark wants an offset that is not negative; whole slides change nothing
    offset = "2 seconds" if case.offset == "-1 second" else case.offset
    window = sf.window("ts", case.range, case.slide or case.range, offset).alias("window")
    keys: list[Column] = [sf.col(name) for name in case.keys]
    if case.sets is None:
        return frame.groupBy(window, *keys).agg(*case.answers(sf))
    seen = frame.withColumn("window", window)
    w = sf.col("window")
    sets = [[w, *(sf.col(name) for name in chosen)] for chosen in case.sets]
    grouped = seen.groupingSets(sets, w, *keys)
    # every set has the window, so its bit, the highest, is 0
    return grouped.agg(sf.grouping_id().alias("grouping_id"), *case.answers(sf))


@pytest.fixture(autouse=True)
def _restored_zone(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", CASES)
def test_oracle_rows_equal_those_of_sparks_batch_engine(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    spark.conf.set("spark.sql.session.timeZone", case.zone)
    monkeypatch.setattr(prefold, "WORTH_IT", 0.0 if case.folded else math.inf)
    monkeypatch.setattr(prefold, "LEAST_EVENTS", 0)
    folds = Mock(wraps=prefold.fold)
    monkeypatch.setattr(prefold, "fold", folds)
    feed = Feed(spark, f"{tmp_path}/in", *_events(start=case.start, time=case.time))
    result = _ours(case, feed)
    writer = result.writeStream.option("checkpointLocation", f"{tmp_path}/chk")
    query = (
        writer.options(flush=True, **dict(case.options))
        .trigger(availableNow=True)
        .memory("64 MB")
        .start(f"{tmp_path}/out")
    )
    query.awaitTermination()
    found = spark.read.parquet(f"{tmp_path}/out")
    expected = _sparks(case, feed.batch())
    assert {f.name: f.dataType for f in found.schema} == {
        f.name: f.dataType for f in expected.schema
    }
    assert found.schema.simpleString() == result.schema.simpleString()
    keys = (*case.keys, *(["grouping_id"] if case.sets else []))
    wrong = differences(rows(found, keys), rows(expected, keys), len(keys), tolerance=1e-9)
    assert not wrong, wrong[:5]
    assert [p["numInputRows"] for p in query.recentProgress] == [150, 90, 0]
    assert folds.called == case.folded


def test_oracle_rows_equal_those_of_sparks_streaming_append(
    spark: SparkSession, tmp_path: Path
) -> None:
    case = Case(("name",), "10 seconds", "5 seconds", answers=_decimals)
    feed = Feed(spark, f"{tmp_path}/in", *_events(start=case.start))
    theirs = (
        _sparks(case, feed.stream().withWatermark("ts", "5 seconds"))
        .writeStream.option("checkpointLocation", f"{tmp_path}/theirs")
        .trigger(availableNow=True)
        .start(f"{tmp_path}/expected")
    )
    ours = (
        _ours(case, feed)
        .writeStream.option("checkpointLocation", f"{tmp_path}/ours")
        .trigger(availableNow=True)
        .start(f"{tmp_path}/out")
    )
    theirs.awaitTermination()
    ours.awaitTermination()
    found = rows(spark.read.parquet(f"{tmp_path}/out"), case.keys)
    expected = rows(spark.read.parquet(f"{tmp_path}/expected"), case.keys)
    assert len(expected) > 20
    assert not differences(found, expected, 1)
