"""State of one group at a time, as Python values: value, list and table.

Idea: user code is called group by group, but state is read for all groups of a chunk at once: when
the first of them asks for it, and only for variables that are asked for. Writes are buffered next
to what was read and reach the store in one call for each variable when the chunk is done. Clean
state is never written, and appending never reads.

Invariants:
1. A variable is read at most once in a portion of groups, and not at all when it is only appended
   to or replaced (`test_appending_and_replacing_never_read`).
2. Only what user code changed is written (`test_reading_writes_nothing`).
3. Groups see their own rows only, whatever else is in the chunk
   (`test_oracle_per_group_state_is_a_dictionary`).
4. Rows of a list or table too large for memory are read in pieces
   (`test_bounded_one_group_of_many_times_the_budget`).

Cost: one call of the store for each variable and portion; about 1 us for each access.
"""
# ruff: noqa: N802 - PySpark's names

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Slots
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, Micros
from icestream.operators.process.declarations import Declared
from icestream.operators.process.stored_state import StoredVariable, living, with_expiry
from icestream.operators.process.values import Row, RowCoder, shown
from icestream.state.groups.spec import GroupRows, Groups


class GroupContext:
    """The groups at hand, the one that user code is called for, and its time."""

    def __init__(self) -> None:
        self.groups: Groups | None = None
        self.slots: Slots = np.empty(0, dtype=np.int64)
        self.watermark: Micros = 0
        #: which of the slots user code is called for
        self.position = 0
        #: time of the last of the rows, or of the timer, it is called for
        self.now: Micros = 0

    def begin(self, groups: Groups, slots: Slots, watermark: Micros) -> None:
        self.groups, self.slots, self.watermark = groups, slots, watermark

    def end(self) -> None:
        self.groups, self.slots = None, np.empty(0, dtype=np.int64)

    def store(self) -> Groups:
        if self.groups is None:
            msg = "state can be used only while rows or timers of a group are handled, not in init"
            raise DefinitionError(msg)
        return self.groups


class GroupVariable(StoredVariable):
    """A state variable as user code sees it: its value for the current group."""

    def __init__(self, scene: GroupContext, number: int, name: str, declared: Declared) -> None:
        super().__init__(scene, number, name, declared)
        self._scene = scene
        self._coder = RowCoder(declared.columns)
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Discard what was read and written, because the groups change."""

    def _fits(self) -> bool:
        """Return whether the rows of the groups at hand can be in memory together."""
        return self._scene.store().fits(self._number, self._scene.slots)

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group too large for memory, a piece at a time."""
        scene = self._scene
        for found in scene.store().pieces(self._number, scene.slots):
            yield living(found, scene.watermark).rows

    def _starts(self, found: GroupRows) -> list[int]:
        """Return where the rows of each group begin, and where the last end."""
        positions = np.arange(len(self._scene.slots) + 1)
        starts: list[int] = np.searchsorted(found.owners, positions).tolist()
        return starts

    def _until(self) -> Micros:
        """Return when a row written now expires."""
        assert self._lifetime is not None
        return min(self._scene.now + self._lifetime, INFINITY)


class GroupValue(GroupVariable):
    """At most one row."""

    def begin(self) -> None:
        self._stored: list[Row | None] | None = None
        self._new: dict[int, Row | None] = {}
        self._expiries: dict[int, Micros] = {}

    def get(self) -> Row | None:
        """Return the row as a tuple, or None."""
        position = self._scene.position
        if position in self._new:
            return self._new[position]
        return (self._stored or self._load())[position]

    def exists(self) -> bool:
        return self.get() is not None

    def update(self, value: Any) -> None:
        """Replace the row with a tuple or a dict."""
        self._scene.store()
        position = self._scene.position
        self._new[position] = self._coder.row(value)
        if self._lifetime is not None:
            self._expiries[position] = self._until()

    def clear(self) -> None:
        self._scene.store()
        self._new[self._scene.position] = None

    def flush(self) -> None:
        if not self._new:
            return
        owners = [position for position, row in self._new.items() if row is not None]
        rows = self._coder.batch([row for row in self._new.values() if row is not None])
        if self._lifetime is not None:
            rows = with_expiry(rows, [self._expiries[position] for position in owners])
        self._write(list(self._new), owners, rows)

    def _load(self) -> list[Row | None]:
        found = self._read()
        rows: list[Row | None] = [*self._coder.rows(found.rows)]
        if len(rows) < len(self._scene.slots):
            present, rows = rows, [None] * len(self._scene.slots)
            for owner, row in zip(found.owners.tolist(), present, strict=True):
                rows[owner] = row
        self._stored = rows
        return rows


