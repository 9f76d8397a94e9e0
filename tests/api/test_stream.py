"""What a stream, its windows and its groups refuse, and how they name what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api.result import Windowed
from icestream.api.stream import Stream
from icestream.core.errors import DefinitionError

pytestmark = pytest.mark.spark

COLUMNS = (
    "timestamp as ts", "value as n", "cast(value as string) as name", "map('a', 1) as tags",
    "array(1) as list", "named_struct('a', value, 'b', 'x') as pair", "true as flag",
    "cast(1 as decimal(30, 2)) as wide", "'x' collate UTF8_LCASE as folded",
)  # fmt: skip


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr(*COLUMNS)


@pytest.fixture(scope="module")
def events(df: DataFrame) -> Stream:
    return ice.stream(df, time="ts", slack="1 second")


@pytest.fixture(scope="module")
def windows(events: Stream) -> Windowed:
    return events.window("10 seconds", slide="2 seconds")


Definition = Callable[[DataFrame], Any]

#: what the type checker would refuse as well
SOMETHING: Any = [1]
SPARKS: Any = sf.sum


def _any(given: Any) -> Any:
    return given


def _windows(df: DataFrame) -> Windowed:
    return ice.stream(df, time="ts").window("10 seconds")


BAD: dict[str, tuple[Definition, str]] = {
    "no DataFrame": (lambda df: ice.stream(SOMETHING, "ts"), "takes a DataFrame; got list"),
    "no such time": (lambda df: ice.stream(df, time="when"), "no column 'when' .* columns are"),
    "a time that is a number": (
        lambda df: ice.stream(df, time="n"), r"is bigint, not a timestamp.*timestamp_millis\('n'\)"
    ),
    "a time made a string later": (
        lambda df: ice.stream(df, time="ts").withColumn("ts", sf.lit("x")),
        r"is string, not a timestamp.*to_timestamp\('ts'\)",
    ),
    "an aggregate of Icestream's": (
        lambda df: _windows(df).agg(ice.sum(_any(ice.avg("n")))), "avg is an aggregate already"
    ),
    "nulls that are ignored somehow": (
        lambda df: _windows(df).agg(ice.first("n", SOMETHING)), "ignorenulls=True or"
    ),
    "a shift into the past": (
        lambda df: ice.stream(df.select("ts"), time="ts").events().shift("-5 minutes"),
        "by -5 minutes; shift",
    ),
    "slack below zero": (lambda df: ice.stream(df, "ts", "-1 second"), "must not be negative"),
    "slack in months": (lambda df: ice.stream(df, "ts", "1 month"), "cannot read '1 month'"),
    "a policy for nulls": (lambda df: ice.stream(df, "ts", nulls="keep"), "'error' or 'drop'"),
    "a range of nothing": (lambda df: ice.stream(df, "ts").window("0 seconds"), "must be positive"),
    "a slide of nothing": (
        lambda df: ice.stream(df, "ts").window("1 hour", "0 seconds"), "slide must be positive"
    ),
    "a slide beyond the range": (
        lambda df: ice.stream(df, "ts").window("1 second", "2 seconds"), "slide further than"
    ),
    "an interval that is none": (
        lambda df: ice.stream(df, "ts").window("a while"), "cannot read 'a while' as an interval"
    ),
    "an offset beyond the slide": (
        lambda df: ice.stream(df, "ts").window("4 seconds", "2 seconds", "3 seconds"), "offset"
    ),
    "a condition on what is not there": (
        lambda df: ice.stream(df, "ts").where("missing > 1"), "missing.*The columns are"
    ),
    "no such key": (lambda df: _windows(df).groupBy("k").agg(ice.count()), "`k`.*columns are"),
    "no such input": (lambda df: _windows(df).agg(ice.sum("k")), "`k`.*The columns are"),
    "all columns as a key": (
        lambda df: _windows(df).groupBy("*").agg(ice.count()), "given one by one"
    ),
    "all columns as an input": (lambda df: _windows(df).agg(ice.sum("*")), "The columns are"),
    "a map as a key": (lambda df: _windows(df).groupBy("tags").agg(ice.count()), "map"),
    "an array as a key": (lambda df: _windows(df).groupBy("list").agg(ice.count()), "list"),
    "a collated key": (
        lambda df: _windows(df).groupBy("folded").agg(ice.count()), "binary collation"
    ),
    "no aggregate": (lambda df: _windows(df).agg(), "at least one aggregate"),
    "Spark's aggregate": (lambda df: _windows(df).agg(SPARKS("n")), "takes Icestream's aggregates"),
    "an aggregate of an aggregate": (
        lambda df: _windows(df).agg(ice.sum(sf.sum("n"))), "The columns are"
    ),
    "a sum of strings": (lambda df: _windows(df).agg(ice.sum("name")), "sum needs a number"),
    "the least map": (lambda df: _windows(df).agg(ice.min("tags").alias("m")), "min of a map"),
    "a sum too wide": (lambda df: _windows(df).agg(ice.sum("wide")), "at most 28 digits"),
    "two outputs of one name": (
        lambda df: _windows(df).groupBy("n").agg(ice.count().alias("N")), "several columns"
    ),
    "an output called window": (
        lambda df: _windows(df).agg(ice.count().alias("window")), "several columns"
    ),
    "an unknown column in a grouping set": (
        lambda df: _windows(df).groupingSets([["n"], ["k"]], "n").agg(ice.count()), "'k'.*not among"
    ),
    "no grouping set": (lambda df: _windows(df).groupingSets([], "n"), "at least one set"),
    "a grouping set twice": (
        lambda df: _windows(df).groupingSets([["n"], ["n"]], "n"), "may be given only once"
    ),
    "a union of different types": (
        lambda df: ice.stream(df, "ts")
        .union(ice.stream(df.withColumn("n", sf.lit("x")), "ts"))
        .window("1 second")
        .agg(ice.count("n")),
        "must have equal types",
    ),
    "a selection of what is not there": (
        lambda df: _windows(df).count().select("k"), "`k`.*The columns are.*window"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_refused_when_it_is_defined(name: str, df: DataFrame) -> None:
    define, message = BAD[name]
    with pytest.raises(DefinitionError, match=message):
        define(df)


def test_results_have_the_names_and_types_spark_gives_them(windows: Windowed) -> None:
    grouped = windows.groupBy("pair.a", sf.col("name").alias("who"), sf.col("n") % 2)
    result = grouped.agg(ice.count(), ice.avg("n"), ice.max("ts").alias("last"))
    assert result.columns == ["window", "a", "who", "(n % 2)", "count(1)", "avg(n)", "last"]
    assert result.schema.simpleString() == (
        "struct<window:struct<start:timestamp,end:timestamp>,a:bigint,who:string,(n % 2):bigint,"
        "count(1):bigint,avg(n):double,last:timestamp>"
    )


def test_columns_may_come_as_a_list(windows: Windowed) -> None:
    assert windows.groupBy(["n", "name"]).count().columns == ["window", "n", "name", "count"]


def test_inputs_that_mean_the_same_are_kept_once(windows: Windowed) -> None:
    doubled = sf.col("n") * 2
    result = windows.agg(ice.sum(doubled), ice.avg(sf.col("n") * 2), ice.min("n"))
    assert result._built.plan.expressions == ("(n * 2)", "n")
    assert [each.column for each in result._built.plan.views[0].aggregates] == ["x0", "x0", "x1"]


def test_inputs_that_only_read_alike_are_kept_apart(windows: Windowed) -> None:
    one = sf.udf(lambda n: n, "bigint")
    other = sf.udf(lambda n: -n, "bigint")
    result = windows.agg(ice.sum(one("n")).alias("a"), ice.sum(other("n")).alias("b"))
    assert result._built.plan.expressions == ("<lambda>(n)", "<lambda>(n) #2")
    assert [each.column for each in result._built.plan.views[0].aggregates] == ["x0", "x1"]


def test_sources_of_a_union_are_told_apart(df: DataFrame) -> None:
    three = ice.stream(df, "ts").union(ice.stream(df, "ts", "2 seconds"))
    result = three.union(ice.stream(df, "ts", name="calls")).window("1 second").count()
    sources = result._built.plan.sources
    assert [source.name for source in sources] == ["stream 1", "stream 2", "calls"]
    assert [source.slack for source in sources] == [0, 2_000_000, 0]


def test_events_may_be_filtered_and_extended(events: Stream) -> None:
    changed = events.where("n > 1").filter("n < 9").withColumn("twice", sf.col("n") * 2)
    assert changed.window("1 second").agg(ice.sum("twice")).columns == ["window", "sum(twice)"]


def test_rows_may_be_selected_and_filtered(windows: Windowed) -> None:
    result = windows.groupBy("name").count().where("count > 3").select("window.start", "name")
    assert result.schema.simpleString() == "struct<start:timestamp,name:string>"


def test_explain_reports_what_is_computed(
    windows: Windowed, capsys: pytest.CaptureFixture[str]
) -> None:
    windows.groupBy("name").agg(ice.sum("n")).explain()
    reported = capsys.readouterr().out
    assert "sum(x0) as sum(n)" in reported
    assert "5 per window and 1 per slide" in reported
    assert "bytes per group and pane" in reported
