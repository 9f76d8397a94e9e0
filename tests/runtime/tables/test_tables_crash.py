"""Queries that write tables, killed at their steps: no row is lost, none is there twice.

A killed process does nothing more: after the crash every call of its disk fails, so whatever it
would have tidied up stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icestream.plan.computation import Computation
from icestream.runtime.local import LocalQuery
from icestream.runtime.spark.parquet_sink import ParquetTable
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.delta import DeltaAppendTable
from icestream.runtime.tables.iceberg import IcebergAppendTable
from icestream.runtime.tables.layout import TableFiles, TableLayout, TableTarget
from icestream.state.files import NewFile
from icestream.state.versions.commits import VersionStore
from icestream.state.versions.table_files import TableFile
from tests.suites.crash_runs import Script, staged

SCRIPT = Script(batches=2, events=30)
#: crash points of the disk that are left out between two
STRIDE = 17

Opening = Callable[[Path, pa.Schema, str], AppendTable]


class Killed(BaseException):
    """The process is dead."""


@dataclass
class Steps:
    """Counts the steps of a process and kills it at one of them."""

    fatal: int | None = None
    taken: list[str] = field(default_factory=list)

    def take(self, what: str) -> None:
        self.taken.append(what)
        if self.fatal is not None and len(self.taken) >= self.fatal:
            raise Killed


class MortalDisk(TableFiles):
    """The local disk of a process that dies at one step."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def create(self, path: str) -> NewFile:
        self._steps.take("create")
        return super().create(path)

    def put(self, path: str, data: bytes) -> bool:
        self._steps.take("put")
        return super().put(path, data)

    def unlink(self, *paths: str) -> None:
        self._steps.take("unlink")
        super().unlink(*paths)

    def sync_files(self, paths: Collection[str]) -> None:
        self._steps.take("sync files")
        super().sync_files(paths)


class MortalTable:
    """A table of a process that dies before or after it adds files."""

    def __init__(self, table: AppendTable, steps: Steps) -> None:
        self._table = table
        self._steps = steps
        self.layout: TableLayout = replace(table.layout, files=MortalDisk(steps))

    def latest(self) -> int:
        return self._table.latest()

    def holds(self, paths: Collection[str]) -> set[str]:
        return self._table.holds(paths)

    def add(self, version: int, files: Sequence[TableFile]) -> None:
        self._steps.take("before add")
        self._table.add(version, files)
        self._steps.take("after add")


class MortalProcess:
    """A process that runs the query on one table, from opening the checkpoint to its end."""

    def __init__(self, folder: Path, opened: Opening, steps: Steps, lives: int) -> None:
        plan = SCRIPT.plan
        disk, root = MortalDisk(steps), f"{folder}/checkpoint"
        writer = f"{VersionStore(disk, root).identity()}-0"
        table = opened(folder, plan.results(plan.views[0]), writer)
        settings = replace(SCRIPT.settings(f"{folder}/local-{lives}"), root=root)
        mortal = MortalTable(table, steps)
        self.table = table
        self.query = LocalQuery(plan, settings, disk, tables=[mortal])

    def run(self) -> None:
        """Deliver the last version again, as after any restart, then all that is left."""
        driver = self.query.driver
        self.query.rows(driver.last_again())
        done = 0 if driver.last is None else driver.last.version
        for number in SCRIPT.actions[done:]:
            if number is None:
                self.query.rows(driver.flush())
            else:
                self.query.rows(driver.batch(number, SCRIPT.inputs[number]))


def delta_at(folder: Path, schema: pa.Schema, writer: str) -> AppendTable:
    return DeltaAppendTable(f"{folder}/table", schema, TableTarget(writer, partition_by=["name"]))


def iceberg_at(folder: Path, schema: pa.Schema, writer: str) -> AppendTable:
    options = {
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalogue.db",
        "catalog.warehouse": f"file://{folder}/warehouse",
    }
    return IcebergAppendTable("db.calls", schema, TableTarget(writer, options=options))


def parquet_of(spark: SparkSession) -> Opening:
    def parquet_at(folder: Path, schema: pa.Schema, writer: str) -> AppendTable:
        rows = from_arrow_schema(schema)
        target = TableTarget(writer, options={"compression": "zstd"})
        table = ParquetTable.of(spark, f"{folder}/table", rows, target)
        assert table is not None
        return table

    return parquet_at


