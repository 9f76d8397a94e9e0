"""A program that is killed: a query without Spark that writes a table, on disks or in a store.

It goes on where its last run ended, and in the end lists what a reader of the table's log sees and
how many rows the table's folder has.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.runtime.local import LocalQuery
from icestream.runtime.spark.parquet_sink import ParquetTable
from icestream.runtime.tables.append_table import AppendTable, with_retries
from icestream.runtime.tables.delta import DeltaAppendTable
from icestream.runtime.tables.iceberg import IcebergAppendTable
from icestream.runtime.tables.layout import (
    OpenTableFile,
    TableFiles,
    TableLayout,
    TableTarget,
)
from icestream.runtime.tables.sink_log import SinkLog
from icestream.state.files import Files, LocalFiles
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.commits import VersionStore
from tests.suites.crash_runs import Script, staged

BUCKET = "s3://bucket"
#: seconds between versions, so that a program does not get through before it is killed often
PACE = 0.05

Store = Mapping[str, str] | None
PLAN = Script().plan


def home(folder: str, store: Store) -> str:
    """Return where checkpoint and table are."""
    return folder if store is None else f"{BUCKET}{folder}"


def checkpoint(folder: str, store: Store) -> VersionStore:
    files: Files = LocalFiles() if store is None else StoreFiles(store, f"{folder}/copies")
    return VersionStore(files, f"{home(folder, store)}/checkpoint")


def table_of(sink: str, folder: str, store: Store, writer: str) -> AppendTable:
    schema, place = PLAN.results(PLAN.views[0]), f"{home(folder, store)}/table"
    files: Files = TableFiles()
    if store is not None:
        files = StoreFiles(store, f"{folder}/new", 0)
    if sink == "delta":
        target = TableTarget(writer, partition_by=["name"], files=lambda _: files)
        return DeltaAppendTable(place, schema, target)
    if sink == "iceberg":
        options = {
            "catalog.type": "sql",
            "catalog.uri": f"sqlite:///{folder}/catalogue.db",
            "catalog.warehouse": place if store is not None else f"file://{place}",
        }
        target = TableTarget(writer, options=options, files=lambda _: files)
        return IcebergAppendTable("db.rows", schema, target, store)
    layout = TableLayout(0, writer, place, schema, files=files)
    return ParquetTable(layout, SinkLog(files, place))


def by_its_log(table: Any, store: Store) -> pa.Table:
    """Return the rows that a reader of the table finds, while the network fails."""
    layout = table.layout

    def read() -> pa.Table:
        if isinstance(table, IcebergAppendTable):
            table.latest()
            return table._table.scan().to_arrow()
        if isinstance(table, DeltaAppendTable):
            from deltalake import DeltaTable

            options = None if store is None else {"allow_http": "true", **store}
            return DeltaTable(layout.folder, storage_options=options).to_pyarrow_table()
        return pa.concat_tables(
            pq.read_table(OpenTableFile(layout.files, path)) for path in table.log.files()
        )

    return with_retries(layout.files, layout.folder, read)


def texts(rows: pa.Table) -> list[str]:
    columns = PLAN.results(PLAN.views[0])
    return sorted(map(repr, rows.select(columns.names).cast(columns).to_pylist()))


def run(folder: str, sink: str, store: Store, batches: int) -> None:
    """Run the query to its end."""
    script = Script(batches=batches, events=12)
    versions = checkpoint(folder, store)
    table = table_of(sink, folder, store, f"{versions.identity()}-0")
    settings = replace(script.settings(f"{folder}/local"), root=versions.root)
    query = LocalQuery(PLAN, settings, versions.files, LocalFiles(), [table])
    driver = query.driver
    query.rows(driver.last_again())
    done = 0 if driver.last is None else driver.last.version
    for number in script.actions[done:]:
        time.sleep(PACE)
        if number is None:
            query.rows(driver.flush())
        else:
            query.rows(driver.batch(number, script.inputs[number]))
    layout = table.layout
    count = 0
    for path in layout.files.walk(layout.folder):
        # Delta has summaries of its log in Parquet
        if path.endswith(".parquet") and not path.startswith("_"):
            with OpenTableFile(layout.files, f"{layout.folder}/{path}") as file:
                count += pq.read_metadata(file).num_rows
    with open(f"{folder}/seen.json", "w", encoding="utf-8") as seen:
        json.dump({"rows": texts(by_its_log(table, store)), "in_folder": count}, seen)


if __name__ == "__main__":
    with staged():
        run(**json.loads(sys.argv[1]))
