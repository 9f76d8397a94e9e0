"""Rows of the state of one version: all of them, by group, of one group, as columns of a file.

Idea: shards are restored one after the other within a budget, and their rows are yielded as they
are read. Rows of one table have its own columns; rows of several tables have a common shape, with
the row as JSON text.

Invariants:
1. Rows depend only on the version, not on the budget
   (`test_parity_rows_do_not_depend_on_the_budget`).
2. The listed groups are those with the most bytes
   (`test_groups_are_listed_by_their_bytes`).

Cost: a shard is restored as a query would restore it. Listing groups holds one row for each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.core.clock import SystemClock
from icestream.core.errors import CheckpointError, DefinitionError
from icestream.core.text_errors import guess
from icestream.inspect.access.adapter_protocol import (
    GROUP,
    SHARD,
    ReadRequest,
    StateAdapter,
    StateRows,
    StateTable,
    as_text,
    plain,
)
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.access.scratch_shard import MEMORY, restorable
from icestream.inspect.adapters.dataflow import DataflowState
from icestream.inspect.adapters.latest import UpdateState, UpdateWindowState
from icestream.inspect.adapters.windows import WindowState
from icestream.plan.state_schema import DataflowSchema, NoSchema, UpdateSchema
from icestream.runtime.tables.current_table import CurrentTable
from icestream.state.files import PRIVATE_FILE, Files, temporary_name
from icestream.state.versions.commits import Commit

#: columns of rows of several tables
MIXED = pa.schema(
    [
        pa.field("operator", pa.string(), nullable=False),
        pa.field("kept", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("group", pa.string()),
        pa.field("key", pa.string()),
        pa.field("row", pa.string(), nullable=False),
    ]
)
#: rows of partial sums of groups that are added up at once
_MANY = 1 << 18


@dataclass(frozen=True)
class Group:
    """The size of one group in one table."""

    operator: str
    kept: str
    shard: int
    #: values of the key columns that the rows have
    key: Mapping[str, Any]
    #: id of the group, where groups are known by their id
    group: str | None
    rows: int
    bytes: int


@dataclass(frozen=True)
class TableSize:
    """The size of one table."""

    operator: str
    kept: str
    text: str
    keys: list[str]
    groups: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Reading:
    """A selection of the state of a checkpoint."""

    location: str
    version: int | None = None
    #: only this operator, and only this kind of its rows
    operator: str | None = None
    kept: str | None = None
    #: only the group with these key values, as text
    key: Mapping[str, str] | None = None
    #: bytes that restoring a shard may use
    memory: int = MEMORY
    #: file system of the checkpoint; the local disk if left out
    files: Files | None = None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.location, self.files)

    @cached_property
    def commit(self) -> Commit:
        return self.checkpoint.commit(self.version)

    @cached_property
    def _readable(self) -> StateAdapter:
        """Choose the adapter of the state; CheckpointError if there is none."""
        commit = self.commit
        schema = self.checkpoint.state_schema_of(commit)
        if isinstance(schema, NoSchema):
            msg = f"this checkpoint has no state that can be read: {schema.why}"
            raise CheckpointError(msg)
        if isinstance(schema, DataflowSchema):
            return DataflowState(schema, commit)
        if not isinstance(schema, UpdateSchema):
            return WindowState(schema, commit)
        adapter = UpdateState if schema.windowed is None else UpdateWindowState
        return adapter(schema, commit)

    @property
    def notes(self) -> Sequence[str]:
        return self._readable.notes

    @cached_property
    def tables(self) -> list[StateTable]:
        named = self.kept is not None or self.operator is not None
        found = [each for each in self._readable.tables if named or not each.by_name]
        for what, wanted in (("operator", self.operator), ("kept", self.kept)):
            if wanted is not None:
                names = [_name(table, what) for table in found]
                found = [each for each, name in zip(found, names, strict=True) if name == wanted]
                if not found:
                    there = ", ".join(map(repr, dict.fromkeys(names)))
                    msg = f"there is no {what} {wanted!r}, only {there}{guess(wanted, names)}"
                    raise DefinitionError(msg)
        if self.key is None:
            return found
        keyed = [table for table in found if set(table.keys.names) == set(self.key)]
        if not keyed:
            there = ", ".join(dict.fromkeys(_key_names(table) for table in found))
            msg = f"no table has the key {', '.join(self.key)}; the keys are: {there}"
            raise DefinitionError(msg)
        return keyed

    @property
    def shards(self) -> list[int]:
        """Return the shards that have rows of these tables."""
        return sorted({shard for table in self.tables for shard in table.shards})

    def rows(self, shards: Sequence[int] | None = None) -> Iterator[StateRows]:
        asked = ReadRequest(frozenset(self.tables), self.key)
        for shard in self.shards if shards is None else shards:
            with restorable(self.checkpoint, self.commit, shard, self.memory) as source:
                for found in self._readable.read(source, asked):
                    if found.rows.num_rows:
                        found.rows.validate(full=True)
                        yield found

    # -- as columns ------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows: those of the only table, or the common ones."""
        if len(self.tables) != 1:
            return MIXED
        head = [pa.field(SHARD, pa.int32(), nullable=False), pa.field(GROUP, pa.string())]
        return pa.schema([*head, *self.tables[0].columns])

    def batches(self, shards: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches of `schema`."""
        one, schema = len(self.tables) == 1, self.schema
        for found in self.rows(shards):
            yield _columns(found, schema) if one else _mixed(found)

    # -- groups ----------------------------------------------------------------------------

    def groups(self, limit: int | None = None) -> list[Group]:
        """Return the groups with the most bytes in each table, largest first."""
        sums = self._sums()
        listed = [group for table, found in sums.items() for group in _listed(table, found, limit)]
        listed.sort(key=lambda each: (-each.bytes, each.operator, each.kept))
        return [_with_key(group, sums) for group in listed[:limit]]

    def sizes(self) -> list[TableSize]:
        sums = self._sums()
        return [
            TableSize(
                table.operator,
                table.name,
                table.text,
                table.keys.names,
                *(
                    (0, 0, 0)
                    if table not in sums
                    else (
                        sums[table].num_rows,
                        pc.sum(sums[table].column("__rows")).as_py(),
                        round(pc.sum(sums[table].column("__bytes")).as_py()),
                    )
                ),
            )
            for table in self.tables
        ]

    def _sums(self) -> dict[StateTable, pa.Table]:
        """Return the number of rows and bytes of each group."""
        sums: dict[StateTable, list[pa.Table]] = {}
        for found in self.rows():
            parts = sums.setdefault(found.table, [])
            parts.append(_counted(found))
            if sum(part.num_rows for part in parts) > _MANY:
                sums[found.table] = [_summed(parts)]
        return {table: _summed(parts) for table, parts in sums.items()}


def group_names(found: StateRows) -> list[str] | list[None]:
    """Return the id of the group of each row of state, as 32 hexadecimal digits."""
    if found.identity is None:
        return [None] * found.rows.num_rows
    id_high, id_low = (part.tolist() for part in found.identity)
    return [f"{one:016x}{two:016x}" for one, two in zip(id_high, id_low, strict=True)]


def _columns(found: StateRows, schema: pa.Schema) -> pa.RecordBatch:
    shard = pa.array(np.full(found.rows.num_rows, found.shard, dtype=np.int32))
    names = pa.array(group_names(found), pa.string())
    return pa.RecordBatch.from_arrays([shard, names, *found.rows.columns], schema=schema)


def _mixed(found: StateRows) -> pa.RecordBatch:
    count, keys = found.rows.num_rows, found.table.shown_keys
    rows = found.rows.to_pylist()
    return pa.RecordBatch.from_arrays(
        [
            pa.array([found.table.operator] * count, pa.string()),
            pa.array([found.table.name] * count, pa.string()),
            pa.array(np.full(count, found.shard, dtype=np.int32)),
            pa.array(group_names(found), pa.string()),
            pa.array([as_text({k: row[k] for k in keys}) if keys else None for row in rows]),
            pa.array(list(map(as_text, rows)), pa.string()),
        ],
        schema=MIXED,
    )


def _name(table: StateTable, what: str) -> str:
    return table.operator if what == "operator" else table.name


def _key_names(table: StateTable) -> str:
    return " and ".join(table.keys.names) or "(no key)"


def _counted(found: StateRows) -> pa.Table:
    """Return the number of rows and bytes of the groups in some rows."""
    count = found.rows.num_rows
    columns: dict[str, Any] = {name: found.rows.column(name) for name in found.table.shown_keys}
    columns["__key"] = pa.array([None] * count, pa.string())
    nested = [name for name, each in columns.items() if pa.types.is_nested(each.type)]
    if nested:
        values = found.rows.select(nested).to_pylist()
        columns["__key"] = pa.array([as_text(row) for row in values], pa.string())
        for name in nested:
            del columns[name]
    id_high, id_low = found.identity or (np.zeros(count, np.uint64),) * 2
    columns |= {"__hi": id_high, "__lo": id_low, "__shard": np.full(count, found.shard)}
    size = found.rows.nbytes / max(1, count)
    columns |= {"__rows": np.ones(count, np.int64), "__bytes": np.full(count, size)}
    return _summed([pa.table(columns)])


def _summed(parts: list[pa.Table]) -> pa.Table:
    whole = pa.concat_tables(parts)
    by = [name for name in whole.schema.names if name not in {"__rows", "__bytes"}]
    sums = whole.group_by(by).aggregate([("__rows", "sum"), ("__bytes", "sum")])
    return sums.rename_columns({"__rows_sum": "__rows", "__bytes_sum": "__bytes"})


def _listed(table: StateTable, sums: pa.Table, limit: int | None) -> Iterator[Group]:
    largest = sums.sort_by([("__bytes", "descending"), ("__hi", "ascending")])
    for row in largest.slice(0, limit).to_pylist():
        key = {name: row[name] for name in table.shown_keys if name in row}
        if row["__key"] is not None:
            key |= json.loads(row["__key"])
        known = row["__hi"] or row["__lo"]
        yield Group(
            table.operator,
            table.name,
            row["__shard"],
            plain(key),
            f"{row['__hi']:016x}{row['__lo']:016x}" if known else None,
            row["__rows"],
            round(row["__bytes"]),
        )


def _with_key(group: Group, sums: Mapping[StateTable, pa.Table]) -> Group:
    """Return a group with its key from other rows of the group, if its own rows have none."""
    if group.key or group.group is None:
        return group
    id_high, id_low = (int(part, 16) for part in (group.group[:16], group.group[16:]))
    for table, found in sums.items():
        if table.operator == group.operator and table.shown_keys:
            same = pc.and_(
                pc.equal(found["__hi"], _id(id_high)), pc.equal(found["__lo"], _id(id_low))
            )
            rows = found.filter(same)
            if rows.num_rows:
                known = next(_listed(table, rows, 1))
                return replace(group, key=known.key)
    return group


def _id(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint64())


def write_parquet(reading: Reading, target: Path) -> int:
    """Export rows of state to a new Parquet file, readable by this user only; count them."""
    if target.exists():
        msg = f"{target} already exists; name a new file"
        raise DefinitionError(msg)
    temporary = temporary_name(str(target))
    rows = 0
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        with os.fdopen(handle, "wb") as file, pq.ParquetWriter(file, reading.schema) as writer:
            for batch in reading.batches():
                writer.write_batch(batch)
                rows += batch.num_rows
        os.link(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return rows


def now_rows(checkpoint: str, view: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of a view; those of an update stream with their age."""
    found = Checkpoint(checkpoint)
    table = CurrentTable.of(found.files, found.root, view)
    if table.manifest() is None:
        msg = f"{checkpoint} keeps no table: run the query in outputMode('now')"
        raise DefinitionError(msg)
    for rows in table.read(SystemClock().now()):
        yield from map(plain, rows.to_pylist())
