"""Joins on Spark that fail, stop and start again, also while they clean up, beside DuckDB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import icestream as ice
from icestream.api import writer
from icestream.api.events import Events
from icestream.api.writer import StreamWriter
from icestream.runtime.driver import Delivery
from icestream.runtime.spark.sink import ResultRows, Sink, hand_out
from icestream.runtime.spark.tasks import SparkExecutor
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.work.dataflow import spilling
from icestream.runtime.work.dataflow import work as dataflow_work
from icestream.state.versions.commits import Commit, VersionStore
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
ROWS = 40
VALUES = 30
BATCHES = 4
#: so little memory that everything leaves it after every batch
TIGHT: dict[str, Any] = {"threshold": 0.001, "amount": 1.0}

Rows = Counter[tuple[Any, ...]]


def rows_of(name: str, number: int) -> pa.Table:
    dice = np.random.default_rng([ord(name), number])
    times = START + number * 10 * SECOND + np.sort(dice.integers(0, 10 * SECOND, ROWS))
    return pa.table(
        {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            f"{name}0": times,
            f"{name}1": pa.array(dice.integers(0, VALUES, ROWS), mask=dice.random(ROWS) < 0.05),
            f"{name}2": dice.integers(0, VALUES, ROWS),
            name: np.arange(number * ROWS, (number + 1) * ROWS),
        }
    )


@dataclass(frozen=True)
class Join:
    """A join of the first streams that there are, by a column of each."""

    columns: tuple[str, ...]
    #: whether its rows are the first stream of what follows, or the last
    first: bool


@dataclass(frozen=True)
class Tree:
    """Joins, one after the other, of the streams a, b, ..."""

    names: str
    joins: tuple[Join, ...]
    #: seconds that events live; None for ever
    lifetime: int | None = None

    @property
    def conditions(self) -> Iterator[str]:
        """Return what DuckDB is told."""
        for join in self.joins:
            first, *others = [f"{column[0]}.{column}" for column in join.columns]
            yield from (f"{first} = {other}" for other in others)
        if self.lifetime is not None:
            times = ", ".join(f"{name}.{name}0" for name in self.names)
            yield f"greatest({times}) < least({times}) + {self.lifetime * SECOND}"

    def answer(self, batches: int) -> Rows:
        """Return the exact join of all that came."""
        shown = ", ".join(f"{name}.{name}" for name in self.names)
        with duckdb.connect() as connection:
            for name in self.names:
                tables = [rows_of(name, number) for number in range(batches)]
                connection.register(name, pa.concat_tables(tables).drop_columns(["ts"]))
            text = f"SELECT {shown} FROM {', '.join(self.names)} WHERE "
            return Counter(connection.execute(text + " AND ".join(self.conditions)).fetchall())


FOUR = Tree("abcd", (Join(("a1", "b1", "c1"), first=True), Join(("c2", "d1"), first=True)))


@dataclass
class World:
    """Streams, and one checkpoint of a query over them."""

    spark: SparkSession
    folder: Path
    tree: Tree
    shards: int
    how: dict[str, Any] = field(default_factory=dict)
    batches: int = 0

    def __post_init__(self) -> None:
        self.feeds = {
            name: Feed(self.spark, f"{self.folder}/{name}", rows_of(name, 0))
            for name in self.tree.names
        }
        self.batches = 1

    def add(self) -> None:
        for name, feed in self.feeds.items():
            feed.add(rows_of(name, self.batches))
        self.batches += 1

    def events(self, name: str) -> Events:
        stream = ice.stream(self.feeds[name].stream(), time="ts", slack="10 seconds")
        rows = stream.events().select(f"{name}1", f"{name}2", name)
        lifetime = self.tree.lifetime
        return rows.forever() if lifetime is None else rows.last(f"{lifetime} seconds")

    @property
    def writer(self) -> StreamWriter:
        parts = list(map(self.events, self.tree.names))
        for join in self.tree.joins:
            count = len(join.columns)
            taken, parts = parts[:count], parts[count:]
            made = ice.join(*taken, on=[join.columns], onPressure="defer", **self.how)
            parts = [made, *parts] if join.first else [*parts, made]
        rows = parts[0].select(*self.tree.names)
        made_by = rows.writeStream.format("parquet").shards(self.shards).memory("64 MB")
        where = {"path": f"{self.folder}/out", "checkpointLocation": f"{self.folder}/chk"}
        return made_by.options(**where)

    def run(self, **options: Any) -> None:
        """Take in what there is."""
        self.writer.options(**options).trigger(availableNow=True).start().awaitTermination()

    @property
    def written(self) -> Rows:
        rows = self.spark.read.parquet(f"{self.folder}/out").select(*self.tree.names)
        return Counter(tuple(row.values()) for row in rows.toArrow().to_pylist())

    @property
    def answer(self) -> Rows:
        return self.tree.answer(self.batches)


@contextmanager
def spilling_anywhere(dice: np.random.Generator) -> Iterator[None]:
    """Let random partitions of random joins leave memory after any version."""

    def at_random(*args: Any, **kwargs: Any) -> spilling.JoinDecisions:
        decided = spilling.decided(*args, **kwargs)
        spill = {
            join: tuple(np.flatnonzero(dice.random(256) < dice.choice([0.0, 0.3, 1.0])).tolist())
            for join in decided.results
            if dice.random() < 0.7
        }
        return replace(decided, spill=spill)

    with mock.patch.object(dataflow_work, "decided", at_random):
        yield


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a clean-up between batches take many versions."""
    monkeypatch.setattr(spilling, "TURN_PARTITIONS", 4)


