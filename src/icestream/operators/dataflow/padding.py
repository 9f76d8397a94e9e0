"""Adds columns of nulls to events.

Idea: rows of an outer join without a partner must look like pairs.

Invariant: existing columns are kept, all others are null (`test_missing_columns_are_null`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.operators.lifetimes.changes import HEAD, changes_schema


@dataclass(frozen=True)
class Padding:
    """Adds columns of nulls."""

    columns: pa.Schema

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return changes with all columns, in their order."""
        there = set(changes.schema.names)
        columns = [
            changes.column(each.name) if each.name in there else pa.nulls(len(changes), each.type)
            for each in self.columns
        ]
        head = [changes.column(each.name) for each in HEAD]
        return pa.RecordBatch.from_arrays([*head, *columns], schema=changes_schema(self.columns))
