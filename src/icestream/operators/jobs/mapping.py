"""`map`: each tuple on its own becomes any number of others.

Idea: the function returns new values. The operator, not the function, copies the attributes to
keep, so they are known to be unchanged and later steps can be partitioned by them.

Invariants:
1. Copied attributes and time spans are those of the tuple that a row was computed from
   (`test_oracle_maps_in_both_forms`).
2. A tuple is never moved to an earlier time, so windows are complete when they are emitted
   (`test_a_map_does_not_move_tuples_back`).

Cost: one call for each batch, or one for each tuple for functions of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError, InputError
from icestream.operators.jobs.batches import TS1, TS2, columns_of, named_failures, rows_of
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    RE,
    changes_of,
    column_of,
    identities_of,
    payload_of,
)

#: column in which a function for many tuples returns the input tuple of each of its rows
ROW = "row"
_SPAN = pa.schema([(TS1, pa.int64()), (TS2, pa.int64())])


@dataclass(frozen=True)
class MapTuples:
    """Applies a function to the tuples of a batch."""

    function: Callable[..., Any]
    name: str
    #: columns that the function returns
    made: pa.Schema
    #: columns that are copied
    kept: pa.Schema
    vectorised: bool

    @property
    def result(self) -> pa.Schema:
        return pa.schema([*self.kept, *self.made])

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        payload = payload_of(changes)
        ts1, ts2 = column_of(changes, LE), column_of(changes, RE)
        with named_failures(self.name):
            call = self._many if self.vectorised else self._each
            made, rows, begins, ends = call(payload, ts1, ts2)
        self._refuse_earlier(begins, ends, ts1[rows], ts2[rows])
        kept = payload.select(self.kept.names).take(pa.array(rows)).columns
        values = pa.RecordBatch.from_arrays([*kept, *made.columns], schema=self.result)
        diff = column_of(changes, DIFF)
        id_high, id_low = identities_of(changes)
        return changes_of(values, begins, ends, diff[rows], id_high[rows], id_low[rows])

    def _many(
        self, payload: pa.RecordBatch, ts1: Ints, ts2: Ints
    ) -> tuple[pa.RecordBatch, Ints, Ints, Ints]:
        given = pa.RecordBatch.from_arrays(
            [*payload.columns, pa.array(ts1), pa.array(ts2)],
            schema=pa.schema([*payload.schema, *_SPAN]),
        )
        found = self.function(given)
        if found is None:
            found = {name: [] for name in (*self.made.names, ROW)}
        columns = dict(found) if isinstance(found, Mapping) else None
        if isinstance(found, pa.RecordBatch):
            columns = {name: found.column(name) for name in found.schema.names}
        if columns is None:
            columns = dict(zip(self.made.names, found, strict=True))
        rows = _numbers(columns.pop(ROW, None), np.arange(len(ts1)))
        begins = _numbers(columns.pop(TS1, None), ts1[rows])
        ends = _numbers(columns.pop(TS2, None), ts2[rows])
        made = columns_of(columns, self.made, self.name, len(rows) if columns else None)
        return made, rows, begins, ends

    def _each(
        self, payload: pa.RecordBatch, ts1: Ints, ts2: Ints
    ) -> tuple[pa.RecordBatch, Ints, Ints, Ints]:
        rows, begins, ends = [], [], []
        columns: dict[str, list[Any]] = {name: [] for name in self.made.names}
        for number, row in enumerate(rows_of(payload, ts1, ts2)):
            begin, end = row[TS1], row[TS2]
            for made in several(self.function(row)):
                begins.append(made.get(TS1, begin))
                ends.append(made.get(TS2, end))
                rows.append(number)
                if made.keys() - {TS1, TS2} != columns.keys():
                    columns_of(made, self.made, self.name)
                for name, column in columns.items():
                    column.append(made[name])
        at = np.array(rows, dtype=np.int64)
        batch = columns_of(columns, self.made, self.name, len(rows) if columns else None)
        return batch, at, np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)

    def _refuse_earlier(self, begins: Ints, ends: Ints, ts1: Ints, ts2: Ints) -> None:
        back = (begins < ts1) | (ends < ts2) | (ends <= begins)
        if back.any():
            at = int(np.argmax(back))
            msg = (
                f"{self.name} turned a tuple of [{ts1[at]}, {ts2[at]}) into one of "
                f"[{begins[at]}, {ends[at]}), whose windows may be closed already: a map may move "
                "tuples to later times only"
            )
            raise InputError(msg)


def several(made: Any) -> list[dict[str, Any]]:
    """Convert what a map's function returned for one row (nothing, a row, or rows) to a list."""
    if made is None:
        return []
    if isinstance(made, dict):
        return [made]
    found = list(made) if isinstance(made, Iterable) else [made]
    if not all(isinstance(each, dict) for each in found):
        msg = f"a function for one row must return a dict, several dicts or None; got {made!r:.200}"
        raise DefinitionError(msg)
    return found


def _numbers(given: Any, otherwise: Ints) -> Ints:
    return otherwise if given is None else np.asarray(given, dtype=np.int64)
