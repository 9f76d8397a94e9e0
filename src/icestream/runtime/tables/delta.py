"""A Delta table that tasks write, by the `deltalake` library.

Idea: files are added by one transaction that also records the version under the identity of the
query, as a transaction identifier of Delta. A commit is tried at exactly one place of Delta's log;
if another writer took it, the table is read again, and with it the version that may be in by now.

Invariants:
1. A version is added once, whoever adds it (`test_a_version_is_added_once_by_whoever_delivers_it`).
2. What Delta's readers see is what tasks wrote, with partitions and statistics
   (`test_oracle_tables_have_the_rows_of_the_query`).

3. Answers that the network loses double nothing (`test_crash_a_table_in_a_store`).

Limits: folders and object stores. Columns of partitions are strings, integers, booleans and dates.
Small files are merged by Delta itself (optimize, from Python or on Spark).

References: the Delta transaction log protocol, *Transaction identifiers*.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from icestream.core.errors import DefinitionError, StorageError
from icestream.runtime.tables.append_table import (
    TransactionTable,
    check_columns,
    check_partitions,
    columns_of,
    with_retries,
)
from icestream.runtime.tables.layout import TableLayout, TableTarget, can_partition
from icestream.runtime.tables.upsert_table import UpsertTable
from icestream.state.stores.bucket import plain_endpoint
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.table_files import TableFile

#: files that are looked for at the same time
_ASKED_AT_ONCE = 8


class DeltaAppendTable(TransactionTable):
    """A Delta table in a folder."""

    def __init__(self, folder: str, schema: pa.Schema, target: TableTarget) -> None:
        """Open the table of rows with such columns, or create it; refuse one with others.

        `folder` is local, or a URI in a store.
        """
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        files = target.files(folder)
        stored: dict[str, str] | None = None
        if isinstance(files, StoreFiles):
            http = str(plain_endpoint(files.options)).lower()
            stored = {"allow_http": http, **files.options}
        else:
            os.makedirs(folder, exist_ok=True)
        table = with_retries(
            files,
            folder,
            lambda: DeltaTable.create(
                folder,
                schema=schema,
                partition_by=[*target.partition_by],
                mode="ignore",
                storage_options=stored,
            ),
            self._failures(),
        )
        _add_columns(folder, table, schema, merges=target.merges)
        partitions = tuple(table.metadata().partition_columns)
        check_partitions(folder, partitions, target.partition_by)
        kinds = dict(columns_of(schema))
        unfit = [name for name in partitions if not can_partition(kinds[name])]
        if unfit:
            msg = (
                f"the table {folder} is partitioned by {unfit}: only strings, integers, booleans "
                "and dates can be partition columns of a Delta table that a query writes"
            )
            raise DefinitionError(msg)
        layout = TableLayout(
            target.view,
            target.writer,
            folder,
            schema,
            partition_by=partitions,
            statistics=True,
            target=target.file_bytes,
            files=files,
        )
        super().__init__(table, layout)

    def latest(self) -> int:
        found = self._read(lambda: self._table.transaction_version(self.layout.writer))
        return -1 if found is None else int(found)

    def add(self, version: int, files: Sequence[TableFile]) -> None:
        """Add files in one transaction; refuse a version that was not added and lacks files."""
        if files and version > self.latest():
            with ThreadPoolExecutor(min(len(files), _ASKED_AT_ONCE)) as pool:
                there = [*pool.map(self.layout.files.exists, (each.location for each in files))]
            if not all(there):
                gone = files[there.index(False)].location
                msg = f"{gone} was written for version {version} and is missing"
                raise StorageError(msg)
            super().add(version, files)

    def _outrun(self) -> type[Exception]:
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        return CommitFailedError

    def _failures(self) -> tuple[type[Exception], ...]:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        return OSError, DeltaError

    def holds(self, paths: Collection[str]) -> set[str]:
        """Return those of some paths that are part of the table."""
        actions = self._read(lambda: pa.table(self._table.get_add_actions()))
        return {unquote(each) for each in actions.column("path").to_pylist()} & {*paths}

    def _read(self, read: Callable[[], Any]) -> Any:
        """Return something of the newest state of the table."""

        def newest() -> Any:
            self._table.update_incremental()
            return read()

        return self._with_retries(newest)

    def _commit(self, version: int, files: Sequence[TableFile]) -> None:
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415
        from deltalake.transaction import AddAction  # noqa: PLC0415

        actions = [
            AddAction(
                each.path,
                each.bytes,
                dict(each.values),
                each.written,
                True,
                json.dumps(each.statistics),
            )
            for each in files
        ]
        self._table.create_write_transaction(
            actions,
            mode="append",
            schema=self._table.schema(),
            partition_by=[*self.layout.partition_by],
            commit_properties=CommitProperties(
                custom_metadata={"icestream.version": str(version)},
                max_commit_retries=0,
                app_transactions=[Transaction(self.layout.writer, version)],
            ),
        )


class DeltaUpsertTable(UpsertTable):
    """A Delta table in a folder, with at most one row for each key."""

    def __init__(
        self,
        folder: str,
        schema: pa.Schema,
        writer: str,
        key: Sequence[str],
        *,
        merges: bool = False,
    ) -> None:
        """Open the table, or create it; refuse one with other columns, or add those it lacks."""
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        super().__init__(key, schema)
        folder = folder.removeprefix("file://")
        if not folder or "://" in folder:
            msg = (
                "output mode 'now' writes a Delta table in a local folder: set option('path', ...)"
            )
            raise DefinitionError(msg)
        self._folder, self._writer = os.path.abspath(folder), writer
        os.makedirs(self._folder, exist_ok=True)
        table = DeltaTable.create(self._folder, schema=schema, mode="ignore")
        _add_columns(self._folder, table, schema, merges=merges)
        self._table: Any = table

    def _latest(self) -> int:
        self._table.update_incremental()
        last = self._table.transaction_version(self._writer)
        return -1 if last is None else int(last)

    def _merge(self, version: int, rows: pa.Table) -> None:
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415

        same = " AND ".join(f"(t.`{name}` IS NOT DISTINCT FROM s.`{name}`)" for name in self._key)
        (
            self._table.merge(
                rows,
                same or "true",
                source_alias="s",
                target_alias="t",
                commit_properties=CommitProperties(
                    custom_metadata={"icestream.version": str(version)},
                    app_transactions=[Transaction(self._writer, version)],
                ),
            )
            .when_matched_delete("s.change < 0")
            .when_matched_update_all("s.change > 0", except_cols=["change"])
            .when_not_matched_insert_all("s.change > 0", except_cols=["change"])
            .execute()
        )


def _add_columns(folder: str, table: Any, schema: pa.Schema, *, merges: bool) -> None:
    """Refuse a table with other columns than some; with `merges`, add those that it lacks."""
    from deltalake import Field  # noqa: PLC0415

    found = [(each.name, each.type) for each in table.schema().fields]
    given = [Field.from_arrow(each) for each in schema]
    types = [(each.name, each.type) for each in given]
    missing = check_columns(folder, found, types, merges=merges)
    if missing:
        table.alter.add_columns([each for each in given if each.name in missing])
