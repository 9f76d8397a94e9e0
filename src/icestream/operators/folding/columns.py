"""Arrow columns as flat numbers: the inputs of the folding kernels.

Idea: a column is requested in the form that a field needs (`integers`, `floats`, `pair`, `ordered`,
`ranked`) and converted at most once per batch. Nulls are a mask, empty when there are none.

Invariants:
1. A slice of a column gives the slice of its numbers
   (`test_a_slice_of_a_column_is_the_slice_of_its_numbers`).
2. Arrival numbers grow with (version, split, row) (`test_arrival_numbers_grow_with_the_stream`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.kernels.fold import ALL_VALID, order_floats

#: columns in addition to the inputs, for fields that need the order of the stream
TIME = "time"
ARRIVAL = "__arrival"

#: bits of an arrival number for the split of a batch, and for the row of a split
_SPLIT_BITS = 12
_ROW_BITS = 24
_VERSION_BITS = 62 - _SPLIT_BITS - _ROW_BITS


class ArrivalNumbers:
    """Numbers the rows of one split in the order in which the whole stream arrives.

    A number is version, split and row in 62 bits. Rows beyond the last number of a split, and
    splits beyond the last of a batch, share one; versions wrap around after 67 million.
    """

    def __init__(self, version: int, split: int) -> None:
        """Start before the first row."""
        place = min(split, 2**_SPLIT_BITS - 1)
        self._base = ((version % 2**_VERSION_BITS << _SPLIT_BITS) + place) << _ROW_BITS
        self._rows = 0

    def next(self, rows: int) -> pa.Array:
        """Number the next rows."""
        numbers = np.arange(self._rows, self._rows + rows)
        self._rows += rows
        return pa.array(self._base + np.minimum(numbers, 2**_ROW_BITS - 1))


class InputColumn:
    """One input column of a batch, in the forms that fields fold."""

    def __init__(self, array: pa.Array) -> None:
        """Wrap an array; a chunked one is joined first."""
        self._array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array

    @cached_property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Return the mask of values that are not null, or `ALL_VALID`."""
        if self._array.null_count == 0:
            return ALL_VALID
        return np.asarray(self._array.is_valid().to_numpy(zero_copy_only=False))

    @cached_property
    def integers(self) -> npt.NDArray[np.int64]:
        """Return integers, dates, times, booleans or short decimals as int64."""
        array = self._array
        if pa.types.is_decimal(array.type):
            return self.pair[0]
        if pa.types.is_date32(array.type):
            array = array.view(pa.int32())
        elif pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type):
            array = array.view(pa.int64())
        return _filled(array.cast(pa.int64()), 0)

    @cached_property
    def floats(self) -> npt.NDArray[np.float64]:
        """Return numbers as float64."""
        return _filled(self._array.cast(pa.float64(), safe=False), 0.0)

    @cached_property
    def pair(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return integers or decimals as low and high words of 128 bits."""
        array = self._array
        if not pa.types.is_decimal(array.type):
            low = self.integers
            return low, low >> 63
        words = np.frombuffer(array.buffers()[1], dtype=np.int64)
        words = words[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)
        return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])

    @cached_property
    def ordered(self) -> npt.NDArray[np.int64]:
        """Return int64 of the same order as the values (floats: NaN greatest)."""
        return self._ordered(self.floats) if self._is_floating else self.integers

    @cached_property
    def ranked(self) -> npt.NDArray[np.int64]:
        """Return int64 of the same order as the values, -0.0 and 0.0 alike."""
        return self._ordered(self.floats + 0.0) if self._is_floating else self.integers

    @property
    def _is_floating(self) -> bool:
        return bool(pa.types.is_floating(self._array.type))

    @staticmethod
    def _ordered(floats: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        out = np.empty(len(floats), dtype=np.int64)
        order_floats(floats.view(np.int64), out)
        return out


def _filled(array: pa.Array, value: float) -> npt.NDArray[Any]:
    if array.null_count:
        array = pc.fill_null(array, value)
    return np.asarray(array.to_numpy(zero_copy_only=False))