def texts(rows: pa.Table, plan: Computation) -> list[str]:
    columns = plan.results(plan.views[0])
    return sorted(map(repr, rows.select(columns.names).cast(columns).to_pylist()))


def by_its_log(table: Any) -> pa.Table:
    if isinstance(table, DeltaAppendTable):
        return pa.table(DeltaTable(table.layout.folder).to_pyarrow_table())
    if isinstance(table, IcebergAppendTable):
        table.latest()
        return table._table.scan().to_arrow()
    return pa.concat_tables(
        pq.read_table(path, coerce_int96_timestamp_unit="us") for path in table.log.files()
    )


def whole_folder(table: AppendTable) -> int:
    [(count,)] = duckdb.execute(
        f"select count(*) from '{table.layout.folder}/**/*.parquet'"
    ).fetchall()
    return int(count)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with staged():
        query = LocalQuery(
            SCRIPT.plan, replace(SCRIPT.settings(f"{folder}/local"), root=str(folder))
        )
        found = [
            query.flush() if number is None else query.feed(SCRIPT.inputs[number])
            for number in SCRIPT.actions
        ]
    return texts(pa.concat_tables(found), SCRIPT.plan)


def killed_everywhere(
    folder: Path, opened: Opening, expected: list[str], chosen: Callable[[int, str], bool]
) -> int:
    """Kill a query at the chosen steps, continue it, and compare its table; return the points."""
    with staged():
        steps = Steps()
        calm = MortalProcess(folder / "calm", opened, steps, 0)
        calm.run()
        assert texts(by_its_log(calm.table), SCRIPT.plan) == expected
        points = [n for n, what in enumerate(steps.taken, 1) if chosen(n, what)]
        for point in points:
            home = folder / f"point-{point}"
            with pytest.raises(Killed):
                MortalProcess(home, opened, Steps(fatal=point), 0).run()
            survivor = MortalProcess(home, opened, Steps(), 1)
            survivor.run()
            assert texts(by_its_log(survivor.table), SCRIPT.plan) == expected, point
            assert whole_folder(survivor.table) == len(expected), point
    return len(points)


def at_adds_and_some(offset: int) -> Callable[[int, str], bool]:
    return lambda step, what: what.endswith("add") or step % STRIDE == offset


@pytest.mark.parametrize(
    ("opened", "offset"), [(delta_at, 3), (iceberg_at, 9)], ids=["delta", "iceberg"]
)
def test_crash_a_lake_table_loses_and_doubles_nothing(
    opened: Opening, offset: int, tmp_path: Path, expected: list[str]
) -> None:
    assert killed_everywhere(tmp_path, opened, expected, at_adds_and_some(offset)) > 8


@pytest.mark.spark
def test_crash_a_parquet_table_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, expected: list[str]
) -> None:
    opened = parquet_of(spark)
    assert killed_everywhere(tmp_path, opened, expected, at_adds_and_some(14)) > 8


def late_delivery(folder: Path, opened: Opening, expected: list[str]) -> None:
    """Deliver a version that was committed before the checkpoint was taken over."""
    with staged():
        loser = MortalProcess(folder, opened, Steps(), 0)
        committed = loser.query.driver.batch(0, SCRIPT.inputs[0])
        owner = MortalProcess(folder, opened, Steps(), 1)
        owner.run()
        loser.query.rows(committed)
        assert texts(by_its_log(owner.table), SCRIPT.plan) == expected
        assert whole_folder(owner.table) == len(expected)


@pytest.mark.parametrize("opened", [delta_at, iceberg_at], ids=["delta", "iceberg"])
def test_a_late_delivery_by_a_driver_that_lost_its_checkpoint_changes_nothing(
    opened: Opening, tmp_path: Path, expected: list[str]
) -> None:
    late_delivery(tmp_path, opened, expected)


@pytest.mark.spark
def test_a_late_delivery_to_a_parquet_table_changes_nothing(
    spark: SparkSession, tmp_path: Path, expected: list[str]
) -> None:
    late_delivery(tmp_path, parquet_of(spark), expected)


@pytest.mark.slow
@pytest.mark.parametrize("opened", [delta_at, iceberg_at], ids=["delta", "iceberg"])
def test_crash_a_lake_table_at_every_step(
    opened: Opening, tmp_path: Path, expected: list[str]
) -> None:
    assert killed_everywhere(tmp_path, opened, expected, lambda _step, _what: True) > 50