class Dies(Exception):
    """What happens in the middle of a clean-up."""


#: moments of a version at which it may fail
MOMENTS = ("between the joins", "before the commit", "after the commit", "after the sink")


@contextmanager
def dying(moment: str, nth: int) -> Iterator[None]:
    """Let a query fail at a moment of the nth version in which joins clean up."""
    cleaning: list[int] = []
    run_tasks, create = SparkExecutor.run, VersionStore.create

    def pass_by(now: str, version: int) -> None:
        if now == moment and cleaning[nth - 1 : nth] == [version]:
            raise Dies(moment)

    def run(self: SparkExecutor, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        version = tasks[0].version
        works = [task.work for task in tasks]
        orders = [w.orders for w in works if isinstance(w, dataflow_work.ComponentShard)]
        if any(each.clean_up != () for each in orders) and version not in cleaning:
            cleaning.append(version)
        done = run_tasks(self, tasks)
        pass_by("between the joins", version)
        return done

    def created(self: VersionStore, commit: Commit) -> None:
        pass_by("before the commit", commit.version)
        create(self, commit)
        pass_by("after the commit", commit.version)

    def handed_out(sink: Sink, rows: ResultRows, delivery: Delivery, table: Any) -> None:
        hand_out(sink, rows, delivery, table)
        pass_by("after the sink", delivery.commit.version)

    with (
        mock.patch.object(SparkExecutor, "run", run),
        mock.patch.object(VersionStore, "create", created),
        mock.patch.object(writer, "hand_out", handed_out),
    ):
        yield


def owing(query: ice.Query) -> int:
    """Return the partitions that owe results."""
    last = query.lastProgress
    joins = [] if last is None else last["icestream"]["joins"]
    return sum(join["owingPartitions"] for join in joins)


def cleaned(query: ice.Query) -> int:
    """Return the versions in which joins made what they owed."""
    reported = [progress["icestream"]["joins"] for progress in query.recentProgress]
    return sum(any(join["lateRows"] for join in joins) for joins in reported)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("shards", [2, 4])
def test_crash_restarts_in_the_middle_of_a_clean_up_over_many_versions(
    spark: SparkSession, tmp_path: Path, shards: int
) -> None:
    world = World(spark, tmp_path, FOUR, shards, TIGHT)
    for _ in range(2):
        world.add()
    for moment in MOMENTS:
        with dying(moment, nth=2):
            query = world.writer.option("ticker", "100 milliseconds").start()
            with pytest.raises(Dies, match=moment):
                query.awaitTermination()
    stopped = world.writer.option("ticker", "100 milliseconds").start()
    while not cleaned(stopped):
        assert not stopped.awaitTermination(timeout=0.05)
    stopped.stop()
    assert owing(stopped)
    assert world.written.total() < world.answer.total()
    last = world.writer.option("ticker", "100 milliseconds").start()
    last.processAllAvailable()
    last.stop()
    assert cleaned(last) > 1
    assert not owing(last)
    assert world.written == world.answer


@pytest.mark.slow
def test_crash_clean_ups_on_demand_that_fail_while_the_query_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(spark, tmp_path, FOUR, 2, TIGHT)
    world.add()
    query = world.writer.start()
    query.processAllAvailable()
    for moment in MOMENTS:
        with dying(moment, nth=1), pytest.raises(Dies, match=moment):
            query.cleanUp()
        world.add()
        query.processAllAvailable()
        assert owing(query)
    query.cleanUp()
    query.stop()
    assert world.written == world.answer


@pytest.mark.slow
def test_crash_a_clean_up_comes_after_the_batch_that_missed_its_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(spark, tmp_path, FOUR, 2, TIGHT)
    world.add()

    def missed(sink: Sink, rows: ResultRows, delivery: Delivery, table: Any) -> None:
        if delivery.commit.version == 2:
            raise Dies
        hand_out(sink, rows, delivery, table)

    with mock.patch.object(writer, "hand_out", missed), pytest.raises(Dies):
        world.run()
    again = world.writer.start()
    again.cleanUp()
    again.stop()
    assert world.written == world.answer


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    names = "abcde"[: draw(st.integers(2, 4))]
    parts = [[f"{name}1", f"{name}2"] for name in names]
    joins = []
    while len(parts) > 1:
        width = draw(st.integers(2, min(4, len(parts))))
        taken, parts = parts[:width], parts[width:]
        joins.append(
            Join(tuple(draw(st.sampled_from(each)) for each in taken), draw(st.booleans()))
        )
        made = [column for columns in taken for column in columns]
        parts = [made, *parts] if joins[-1].first else [*parts, made]
    return Tree(names, tuple(joins), draw(st.sampled_from([None, 12])))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shards", [2, 4])
@given(
    tree=trees(),
    order=st.sampled_from(["cheapest", "written"]),
    restarts=st.sets(st.integers(1, BATCHES - 1)),
    cleaning=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_oracle_random_trees_with_spills_and_restarts_at_any_batch(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    shards: int,
    tree: Tree,
    order: str,
    restarts: set[int],
    cleaning: bool,
    seed: int,
) -> None:
    world = World(spark, tmp_path_factory.mktemp("joins"), tree, shards, {"order": order})
    with spilling_anywhere(np.random.default_rng(seed)):
        while world.batches < BATCHES:
            if world.batches in restarts:
                world.run()
                if cleaning:
                    query = world.writer.start()
                    query.cleanUp()
                    query.stop()
            world.add()
        world.run(flush="true")
    assert world.written == world.answer
