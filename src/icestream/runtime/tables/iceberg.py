"""An Iceberg table that tasks write, by the `pyiceberg` library and any catalogue that it knows.

Idea: one transaction adds the files as a snapshot, with the version in its summary, and records the
version as a property of the table, under the identity of the query; the property outlives the
snapshot. A transaction is tried once; if another writer was faster, the table is read again, and
with it the version that may be in by now.

Invariants:
1. A version is added once, whoever adds it (`test_a_version_is_added_once_by_whoever_delivers_it`).
2. What Iceberg's readers see is what tasks wrote
   (`test_oracle_tables_have_the_rows_of_the_query`).

3. Answers that the network loses double nothing (`test_crash_a_table_in_a_store`).

A table of output mode `now` is written anew where it holds rows of keys that changed: these are
read by the values of one key column, and replaced in the same kind of transaction.

Limits: tables in folders and object stores, and partitions by the values of columns. Small files
are merged by Iceberg's own procedures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.errors import DefinitionError, StorageError
from icestream.runtime.tables.append_table import (
    TRIES,
    TransactionTable,
    check_columns,
    check_partitions,
    relative,
)
from icestream.runtime.tables.layout import TableLayout, TableTarget
from icestream.runtime.tables.upsert_table import CHANGE, UpsertTable
from icestream.state.stores.bucket import SCHEMES, store_scheme
from icestream.state.versions.table_files import TableFile

#: options that start with it are properties of the catalogue
CATALOG = "catalog"

_VARIANTS = re.compile(r"large_| not null|\bint8\b|\bint16\b|\bitem: ")
_NO_RETRIES = {"commit.retry.num-retries": "0"}


class IcebergAppendTable(TransactionTable):
    """A table of an Iceberg catalogue."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        target: TableTarget,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        """Open the table, or create it with its namespace; refuse one with other columns.

        Args:
            name: namespace and name of the table.
            schema: columns of the rows.
            target: its options are also `catalog`, the name of the catalogue, and `catalog.*`, its
                properties.
            storage: options of an S3 store, which the catalogue gets by its own names.
        """
        table, stored = _opened(name, schema, target, storage)
        partitions = _partitions(name, table)
        check_partitions(name, partitions, target.partition_by)
        folder = table.location()
        if store_scheme(folder) is None:
            folder = _folder(name, folder)
        layout = TableLayout(
            target.view,
            target.writer,
            folder,
            stored,
            codec="zstd",
            ending=".parquet",
            partition_by=partitions,
            hive=False,
            data="data",
            packs=False,
            target=target.file_bytes,
            files=target.files(folder),
        )
        super().__init__(table, layout)
        self._property = f"icestream.{target.writer}"

    def latest(self) -> int:
        self._with_retries(self._table.refresh)
        return int(self._table.properties.get(self._property, -1))

    def _outrun(self) -> type[Exception]:
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        return CommitFailedException

    def holds(self, paths: Collection[str]) -> set[str]:
        """Return those of some paths that are part of the table."""
        self._with_retries(self._table.refresh)

        def known() -> list[str]:
            return list(self._table.inspect.files().column("file_path").to_pylist())

        found = self._with_retries(known)
        return {relative(self.layout.folder, each) for each in found} & {*paths}

    def _commit(self, version: int, files: Sequence[TableFile]) -> None:
        prefix = self._table.location()
        with _tried_once(self._table) as transaction:
            transaction.set_properties({self._property: str(version)})
            transaction.add_files(
                [f"{prefix}/{each.path}" for each in files],
                snapshot_properties={"icestream.version": str(version)},
                check_duplicate_files=False,
            )


class IcebergUpsertTable(UpsertTable):
    """A table of an Iceberg catalogue, with at most one row for each key."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        target: TableTarget,
        key: Sequence[str],
        storage: Mapping[str, str] | None = None,
    ) -> None:
        """Open the table, or create it with its namespace; arguments as for rows to append."""
        self._table, self._columns = _opened(name, schema, target, storage)
        super().__init__(key, self._columns)
        self._property = f"icestream.{target.writer}"

    def _latest(self) -> int:
        self._table.refresh()
        return int(self._table.properties.get(self._property, -1))

    def _merge(self, version: int, rows: pa.Table) -> None:
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        for _ in range(TRIES):
            try:
                self._replace(version, rows)
            except CommitFailedException:
                if version <= self._latest():
                    return
                continue
            return
        msg = (
            f"other writers of {self._table.name()} commit faster than this query can follow: stop "
            "them and start it again, or give it a table of its own"
        )
        raise StorageError(msg)

    def _replace(self, version: int, rows: pa.Table) -> None:
        """Try once to write the files anew that hold rows of these keys."""
        near = _near(rows, self._key)
        there = self._table.scan(row_filter=near).to_arrow().cast(self._columns)
        changed = set(self._identities(rows))
        known = [each in changed for each in self._identities(there)]
        rest = there.filter(pc.invert(pa.array(known, pa.bool_())))
        new = rows.filter(pc.greater(rows.column(CHANGE), 0)).select(self._columns.names)
        written = pa.concat_tables([rest, new.cast(self._columns)])
        summary = {"icestream.version": str(version)}
        with _tried_once(self._table) as transaction:
            transaction.set_properties({self._property: str(version)})
            if there.num_rows:
                transaction.overwrite(written, overwrite_filter=near, snapshot_properties=summary)
            elif written.num_rows:
                transaction.append(written, snapshot_properties=summary)


