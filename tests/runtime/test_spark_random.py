"""Random queries on Spark beside slow and obvious versions of them.

A case draws the zone of the session, the type of the time column, the way events are read, files
per trigger, partitions of a scan, the names and ages of files, and restarts, at which some of that
changes. No event is late, so rows depend on events and on their order alone: those of the log of
files. The oracles take all events as one batch.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import icestream as ice
from icestream.api.stream import Stream
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.session import Session
from icestream.runtime.work.windows import prefold
from tests.oracles.arrivals import Row
from tests.oracles.frames import ObviousFrames, frame_rows
from tests.oracles.grid import ObviousWindows, differences, rows_of
from tests.oracles.sessions import ObviousSessions

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SPAN = 3 * 3600 * SECOND
ZONES = ("UTC", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Sao_Paulo")
#: two hours before clocks change in New York, in spring and autumn, and a day before 1970
STARTS = (
    dt.datetime(2024, 3, 10, 0, 30, tzinfo=dt.UTC),
    dt.datetime(2024, 3, 10, 5, 30, tzinfo=dt.UTC),
    dt.datetime(2024, 11, 3, 4, 30, tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 22, 59, 59, tzinfo=dt.UTC),
)
#: how events are read: options of the query, and whether Spark folds what it can
WAYS: tuple[tuple[dict[str, str], bool], ...] = (
    ({}, False),
    ({"input": "rows"}, False),
    ({"input": "rows"}, True),
    ({"exchange": "shuffle"}, True),
)
EXACT = ("count", "sums", "extremes")
ORDERED = ("choices", "floats", "sums")


T = TypeVar("T")


class Dice:
    """Draws from a seed."""

    def __init__(self, seed: int) -> None:
        """Begin."""
        self.numbers = np.random.default_rng(seed)

    def one(self, choices: tuple[T, ...]) -> T:
        """Draw one of some."""
        return choices[int(self.numbers.integers(len(choices)))]

    def between(self, low: int, high: int) -> int:
        """Draw a number, both ends included."""
        return int(self.numbers.integers(low, high, endpoint=True))


def _tables(dice: Dice) -> list[pa.Table]:
    """Draw files of events, many of them of one time."""
    start = int(dice.one(STARTS).timestamp()) * SECOND
    kind = dice.one((pa.timestamp("us"), pa.timestamp("us", "UTC")))
    numbers, tables = dice.numbers, []
    grain = dice.one((1, 700_001, 20 * 60 * SECOND))
    for _ in range(dice.between(2, 7)):
        count = dice.between(0, 40)
        times = start + numbers.integers(0, SPAN, count) // grain * grain
        tables.append(
            pa.table(
                {
                    "ts": pa.array(times, pa.int64()).cast(kind),
                    "k": pa.array(numbers.integers(0, 3, count), mask=numbers.random(count) < 0.1),
                    "name": numbers.choice(["a", "b", "é"], count),
                    "n": pa.array(numbers.integers(-(2**40), 2**40, count)),
                    "i": pa.array(numbers.integers(-5, 5, count), mask=numbers.random(count) < 0.2),
                    "v": numbers.choice([1e17, 1.0, -1e17, 0.0, -0.0, 0.1, 3.5], count),
                }
            )
        )
    return tables


def _aggregates(dice: Dice) -> list[Any]:
    groups: dict[str, list[Any]] = {
        "count": [ice.count("*").alias("events"), ice.count("i").alias("some")],
        "sums": [ice.sum("n").alias("sum_n"), ice.avg("i").alias("avg_i")],
        "extremes": [ice.min("n").alias("min_n"), ice.max("v").alias("max_v")],
        "floats": [ice.sum("v").alias("sum_v"), ice.min("v").alias("min_v")],
        "choices": [
            ice.first("n").alias("first"),
            ice.last("i").alias("last"),
            ice.min_by("n", "i").alias("least"),
            ice.max_by("n", "v").alias("most"),
        ],
    }
    return [each for name in dice.one((EXACT, ORDERED)) for each in groups[name]]


def _result(events: Stream, dice: Dice) -> Any:
    """Draw windows, keys and aggregates."""
    keys: tuple[str, ...] = dice.one((("k",), ("name", "k"), ()))
    windows: Callable[[], Any] = dice.one(
        (
            lambda: events.window("1 hour"),
            lambda: events.window("1 hour", "20 minutes", "7 minutes"),
            lambda: events.cumulative("1 hour", "15 minutes"),
            lambda: events.window("30 minutes", "event"),
            lambda: events.rows(dice.between(1, 5), partitionBy=list(keys)) if keys else None,
            lambda: events.rows(dice.between(1, 5)),
            lambda: events.session("10 minutes"),
        )
    )
    chosen = windows() or events.window("1 hour", "event")
    grouped = chosen if chosen._partitioned else chosen.groupBy(*keys)
    return grouped.agg(*_aggregates(dice)), len(keys)


class Folder:
    """A folder of files that grows, in an order of its own."""

    def __init__(self, path: str, dice: Dice, tables: list[pa.Table]) -> None:
        """Draw names and ages of files."""
        os.makedirs(path)
        self._path = path
        self._names = [f"{name}.parquet" for name in dice.numbers.permutation(len(tables))]
        # among files of one age it is up to Spark which comes first
        ages = np.sort(dice.numbers.integers(0, 2 * len(tables), len(tables)))
        order = sorted(range(len(tables)), key=lambda n: (ages[n], self._names[n]))
        self._files = [(self._names[n], int(ages[n]), tables[n]) for n in order]
        self._groups = dice.between(1, 20)
        self._added = 0

    def grow(self, count: int) -> None:
        """Add so many files."""
        for name, age, table in self._files[self._added : self._added + count]:
            hidden = os.path.join(self._path, f".{name}")
            pq.write_table(table, hidden, row_group_size=self._groups)
            os.utime(hidden, (1_000_000_000 + 10 * age,) * 2)
            os.rename(hidden, os.path.join(self._path, name))
        self._added += count

    def events(self, log: str) -> pa.Table:
        """Return all events in the order of the source's log of files."""
        places: dict[str, tuple[int, int]] = {}
        for name in os.listdir(log):
            if name.startswith("."):
                continue
            with open(os.path.join(log, name)) as file:
                entries = [json.loads(line) for line in file.read().splitlines()[1:]]
            for place, entry in enumerate(entries):
                places[os.path.basename(entry["path"])] = (entry["batchId"], place)
        files = sorted(self._files, key=lambda each: places[each[0]])
        return pa.concat_tables([table for _, _, table in files])


