"""Conversion of state rows between Python tuples and Arrow columns.

Idea: columns are decoded once for all groups of a chunk and encoded once. A value that a user
writes is immediately converted to the form in which it would be read back, so user code cannot see
whether it has been through the log; a value that already has that form costs one type check.

Invariant: a row reads back equal before and after it was stored
(`test_rows_read_back_the_same_before_and_after_they_were_stored`).

Cost: about 0.2 us for each column of integers, doubles, strings, binaries and booleans; several
times that for other types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError

#: one row, a value for each column
Row = tuple[Any, ...]

_NAN = float("nan")


def _plain_type(kind: pa.DataType) -> type | None:
    """Return the Python type whose values are stored exactly, or None if each needs a check."""
    found: type | None = None
    if pa.types.is_boolean(kind):
        found = bool
    elif pa.types.is_integer(kind):
        found = int
    elif pa.types.is_float64(kind):
        found = float
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        found = str
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        found = bytes
    return found


def shown(schema: pa.Schema | Iterable[str]) -> str:
    """Return the values of state or output as text."""
    if not isinstance(schema, pa.Schema):
        return ", ".join(schema)
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def decoded(column: pa.Array) -> list[Any]:
    """Return the Python values of a column of state."""
    kind = column.type
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        values: list[Any] = np.asarray(column).tolist()
        return values
    listed: list[Any] = column.to_pylist()
    return listed


class RowCoder:
    """Rows of one schema as tuples."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.names: list[str] = schema.names
        self._width = len(self.names)
        self._plain = tuple(_plain_type(kind) for kind in schema.types)
        self._has_floats = any(pa.types.is_floating(kind) for kind in schema.types)

    def row(self, given: Any) -> Row:
        """Return a user's row, a tuple or a mapping, in the form in which it will be read back."""
        if type(given) is tuple and tuple(map(type, given)) == self._plain:
            return given
        if type(given) is not tuple:
            given = self._as_tuple(given)
        if len(given) != self._width:
            raise self._unfit(given)
        for value, plain in zip(given, self._plain, strict=True):
            if type(value) is not plain and value is not None:
                return self._settled(given)
        return tuple(given)

    def key(self, given: Any) -> Row:
        """Return a user's key of a map, with every NaN replaced by the same NaN."""
        row = self.row(given)
        if self._has_floats and any(value != value for value in row):
            row = tuple(_NAN if value != value else value for value in row)
        return row

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * self._width
        arrays = [
            _encoded(column, field) for column, field in zip(columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        """Decode the first columns of a batch into rows."""
        if not self._width:
            return [()] * batch.num_rows
        return list(zip(*map(decoded, batch.columns[: self._width]), strict=True))

    def _as_tuple(self, given: Any) -> Row:
        if isinstance(given, Mapping):
            if given.keys() != set(self.names):
                raise self._unfit(given)
            return tuple(given[name] for name in self.names)
        if isinstance(given, (list, tuple)):
            return tuple(given)
        raise self._unfit(given)

    def _settled(self, given: Row) -> Row:
        """Convert each value to Arrow and back."""
        settled = []
        for value, field in zip(given, self.schema, strict=True):
            try:
                settled.append(pa.scalar(value, type=field.type).as_py())
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                msg = f"{value!r} does not fit the column '{field.name} {field.type}': {error}"
                raise DefinitionError(msg) from None
        return tuple(settled)

    def _unfit(self, given: Any) -> DefinitionError:
        return DefinitionError(
            f"{given!r} is not a row of ({shown(self.schema)}): give a tuple of {self._width} "
            "values or a dict"
        )


def _encoded(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Encode one column; the error names a value that does not fit."""
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for value in values:
            try:
                pa.array([value], type=field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                msg = f"{value!r} does not fit the column '{field.name} {field.type}': {error}"
                raise DefinitionError(msg) from None
        raise
