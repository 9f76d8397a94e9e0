"""Rows of a static table beside events: a join that needs no state.

Idea: the table is part of the query and travels with it. A change finds the rows of the table with
equal columns by their identity, so a row that leaves finds what it found when it came.

Invariants:
1. Rows are those of a join in Spark (`test_oracle_rows_of_a_batch_beside_answers`).
2. A null equals nothing.

Cost: a binary search in the table for each change. Limits: the table is in the memory of every
worker, outside of the budget; a query goes on only with the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    RE,
    changes_of,
    column_of,
    identities_of,
    payload_of,
)
from icestream.state.keys import identified

_PAIR = np.dtype([("high", np.uint64), ("low", np.uint64)])


@dataclass(frozen=True)
class TableLookup:
    """Adds columns of a table, or keeps or drops events that are in it."""

    KINDS: ClassVar = ("inner", "left", "semi", "anti")
    #: the rows as an Arrow stream
    stored: bytes
    #: the columns of events, and those of the table, that are equal
    keys: tuple[str, ...]
    table_keys: tuple[str, ...]
    kind: str
    #: the columns of the table that are added
    added: tuple[str, ...]

    @cached_property
    def table(self) -> pa.RecordBatch:
        """Return the rows that have keys, in the order of their identities."""
        rows = pa.ipc.open_stream(self.stored).read_all().combine_chunks()
        rows = rows.filter(_have_values(rows, self.table_keys))
        batch = pa.RecordBatch.from_arrays(
            [each.combine_chunks() for each in rows.columns], schema=rows.schema
        )
        return batch.take(pa.array(np.argsort(_identities(batch, self.table_keys), kind="stable")))

    @cached_property
    def _sorted(self) -> np.ndarray:
        return _identities(self.table, self.table_keys)

    def columns(self, payload: pa.Schema) -> pa.Schema:
        fields = [self.table.schema.field(name) for name in self.added]
        if self.kind == "left":
            fields = [each.with_nullable(True) for each in fields]
        return pa.schema([*payload, *fields])

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        payload = payload_of(changes)
        first, counts = self._found(payload)
        if self.kind in ("semi", "anti"):
            return changes.filter(pa.array((counts > 0) == (self.kind == "semi")))
        missing = counts == 0
        times = np.maximum(counts, 1) if self.kind == "left" else counts
        event = np.repeat(np.arange(len(counts)), times)
        number = np.arange(len(event)) - np.repeat(np.cumsum(times) - times, times)
        rows = pa.array(first[event] + number, mask=missing[event])
        payload = payload.take(pa.array(event))
        beside = [self.table.column(name).take(rows) for name in self.added]
        made = pa.RecordBatch.from_arrays(
            [*payload.columns, *beside], schema=self.columns(payload.schema)
        )
        le, re, diff = (column_of(changes, name)[event] for name in (LE, RE, DIFF))
        return changes_of(made, le, re, diff, *(each[event] for each in identities_of(changes)))

    def _found(self, payload: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Return the first row of the table that each event finds, and how many there are."""
        wanted = _identities(payload, self.keys)
        first = np.searchsorted(self._sorted, wanted, side="left")
        counts = np.searchsorted(self._sorted, wanted, side="right") - first
        counts[~_have_values(payload, self.keys).to_numpy(zero_copy_only=False)] = 0
        return first, counts


def _identities(rows: pa.RecordBatch, keys: tuple[str, ...]) -> np.ndarray:
    found = np.empty(rows.num_rows, dtype=_PAIR)
    high, low = identified(rows, keys)
    found["high"], found["low"] = high, low
    return found


def _have_values(rows: pa.RecordBatch | pa.Table, keys: tuple[str, ...]) -> pa.Array:
    valid = reduce(pc.and_, (pc.is_valid(rows.column(name)) for name in keys))
    return valid.combine_chunks() if isinstance(valid, pa.ChunkedArray) else valid
