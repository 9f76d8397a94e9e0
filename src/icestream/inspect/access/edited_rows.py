"""Edited rows, by groups and by the shards that own them.

Idea: a row identifies its group by `__group`, as exports do, or by its key columns. Rows are sorted
by group once; the rewriter of a shard then requests the rows of some groups at a time.

Invariants:
1. Rows of a group keep their order (`test_oracle_the_state_is_what_was_written`).
2. A row that names no group, or two, is an InputError that names the row
   (`test_a_row_must_name_its_group`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import InputError
from icestream.inspect.access.adapter_protocol import GROUP, StateTable
from icestream.kernels.fold import routes_of
from icestream.operators.latest.coalescing import identity_of
from icestream.state.versions.commits import Commit

#: hexadecimal digits of a group
_DIGITS = 32


@dataclass(frozen=True)
class EditedRows:
    """Rows in the order of their groups."""

    rows: pa.RecordBatch
    #: groups of the rows, ascending, their shards, and the start of their rows
    id_high: Ids
    id_low: Ids
    shards: Ints
    begins: Ints

    def has(self, shard: int) -> bool:
        """Return whether rows belong to groups of a shard."""
        return bool((self.shards == shard).any())

    def groups(self, shard: int) -> tuple[Ids, Ids]:
        """Return the groups of a shard that have rows, ascending."""
        mine = self.shards == shard
        return self.id_high[mine], self.id_low[mine]

    def rows_of(self, id_high: Ids, id_low: Ids) -> tuple[Ints, pa.RecordBatch]:
        """Return the rows of some groups in their order, each with the position of its group."""
        at = np.searchsorted(self.id_high, id_high)
        last = len(self.id_high) - 1
        while len(wrong := self._elsewhere(at, id_high, id_low, last)):
            at[wrong] += 1
        found = at <= last
        found[found] = self.id_high[at[found]] == id_high[found]
        begins = self.begins[np.where(found, at, 0)]
        counts = np.where(found, self.begins[np.where(found, at + 1, 0)] - begins, 0)
        owners = np.repeat(np.arange(len(id_high)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owners, self.rows.take(pa.array(begins[owners] + within))

    def _elsewhere(self, at: Ints, id_high: Ids, id_low: Ids, last: int) -> Ints:
        """Return the positions of groups that share only id_high with their match."""
        inside = np.flatnonzero(at <= last)
        here = at[inside]
        wrong: Ints = inside[
            (self.id_high[here] == id_high[inside]) & (self.id_low[here] != id_low[inside])
        ]
        return wrong


def edited(given: pa.Table, table: StateTable, commit: Commit) -> EditedRows:
    """Return edited rows by group and shard; InputError describes what is wrong with them."""
    rows = _cast(given, table.columns)
    id_high, id_low = _identities(given, table)
    order = np.lexsort((np.arange(len(id_high)), id_low, id_high))
    id_high, id_low = id_high[order], id_low[order]
    first = np.ones(len(id_high), dtype=np.bool_)
    first[1:] = (id_high[1:] != id_high[:-1]) | (id_low[1:] != id_low[:-1])
    begins = np.append(np.flatnonzero(first), len(id_high))
    id_high, id_low = id_high[first], id_low[first]
    routes = np.array(commit.routes, dtype=np.int64)
    shards = np.zeros(len(id_high), dtype=np.int64)
    routes_of(id_high, len(routes), routes, shards, np.zeros_like(routes))
    shards += table.shards.start
    return EditedRows(rows.take(pa.array(order)), id_high, id_low, shards, begins)


def _cast(given: pa.Table, columns: pa.Schema) -> pa.RecordBatch:
    missing = [name for name in columns.names if name not in given.column_names]
    if missing:
        msg = f"the rows have no column {', '.join(missing)}: keep the columns of the export"
        raise InputError(msg)
    arrays = []
    for field in columns:
        try:
            column = given.column(field.name).combine_chunks().cast(field.type)
        except pa.ArrowException as error:
            msg = f"column {field.name!r} must be {field.type}: {error}"
            raise InputError(msg) from error
        if not field.nullable and column.null_count:
            msg = f"column {field.name!r} has {column.null_count} nulls, but must have none"
            raise InputError(msg)
        arrays.append(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _identities(given: pa.Table, table: StateTable) -> tuple[Ids, Ids]:
    """Return the group of each row, from its name if it has one, else from its key.

    The key of a group inside another gives only a part of its identity.
    """
    keys, (_, where, grouping) = table.keys, table.operator.rpartition("grouping ")
    is_inner = bool(where) and grouping != "0"
    keyed = set(keys.names) <= set(given.column_names)
    named = np.zeros(given.num_rows, dtype=np.bool_)
    id_high, id_low = (np.zeros(given.num_rows, dtype=np.uint64) for _ in range(2))
    if GROUP in given.column_names:
        names = given.column(GROUP).cast(pa.string())
        named = np.asarray(pc.is_valid(names).to_numpy())
        id_high[named], id_low[named] = _parsed(names.drop_null(), np.flatnonzero(named))
    if not keyed or is_inner:
        if not named.all():
            row = int(np.flatnonzero(~named)[0])
            columns = ", ".join(keys.names)
            instead = "" if is_inner else f", or the key columns {columns}"
            msg = f"row {row} names no group: give it {GROUP}{instead}"
            raise InputError(msg)
        return id_high, id_low
    # without a key column all rows belong to one group, and a batch without columns has no rows
    by_key = identity_of(_cast(given, keys) if keys.names else given, tuple(keys.names))
    other = np.flatnonzero(named & ((by_key[0] != id_high) | (by_key[1] != id_low)))
    if len(other):
        msg = (
            f"row {other[0]} has the {GROUP} of one group and the key of another: set {GROUP} to "
            "null where you edited the key"
        )
        raise InputError(msg)
    return by_key


def _parsed(names: pa.ChunkedArray, rows: Ints) -> tuple[Ids, Ids]:
    """Return id_high and id_low of groups named by hexadecimal digits."""
    texts = names.to_pylist()
    for row, text in zip(rows.tolist(), texts, strict=True):
        if len(text) != _DIGITS or not set(text) <= set("0123456789abcdef"):
            msg = f"row {row}: {GROUP} must be {_DIGITS} hexadecimal digits, or null; got {text!r}"
            raise InputError(msg)
    whole = np.frombuffer(bytes.fromhex("".join(texts)), dtype=">u8").reshape(-1, 2)
    return whole[:, 0].astype(np.uint64), whole[:, 1].astype(np.uint64)
