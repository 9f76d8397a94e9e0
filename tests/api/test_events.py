"""Events with lifetimes on Spark: what is refused, and results beside Spark's own SQL."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api.events import Events
from icestream.api.query_warnings import QueryWarning
from icestream.core.errors import CheckpointError, DefinitionError
from icestream.operators.process.per_group import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimedRows,
    TimerValues,
)
from tests.fixtures.parquet_feed import Feed
from tests.oracles import lifetimes as oracle

pytestmark = pytest.mark.spark

SECOND = 1_000_000
#: Spark's own streaming watermark begins in 1970
START = 1_700_000_000 * SECOND


def ratings(number: int, count: int = 40) -> pa.Table:
    dice = np.random.default_rng([5, number])
    times = START + number * 10 * SECOND + np.sort(dice.integers(0, 10 * SECOND, count))
    return pa.table(
        {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "user": pa.array(dice.integers(0, 6, count), mask=dice.random(count) < 0.05),
            "item": pa.array(dice.integers(0, 5, count)),
            "rating": pa.array(dice.integers(1, 9, count) / 2),
        }
    )


def clicks(number: int) -> pa.Table:
    table = ratings(100 + number, 30)
    times = table.column("ts").cast(pa.int64()).to_numpy() - 1000 * SECOND
    moved = pa.array(times).cast(pa.timestamp("us", "UTC"))
    return table.select(["user", "item"]).rename_columns(["user", "page"]).add_column(
        0, "ts", [moved]
    )  # fmt: skip


@dataclass(frozen=True)
class World:
    ratings: Feed
    clicks: Feed

    def rated(self) -> Events:
        return ice.stream(self.ratings.stream(), time="ts", slack="0 seconds").events()

    def clicked(self) -> Events:
        return ice.stream(self.clicks.stream(), time="ts", slack="0 seconds").events()


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("events")
    return World(
        Feed(spark, f"{folder}/ratings", *(ratings(number) for number in range(3))),
        Feed(spark, f"{folder}/clicks", *(clicks(number) for number in range(3))),
    )


def run(
    events: Events, folder: Path, mode: str = "append", *, flush: bool = True
) -> list[dict[str, Any]]:
    """Run a query to the end of its input and return all rows."""
    writer = events.writeStream.outputMode(mode).format("parquet").shards(2).memory("64 MB")
    writer = writer.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/chk")
    if flush:
        writer = writer.option("flush", "true")
    writer.trigger(availableNow=True).start().awaitTermination()
    spark = SparkSession.active()
    rows: list[dict[str, Any]] = spark.read.parquet(f"{folder}/out").toArrow().to_pylist()
    return rows


def payloads(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Return how often each payload is in the answer, whatever its lifetimes."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        payload = tuple(row[name] for name in row if name not in ("lifetime", "change"))
        found[payload] += row.get("change", 1)
    return Counter({payload: count for payload, count in found.items() if count})


def now(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Return what is alive for ever."""
    return payloads([row for row in rows if row["lifetime"]["end"] is None])


def batch(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in frame.toArrow().to_pylist())


# -- what is refused -----------------------------------------------------------------------

Definition = Callable[[Events, Events], Any]
SOMETHING: Any = [1]

