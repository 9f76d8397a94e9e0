"""Random queries on Spark beside slow and obvious versions of them.

A case (`tests/suites/random_windows`) also draws the zone of the session, the format of files, the
way events are read, files per trigger, partitions of a scan, the names and ages of files, and
restarts, at which all of that but the format changes. The oracles get the batches that Spark's
logs of offsets and files record, in the order of these logs.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

import icestream as ice
from icestream.api.result import Windowed
from icestream.api.stream import Stream
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import View
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.runtime.work.windows import prefold
from tests.suites.random_windows import PAUSE, Dice, RandomCase, draw, oracles, wrong_rows

pytestmark = [
    pytest.mark.spark,
    # random streams have late events, also without slack
    pytest.mark.filterwarnings("ignore::icestream.api.query_warnings.QueryWarning"),
]

ZONES = ("UTC", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Sao_Paulo")
FORMATS = ("parquet", "parquet", "parquet", "csv", "json", "arrow")
#: how events are read: options of the query, and whether Spark folds what it can
WAYS: tuple[tuple[dict[str, Any], bool], ...] = (
    ({}, False),
    ({"input": "rows"}, False),
    ({"input": "rows"}, True),
    ({"exchange": "storage", "input": "rows"}, True),
    ({"exchange": "storage"}, False),
)


def direct(options: dict[str, str]) -> bool:
    """Return whether tasks read files themselves: rows of Arrow files do not know their file."""
    return "input" not in options


#: settings of a session that a case draws
SETTINGS: dict[str, tuple[Any, ...]] = {
    "spark.sql.session.timeZone": ZONES,
    "spark.sql.files.maxPartitionBytes": (2_000, 100_000, 1 << 27),
    "spark.sql.files.openCostInBytes": (1, 1_000, 4 << 20),
    "spark.sql.ansi.enabled": ("true", "true", "false"),
}


class Folder:
    """A folder of files that grows, in an order of its own."""

    def __init__(self, path: str, kind: str, dice: Dice, parts: dict[int, pa.Table]) -> None:
        """Draw names and ages of the files of some parts."""
        os.makedirs(path)
        self.path = path
        self._kind = kind
        names = dice.numbers.permutation(len(parts)).tolist()
        # among files of one age it is up to Spark which comes first
        ages = np.sort(dice.numbers.integers(0, 2 * len(parts), len(parts))).tolist()
        self._files = {
            number: (f"{name} {kind}%.{kind}", age, table)
            for (number, table), name, age in zip(parts.items(), names, ages, strict=True)
        }
        #: the part of each file
        self.parts = {name: number for number, (name, _, _) in self._files.items()}
        self._groups = dice.between(1, 20)
        self._int96 = kind == "parquet" and dice.chance(0.1)

    def grow(self, parts: range) -> None:
        """Add the files of some parts."""
        for name, age, table in (self._files[part] for part in parts if part in self._files):
            hidden = os.path.join(self.path, f".{name}")
            self._write(table, hidden)
            os.utime(hidden, (1_000_000_000 + 10 * age,) * 2)
            os.rename(hidden, os.path.join(self.path, name))

    def _write(self, table: pa.Table, path: str) -> None:
        if self._kind == "parquet":
            old = self._int96 and table.schema.field("ts").type.tz is not None
            pq.write_table(
                table, path, row_group_size=self._groups, use_deprecated_int96_timestamps=old
            )
        elif self._kind == "arrow":
            with ipc.new_file(path, table.schema) as file:
                file.write_table(table, self._groups)
        else:
            rows = [{name: _text(each) for name, each in row.items()} for row in table.to_pylist()]
            line = json.dumps if self._kind == "json" else _as_csv
            with open(path, "w") as lines:
                lines.writelines(f"{line(row)}\n" for row in rows)


def _text(value: Any) -> Any:
    """Return times, days and decimals as text; the others as they are."""
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else "Z"
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    return str(value) if isinstance(value, dt.date | Decimal) else value


def _as_csv(row: dict[str, Any]) -> str:
    plain = {None: "", True: "true", False: "false"}
    return ",".join(
        plain[each] if each is None or isinstance(each, bool) else str(each)
        for each in row.values()
    )


def _batches(checkpoint: str, folders: list[Folder]) -> Iterator[list[int]]:
    """Yield the parts of each batch, by the logs of offsets and of files."""
    logs: list[dict[int, list[int]]] = []
    for number, folder in enumerate(folders):
        log: dict[int, dict[str, None]] = {}
        for lines in _logged(f"{checkpoint}/sources/{number}").values():
            for entry in map(json.loads, lines[1:]):
                name = os.path.basename(entry["path"]).replace("%20", " ").replace("%25", "%")
                log.setdefault(entry["batchId"], {})[name] = None
        logs.append({batch: [folder.parts[name] for name in log[batch]] for batch in sorted(log)})
    done = [-1] * len(folders)
    for _, lines in sorted(_logged(f"{checkpoint}/offsets").items()):
        found: list[int] = []
        for number, line in enumerate(lines[2:]):
            offset = done[number] if line == "-" else json.loads(line)["logOffset"]
            for batch in range(done[number] + 1, offset + 1):
                found += logs[number].get(batch, [])
            done[number] = offset
        yield found


def _logged(folder: str) -> dict[int, list[str]]:
    found = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if not name.startswith("."):
            with open(os.path.join(folder, name)) as file:
                found[int(name.removesuffix(".compact"))] = file.read().splitlines()
    return found


def _stream(spark: SparkSession, folder: Folder, kind: str, schema: pa.Schema, dice: Dice) -> Any:
    types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    files = dice.between(1, 7)
    options = {"maxFilesPerTrigger": files, "latestFirst": dice.chance(0.15)}
    frame: DataFrame = ice.files(spark, folder.path, kind, schema=types, **options)
    return frame


def _windowed(stream: Stream, view: View, keys: list[str]) -> Windowed:
    windows = view.windows
    if isinstance(windows, Windows):
        return stream.window(windows.range, windows.slide, windows.offset)
    if isinstance(windows, Cumulative):
        return stream.cumulative(windows.size, windows.step, windows.offset)
    if isinstance(windows, Session):
        return stream.session(sf.col(PAUSE) if windows.gap is None else windows.gap)
    assert isinstance(windows, Frame)
    slide = windows.slide
    if windows.range is not None:
        assert not isinstance(slide, int)
        return stream.window(windows.range, slide or "event")
    assert windows.rows is not None
    moves = slide.rows if isinstance(slide, RowsSlide) else slide and f"{slide} microseconds"
    return stream.rows(windows.rows, moves, keys if windows.partition == "key" else None)


def _function(aggregate: Aggregate) -> Any:
    if aggregate.column is None:
        return ice.count("*").alias(aggregate.alias)
    parameters = [list(e) if isinstance(e, tuple) else e for e in aggregate.parameters]
    call = getattr(ice, aggregate.function)
    return call(*aggregate.columns, *parameters).alias(aggregate.alias)


def _result(stream: Stream, view: View, names: list[str]) -> Any:
    keys = [names[place] for place in view.keys]
    grouped = _windowed(stream, view, keys)
    if view.tells_grouping:
        sets = [[names[place] for place in each] for each in view.groupings]
        grouped = grouped.groupingSets(sets, *keys)
    elif not grouped._partitioned:
        grouped = grouped.groupBy(*keys)
    return grouped.agg(*map(_function, view.aggregates))


def _run(
    spark: SparkSession, case: RandomCase, home: Path, folders: list[Folder], kind: str, dice: Dice,
    found: list[list[pa.Table]], patch: pytest.MonkeyPatch, *, last: bool, shards: int,
    condition: str | None,
) -> None:  # fmt: skip
    """Start the query, let it read all files there are, and end it."""
    for name, choices in SETTINGS.items():
        spark.conf.set(name, dice.one(choices))
    options, folds = dice.one(WAYS)
    if kind == "arrow" and not direct(options):
        options = {}
    patch.setattr(prefold, "WORTH_IT", 0.0 if folds else math.inf)
    schema = case.parts[0].schema
    streams = [
        ice.stream(
            _stream(spark, folder, kind, schema, dice),
            time="ts",
            slack=source.slack,
            nulls=source.nulls,
            name=source.name,
        )
        for folder, source in zip(folders, case.plan.sources, strict=True)
    ]
    stream = streams[0] if len(streams) == 1 else streams[0].union(streams[1])
    stream = stream if condition is None else stream.where(condition)

    def sink(number: int) -> Any:
        return lambda rows, _: found[number].append(rows.toArrow())

    writers = [
        _result(stream, view, case.plan.keys.names)
        .writeStream.foreachBatch(sink(number))
        .outputMode(view.mode)
        for number, view in enumerate(case.plan.views)
    ]
    query = ice.start(
        *writers,
        checkpointLocation=f"{home}/checkpoint",
        memory="64 MB",
        shards=shards,
        trigger={"availableNow": True},
        flush=last,
        plan=case.plan.store,
        **options,
    )
    query.awaitTermination()


def _has_own_gaps(view: View) -> bool:
    return isinstance(view.windows, Session) and view.windows.gap is None


def _check(spark: SparkSession, home: Path, seed: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Run one case; return what is wrong."""
    dice = Dice(seed, 2)
    kind = dice.one(FORMATS)
    case = draw(seed, specials=kind in ("parquet", "arrow"))
    if kind == "arrow" and any(_has_own_gaps(view) for view in case.plan.views):
        # Spark computes these, and its rows of Arrow files do not know their file
        kind = "parquet"
    count = len(case.parts)
    folders = [
        Folder(
            f"{home}/in{source}",
            kind,
            dice,
            {n: case.parts[n] for n in range(count) if case.sources[n] == source},
        )
        for source in range(len(case.plan.sources))
    ]
    found: list[list[pa.Table]] = [[] for _ in case.plan.views]
    shards, filtered = dice.between(1, 3), dice.chance(0.15)
    condition = "s > -2" if filtered and kind != "arrow" else None
    cuts = sorted({*dice.numbers.integers(1, count, dice.between(0, 2)).tolist()})
    for first, last in zip([0, *cuts], [*cuts, count], strict=True):
        for folder in folders:
            folder.grow(range(first, last))
        ends = last == count
        _run(
            spark, case, home, folders, kind, dice, found, patch,
            last=ends, shards=shards, condition=condition,
        )  # fmt: skip
    slow = oracles(case)
    expected: list[list[Any]] = [[] for _ in slow]
    for parts in _batches(f"{home}/checkpoint/spark", folders):
        batch = case.batch(parts)
        if condition is not None:
            kept = [pc.greater(case.parts[part].column("s"), -2) for part in parts]
            chosen = pa.chunked_array([c for each in kept for c in each.chunks], pa.bool_())
            batch = batch.filter(chosen.fill_null(False))
        for rows, each in zip(expected, slow, strict=True):
            rows.extend(each.feed([batch.to_batches()]))
    wrong: list[str] = []
    for view, tables, rows, each in zip(case.plan.views, found, expected, slow, strict=True):
        table = pa.concat_tables(tables) if tables else None
        rows.extend(each.flush())
        if table is None:
            wrong += [f"seed {seed}: nothing was delivered"] * bool(rows)
            continue
        wrong += [f"seed {seed}, {view}: {e}" for e in wrong_rows(view, table, rows)[:3]]
    return wrong


@pytest.fixture(autouse=True)
def _restored(spark: SparkSession) -> Iterator[None]:
    yield
    for name in SETTINGS:
        spark.conf.unset(name)


def _check_all(
    seeds: range, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefold, "LEAST_EVENTS", 0)
    wrong: list[str] = []
    for seed in seeds:
        wrong += _check(spark, tmp_path / str(seed), seed, monkeypatch)
    assert not wrong, wrong[:20]


def test_oracle_a_few_random_queries(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_all(range(4), spark, tmp_path, monkeypatch)


def test_oracle_instants_from_rows_do_not_have_the_zone_of_the_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an instant that is chosen by another, in a session with a zone of its own
    _check_all(range(930_101, 930_102), spark, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_oracle_five_hundred_random_queries(
    part: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_all(range(4 + 25 * part, 29 + 25 * part), spark, tmp_path, monkeypatch)
