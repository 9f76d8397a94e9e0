"""State of many groups at a time, as columns: value, list and table.

Idea: a variable is read for all groups of a portion in one call. User code receives Arrow columns
aligned with the groups, or rows with their group numbers. Writes are held as the batches they came
in, with an index of the valid row of each group, until the portion is done.

A group is identified by its number in the current batch. While timers fire, that batch has only
some groups of the portion: `PortionContext.focus` has their positions.

Invariants:
1. Columns read after a write in the same portion show it (`test_columns_show_what_was_just_set`).
2. Appending and replacing never read (`test_vectorised_writes_never_read`).

Cost: a few Arrow calls for each variable and portion, whatever the number of groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import taken
from icestream.operators.process.declarations import Declared
from icestream.operators.process.stored_state import StoredVariable, with_expiry
from icestream.operators.process.values import shown
from icestream.state.groups.spec import GroupRows, Groups

_STORED, _NOTHING = -2, -1


class PortionContext:
    """The groups of a portion, and those for which user code is called."""

    def __init__(self, groups: Groups, slots: Slots, watermark: Micros) -> None:
        self.groups = groups
        self.slots = slots
        self.watermark = watermark
        #: positions, among the slots, of the groups in the current batch; ascending
        self.focus: Ints = np.arange(len(slots))
        #: the time of each of these groups
        self.now: Ints = np.zeros(len(slots), dtype=np.int64)

    def store(self) -> Groups:
        return self.groups

    def positions(self, chosen: Any) -> Ints:
        """Return the positions of groups given by a mask or by numbers, or of all for None."""
        return self.focus if chosen is None else self.focus[chosen_groups(chosen, len(self.focus))]

    def numbers(self, positions: Ints) -> Ints:
        """Return the numbers of groups by position, -1 for those out of focus."""
        numbers = np.full(len(self.slots), -1, dtype=np.int64)
        numbers[self.focus] = np.arange(len(self.focus))
        return numbers[positions]


def chosen_groups(chosen: Any, count: int) -> Ints:
    """Return the numbers of groups for column state, given by a mask or by numbers."""
    given = np.asarray(chosen)
    if given.dtype == np.bool_ and len(given) == count:
        return np.flatnonzero(given)
    numbers = given.astype(np.int64, casting="same_kind")
    if given.dtype == np.bool_ or (
        numbers.size and not 0 <= numbers.min() <= numbers.max() < count
    ):
        msg = f"groups must be given as a mask of {count} values or as numbers below {count}"
        raise DefinitionError(msg)
    return numbers


def as_rows(given: Any, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """Convert a batch, a mapping or arrays to columns of state, of the declared types."""
    try:
        if isinstance(given, pa.RecordBatch):
            if given.schema.equals(schema):
                return given
            return given.select(schema.names).cast(schema)
        if isinstance(given, Mapping):
            if given.keys() != set(schema.names):
                raise _unfit(name, schema, given)
            given = [given[column] for column in schema.names]
        arrays = [
            pa.array(column, type=kind) for column, kind in zip(given, schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DefinitionError):
            raise
        found = given.schema if isinstance(given, pa.RecordBatch) else ()
        raise _unfit(name, schema, found, f": {error}") from error


def _unfit(name: str, schema: pa.Schema, found: Any, why: str = "") -> DefinitionError:
    return DefinitionError(
        f"state {name!r} has the columns ({shown(schema)}); it was given ({shown(found)}){why}"
    )


class ColumnVariable(StoredVariable):
    """A state variable of all groups of a portion."""

    def __init__(self, stage: PortionContext, number: int, name: str, declared: Declared) -> None:
        super().__init__(stage, number, name, declared)
        self._stage = stage
        self.schema: pa.Schema = declared.columns
        self._found: GroupRows | None = None

    def _stored(self) -> GroupRows:
        if self._found is None:
            self._found = self._read()
        return self._found

    def _together(
        self, parts: Sequence[tuple[Ints, pa.RecordBatch]]
    ) -> tuple[Ints, pa.RecordBatch]:
        """Return positions and rows of several writes as one."""
        none = np.empty(0, dtype=np.int64)
        owners = np.concatenate([none, *(owners for owners, _ in parts)])
        return owners, self._joined([rows for _, rows in parts])

    def _expiring(self, rows: pa.RecordBatch, times: Ints) -> pa.RecordBatch:
        """Add the expiry column to rows written at some times, if the variable has a ttl."""
        if self._lifetime is None:
            return rows
        return with_expiry(rows, until(times, self._lifetime))


def until(times: Ints, lifetime: Micros) -> Ints:
    """Return when rows of column state written at some times expire."""
    return np.minimum(times, INFINITY - lifetime) + lifetime


class ValueColumns(ColumnVariable):
    """At most one row for each group."""

    def __init__(self, stage: PortionContext, number: int, name: str, declared: Declared) -> None:
        super().__init__(stage, number, name, declared)
        self._written: list[pa.RecordBatch] = []
        self._rows = 0
        #: for each group: the valid written row, or a marker for the stored row or for none
        self._which: Ints = np.full(len(stage.slots), _STORED, dtype=np.int64)

    def get(self) -> pa.RecordBatch:
        """Return a row for each group, with nulls where there is none."""
        rows, which = self._all()
        if (which >= 0).all():
            return taken(rows, which).select(self.schema.names)
        index = pa.array(np.maximum(which, 0), mask=which < 0)
        arrays = [rows.column(name).take(index) for name in self.schema.names]
        fields = [field.with_nullable(True) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def numpy(self, fill: Any = 0) -> dict[str, npt.NDArray[Any]]:
        """Return the columns as arrays, with `fill` where there is no row or a null."""
        rows, which = self._all()
        there = which >= 0
        if there.all():
            rows = taken(rows, which)
            return {name: _filled(rows.column(name), fill) for name in self.schema.names}
        rows, positions, found = taken(rows, which[there]), np.flatnonzero(there), {}
        kinds = set(self.schema.types)
        fills = {kind: _filled(pa.array([fill], type=kind), fill) for kind in kinds}
        for number, (name, kind) in enumerate(
            zip(self.schema.names, self.schema.types, strict=True)
        ):
            values, value = _filled(rows.column(number), fill), fills[kind]
            found[name] = np.empty(len(there), dtype=np.result_type(values, value))
            found[name].fill(value[0])
            found[name][positions] = values
        return found

    def exists(self) -> Mask:
        return self._all()[1] >= 0

    def set(self, columns: Any, mask: Any = None) -> None:
        """Replace the rows of all groups, or of those in a mask; columns have one row per group."""
        stage = self._stage
        rows = as_rows(columns, self.schema, self.name)
        if rows.num_rows != len(stage.focus):
            msg = f"state {self.name!r}: {rows.num_rows} rows for {len(stage.focus)} groups"
            raise DefinitionError(msg)
        self._written.append(self._expiring(rows, stage.now))
        chosen = slice(None) if mask is None else chosen_groups(mask, rows.num_rows)
        self._which[stage.focus[chosen]] = self._rows + np.arange(rows.num_rows)[chosen]
        self._rows += rows.num_rows

    def clear(self, mask: Any = None) -> None:
        """Remove the rows of all groups, or of those in a mask."""
        self._which[self._stage.positions(mask)] = _NOTHING

    def flush(self) -> None:
        positions = np.flatnonzero(self._which != _STORED)
        if not positions.size:
            return
        which = self._which[positions]
        rows = taken(self._joined(self._written), which[which >= 0])
        self._write(positions, positions[which >= 0], rows)

    def _all(self) -> tuple[pa.RecordBatch, Ints]:
        """Return stored and written rows, and where the valid one of each group in focus is."""
        found = self._stored()
        stored = np.full(len(self._stage.slots), _NOTHING, dtype=np.int64)
        stored[found.owners] = np.arange(len(found.owners))
        if not self._written and (self._which == _STORED).all():
            return found.rows, stored[self._stage.focus]
        moved = np.where(self._which >= 0, self._which + found.rows.num_rows, self._which)
        which = np.where(self._which == _STORED, stored, moved)
        return pa.concat_batches([found.rows, *self._written]), which[self._stage.focus]


def _filled(column: pa.Array, fill: Any) -> npt.NDArray[Any]:
    """Return a column of values as an array, with `fill` for nulls."""
    column = pc.fill_null(column, fill) if column.null_count else column
    return np.asarray(column.to_numpy(zero_copy_only=False))


class RowColumns(ColumnVariable):
    """Any number of rows for each group, in the order in which they were appended."""

    def __init__(self, stage: PortionContext, number: int, name: str, declared: Declared) -> None:
        super().__init__(stage, number, name, declared)
        self._cleared: Mask = np.zeros(len(stage.slots), dtype=np.bool_)
        self._added: list[tuple[Ints, pa.RecordBatch]] = []

    def append(self, group: Any, rows: Any, times: Any = None) -> None:
        """Append rows without reading the stored ones; `group` has the group number of each."""
        numbers = chosen_groups(group, len(self._stage.focus))
        batch = as_rows(rows, self.schema, self.name)
        if batch.num_rows != len(numbers):
            msg = f"state {self.name!r}: {batch.num_rows} rows with {len(numbers)} group numbers"
            raise DefinitionError(msg)
        now = self._stage.now[numbers] if times is None else np.asarray(times, dtype=np.int64)
        self._added.append((self._stage.focus[numbers], self._expiring(batch, now)))

    def read(self) -> tuple[Ints, pa.RecordBatch]:
        """Return all rows, sorted by group, with their group numbers."""
        owners, rows = self._whole()
        return owners, rows.select(self.schema.names)

    def replace(self, group: Any, rows: Any, mask: Any = None) -> None:
        self.clear(mask)
        self.append(group, rows)

    def delete(self, mask: Any) -> None:
        """Delete the rows of `read()` for which the mask is true."""
        owners, rows = self._whole()
        gone = np.asarray(mask, dtype=np.bool_)
        if len(gone) != len(owners):
            msg = f"state {self.name!r} has {len(owners)} rows, the mask {len(gone)}"
            raise DefinitionError(msg)
        losers = np.zeros(len(self._stage.focus), dtype=np.bool_)
        losers[owners[gone]] = True
        kept = losers[owners] & ~gone
        self.clear(losers)
        self._added.append((self._stage.focus[owners[kept]], rows.filter(pa.array(kept))))

    def clear(self, mask: Any = None) -> None:
        """Remove the rows of all groups, or of those in a mask."""
        gone = np.zeros(len(self._stage.slots), dtype=np.bool_)
        gone[self._stage.positions(mask)] = True
        self._cleared |= gone
        left = [(owners, rows, ~gone[owners]) for owners, rows in self._added]
        self._added = [
            (owners[kept], rows.filter(pa.array(kept))) for owners, rows, kept in left if kept.any()
        ]

    def flush(self) -> None:
        if self._added or self._cleared.any():
            self._write(np.flatnonzero(self._cleared), *self._together(self._added))

    def _whole(self) -> tuple[Ints, pa.RecordBatch]:
        """Return all rows of the groups in focus with their expiries."""
        found = self._stored()
        owners, rows = self._together([(found.owners, found.rows), *self._added])
        counts = np.ones(len(owners), dtype=np.bool_)
        counts[: len(found.owners)] = ~self._cleared[found.owners]
        numbers = self._stage.numbers(owners)
        chosen = np.flatnonzero(counts & (numbers >= 0))
        picked = chosen[np.argsort(numbers[chosen], kind="stable")]
        return numbers[picked], taken(rows, picked)
