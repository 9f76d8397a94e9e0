"""Map state of many groups at a time, as columns: rows found by a key.

Idea: puts and removals are rows, and the last row of a (group, key) is the valid one. Keys are
compared by their 128-bit identities, sorted, so that finding the last rows, or the rows under some
keys, is one sort, whatever the types.

Invariants:
1. It behaves like a dictionary for each group, in the order of the last puts
   (`test_parity_both_forms_give_equal_results`).
2. A map does not grow with its updates, read or not
   (`test_bounded_user_state_that_is_only_written`).

Cost: O(rows log rows) for each access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, slice_bounds
from icestream.core.errors import DefinitionError
from icestream.operators.lifetimes.changes import taken
from icestream.operators.process.column_state import (
    ColumnVariable,
    PortionContext,
    as_rows,
    chosen_groups,
    until,
)
from icestream.operators.process.declarations import EXPIRY, GONE, MapState
from icestream.operators.process.grouping import last_puts
from icestream.operators.process.stored_state import with_expiry
from icestream.state.groups.spec import GroupRows
from icestream.state.keys import KeyCodec


class MapColumns(ColumnVariable):
    """Rows found by a key."""

    def __init__(self, stage: PortionContext, number: int, name: str, declared: MapState) -> None:
        super().__init__(stage, number, name, declared)
        self._keys, self._values = declared.keys, declared.values
        self._codec = KeyCodec(declared.keys)
        self._cleared: Mask = np.zeros(len(stage.slots), dtype=np.bool_)
        self._writes: list[tuple[Ints, pa.RecordBatch]] = []
        self._live: tuple[Ints, pa.RecordBatch] | None = None

    def put(self, group: Any, keys: Any, values: Any) -> None:
        """Put one row under each key; `group` has the group number of each."""
        rows = as_rows(values, self._values, self.name)
        self._put(group, as_rows(keys, self._keys, self.name), rows, gone=False)

    def remove(self, group: Any, keys: Any) -> None:
        """Remove keys if they exist; `group` has the group number of each."""
        entries = as_rows(keys, self._keys, self.name)
        none = [pa.nulls(entries.num_rows, kind) for kind in self._values.types]
        rows = pa.RecordBatch.from_arrays(none, schema=self._values)
        self._put(group, entries, rows, gone=True)

    def items(self) -> tuple[Ints, pa.RecordBatch, pa.RecordBatch]:
        """Return group number, key and value of all rows, sorted by group."""
        owners, rows = self._current()
        numbers = self._stage.numbers(owners)
        chosen = np.flatnonzero(numbers >= 0)
        rows = taken(rows, chosen)
        return numbers[chosen], rows.select(self._keys.names), rows.select(self._values.names)

    def get(self, group: Any, keys: Any) -> tuple[Mask, pa.RecordBatch]:
        """Return whether each key exists, and its row (null if it does not)."""
        numbers = chosen_groups(group, len(self._stage.focus))
        live = self._current()[1]
        where = self._find(self._stage.focus[numbers], as_rows(keys, self._keys, self.name))
        index = pa.array(np.maximum(where, 0), mask=where < 0)
        arrays = [live.column(name).take(index) for name in self._values.names]
        return where >= 0, pa.RecordBatch.from_arrays(arrays, schema=self._values)

    def clear(self, mask: Any = None) -> None:
        """Remove all rows of all groups, or of the groups in a mask."""
        gone = np.zeros(len(self._stage.slots), dtype=np.bool_)
        gone[self._stage.positions(mask)] = True
        self._cleared |= gone
        self._writes = [
            (owners[~gone[owners]], rows.filter(pa.array(~gone[owners])))
            for owners, rows in self._writes
        ]
        self._live = None

    def flush(self) -> None:
        anew = self._cleared
        if not self._writes and not anew.any():
            return
        owners, rows = self._together(self._writes)
        if anew.any():
            live_owners, live = self._resolved(self._writes)
            mine, rest = anew[live_owners], ~anew[owners]
            owners = np.concatenate([live_owners[mine], owners[rest]])
            rows = pa.concat_batches([live.filter(pa.array(mine)), rows.filter(pa.array(rest))])
        self._write(np.flatnonzero(anew), owners, rows)

    def _put(self, group: Any, keys: pa.RecordBatch, values: pa.RecordBatch, *, gone: bool) -> None:
        numbers = chosen_groups(group, len(self._stage.focus))
        if not len(numbers) == keys.num_rows == values.num_rows:
            sizes = f"{len(numbers)} group numbers, {keys.num_rows} keys, {values.num_rows} rows"
            msg = f"state {self.name!r} was given {sizes}: they must be equally many"
            raise DefinitionError(msg)
        owners = self._stage.focus[numbers]
        flags = pa.array(np.full(len(owners), gone))
        rows = pa.RecordBatch.from_arrays(
            [*keys.columns, *values.columns, flags], schema=self.schema
        )
        if self._lifetime is not None:
            where = self._find(owners, keys)
            expiries = np.append(np.asarray(self._current()[1].column(EXPIRY)), 0)
            covered, own = expiries[where], until(self._stage.now[numbers], self._lifetime)
            rows = with_expiry(rows, covered if gone else np.maximum(covered, own))
            if gone:
                owners, rows = owners[where >= 0], rows.filter(pa.array(where >= 0))
        self._writes.append((owners, rows))
        self._live = None

    def _current(self) -> tuple[Ints, pa.RecordBatch]:
        """Return position and row of all existing keys, sorted by group."""
        if self._live is None:
            found = self._stored()
            left = found.where(~self._cleared[found.owners])
            self._live = self._resolved([(left.owners, left.rows), *self._writes])
        return self._live

    def _resolved(
        self, parts: Sequence[tuple[Ints, pa.RecordBatch]]
    ) -> tuple[Ints, pa.RecordBatch]:
        """Return the last row of each key, unless it removes the key."""
        found = last_puts(GroupRows(*self._together(parts)), self._codec, GONE)
        return found.owners, found.rows

    def _find(self, owners: Ints, keys: pa.RecordBatch) -> Ints:
        """Return the position of the current row of each key, or -1."""
        live_owners, live = self._current()
        count = len(live_owners)
        everyone = np.concatenate([live_owners, owners])
        known, asked = (
            self._codec.identify(batch) for batch in (live.select(self._keys.names), keys)
        )
        id_high, id_low = (np.concatenate(part) for part in zip(known, asked, strict=True))
        order = np.lexsort((id_low, id_high, everyone))
        bounds = slice_bounds(everyone[order], id_high[order], id_low[order])
        leader = np.repeat(order[bounds[:-1]], np.diff(bounds))
        found = np.empty(len(order), dtype=np.int64)
        found[order] = np.where(leader < count, leader, -1)
        return found[count:]
