"""Consolidated changes: one row for each event that changes add or retract in total.

Idea: rows that agree in all columns except the count share a 128-bit identity, as group keys do.
Rows are numbered by identity and their counts are added. Lists cannot be keys; they are encoded as
the concatenated identities of their elements.

Invariants:
1. Consolidated changes add up to the same bag, have no two rows for one event and no row with
   count 0 (`test_oracle_consolidated_changes_are_the_bag`).
2. They keep the order in which their events first appeared (the same test).

Cost: O(rows x columns).

Limits: null equals null and NaN equals NaN, as in a grouping key; maps are rejected.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from icestream.core.arrays import Ids
from icestream.operators.lifetimes.changes import DIFF, column_of, with_column
from icestream.state.identities import numbered
from icestream.state.keys import KeyCodec


def identities(rows: pa.RecordBatch) -> tuple[Ids, Ids]:
    """Return the ids that changes are consolidated by: equal exactly where all columns are."""
    columns = [
        _list_as_bytes(column) if _is_list(column.type) else column for column in rows.columns
    ]
    schema = pa.schema([pa.field(str(place), column.type) for place, column in enumerate(columns)])
    return _codec(schema).identify(pa.RecordBatch.from_arrays(columns, schema=schema))


def consolidated(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Consolidate changes: add up those to each event and drop those that add up to zero."""
    diffs = column_of(changes, DIFF)
    if len(diffs) <= 1:
        return changes if diffs.all() else changes.slice(0, 0)
    numbers, heads = numbered(*identities(changes.drop_columns([DIFF])))
    if len(heads) == len(diffs):
        return changes if diffs.all() else changes.filter(pa.array(diffs != 0))
    totals = np.zeros(len(heads), dtype=np.int64)
    np.add.at(totals, numbers, diffs)
    left = totals != 0
    return with_column(changes.take(pa.array(heads[left])), DIFF, totals[left])


@lru_cache(maxsize=256)
def _codec(schema: pa.Schema) -> KeyCodec:
    return KeyCodec(schema)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _list_as_bytes(lists: pa.Array) -> pa.Array:
    """Return a binary column, equal where the lists are: 16 bytes for each element."""
    elements = pa.RecordBatch.from_arrays([lists.flatten()], names=["element"])
    words = np.stack(identities(elements), axis=1)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * 16
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lists), [None, pa.py_buffer(offsets), pa.py_buffer(words)]
    )
    return pc.if_else(lists.is_valid(), whole, pa.scalar(None, pa.large_binary()))