BAD: dict[str, tuple[Definition, str]] = {
    "a condition on what is not there": (lambda r, c: r.where("missing > 1"), "missing"),
    "a selection of what is not there": (lambda r, c: r.select("missing"), "missing"),
    "an aggregate outside groups": (
        lambda r, c: r.agg(ice.count()), "agg works only on the events of a group"
    ),
    "the best outside groups": (lambda r, c: r.top(3, "rating"), "top works only on the events of"),
    "a join without keys": (lambda r, c: r.join(c), r"join\(other, on=...\)"),
    "a difference without keys": (lambda r, c: r.difference(c), r"difference\(other, on=...\)"),
    "keys that are not there": (
        lambda r, c: r.groupApply("page", lambda g: g.agg(ice.count())),
        r"groupApply names \['page'\]; the columns are",
    ),
    "keys that the other has not": (
        lambda r, c: r.join(c, on="item"), r"join names \['item'\]; the columns are"
    ),
    "a function that returns a list": (
        lambda r, c: r.groupApply("user", lambda g: SOMETHING), "must return events made from its"
    ),
    "a function that returns something else": (
        lambda r, c: r.groupApply("user", lambda g: r), "must return events made from its"
    ),
    "a stream from outside the group": (
        lambda r, c: r.groupApply("user", lambda g: g.difference(c)), "pass other streams to group"
    ),
    "a union of different columns": (lambda r, c: r.union(c), "a union needs equal columns"),
    "a union with a list": (lambda r, c: r.groupApply("user", lambda g: g.difference(SOMETHING)),
        "takes other events"),
    "an unknown join": (lambda r, c: r.join(c, "user", how="cross"), "how='cross' is not a kind"),
    "columns of one name": (
        lambda r, c: r.join(r, on="user"), r"both sides of the join have \['item', 'rating', 'ts'\]"
    ),
    "no aggregate": (
        lambda r, c: r.groupApply("user", lambda g: g.agg()), "takes Icestream's aggregates"
    ),
    "the best of no column": (
        lambda r, c: r.groupApply("user", lambda g: g.top(1, "page")), r"top names \['page'\]"
    ),
    "no lifetime": (lambda r, c: r.alterLifetime("0 seconds"), "a lifetime must be positive"),
    "an interval that is none": (lambda r, c: r.window("a while"), "cannot read 'a while'"),
    "an unknown output mode": (
        lambda r, c: r.groupApply("user", lambda g: g.agg(ice.count())).writeStream.outputMode(
            "whole"), "'whole' is not supported"
    ),
    "a sink that cannot replace": (
        lambda r, c: r.groupApply("user", lambda g: g.agg(ice.count())).writeStream.outputMode(
            "complete").option("checkpointLocation", "c").start("x"), "foreachBatch"
    ),
    "events without a group": (lambda r, c: r.writeStream, "straight from a source"),
    "events of a group": (
        lambda r, c: r.groupApply("user", lambda g: g.explain() or g), "return the events of a"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_refused_when_it_is_defined(name: str, world: World) -> None:
    define, message = BAD[name]
    with pytest.raises(DefinitionError, match=message):
        define(world.rated(), world.clicked())


def test_columns_that_cannot_be_stored_are_refused_when_a_query_is_defined(
    spark: SparkSession,
) -> None:
    frame = spark.sql("SELECT timestamp'2024-01-01' AS ts, 1 AS k, map('a', 1) AS m")
    events = ice.stream(frame, time="ts").events()
    joined = events.join(events.select("k AS l"), on=[("k", "l")], within="1 hour")
    with pytest.raises(DefinitionError, match=r"column .m. of type map.* cannot be stored"):
        joined.writeStream  # noqa: B018 - defines the query


def counted(world: World, condition: str = "rating > 1") -> Events:
    def of_a_user(group: Events) -> Events:
        return group.where(condition).agg(ice.count().alias("n"), ice.sum("rating").alias("total"))

    return world.rated().forever().groupApply("user", of_a_user)


def test_too_little_memory_is_refused(world: World, tmp_path: Path) -> None:
    writer = counted(world).writeStream.format("noop").shards(4).memory("4200 KB")
    writer = writer.option("checkpointLocation", f"{tmp_path}/chk").trigger(availableNow=True)
    with pytest.raises(DefinitionError, match="too small"):
        writer.memory("1 MB").start()


def test_a_checkpoint_of_another_query_is_refused(world: World, tmp_path: Path) -> None:
    run(counted(world), tmp_path, "changes", flush=False)
    with pytest.warns(
        QueryWarning, match=r"changed, .*the query has \['1: where \(rating > 2\) of 0'\]"
    ):
        run(counted(world, "rating > 2"), tmp_path, "changes", flush=False)
    # the columns of a table are compared before
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(CheckpointError, match="belongs to another query"):
        run(counted(world), tmp_path, "append", flush=False)


# -- results beside Spark's ----------------------------------------------------------------


def test_oracle_running_aggregates_equal_those_of_a_batch(world: World, tmp_path: Path) -> None:
    rows = run(counted(world), tmp_path, "changes", flush=False)
    expected = (
        world.ratings.batch()
        .where("rating > 1")
        .groupBy("user")
        .agg(sf.count("*").alias("n"), sf.sum("rating").alias("total"))
    )
    assert now(rows) == batch(expected)


@pytest.mark.parametrize("how", ["inner", "left", "left_semi", "left_anti"])
def test_oracle_rows_of_a_batch_beside_answers(how: str, world: World, tmp_path: Path) -> None:
    frame = world.ratings.batch()
    names = frame.where("user IS NOT NULL").selectExpr("user", "item AS name").distinct()
    names = names.where("user % 3 <> 1").union(names.selectExpr("CAST(NULL AS INT)", "name"))
    rows = run(counted(world).join(names, on="user", how=how), tmp_path, "changes", flush=False)
    expected = (
        frame.where("rating > 1")
        .groupBy("user")
        .agg(sf.count("*").alias("n"), sf.sum("rating").alias("total"))
        .join(names, on="user", how=how)
    )
    assert now(rows) == batch(expected)


@pytest.mark.parametrize("how", ["inner", "full_outer"])
def test_oracle_a_join_within_a_time_equals_sparks(how: str, world: World, tmp_path: Path) -> None:
    left = world.rated().select("user", "item", "ts AS rated")
    right = world.clicked().select("user", "page", "ts AS clicked")
    near, where = ("-1 second", "2 seconds"), "page <> item"
    rows = run(left.join(right, on="user", how=how, within=near, where=where), tmp_path)
    ours = world.ratings.batch().selectExpr("user", "item", "ts AS rated")
    theirs = world.clicks.batch().selectExpr("user AS clicker", "page", "ts AS clicked")
    bounds = "clicked BETWEEN rated - INTERVAL 1 SECOND AND rated + INTERVAL 2 SECONDS"
    joined = ours.join(theirs, sf.expr(f"user = clicker AND {where} AND {bounds}"), how)
    either = sf.coalesce("user", "clicker")
    expected = batch(joined.select(either, "item", "rated", "page", "clicked"))
    assert expected
    assert payloads(rows) == expected


def test_oracle_the_best_of_a_group_are_those_of_a_batch(world: World, tmp_path: Path) -> None:
    def of_a_user(group: Events) -> Events:
        by_item = group.groupApply("item", lambda g: g.agg(ice.sum("rating").alias("total")))
        return by_item.withColumn("score", "total * 100 + item").top(2, "score")

    events = world.rated().where("user IS NOT NULL").forever().groupApply("user", of_a_user)
    rows = run(events.select("user", "item", "total"), tmp_path, "changes", flush=False)
    totals = world.ratings.batch().where("user IS NOT NULL").groupBy("user", "item").agg(
        sf.sum("rating").alias("total"))  # fmt: skip
    ranked = totals.selectExpr(
        "*", "row_number() OVER (PARTITION BY user ORDER BY total * 100 + item DESC) AS place"
    )
    assert now(rows) == batch(ranked.where("place <= 2").select("user", "item", "total"))


def test_oracle_a_difference_keeps_what_has_no_partner(world: World, tmp_path: Path) -> None:
    # everything lives from its time on: a rating is left for good if its user never clicks
    left = world.rated().select("user", "item").forever()
    right = world.clicked().where("page = 4").forever()
    rows = run(left.difference(right, on="user"), tmp_path, "changes", flush=False)
    ours, theirs = world.ratings.batch(), world.clicks.batch().where("page = 4")
    expected = ours.join(theirs, ours.user.eqNullSafe(theirs.user), "left_anti")
    assert now(rows) == batch(expected.select("user", "item"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["full_outer", "left_semi", "left_anti"])
def test_oracle_joins_say_what_has_no_partner(how: str, world: World, tmp_path: Path) -> None:
    left = world.rated().select("user", "item").forever()
    right = world.clicked().where("page = 4").select("user AS clicker", "page").forever()
    rows = run(left.join(right, [("user", "clicker")], how=how), tmp_path, "changes", flush=False)
    ours = world.ratings.batch().select("user", "item")
    theirs = world.clicks.batch().where("page = 4").selectExpr("user AS clicker", "page")
    expected = ours.join(theirs, ours.user == theirs.clicker, how)
    assert now(rows) == batch(expected)


def test_oracle_an_outer_join_is_one_at_every_instant(world: World, tmp_path: Path) -> None:
    left = world.rated().select("user", "item").last("4 seconds")
    right = world.clicked().select("user", "page").last("2 seconds")
    rows = run(left.join(right, "user", how="full"), tmp_path)
    bags: list[oracle.Bag] = []
    for number, (table, column, seconds) in enumerate(((ratings, "item", 4), (clicks, "page", 2))):
        bag: oracle.Bag = Counter()
        for row in pa.concat_tables([table(n) for n in range(3)]).to_pylist():
            start = _micros(row["ts"])
            # without a user nobody meets anybody
            group = (row["user"], 0) if row["user"] is not None else (99, 1 + number)
            payload = row["user"], row[column]
            bag[oracle.Event(group, start, start + seconds * SECOND, payload)] += 1
        bags.append(bag)
    expected: oracle.Bag = Counter()
    for event, count in oracle.piecewise(_full_join, *bags).items():
        expected[event._replace(group=(0, 0))] += count
    found: oracle.Bag = Counter()
    for row in rows:
        start, end = (_micros(row["lifetime"][edge]) for edge in ("start", "end"))
        pair = row["user"], row["item"], row["page"]
        found[oracle.Event((0, 0), start, end, pair)] += 1
    oracle.assert_same_snapshots(found, expected)


def _full_join(
    left: Counter[oracle.Payload], right: Counter[oracle.Payload]
) -> Iterator[tuple[oracle.Payload, int]]:
    for (user, item), count in (left or Counter({(None, None): 1})).items():
        for (other, page), times in (right or Counter({(None, None): 1})).items():
            yield (user if left else other, item, page), count * times


def _micros(time: datetime) -> int:
    return round(time.replace(tzinfo=UTC).timestamp() * SECOND)


def test_outer_joins_have_the_columns_of_pairs(world: World) -> None:
    left = world.rated().select("user", "item").forever()
    right = world.clicked().select("user", "page")
    for how in ("inner", "left", "RIGHT_OUTER", "outer"):
        assert left.join(right, "user", how=how).columns == ["user", "item", "page"]
    for how in ("semi", "leftanti"):
        assert left.join(right, "user", how=how).columns == ["user", "item"]


class Longest(StatefulProcessor):
    """Tells every event that has a better rating than all before it."""

    output = "user long, rating double"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.best = handle.getValueState("best", "rating double")

    def handleInputRows(  # noqa: N802 - PySpark's name
        self, key: tuple[Any, ...], rows: TimedRows, timers: TimerValues
    ) -> Iterator[dict[str, Any]]:
        for rating in rows["rating"]:
            best = self.best.get()
            if best is None or rating > best[0]:
                self.best.update((rating,))
                yield {"user": key[0], "rating": rating}


def test_oracle_user_code_sees_the_events_of_each_group_in_order(
    world: World, tmp_path: Path
) -> None:
    rows = run(world.rated().groupApply("user", lambda g: g.process(Longest())), tmp_path)
    frame = world.ratings.batch().selectExpr(
        "user", "rating", "max(rating) OVER (PARTITION BY user ORDER BY ts "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before")  # fmt: skip
    expected = frame.where("before IS NULL OR rating > before").select("user", "rating")
    assert payloads(rows) == batch(expected)


def test_append_and_update_mode_come_to_the_same(world: World, tmp_path: Path) -> None:
    events = world.rated().last("4 seconds").groupApply("item", lambda g: g.agg(
        ice.count().alias("n"), ice.max("rating").alias("most")))  # fmt: skip
    final = run(events, tmp_path / "append")
    changes = run(events, tmp_path / "changes", "changes")
    assert "change" not in final[0]
    assert {row["change"] for row in changes} == {1, -1}
    assert _instants(final) == _instants(changes)


def _instants(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], Any]:
    """Return how the count of every payload changes with time."""
    edges: dict[tuple[Any, ...], Counter[Any]] = {}
    for row in rows:
        payload = tuple(row[name] for name in row if name not in ("lifetime", "change"))
        count = row.get("change", 1)
        steps = edges.setdefault(payload, Counter())
        steps[row["lifetime"]["start"]] += count
        steps[row["lifetime"]["end"]] -= count
    changing = {key: {t: n for t, n in steps.items() if n} for key, steps in edges.items()}
    return {key: steps for key, steps in changing.items() if steps}


def test_a_restart_continues(world: World, spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, f"{tmp_path}/in", ratings(0), ratings(1))
    part = World(feed, world.clicks)
    first = run(counted(part), tmp_path, "changes", flush=False)
    feed.add(ratings(2))
    rows = run(counted(part), tmp_path, "changes", flush=False)
    assert len(rows) > len(first)
    expected = feed.batch().where("rating > 1").groupBy("user").agg(
        sf.count("*").alias("n"), sf.sum("rating").alias("total"))  # fmt: skip
    assert now(rows) == batch(expected)


def test_an_explanation_is_printed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    counted(world).explain()
    text = capsys.readouterr().out
    assert "rating > 1" in text.replace("`", "")
    assert "aggregate count(*) as n" in text
    assert "component" in text


def test_results_have_names_and_types(world: World) -> None:
    events = counted(world)
    assert events.columns == ["user", "n", "total"]
    assert events.schema.simpleString() == (
        "struct<lifetime:struct<start:timestamp,end:timestamp>,user:bigint,n:bigint,total:double>"
    )
