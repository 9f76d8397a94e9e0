"""Output mode `now` on Spark: tables that can be asked, upserts, changes by key."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.core.errors import DamageError, DefinitionError
from icestream.dashboard.query_list import QueryList
from icestream.inspect.state_rows import now_rows
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000


def events(batch: int) -> pa.Table:
    # the second half of a batch arrives late, within three seconds
    seconds = [4 * batch + n for n in (2, 3, 0, 1)]
    times = pa.array([each * SECOND for each in seconds]).cast(pa.timestamp("us", "UTC"))
    keys = ["a", "b", "a", None]
    names = [f"{key}{batch % 2}" for key in keys]
    return pa.table({"ts": times, "key": keys, "x": [batch, 2, 3, 4], "name": names})


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, f"{tmp_path}/in", *(events(each) for each in range(3)))


def rows_of(frame: DataFrame) -> Counter[str]:
    return Counter(repr(row.asDict(recursive=True)) for row in frame.collect())


def run(writer: Any, checkpoint: Path) -> ice.Query:
    query = writer.option("checkpointLocation", str(checkpoint)).memory("64 MB").shards(2)
    started: ice.Query = query.trigger(availableNow=True).start()
    started.awaitTermination()
    return started


def test_windows_are_a_table_while_the_query_runs(
    feed: Feed, spark: SparkSession, tmp_path: Path
) -> None:
    stream = ice.stream(feed.stream(), "ts", slack="1 hour")
    kpis = stream.window("5 seconds").groupBy("key").agg(
        ice.sum("x").alias("s"), ice.count_distinct("name").alias("n"), ice.max("name").alias("m")
    )  # fmt: skip
    feed.batch().createOrReplaceTempView("came")
    batch = spark.sql(
        "SELECT window, key, sum(x) AS s, count(DISTINCT name) AS n, max(name) AS m FROM came"
        " GROUP BY window(ts, '5 seconds'), key"
    )
    changes: list[list[dict[str, Any]]] = []
    writer = kpis.writeStream.outputMode("now").foreachBatch(
        lambda rows, _: changes.append([row.asDict(recursive=True) for row in rows.collect()])
    )
    query = run(writer, tmp_path / "chk")
    assert rows_of(query.table()) == rows_of(batch)
    # folded by key, the changes are the table
    folded: dict[str, dict[str, Any]] = {}
    for version in changes:
        assert len({repr((row["window"], row["key"])) for row in version}) == len(version)
        for row in version:
            assert row.pop("change") == 1
            folded[repr((row["window"], row["key"]))] = row
    assert Counter(map(repr, folded.values())) == rows_of(batch)
    # from another process, by the command and with DuckDB
    assert len(list(now_rows(str(tmp_path / "chk")))) == batch.count()
    files = f"{tmp_path}/chk/icestream/now/0/*.parquet"
    newest = (
        duckdb.connect()
        .execute(
            f"SELECT count(*) FROM (SELECT * FROM '{files}' QUALIFY _version ="
            " max(_version) OVER (PARTITION BY _high, _low)) WHERE change > 0"
        )
        .fetchall()
    )
    assert newest == [(batch.count(),)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_follows_the_keys_across_restarts(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    options = {"path": f"{tmp_path}/lake"}
    if kind == "iceberg":
        options = {
            "path": "db.largest",
            "catalog": "here",
            "catalog.type": "sql",
            "catalog.uri": f"sqlite:///{tmp_path}/catalogue.db",
            "catalog.warehouse": f"file://{tmp_path}/warehouse",
        }
    parts = [events(each) for each in range(3)]
    feed = Feed(spark, f"{tmp_path}/in", *parts[:2])

    def started() -> ice.Query:
        stream = ice.stream(feed.stream(), "ts", slack="0 seconds").events()
        largest = stream.last("6 seconds").groupApply(
            "key", lambda group: group.agg(ice.max("x").alias("m"), ice.collect_set("name"))
        )
        return run(
            largest.writeStream.outputMode("now").format(kind).options(**options), tmp_path / "chk"
        )

    query = started()
    feed.add(parts[2])
    query = started()
    table = query.table()
    assert table.columns == ["key", "m", "collect_set(name)"]
    found = Counter(repr(row) for row in table.drop("collect_set(name)").toArrow().to_pylist())
    if kind == "delta":
        lake = DeltaTable(options["path"]).to_pyarrow_table()
    else:
        properties = {name.partition(".")[2]: value for name, value in options.items()}
        lake = load_catalog("here", **properties).load_table("db.largest").scan().to_arrow()
    rows = lake.drop_columns(["collect_set(name)"]).to_pylist()
    assert found == Counter(repr(row) for row in rows)
    # 11 s is the latest event: what came after 5 s holds
    assert {(row["key"], row["m"]) for row in table.collect()} == {("a", 3), ("b", 2), (None, 4)}


@pytest.mark.parametrize("how", ["changed", "missing"])
def test_a_damaged_file_of_the_table_is_named_to_who_asks(
    how: str, feed: Feed, tmp_path: Path
) -> None:
    counts = ice.stream(feed.stream(), "ts", slack="1 hour").groupBy("key").count()
    query = run(counts.writeStream.outputMode("now"), tmp_path / "chk")
    for part in (tmp_path / "chk/icestream/now/0").glob("*.parquet"):
        content = bytearray(part.read_bytes())
        content[9] ^= 1
        part.unlink()
        if how == "changed":
            part.write_bytes(content)
    with pytest.raises(DamageError) as failed:
        query.table()
    assert failed.value.path.endswith(".parquet")


def test_a_table_that_lost_its_last_version_has_it_again(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    def started(name: str) -> ice.Query:
        counts = ice.stream(feed.stream(), "ts", slack="1 hour").groupBy("key").count()
        return run(counts.writeStream.outputMode("now"), tmp_path / name)

    started("chk")
    newest = max((tmp_path / "chk/icestream/now/0").glob("manifest-*"))
    newest.unlink()
    feed.add(events(3).slice(0, 1))
    assert rows_of(started("chk").table()) == rows_of(started("whole").table())


def test_the_newest_row_of_a_key_is_in_the_table(feed: Feed, tmp_path: Path) -> None:
    stream = ice.stream(feed.stream(), "ts", slack="1 hour")
    query = run(stream.latestBy("key").writeStream.outputMode("now"), tmp_path / "chk")
    rows = query.table().collect()
    assert {(row["key"], row["x"]) for row in rows} == {("a", 2), ("b", 2), (None, 4)}
    # the age of a row is the time since its update, in seconds
    now = time.time()
    assert all(row["updated"] == row["ts"] for row in rows)
    assert all(0 <= now - row["updated"].timestamp() - row["age"] < 60 for row in rows)
    printed = {row["key"]: row["age"] for row in now_rows(str(tmp_path / "chk"))}
    assert all(0 <= printed[row["key"]] - row["age"] < 60 for row in rows)
    (shown,) = QueryList([str(tmp_path / "chk")]).queries()
    board = QueryList([str(tmp_path / "chk")]).query(shown["id"])
    assert board is not None
    assert [row["x"] for row in board["now"]] == [
        row["x"] for row in now_rows(str(tmp_path / "chk"))
    ]


def test_a_step_in_a_table_has_the_age_of_what_it_answers(feed: Feed, tmp_path: Path) -> None:
    stream = ice.stream(feed.stream(), "ts", slack="1 hour").latestBy("key")
    doubled = stream.map(
        lambda row: {"key": row["key"], "twice": 2 * row["x"]}, "key string, twice long"
    )
    query = run(doubled.writeStream.outputMode("now"), tmp_path / "chk")
    rows = query.table().where("age > 60").collect()
    assert {(row["key"], row["twice"]) for row in rows} == {("a", 4), ("b", 4), (None, 8)}
    with pytest.raises(DefinitionError, match="another name"):
        stream.map(lambda row: row, "key string, updated long").writeStream.outputMode("now")


def test_complete_mode_delivers_the_table_whole_for_any_operator(
    feed: Feed, tmp_path: Path
) -> None:
    # an hour of slack: the watermark reaches no window and no row
    stream = ice.stream(feed.stream(), "ts", slack="1 hour")
    largest = stream.events().forever().groupBy("key").apply(lambda group: group.top(1, by="x"))
    windows = stream.window("5 seconds").groupBy("key").count()
    for number, (result, rows) in enumerate(((largest, [3, 3, 3]), (windows, [3, 6, 8]))):
        whole: list[Counter[str]] = []
        writer = result.writeStream.outputMode("complete").foreachBatch(
            lambda rows, _version, whole=whole: whole.append(rows_of(rows))
        )
        query = run(writer, tmp_path / f"chk{number}")
        assert whole[-1] == rows_of(query.table())
        assert [sum(each.values()) for each in whole] == rows


def test_what_has_no_table_is_refused_where_it_is_written(feed: Feed) -> None:
    stream = ice.stream(feed.stream(), "ts")
    tenth = stream.window("1 minute", slide=ice.rows(10)).groupBy("key").count()
    with pytest.raises(DefinitionError, match="every m-th event"):
        tenth.writeStream.outputMode("now")
    kept = stream.window("1 minute").groupBy("key").count().groupBy("key").count()
    lasting = stream.events().select("key AS key2").last("1 minute")
    with pytest.raises(DefinitionError, match=r"forever\(\)"):
        kept.join(lasting, on=[("key", "key2")]).writeStream.outputMode("now")


def test_results_are_projected_by_key(feed: Feed, tmp_path: Path) -> None:
    stream = ice.stream(feed.stream(), "ts", slack="1 hour")
    busy = stream.session("3 seconds").groupBy("key").count().where("count > 1")
    busy = busy.select("session_window.start AS began", "count * 2 AS twice")
    changes: list[int] = []
    writer = busy.writeStream.outputMode("now").foreachBatch(
        lambda rows, _version: changes.append(rows.count())
    )
    query = run(writer, tmp_path / "chk")
    table = query.table()
    assert table.columns == ["began", "twice"]
    assert sum(changes) > 0
    batch = feed.batch()
    batch.createOrReplaceTempView("came")
    wanted = table.sparkSession.sql(
        "SELECT window.start AS began, n * 2 AS twice FROM (SELECT session_window(ts, '3 seconds')"
        " AS window, count(*) AS n FROM came WHERE key IS NOT NULL GROUP BY 1, key) WHERE n > 1"
    )
    assert rows_of(table) == rows_of(wanted)
