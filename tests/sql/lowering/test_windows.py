"""Statements beside the same queries written by hand, and beside Spark's own SQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api.stream import Stream
from icestream.core.errors import DefinitionError
from icestream.plan.windows.frame import RowsSlide
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


def _trades() -> pa.Table:
    dice = np.random.default_rng(3)
    count = 200
    times = START + np.sort(dice.choice(60 * SECOND, count, replace=False))
    volumes = dice.integers(0, 9, count)
    return pa.table(
        {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "Symbol": [["ice", "sea", None][i] for i in dice.integers(0, 3, count)],
            "side": [["buy", "sell"][i] for i in dice.integers(0, 2, count)],
            "Price": pa.array(dice.integers(1, 100, count) / 4),
            "Volume": pa.array([None if v == 8 else int(v) for v in volumes], pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def feed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    table = _trades()
    folder = tmp_path_factory.mktemp("trades") / "in"
    return Feed(spark, str(folder), table.slice(0, 120), table.slice(120))


@pytest.fixture(scope="module")
def trades(feed: Feed) -> Stream:
    return ice.stream(feed.stream(), time="ts", slack="1 second")


def _expr(text: str) -> Column:
    return sf.expr(text)


def _longest(value: int | None) -> int | None:
    return value


LONGEST = ice.UserAggregate(
    lift=_longest, combine=max, lower=_longest, result=pa.int64(), title="longest"
)

ByHand = Callable[[Stream], ice.Result]

#: a statement, and the calls one would write for it
BY_HAND: dict[str, ByHand] = {
    "SELECT COUNT(*) AS n FROM s [RANGE 1 HOUR SLIDE 1 SECOND]": (
        lambda s: s.window("1 hour", "1 second").agg(ice.count().alias("n"))
    ),
    "SELECT symbol, AVG(price) AS mean FROM s [TUMBLE 10 SECONDS] WHERE volume > 0 GROUP BY 1": (
        lambda s: (
            s.where("Volume > 0")
            .window("10 seconds")
            .groupBy("Symbol")
            .agg(ice.avg("Price").alias("mean"))
        )
    ),
    "SELECT Symbol, SUM(Price * Volume) AS sum FROM s [RANGE 1 HOUR] GROUP BY Symbol": (
        lambda s: (
            s.window("1 hour", slide="event")
            .groupBy("Symbol")
            .agg(ice.sum(_expr("Price * Volume")).alias("sum"))
        )
    ),
    "SELECT MAX(Price) AS m FROM s [RANGE 1 HOUR SLIDE 5 ROWS]": (
        lambda s: s.window("1 hour", slide=RowsSlide(5)).agg(ice.max("Price").alias("m"))
    ),
    "SELECT MAX(Price) AS m FROM s [ROWS 100 SLIDE 10]": (
        lambda s: s.rows(100, 10).agg(ice.max("Price").alias("m"))
    ),
    "SELECT MAX(Price) AS m FROM s [ROWS 100 SLIDE 10 SECONDS]": (
        lambda s: s.rows(100, "10 seconds").agg(ice.max("Price").alias("m"))
    ),
    "SELECT Symbol, MAX(Price) AS m FROM s [PARTITION BY symbol ROWS 9] GROUP BY Symbol": (
        lambda s: s.rows(9, partitionBy="Symbol").agg(ice.max("Price").alias("m"))
    ),
    "SELECT MAX(Price) AS m FROM s [CUMULATE 1 DAY STEP 1 HOUR]": (
        lambda s: s.cumulative("1 day", "1 hour").agg(ice.max("Price").alias("m"))
    ),
    "SELECT side, MAX(Price) AS m FROM s [SESSION 10 MINUTES] GROUP BY side": (
        lambda s: s.session("10 minutes").groupBy("side").agg(ice.max("Price").alias("m"))
    ),
    "SELECT Symbol, side, grouping_id() AS grouping_id, COUNT(*) AS n FROM s [TUMBLE 1 HOUR] "
    "GROUP BY ROLLUP(Symbol, side)": (
        lambda s: (
            s.window("1 hour")
            .groupingSets([["Symbol", "side"], ["Symbol"], []], "Symbol", "side")
            .agg(ice.count().alias("n"))
        )
    ),
    "SELECT corr(Price, Volume) AS a, vwap(Price, Volume) AS b, first(Volume) IGNORE NULLS AS c, "
    "max_by(ts, Price) AS d, bool_or(Price > 9) AS e, count_if(Volume > 1) AS f "
    "FROM s [TUMBLE 1 HOUR]": (
        lambda s: s.window("1 hour").agg(
            ice.corr("Price", "Volume").alias("a"),
            ice.weighted_avg("Price", "Volume").alias("b"),
            ice.first("Volume", ignorenulls=True).alias("c"),
            ice.max_by("ts", "Price").alias("d"),
            ice.bool_or(_expr("Price > 9")).alias("e"),
            ice.count_if(_expr("Volume > 1")).alias("f"),
        )
    ),
    "SELECT collect_list(Volume) AS a, collect_set(side) AS b, count(DISTINCT side, Volume) AS c, "
    "percentile(Price, array(0.5, 0.9)) AS d, median(Price) AS e, mode(side) AS f, "
    "approx_count_distinct(Price) AS g, approx_percentile(Price, 0.9, 1000) AS h, "
    "approx_top_k(side, 2) AS i, longest(Volume) AS j FROM s [TUMBLE 1 HOUR]": (
        lambda s: s.window("1 hour").agg(
            ice.collect_list("Volume").alias("a"),
            ice.collect_set("side").alias("b"),
            ice.count_distinct("side", "Volume").alias("c"),
            ice.percentile("Price", [0.5, 0.9]).alias("d"),
            ice.median("Price").alias("e"),
            ice.mode("side").alias("f"),
            ice.approx_count_distinct("Price").alias("g"),
            ice.approx_percentile("Price", 0.9, 1000).alias("h"),
            ice.approx_top_k("side", 2).alias("i"),
            ice.user(LONGEST, "Volume").alias("j"),
        )
    ),
}


@pytest.mark.parametrize("text", BY_HAND)
def test_oracle_a_statement_is_the_query_written_by_hand(text: str, trades: Stream) -> None:
    made = ice.sql(text, functions={"Longest": LONGEST}, s=trades)
    by_hand = BY_HAND[text](trades)
    assert made._built.plan == by_hand._built.plan
    assert made.schema.simpleString() == by_hand.schema.simpleString()


@pytest.mark.parametrize(
    ("slide", "every"), [("", None), (" SLIDE 4 ROWS", 4)], ids=["every event", "slide"]
)
def test_rows_within_a_range_are_those_of_rows(
    slide: str, every: int | None, trades: Stream
) -> None:
    clause = f"PARTITION BY Symbol ROWS 9 RANGE 1 HOUR{slide}"
    made = ice.sql(f"SELECT Symbol, SUM(Price) AS p FROM s [{clause}] GROUP BY 1", s=trades)
    rows = trades.rows(9, every, partitionBy="Symbol", range="1 hour")
    by_hand = rows.agg(ice.sum("Price").alias("p"))
    assert made._built.plan.describe() == by_hand._built.plan.describe()
    assert made.schema.simpleString() == by_hand.schema.simpleString()


#: a statement, and Spark's own for the same rows
SPARKS: dict[str, tuple[str, str]] = {
    "hopping windows": (
        """SELECT Symbol, window_start, SUM(Price*Volume)/SUM(Volume) AS vwap,
               COUNT(*) FILTER (WHERE side = 'buy') AS bought, round(avg(price), 1) * 2 AS twice
           FROM trades [RANGE 10 SECONDS SLIDE 2 SECONDS]
           WHERE side IS NOT NULL AND Price < 24
           GROUP BY Symbol HAVING COUNT(*) > 2 AND twice > 20""",
        """SELECT Symbol, window.start, SUM(Price*Volume)/SUM(Volume),
               COUNT(*) FILTER (WHERE side = 'buy'), round(avg(price), 1) * 2
           FROM trades WHERE side IS NOT NULL AND Price < 24
           GROUP BY window(ts, '10 seconds', '2 seconds'), Symbol
           HAVING COUNT(*) > 2 AND round(avg(price), 1) * 2 > 20""",
    ),
    "grouping sets and distinct counts": (
        """SELECT window_end, upper(side) AS loud, Symbol, grouping(Symbol) AS whole,
               COUNT(DISTINCT Volume) AS kinds, percentile_cont(0.9) WITHIN GROUP (ORDER BY Price)
           FROM trades [TUMBLE 20 SECONDS] GROUP BY CUBE(upper(side), Symbol)""",
        """SELECT w.end, upper(side), Symbol, grouping(Symbol), COUNT(DISTINCT Volume),
               percentile_cont(0.9) WITHIN GROUP (ORDER BY Price)
           FROM (SELECT *, window(ts, '20 seconds') AS w FROM trades)
           GROUP BY w, CUBE(upper(side), Symbol)""",
    ),
    "a result per event": (
        """SELECT time, Symbol, SUM(Volume*Price)/SUM(Volume) AS vwap
           FROM trades [RANGE 10 SECONDS] GROUP BY Symbol""",
        """SELECT ts, Symbol, SUM(Volume*Price) OVER w / SUM(Volume) OVER w FROM trades
           WINDOW w AS (PARTITION BY Symbol ORDER BY ts
               RANGE BETWEEN INTERVAL '9.999999' SECOND PRECEDING AND CURRENT ROW)""",
    ),
    "the last events of each group": (
        """SELECT time, max(Price) - min(Price) AS spread, Symbol
           FROM trades [PARTITION BY Symbol ROWS 5] GROUP BY Symbol""",
        """SELECT ts, max(Price) OVER w - min(Price) OVER w, Symbol FROM trades
           WINDOW w AS (PARTITION BY Symbol ORDER BY ts ROWS 4 PRECEDING)""",
    ),
    "sessions": (
        """SELECT session_window, side, COUNT(*) AS n, max(Price) AS dearest
           FROM trades [SESSION 1 SECOND] WHERE Price > 12 GROUP BY side""",
        """SELECT session_window(ts, '1 second'), side, COUNT(*), max(Price)
           FROM trades WHERE Price > 12 GROUP BY session_window(ts, '1 second'), side""",
    ),
}


def _ran(result: ice.Result, folder: Path) -> DataFrame:
    writer = result.writeStream.options(flush=True, checkpointLocation=f"{folder}/chk")
    query = writer.trigger(availableNow=True).memory("64 MB").start(f"{folder}/out")
    query.awaitTermination()
    return result._built.events.sparkSession.read.parquet(f"{folder}/out")


def _comparable(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = [tuple(map(_rounded, row)) for row in frame.collect()]
    return sorted(rows, key=repr)


def _rounded(value: Any) -> Any:
    return round(value, 9) if isinstance(value, float) else value


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SPARKS)
def test_oracle_a_statement_gives_the_rows_of_sparks_sql(
    name: str, spark: SparkSession, feed: Feed, trades: Stream, tmp_path: Path
) -> None:
    ours, sparks = SPARKS[name]
    feed.batch().createOrReplaceTempView("trades")
    expected = _comparable(spark.sql(sparks))
    assert len(expected) > 10
    assert _comparable(_ran(ice.sql(ours, trades=trades), tmp_path)) == expected


def test_several_statements_make_several_results(trades: Stream) -> None:
    results = ice.sql(
        "SELECT AVG(Price) FROM s [TUMBLE 1 HOUR]; SELECT MAX(Price) AS m FROM s [ROWS 2];",
        s=trades,
    )
    assert [result.columns for result in results] == [["window", "AVG(Price)"], ["time", "m"]]


#: a statement, what Spark or the fluent API says of it, and the words that is about
REFUSED: dict[str, tuple[str, str]] = {
    "SELECT sum(side) FROM s [ROWS 5]": ("sum needs a number", "sum"),
    "SELECT count(*), sum(side) FROM s [TUMBLE 1 HOUR]": ("sum needs a number", "sum"),
    "SELECT max(Price) FROM s [ROWS 5] WHERE Volume": ("is not a boolean", "Volume"),
    "SELECT max(Price) FROM s [ROWS 5] HAVING max(Price)": ("is not a boolean", "max"),
    "SELECT max(Price) - date '2024-01-01' FROM s [ROWS 5]": (
        "data type mismatch",
        "max(Price) - date",
    ),
    "SELECT max(Price) FROM s [ROWS 5] GROUP BY map(side, 1)": ("map", "map"),
    "SELECT max(uper(side)) FROM s [ROWS 5]": ("did you mean 'upper'", "uper"),
    "SELECT percentile(Price, 95) FROM s [ROWS 5]": ("between 0 and 1; got 95", "percentile"),
    "SELECT max(side.x) FROM s [ROWS 5]": ("side", "max"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_spark_refuses_is_reported_at_its_place(text: str, trades: Stream) -> None:
    message, words = REFUSED[text]
    with pytest.raises(DefinitionError, match=message) as refused:
        ice.sql(text, s=trades)
    _, line, mark = str(refused.value).splitlines()
    assert line[mark.index("^") :].startswith(words)


def test_streams_are_given_as_streams(feed: Feed) -> None:
    frame: Any = feed.stream()
    with pytest.raises(DefinitionError, match=r"s must be .*streaming DataFrame.*s=ice.stream\("):
        ice.sql("SELECT count(*) FROM s [ROWS 5]", s=frame)


def test_functions_are_given_as_aggregates(trades: Stream) -> None:
    functions: Any = {"longest": max}
    with pytest.raises(DefinitionError, match=r"longest must be .*UserAggregate; got builtin"):
        ice.sql("SELECT longest(Volume) FROM s [ROWS 5]", functions=functions, s=trades)
