"""What an adapter provides for the state of one kind of operator: tables and their rows.

Idea: the state of any operator is shown as tables of rows that belong to groups. A table has the
stored columns, among them the key columns if they are known. Everything else (groups, one group,
differences, files, data frames) is derived from these rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids
from icestream.core.errors import DefinitionError
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.state.keys import KeyCodec


@dataclass(frozen=True)
class StateTable:
    """One kind of rows in the state of an operator."""

    #: name of the operator, for people: `view 0`, `component 1, grouping 0`, `join 0`
    operator: str
    #: name of the rows: `open windows`, or the name of a table of group state
    name: str
    #: what they belong to, as the plan describes it
    text: str
    #: columns that identify groups, with their types; they need not be among `columns`
    keys: pa.Schema
    columns: pa.Schema
    #: shards that have such rows
    shards: range
    #: whether it is read only if its name is given
    by_name: bool = False

    @property
    def shown_keys(self) -> list[str]:
        return [name for name in self.keys.names if name in self.columns.names]


@dataclass(frozen=True)
class StateRows:
    """Rows of one table in one shard."""

    table: StateTable
    shard: int
    rows: pa.RecordBatch
    #: id of the group of each row, if the operator knows groups only by their id
    identity: tuple[Ids, Ids] | None = None


@dataclass(frozen=True)
class ReadRequest:
    """What to read: tables, and the key of a group to read only that group."""

    tables: frozenset[StateTable]
    #: key columns of the group and their values, as text
    key: Mapping[str, str] | None = None

    def key_row(self, keys: pa.Schema) -> pa.RecordBatch:
        """Return the requested key as a row; the text `null` is null."""
        assert self.key is not None
        values = []
        for field in keys:
            text = self.key[field.name]
            try:
                values.append(pa.array([None if text == "null" else text]).cast(field.type))
            except pa.ArrowException as error:
                msg = f"--key {field.name}={text}: this column is {field.type} ({error})"
                raise DefinitionError(msg) from error
        return pa.RecordBatch.from_arrays(values, schema=keys)

    def group(self, keys: pa.Schema) -> tuple[Ids, Ids]:
        """Return the id of the requested group."""
        return KeyCodec(keys).identify(self.key_row(keys))

    def chosen(
        self, table: StateTable, shard: int, rows: pa.RecordBatch, id_high: Ids, id_low: Ids
    ) -> StateRows:
        """Return rows of a table with their groups; only those of one group if it is requested."""
        if self.key is not None:
            one, two = self.group(table.keys)
            mine = np.flatnonzero((id_high == one) & (id_low == two))
            rows, id_high, id_low = rows.take(pa.array(mine)), id_high[mine], id_low[mine]
        return StateRows(table, shard, rows, (id_high, id_low))


class StateAdapter(Protocol):
    """An adapter: how the state of one kind of operator is read."""

    @property
    def tables(self) -> Sequence[StateTable]:
        """Return the available tables."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Return remarks for a reader of the rows."""
        ...

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        """Restore a shard and yield the rows of some tables."""
        ...


#: columns before those of a table, if only one table is read
SHARD = "__shard"


GROUP = "__group"


def plain(value: Any) -> Any:
    """Return a value of a row of state in a form that JSON text supports."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    return value


def as_text(row: Mapping[str, Any]) -> str:
    """Return a row of state as JSON text; equal rows have equal texts."""
    return json.dumps(plain(row), ensure_ascii=False, default=str)