def _stream(spark: SparkSession, folder: str, schema: pa.Schema, files: int) -> DataFrame:
    reader = spark.readStream.schema(from_arrow_schema(schema, prefer_timestamp_ntz=True))
    return reader.option("maxFilesPerTrigger", files).parquet(folder)


def _expected(plan: Plan, events: pa.Table) -> list[Row]:
    """Return the rows of all events by the slow version."""
    columns = [
        events.column("ts").cast(plan.time),
        pa.array([0] * events.num_rows, pa.int32()),
        *(events.column(name) for name in (*plan.keys.names, *plan.expressions)),
    ]
    table = pa.Table.from_arrays(columns, schema=plan.batch_schema)
    windows = plan.views[0].windows
    slow = (
        ObviousFrames(plan)
        if isinstance(windows, Frame)
        else ObviousSessions(plan)
        if isinstance(windows, Session)
        else ObviousWindows(plan)
    )
    return slow.feed([table.to_batches()]) + slow.flush()


def _check(spark: SparkSession, home: Path, seed: int, patch: pytest.MonkeyPatch) -> int:
    """Run one case; return how many rows it had."""
    dice = Dice(seed)
    tables = _tables(dice)
    folder = Folder(f"{home}/in", dice, tables)
    cuts = sorted({*dice.numbers.integers(1, len(tables), dice.between(0, 2)).tolist()})
    keys, plan, found = 0, None, []
    fixed = Dice(seed + 1_000_000).numbers.bit_generator.state
    store = dice.one(("auto", "panes", "tuples"))
    shards = dice.between(1, 3)
    for first, last in zip([0, *cuts], [*cuts, len(tables)], strict=True):
        folder.grow(last - first)
        spark.conf.set("spark.sql.session.timeZone", dice.one(ZONES))
        spark.conf.set("spark.sql.files.maxPartitionBytes", dice.one((2_000, 100_000, 1 << 27)))
        spark.conf.set("spark.sql.files.openCostInBytes", dice.one((1, 1_000, 4 << 20)))
        options, folds = dice.one(WAYS)
        patch.setattr(prefold, "WORTH_IT", 0.0 if folds else math.inf)
        stream = _stream(spark, f"{home}/in", tables[0].schema, dice.between(1, len(tables)))
        drawn = Dice(0)
        drawn.numbers.bit_generator.state = fixed
        result, keys = _result(ice.stream(stream, time="ts", slack="4 hours"), drawn)
        plan = result._built.plan
        on_grid = not isinstance(plan.views[0].windows, Frame | Session)
        query = (
            result.writeStream.foreachBatch(lambda rows, _: found.append(rows.toArrow()))
            .option("checkpointLocation", f"{home}/checkpoint")
            .options(flush=last == len(tables), plan=store if on_grid else "auto", **options)
            .shards(shards)
            .memory("64 MB")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert plan is not None
    table = pa.concat_tables(found)
    expected = _expected(plan, folder.events(f"{home}/checkpoint/spark/sources/0"))
    per_event = isinstance(plan.views[0].windows, Frame)
    rows = frame_rows(table, keys) if per_event else rows_of(table)
    wrong = differences(rows, expected, keys)
    assert not wrong, (seed, plan.describe(), wrong[:5])
    return len(rows)


@pytest.fixture(autouse=True)
def _restored(spark: SparkSession) -> Iterator[None]:
    yield
    for name in ("session.timeZone", "files.maxPartitionBytes", "files.openCostInBytes"):
        spark.conf.unset(f"spark.sql.{name}")


def _check_all(
    seeds: range, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefold, "LEAST_EVENTS", 0)
    assert sum(_check(spark, tmp_path / str(seed), seed, monkeypatch) for seed in seeds) > 0


def test_oracle_a_few_random_queries(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_all(range(4), spark, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_oracle_five_hundred_random_queries(
    part: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_all(range(4 + 25 * part, 29 + 25 * part), spark, tmp_path, monkeypatch)
