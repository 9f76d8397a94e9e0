"""The words of PySpark's DataFrames on everything that has columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import DefinitionError
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def stream(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ice.Stream:
    times = pa.array([0, 1_000_000, 2_000_000]).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": times, "k": ["a", "b", "a"], "x": [1, 2, 3]})
    feed = Feed(spark, f"{tmp_path_factory.mktemp('words')}/in", rows)
    return ice.stream(feed.stream(), "ts")


KINDS: dict[str, Callable[[ice.Stream], Any]] = {
    "stream": lambda stream: stream,
    "events": lambda stream: stream.events(),
    "updates": lambda stream: stream.latestBy("k"),
    "result": lambda stream: (
        stream.rows(3, partitionBy="k").agg(ice.sum("x").alias("x")).select("time AS ts", "k", "x")
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_found_in_any_case(kind: str, stream: ice.Stream) -> None:
    rows = KINDS[kind](stream)
    for made, columns in (
        (rows.withColumn("X", "x * 2"), ["ts", "k", "X"]),
        (rows.withColumnRenamed("X", "y"), ["ts", "k", "y"]),
        (rows.drop("X"), ["ts", "k"]),
        (rows.drop(sf.col("x")), ["ts", "k"]),
    ):
        assert made.columns == columns


def test_keys_are_found_in_any_case(stream: ice.Stream, spark: SparkSession) -> None:
    events = stream.events()
    renamed = stream.withColumnRenamed("TS", "at").window("1 hour").groupBy("k").count()
    assert renamed.columns == ["window", "k", "count"]
    other = events.select("k AS K", "x AS y")
    names = spark.createDataFrame([("a", 1)], "K string, name int")
    for made, columns in (
        (events.dropDuplicates("K", within="1 hour"), ["ts", "k", "x"]),
        (
            stream.over(ice.count().alias("n"), partitionBy="K", range="1 hour"),
            ["ts", "k", "x", "n"],
        ),
        (events.groupBy("K").count(), ["k", "count"]),
        (events.groupApply("K", lambda group: group.top(1, by="X")), ["ts", "k", "x"]),
        (
            events.forever().groupApply("K", lambda a, b: a.join(b), other.forever()),
            ["ts", "k", "x", "y"],
        ),
        (events.join(other, on="k", within="1 hour"), ["ts", "k", "x", "y"]),
        (events.join(other, on="K", how="left", within="1 hour"), ["ts", "k", "x", "y"]),
        (events.join(other, on=[("K", "k")], how="semi", within="1 hour"), ["ts", "k", "x"]),
        (
            ice.join(events, other, other.select("K", "y AS z"), on="k", within="1 hour"),
            ["ts", "k", "x", "y", "z"],
        ),
        (events.join(names, on="k"), ["k", "ts", "x", "name"]),
        (stream.latestBy("K"), ["ts", "k", "x"]),
    ):
        assert made.columns == columns


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_has_the_same_words(
    kind: str, stream: ice.Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = KINDS[kind](stream)
    assert rows.columns == ["ts", "k", "x"]
    for made, columns in (
        (rows.select("ts", "k", sf.col("x")), ["ts", "k", "x"]),
        (rows.selectExpr("ts", "k", "x * 2 AS y"), ["ts", "k", "y"]),
        (rows.select("*", "x + 1 AS y"), ["ts", "k", "x", "y"]),
        (rows.withColumn("x", "x * 2"), ["ts", "k", "x"]),
        (rows.withColumn("y", sf.col("x") * 2), ["ts", "k", "x", "y"]),
        (rows.withColumns({"y": "x", "z": sf.col("x")}), ["ts", "k", "x", "y", "z"]),
        (rows.withColumnRenamed("x", "y").where("y > 1"), ["ts", "k", "y"]),
        (rows.withColumnRenamed("none", "y").filter(sf.col("x") > 1), ["ts", "k", "x"]),
        (rows.drop("x", "none"), ["ts", "k"]),
    ):
        assert made.columns == columns
    with pytest.raises(DefinitionError, match=r"drop\('ts', 'k', 'x'\) leaves no column"):
        rows.drop("ts", "k", "x")
    rows.printSchema()
    assert " |-- k: string (nullable = true)" in capsys.readouterr().out
    with pytest.raises(AttributeError, match="have no 'frobnicate': they have"):
        rows.frobnicate  # noqa: B018
    with pytest.raises(DefinitionError):
        rows.drop("ts", "k", "x")


def test_words_that_are_not_there_name_others(stream: ice.Stream) -> None:
    for kind, word, instead in (
        ("stream", "agg", r"groupBy\(...\).agg"),
        ("events", "orderBy", "top"),
        ("updates", "groupBy", r"window\(...\).groupBy"),
        ("result", "top", r"events\(\)"),
    ):
        with pytest.raises(AttributeError, match=instead):
            getattr(KINDS[kind](stream), word)
    writer = stream.window("1 hour").count().writeStream
    with pytest.raises(AttributeError, match=r"writers have no 'foreach': use foreachBatch"):
        _ = writer.foreach


def test_words_of_groups_that_are_not_there_name_others(stream: ice.Stream) -> None:
    for grouped in (stream.window("1 hour").groupBy("k"), stream.groupBy("k")):
        for word, instead in (
            ("sum", r"use agg\(ice.sum\('x'\)\)"),
            ("pivot", r"use agg\(ice.sum\(sf.when"),
            ("applyInPandas", r"use stream.events\(\).groupApply"),
            ("frobnicate", "they have agg, .*count"),
        ):
            with pytest.raises(AttributeError, match=f"groups have no '{word}': {instead}"):
                getattr(grouped, word)


def test_mistakes_are_named_as_they_were_written(stream: ice.Stream) -> None:
    with pytest.raises(DefinitionError, match="number of rows; got -1 hour"):
        stream.over(ice.count(), partitionBy="k", range="-1 hour")
    with pytest.raises(DefinitionError, match=r"dropDuplicates names \['none'\]"):
        stream.dropDuplicates("none")
    writer = stream.window("1 hour").count().writeStream
    for wrong in (0, -1, "2", True):
        with pytest.raises(DefinitionError, match="parallelism takes a whole number, 1 or more"):
            writer.parallelism(wrong)  # type: ignore[arg-type]
        with pytest.raises(DefinitionError, match="shards takes a whole number, 1 or more"):
            ice.start(writer, checkpointLocation="none", shards=wrong)  # type: ignore[arg-type]


def test_what_spark_refuses_in_a_statement_has_no_stack(
    stream: ice.Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "SELECT CASE WHEN x THEN 1 END AS c, count(*) AS n FROM s GROUP BY 1"
    with pytest.raises(DefinitionError, match=r'requires the "BOOLEAN" type') as found:
        ice.sql(text, s=stream)
    assert "SQLSTATE" not in str(found.value)
    assert "Py4J" not in capfd.readouterr().err


def test_columns_that_spark_cannot_read_are_named(spark: SparkSession) -> None:
    for wrong in ("at timestamp, shop strng", "at timestamp shop"):
        with pytest.raises(DefinitionError, match=f"cannot read '{wrong}' as columns"):
            ice.files(spark, "none", schema=wrong)


ODD = ["a.b", "q`t", "a b", "x-y", "select", "true"]


def odd(name: str, spark: SparkSession, folder: Path) -> tuple[ice.Stream, str]:
    """Return a stream with a column of a name that needs quotes, and the name in quotes."""
    times = pa.array([0, 1_000_000, 2_000_000]).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": times, "x": [1, 2, 3], "y": [7, 1, 5], name: [1, 2, 1]})
    escaped = name.replace("`", "``")
    return ice.stream(Feed(spark, str(folder), rows).stream(), "ts"), f"`{escaped}`"


@pytest.mark.parametrize("name", ODD)
def test_columns_of_events_may_have_any_name(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    stream, quoted = odd(name, spark, tmp_path / "in")
    named: list[Any] = [quoted, sf.col(quoted)]
    for column in named:
        made = stream.over(ice.sum(column).alias("s"), partitionBy=column, rows=2)
        assert made.columns == ["ts", "x", "y", name, "s"]
        events = stream.events().where(f"{quoted} > 0").select("x", sf.col(quoted))
        assert events.columns == ["x", name]
        assert stream.events().select("x", name).columns == ["x", name]
        hourly = stream.window("1 hour").groupBy(column).count().select("window", name, "count")
        assert hourly.groupBy(column).agg(ice.max("count").alias("n")).columns == [name, "n"]
        both = events.join(stream.events().select("y", quoted), on=column, within="1 second")
        grouped = ice.stream(both).window("1 minute").groupBy(column).count()
        assert grouped.columns == ["window", name, "count"]


def test_oracle_a_name_with_a_sign_is_no_difference(spark: SparkSession, tmp_path: Path) -> None:
    stream, _ = odd("x-y", spark, tmp_path / "in")
    sums = stream.events().forever().groupBy("x-y").agg(ice.sum("x-y").alias("s"))
    writer = sums.writeStream.outputMode("now").option("checkpointLocation", f"{tmp_path}/chk")
    query = writer.memory("64 MB").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(map(tuple, query.table().collect())) == [(1, 2), (2, 2)]


def test_keys_of_windows_behind_events_are_named_as_those_of_windows(stream: ice.Stream) -> None:
    behind = ice.stream(stream.over(ice.count().alias("n")))
    for key in (
        (sf.col("x") % 2).alias("odd"),
        sf.expr("x % 2 AS odd"),
        sf.expr("x % 2"),
        sf.expr("x * 1.5"),
        sf.hour("ts"),
        "K",
    ):
        own = stream.window("1 minute").groupBy(key).count().columns
        assert behind.window("1 minute").groupBy(key).count().columns == own


@pytest.mark.parametrize("name", ["a.b", "q`t", "a b", "event time", "Event Time"])
def test_the_time_may_have_any_name(name: str, spark: SparkSession, tmp_path: Path) -> None:
    times = pa.array([0, 1_000_000, 2_000_000]).cast(pa.timestamp("us", "UTC"))
    feed = Feed(spark, f"{tmp_path}/in", pa.table({name: times, "k": ["a", "b", "a"]}))
    stream = ice.stream(feed.stream(), name)
    quoted = f"`{name.replace('`', '``')}`"
    for made, columns in (
        (
            ice.sql(f"SELECT {quoted}, count(*) OVER (ORDER BY {quoted}) AS n FROM s", s=stream),
            [name, "n"],
        ),
        (
            ice.sql(f"SELECT x.k, y.{quoted} FROM s x JOIN s y ON x.k = y.k", s=stream),
            ["k", name],
        ),
        (stream.window("1 hour").groupBy("k").count(), ["window", "k", "count"]),
        (stream.session("1 hour").groupBy("k").count(), ["session_window", "k", "count"]),
        (stream.over(ice.count().alias("n"), partitionBy="k"), [name, "k", "n"]),
        (stream.events().dropDuplicates("k"), [name, "k"]),
        (stream.latestBy("k"), [name, "k"]),
        (ice.sql("SELECT k, count(*) AS n FROM s GROUP BY k", s=stream), ["k", "n"]),
    ):
        assert made.columns == columns


def _start(events: ice.Events, mode: str, folder: Path) -> None:
    writer = events.writeStream.outputMode(mode).option("path", f"{folder}/out")
    writer.option("checkpointLocation", f"{folder}/chk").start()


def test_columns_named_as_those_of_rows_are_refused(stream: ice.Stream, tmp_path: Path) -> None:
    for name, mode in (("lifetime", "append"), ("Lifetime", "changes"), ("change", "now")):
        events = stream.events().forever().withColumnRenamed("x", name)
        with pytest.raises(DefinitionError, match=f"rename {name.lower()}, for example with"):
            _start(events.groupBy(name).count(), mode, tmp_path)


def test_groups_are_those_of_pyspark(stream: ice.Stream) -> None:
    for grouped in (stream.groupBy("k"), stream.events().forever().groupBy(["k"])):
        assert grouped.agg(ice.max("x").alias("m")).columns == ["k", "m"]
        assert grouped.count().columns == ["k", "count"]


def test_batches_are_joined_before_and_after(stream: ice.Stream, spark: SparkSession) -> None:
    names = spark.createDataFrame([("a", "Ann")], "k string, name string")
    joined = stream.join(names, on="k", how="left")
    assert joined.columns == ["k", "ts", "x", "name"]
    counted = joined.window("1 second").groupBy("name").count()
    assert counted.columns == ["window", "name", "count"]
    result = KINDS["result"](stream).join(names, on="k")
    assert result.columns == ["k", "ts", "x", "name"]
    assert result.groupBy("name").count().columns == ["name", "count"]
    with pytest.raises(DefinitionError, match="batch DataFrame"):
        stream.join(stream._parts[0].frame, on="k")
    # the event time keeps its meaning under another name
    other = stream.withColumnRenamed("x", "y").withColumnRenamed("ts", "at")
    assert other.window("1 second").count().columns == ["window", "count"]
    assert stream.join(other, on="k", within="1 second").columns == ["ts", "k", "x", "at", "y"]


def test_words_about_events_are_those_of_events(stream: ice.Stream) -> None:
    result = KINDS["result"](stream)
    for rows in (stream, result, stream.events()):
        names = rows.columns
        assert rows.dropDuplicates("k").columns == names
        assert rows.union(rows.where("x > 1").events()).columns == names  # type: ignore[arg-type]
        assert rows.over(ice.lag("x").alias("y"), partitionBy="k").columns == [*names, "y"]
        assert rows.groupApply("k", lambda group: group.top(1, by="x")).columns == names
        assert rows.groupApply("k", lambda one, other: one.difference(other), stream).columns
        other = stream.select("ts", "k").withColumnRenamed("ts", "at")
        both = rows.join(other, "k", "left", within="1 second")
        assert both.columns == [*names, "at"]
        with pytest.raises(DefinitionError, match="takes other events"):
            rows.groupApply("k", lambda one, other: one, 5)  # type: ignore[arg-type]
    sides = stream.select("ts", "k"), result.select("k", "x")
    assert ice.join(*sides, on="k", within="1 second").columns == ["ts", "k", "x"]


@pytest.mark.parametrize(
    "keyed",
    [
        lambda s: s.groupBy("xs").agg(ice.count()),
        lambda s: s.dropDuplicates("xs"),
        lambda s: s.over(ice.count().alias("n"), partitionBy="xs"),
        lambda s: s.join(s.withColumnRenamed("k", "other"), on="xs", within="1 hour"),
        lambda s: s.session("1 hour").groupBy("xs").count(),
        lambda s: s.latestBy("xs"),
    ],
    ids=["groups", "duplicates", "over", "join", "sessions", "updates"],
)
def test_columns_that_cannot_be_keys_are_refused_where_they_are_written(
    keyed: Callable[[ice.Stream], Any], stream: ice.Stream
) -> None:
    with pytest.raises(DefinitionError, match=r"'xs' has type list.*group by one of its elements"):
        keyed(stream.withColumn("xs", sf.array("x")))


#: the package without its types, for calls that they forbid
untyped: Any = ice
#: what users mistype or mix up, and what the error says
MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a condition that ends early": (lambda s: s.where("x >"), "^Syntax error.* columns are"),
    "a column that is not there": (lambda s: s.where("nope > 1"), "^A column.*`nope` cannot be"),
    "no event time": (lambda s: s.select("k"), "'ts' for the event time, which must stay"),
    "a window as key": (
        lambda s: s.groupBy(sf.window("ts", "1 second"), "k").count(), "windows come first: w"
    ),
    "a condition that is a number": (lambda s: s.where(5), "condition.*got int.* columns are"),
    "an expression as time": (
        lambda s: untyped.stream(s._parts[0].frame, sf.col("ts") + 1), "no column"
    ),
    "no columns": (lambda s: s.select(), "select needs at least one column"),
    "no columns of events": (lambda s: s.events().select(), "select needs at least one column"),
    "an aggregate as a column": (lambda s: s.events().select(sf.sum("x")), "takes no aggregates"),
    "a number as key": (lambda s: s.window("1 second").groupBy(1), "columns or their names; got 1"),
    "an expression as partition": (lambda s: s.over(ice.rank(), partitionBy=sf.col("x") % 2), "%"),
    "a number as partition": (lambda s: s.over(ice.rank(), partitionBy=3), "names of columns"),
    "no function": (lambda s: s.events().groupApply("k", 5), "a function of the events"),
    "a text as k": (
        lambda s: s.events().groupApply("k", lambda group: group.top("2", by="x")),
        "whole number k",
    ),
    "a condition as equal columns": (lambda s: s.join(s, on=sf.col("k") == 1), "join names"),
    "a number as equal columns": (lambda s: untyped.join(s, s, on=5), "a join compares columns"),
    "a negative distance": (lambda s: s.join(s, on="k", within="-1 second"), "give two bounds"),
    "a class as processor": (
        lambda s: s.events().groupApply("k", lambda g: g.process(ice.StatefulProcessor)),
        r"made with \(\)",
    ),
    "a number as statement": (lambda s: untyped.sql(5, s=s), "the text of a statement"),
    "a function of frames in a window": (
        lambda s: s.window("1 second").agg(ice.lag("x")),
        r"belongs in over\(",
    ),
    "sets without columns": (
        lambda s: s.window("1 second").groupingSets([["k"]]),
        r"name \['k'\], which are not among the columns \[\]",
    ),
    "nothing to call": (
        lambda _: untyped.UserAggregate(None, max, max, pa.int64()),
        "lift of a UserAggregate must be a function",
    ),
    "a type as text": (
        lambda _: untyped.UserAggregate(max, max, max, "double"),
        "a type of Arrow",
    ),
    "an option with a letter missing": (
        lambda s: s.window("1 second").count().writeStream.option("flsh", True),
        "no option 'flsh'; did you mean 'flush'",
    ),
    "an argument with a letter missing": (
        lambda s: untyped.start(
            s.window("1 second").count().writeStream, checkpointLocation="c", memry="1 MB"
        ),
        "no option 'memry'; did you mean 'memory'",
    ),
    "no output mode": (lambda s: s.window("1 second").count().writeStream.outputMode(None), "None"),
    "a trigger that is off": (
        lambda s: s.window("1 second").count().writeStream.trigger(once=False),
        "takes True",
    ),
    "no callback": (lambda s: s.window("1 second").count().writeStream.foreachBatch(5), "got 5"),
    "a text as number": (lambda s: s.window("1 second").count().writeStream.shards("2"), "whole"),
    "a flag that is neither": (
        lambda s: (
            s.window("1 second").count().writeStream.option("flush", "maybe")
            .option("checkpointLocation", "c").format("noop").start()
        ),
        "must be true or false; got 'maybe'",
    ),
    "a key of versions that is not there": (
        lambda s: s.events().untilNext("zz"), r"untilNext names \['zz'\]"
    ),
    "an option of files with letters missing": (
        lambda s: untyped.files(
            s._parts[0].frame.sparkSession, "none", schema="a int", maxFilePerTrigger=1
        ),
        "no option 'maxFilePerTrigger' of files; did you mean 'maxFilesPerTrigger'",
    ),
    "windows as text": (
        lambda s: s.window("1 second").count().writeStream.format("csv")
        .option("checkpointLocation", "c").start("none"),
        r"'csv' has no column for 'window'.*select\('window.start', 'window.end', ...\)",
    ),
    "a list as text": (
        lambda s: s.window("1 second").agg(ice.collect_list("x").alias("xs")).select("xs")
        .writeStream.format("csv").option("checkpointLocation", "c").start("none"),
        r"'csv' has no column for 'xs'.*to_json\(xs\)",
    ),
    "an unknown format": (
        lambda s: (
            s.window("1 second").count().writeStream.format("parqet")
            .option("checkpointLocation", "c").start()
        ),
        "no format 'parqet'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_in_one_line_without_a_stack(
    mistake: str, stream: ice.Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    make, says = MISTAKES[mistake]
    with pytest.raises(DefinitionError, match=says) as refused:
        make(stream)
    assert "\n" not in str(refused.value)
    assert "Exception" not in capfd.readouterr().err


def test_a_function_that_is_not_there_names_a_similar_one() -> None:
    with pytest.raises(AttributeError, match="no attribute 'summ'") as missing:
        untyped.summ  # noqa: B018 - it raises
    # from these Python makes a suggestion
    assert (missing.value.name, missing.value.obj) == ("summ", ice)


def test_a_missing_column_of_an_aggregate_is_shown_as_it_was_written(stream: ice.Stream) -> None:
    counted = stream.window("1 second").groupBy("k").count()
    with pytest.raises(DefinitionError, match="no column 'cnt'") as refused:
        counted.groupBy("k").agg(ice.sum("cnt"))
    assert str(refused.value).splitlines()[1:] == ["  cnt", "  ^^^"]


def test_files_are_divided_by_columns_in_any_case(stream: ice.Stream) -> None:
    writer = stream.window("1 hour").groupBy("k").count().writeStream
    assert writer.partitionBy("K")._partition_by == ("k",)


def test_update_streams_are_explained(
    stream: ice.Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.latestBy("k").explain()
    assert "the newest of each k" in capsys.readouterr().out


def test_columns_of_spark_name_columns(stream: ice.Stream) -> None:
    events: Any = stream.events()
    k = sf.col("k")
    other = events.select("k", "x AS y")
    pairs: list[tuple[Any, Any]] = [
        (stream.over(ice.rank(), partitionBy=k), stream.over(ice.rank(), partitionBy="k")),
        (events.dropDuplicates(k, "x"), events.dropDuplicates(["k", "x"])),
        (events.forever().groupBy(k).count(), events.forever().groupBy("k").count()),
        (
            events.join(other, on=k, within="1 second", where=sf.col("x") < sf.col("y")),
            events.join(other, on="k", within="1 second", where="x < y"),
        ),
    ]
    for one, same in pairs:
        assert one.columns == same.columns
    assert untyped.stream(stream._parts[0].frame, sf.col("ts"))._parts[0].time == "ts"


def test_options_of_sinks_and_of_sub_queries_are_not_taken_for_mistyped_ones(
    stream: ice.Stream,
) -> None:
    writer = stream.window("1 second").count().writeStream
    for option in ("compression", "cold.classifier.k", "storage.region", "FLUSH", "maxRecords"):
        assert writer.option(option, "x")._options != writer._options
