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
from icestream.inspect.access.adapter_protocol import StateTable
from icestream.inspect.access.row_text import GROUP
from icestream.kernels.fold import routes_of
from icestream.operators.latest.identities import identity_of
from icestream.state.versions.commits import Commit

#: hexadecimal digits of a group
_DIGITS = 32


@dataclass(frozen=True)
class EditedRows:
    """Rows in the order of their groups."""

    rows: pa.RecordBatch
    #: groups of the rows, ascending, their shards, and the start of their rows
    hi: Ids
    lo: Ids
    shards: Ints
    begins: Ints

    def has(self, shard: int) -> bool:
        """Return whether rows belong to groups of a shard."""
        return bool((self.shards == shard).any())

    def groups(self, shard: int) -> tuple[Ids, Ids]:
        """Return the groups of a shard that have rows, ascending."""
        mine = self.shards == shard
        return self.hi[mine], self.lo[mine]

    def rows_of(self, hi: Ids, lo: Ids) -> tuple[Ints, pa.RecordBatch]:
        """Return the rows of some groups in their order, each with the position of its group."""
        at = np.searchsorted(self.hi, hi)
        last = len(self.hi) - 1
        while len(wrong := self._elsewhere(at, hi, lo, last)):
            at[wrong] += 1
        found = at <= last
        found[found] = self.hi[at[found]] == hi[found]
        begins = self.begins[np.where(found, at, 0)]
        counts = np.where(found, self.begins[np.where(found, at + 1, 0)] - begins, 0)
        owners = np.repeat(np.arange(len(hi)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owners, self.rows.take(pa.array(begins[owners] + within))

    def _elsewhere(self, at: Ints, hi: Ids, lo: Ids, last: int) -> Ints:
        """Return the positions of groups that share only id_high with their match."""
        inside = np.flatnonzero(at <= last)
        here = at[inside]
        wrong: Ints = inside[(self.hi[here] == hi[inside]) & (self.lo[here] != lo[inside])]
        return wrong


def edited(given: pa.Table, table: StateTable, commit: Commit) -> EditedRows:
    """Return rows by group and shard; InputError describes what is wrong with them."""
    rows = _cast(given, table.columns)
    hi, lo = _identities(given, table.keys)
    order = np.lexsort((np.arange(len(hi)), lo, hi))
    hi, lo = hi[order], lo[order]
    first = np.ones(len(hi), dtype=np.bool_)
    first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    begins = np.append(np.flatnonzero(first), len(hi))
    hi, lo = hi[first], lo[first]
    routes = np.array(commit.routes, dtype=np.int64)
    shards = np.zeros(len(hi), dtype=np.int64)
    routes_of(hi, len(routes), routes, shards, np.zeros_like(routes))
    shards += table.shards.start
    return EditedRows(rows.take(pa.array(order)), hi, lo, shards, begins)


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


def _identities(given: pa.Table, keys: pa.Schema) -> tuple[Ids, Ids]:
    """Return the group of each row, from its name if it has one, else from its key."""
    keyed = set(keys.names) <= set(given.column_names)
    named = np.zeros(given.num_rows, dtype=np.bool_)
    hi, lo = (np.zeros(given.num_rows, dtype=np.uint64) for _ in range(2))
    if GROUP in given.column_names:
        names = given.column(GROUP).cast(pa.string())
        named = np.asarray(pc.is_valid(names).to_numpy())
        hi[named], lo[named] = _parsed(names.drop_null(), np.flatnonzero(named))
    if not keyed:
        if not named.all():
            row = int(np.flatnonzero(~named)[0])
            columns = ", ".join(keys.names)
            msg = f"row {row} names no group: give it {GROUP}, or the key columns {columns}"
            raise InputError(msg)
        return hi, lo
    # without a key column all rows belong to one group, and a batch without columns has no rows
    by_key = identity_of(_cast(given, keys) if keys.names else given, tuple(keys.names))
    other = np.flatnonzero(named & ((by_key[0] != hi) | (by_key[1] != lo)))
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


__all__ = ["EditedRows", "edited"]