def _tried_once(table: Any) -> Any:
    """Return a transaction; a retry of the library would write again, whoever wrote meanwhile."""
    once = {**table.metadata.properties, **_NO_RETRIES}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    return table.transaction()


def _near(rows: pa.Table, key: Sequence[str]) -> Any:
    """Return a condition that all rows of these keys fulfil, and few others."""
    from pyiceberg import expressions  # noqa: PLC0415

    made: Any = expressions
    plain = {
        name: rows.column(name).unique()
        for name in key
        if not pa.types.is_nested(rows.column(name).type)
    }
    if not plain:
        return made.AlwaysTrue()
    name, values = max(plain.items(), key=lambda each: len(each[1]))
    found: Any = None
    if values.null_count:
        found, values = made.IsNull(name), values.drop_null()
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        found = made.IsNaN(name) if found is None else made.Or(found, made.IsNaN(name))
        values = values.filter(pc.invert(pc.is_nan(values)))
    if len(values):
        among = made.In(name, values.to_pylist())
        found = among if found is None else made.Or(found, among)
    return found


def _opened(
    name: str, schema: pa.Schema, target: TableTarget, storage: Mapping[str, str] | None
) -> tuple[Any, pa.Schema]:
    """Open a table, or create it with its namespace; return it with its columns."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    start, options = f"{CATALOG}.", target.options
    properties = {k[len(start) :]: v for k, v in options.items() if k.startswith(start)}
    properties = {**_of_store(storage or {}), **properties}
    catalog: Any = load_catalog(options.get(CATALOG, "default"), **properties)
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        table = _create(catalog, name, schema, target.partition_by)
    # files are found by the names of their columns, so they must not have Iceberg's numbers
    stored = schema_to_pyarrow(table.schema(), include_field_ids=False)
    if check_columns(name, _plain(stored), _plain(schema), merges=target.merges):
        with table.update_schema() as update:
            update.union_by_name(schema)
        stored = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return table, stored


def _create(catalog: Any, name: str, schema: pa.Schema, partition_by: Sequence[str]) -> Any:
    """Create a table and its namespace; one that was created meanwhile is fine."""
    namespace = name.rpartition(".")[0]
    if not namespace:
        msg = f"an Iceberg table is named by its namespace and name, as in 'db.calls'; got {name!r}"
        raise DefinitionError(msg)
    catalog.create_namespace_if_not_exists(namespace)
    with catalog.create_table_transaction(name, schema) as transaction:
        if partition_by:
            with transaction.update_spec() as update:
                for column in partition_by:
                    update.add_identity(column)
    return catalog.load_table(name)


def _plain(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return names and types of columns, without the variants of Arrow that Iceberg has not."""
    return [(each.name, _VARIANTS.sub(_without_variant, str(each.type))) for each in schema]


def _without_variant(found: re.Match[str]) -> str:
    return {"int8": "int32", "int16": "int32", "item: ": "element: "}.get(found[0], "")


def _partitions(name: str, table: Any) -> tuple[str, ...]:
    spec, schema = table.spec(), table.schema()
    other = [str(each) for each in spec.fields if str(each.transform) != "identity"]
    if other:
        msg = (
            f"the table {name} is partitioned by {other}, but a query writes only to tables that "
            "are partitioned by the values of columns: choose another table"
        )
        raise DefinitionError(msg)
    return tuple(schema.find_column_name(each.source_id) for each in spec.fields)


def _folder(name: str, location: str) -> str:
    if urlparse(location).scheme not in ("", "file"):
        msg = (
            f"the table {name} is at {location}, but a query writes only to tables in local "
            f"folders and in object stores ({', '.join(SCHEMES)}): choose another table"
        )
        raise DefinitionError(msg)
    return os.path.abspath(location.removeprefix("file://"))


def _of_store(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a store as properties of the catalogue; S3 only."""
    return {_S3[key]: value for key, value in options.items() if key in _S3}


#: options of the store that Iceberg's library takes under other names
_S3 = {
    ours: f"s3.{theirs}"
    for ours, theirs in (
        ("access_key_id", "access-key-id"),
        ("endpoint", "endpoint"),
        ("region", "region"),
        ("secret_access_key", "secret-access-key"),
        ("session_token", "session-token"),
    )
}
