"""Tuples by group in the form that the functions of a job receive.

Idea: functions are written for one row or for many groups at once; both get the key's attributes,
the value and [ts1, ts2). The result of a function is converted to the declared columns; if that
fails, the error shows both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError, IcestreamError
from icestream.operators.process.grouping import GroupRanges

#: names under which functions read and set the time span of a tuple, in microseconds
TS1 = "ts1"
TS2 = "ts2"


@dataclass(frozen=True)
class TupleBatch(GroupRanges):
    """Tuples of many groups, sorted by group, then by ts1."""

    #: the tuples, without their time spans
    rows: pa.RecordBatch
    #: first tuple of each group, and the number of tuples
    starts: Ints
    #: the key's attributes, a row for each group
    keys: pa.RecordBatch
    #: time span of each tuple
    ts1: Ints
    ts2: Ints
    #: time span of each group's window; empty without windows
    begins: Ints
    ends: Ints

    @cached_property
    def group(self) -> Ints:
        return np.repeat(np.arange(len(self)), self.sizes)

    def column(self, name: str) -> npt.NDArray[Any]:
        return as_array(self.rows.column(name))


def as_array(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column of a batch of a job as an array; nulls of numbers are NaN."""
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def arrays_of(batch: pa.RecordBatch) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a batch as arrays by name, for a function of a job."""
    return {name: as_array(batch.column(name)) for name in batch.schema.names}


def rows_of(batch: pa.RecordBatch, ts1: Ints, ts2: Ints) -> list[dict[str, Any]]:
    """Return a batch of tuples as dictionaries, with their time spans, for a function of a job."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row, begin, end in zip(rows, ts1.tolist(), ts2.tolist(), strict=True):
        row[TS1], row[TS2] = begin, end
    return rows


def columns_of(given: Any, schema: pa.Schema, name: str, count: int | None = None) -> Any:
    """Convert what a job's function returned to a record batch of the declared columns.

    Functions return a batch, or arrays: by name, or in the order of the columns.
    """
    try:
        if isinstance(given, pa.RecordBatch):
            given = {each: given.column(each) for each in given.schema.names}
        elif not isinstance(given, Mapping):
            given = dict(zip(schema.names, given, strict=True))
        if given.keys() != set(schema.names):
            raise unfit(name, schema, list(given))
        arrays = [_typed(given[each.name], each.type) for each in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    except IcestreamError:
        raise
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise unfit(name, schema, f"{given!r:.200}: {error}") from error
    if count is not None and batch.num_rows != count:
        msg = f"{name} returned {batch.num_rows} rows instead of {count}"
        raise DefinitionError(msg)
    return batch


def _typed(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return column if column.type == kind else column.cast(kind)
    return pa.array(column, type=kind)


def unfit(name: str, schema: pa.Schema, found: Any) -> DefinitionError:
    """Return the error for a job's function whose batch differs from its declaration."""
    declared = ", ".join(f"{each.name} {each.type}" for each in schema)
    return DefinitionError(
        f"{name} declares the columns ({declared}) and returned {found}: return one array for "
        "each column, by name or in this order, or declare what it returns"
    )


@contextmanager
def named_failures(name: str) -> Iterator[None]:
    """Let the errors of a job's function, called for a batch, name the function."""
    try:
        yield
    except IcestreamError:
        raise
    except Exception as error:
        msg = f"{name}: the function failed with {type(error).__name__}: {error}"
        raise DefinitionError(msg) from error