class GroupList(GroupVariable):
    """Rows in the order in which they were appended."""

    def begin(self) -> None:
        self._stored: list[Row] | None = None
        self._bounds: list[int] = []
        self._replaced: dict[int, None] = {}
        #: appended rows, group after group, and where those of each begin
        self._owners: list[int] = []
        self._added: list[Row] = []
        self._expiries: list[Micros] = []
        self._first: dict[int, int] = {}

    def get(self) -> Iterator[Row]:
        """Return the rows as tuples; those of a large group are read while they are used."""
        position = self._scene.position
        first = self._first.get(position)
        added = [] if first is None else self._added[first:]
        if position in self._replaced:
            return iter(added)
        if self._stored is None and not self._fits():
            rows = (row for piece in self._pieces() for row in self._coder.rows(piece))
            return chain(rows, added)
        stored = self._stored if self._stored is not None else self._load()
        return iter(stored[self._bounds[position] : self._bounds[position + 1]] + added)

    def exists(self) -> bool:
        return next(self.get(), None) is not None

    def appendValue(self, value: Any) -> None:
        """Append a row without reading the stored ones."""
        self._scene.store()
        position = self._scene.position
        row = self._coder.row(value)
        self._first.setdefault(position, len(self._added))
        self._owners.append(position)
        self._added.append(row)
        if self._lifetime is not None:
            self._expiries.append(self._until())

    def appendList(self, values: Sequence[Any]) -> None:
        for value in values:
            self.appendValue(value)

    def put(self, values: Sequence[Any]) -> None:
        self.clear()
        self.appendList(values)

    def clear(self) -> None:
        self._scene.store()
        position = self._scene.position
        first = self._first.pop(position, None)
        if first is not None:
            del self._owners[first:], self._added[first:], self._expiries[first:]
        self._replaced[position] = None

    def flush(self) -> None:
        if not self._added and not self._replaced:
            return
        rows = self._coder.batch(self._added)
        if self._lifetime is not None:
            rows = with_expiry(rows, self._expiries)
        self._write(list(self._replaced), self._owners, rows)

    def _load(self) -> list[Row]:
        found = self._read()
        self._bounds = self._starts(found)
        self._stored = self._coder.rows(found.rows)
        return self._stored


class GroupTable(GroupVariable):
    """Rows as Arrow batches."""

    def begin(self) -> None:
        self._stored: pa.RecordBatch | None = None
        self._bounds: list[int] = []
        self._replaced: dict[int, None] = {}
        self._added: dict[int, list[pa.RecordBatch]] = {}

    def all(self) -> pa.RecordBatch:
        return self._whole().select(self._coder.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows; those of a group too large for memory are read while they are used."""
        position = self._scene.position
        if position in self._replaced or self._stored is not None or self._fits():
            yield self.all()
            return
        added = list(self._added.get(position, ()))
        for batch in chain(self._pieces(), added):
            yield batch.select(self._coder.names)

    def exists(self) -> bool:
        return any(batch.num_rows for batch in self.batches())

    def append(self, rows: Any) -> None:
        """Append a batch, a row or a list of rows without reading the stored ones."""
        self._scene.store()
        batch = self._as_batch(rows)
        if self._lifetime is not None:
            batch = with_expiry(batch, np.full(batch.num_rows, self._until()))
        self._added.setdefault(self._scene.position, []).append(batch)

    def replace(self, rows: Any) -> None:
        self.clear()
        self.append(rows)

    def delete(self, mask: Any) -> int:
        """Delete the rows of `all()` for which a boolean array is true; return how many."""
        whole = self._whole()
        gone = pc.fill_null(pa.array(mask, type=pa.bool_()), fill_value=False)
        if len(gone) != whole.num_rows:
            msg = f"table {self.name!r} has {whole.num_rows} rows, the mask {len(gone)}"
            raise DefinitionError(msg)
        kept = whole.filter(pc.invert(gone))
        if kept.num_rows < whole.num_rows:
            self.clear()
            self._added[self._scene.position] = [kept]
        return int(whole.num_rows - kept.num_rows)

    def clear(self) -> None:
        self._scene.store()
        self._added.pop(self._scene.position, None)
        self._replaced[self._scene.position] = None

    def flush(self) -> None:
        if not self._added and not self._replaced:
            return
        parts = [(at, batch) for at, batches in self._added.items() for batch in batches]
        owners = np.repeat([at for at, _ in parts], [batch.num_rows for _, batch in parts])
        rows = self._joined([batch for _, batch in parts])
        self._write(list(self._replaced), owners, rows)

    def _whole(self) -> pa.RecordBatch:
        """Return all rows with their expiries."""
        position = self._scene.position
        parts = list(self._added.get(position, ()))
        if position not in self._replaced:
            if self._stored is None:
                found = self._read()
                self._bounds, self._stored = self._starts(found), found.rows
            first, last = self._bounds[position], self._bounds[position + 1]
            parts.insert(0, self._stored.slice(first, last - first))
        return self._joined(parts)

    def _as_batch(self, rows: Any) -> pa.RecordBatch:
        if isinstance(rows, pa.Table):
            rows = rows.combine_chunks()
            rows = rows.to_batches()[0] if rows.num_rows else self._coder.batch([])
        if not isinstance(rows, pa.RecordBatch):
            listed = rows if isinstance(rows, list) else [rows]
            return self._coder.batch([self._coder.row(row) for row in listed])
        schema = self._coder.schema
        try:
            return rows.select(self._coder.names).cast(schema)
        except (KeyError, pa.ArrowException) as error:
            msg = f"table {self.name!r} stores ({shown(schema)}), not ({shown(rows.schema)})"
            raise DefinitionError(msg) from error
