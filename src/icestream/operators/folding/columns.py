"""Arrow columns as flat numbers: the inputs of the folding kernels.

Idea: a column is requested in the form that a field needs (`integers`, `floats`, `pair`, `ordered`,
`ranked`) and converted at most once per batch. Nulls are a mask, empty when there are none.

Invariants:
1. A slice of a column gives the slice of its numbers
   (`test_a_slice_of_a_column_is_the_slice_of_its_numbers`).
2. Pairs of batch and arrival grow with (version, place, row), however many rows there are
   (`test_arrival_numbers_grow_with_the_stream`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Floats, Ints, Mask
from icestream.core.errors import InputError
from icestream.kernels.fold import ALL_VALID, order_floats

#: columns in addition to the inputs, for fields that need the order of the stream
TIME = "time"
BATCH = "__batch"
ARRIVAL = "__arrival"

#: bits of an arrival number for the place of a part among those of its batch, and for the row in it
PLACE_BITS = 22
ROW_BITS = 40


class ArrivalNumbers:
    """Numbers the rows of one part of a batch in the order in which the whole stream arrives.

    The version is a word of its own. Place and row share 62 bits; more of either are refused.
    """

    def __init__(self, version: int, place: int) -> None:
        """Start before the first row of the part at a place in its batch."""
        if place >= 1 << PLACE_BITS:
            msg = (
                f"a batch has more than {1 << PLACE_BITS:,} files or partitions: set "
                "maxFilesPerTrigger, or read the stream in fewer partitions"
            )
            raise InputError(msg)
        self._version = version
        self._base = place << ROW_BITS
        self._rows = 0

    def next(self, rows: int) -> dict[str, pa.Array]:
        first = self._base + self._rows
        self._rows += rows
        if self._rows > 1 << ROW_BITS:
            msg = f"one part of a batch has more than {1 << ROW_BITS:,} rows: read smaller files"
            raise InputError(msg)
        return {
            BATCH: pa.array(np.full(rows, self._version, dtype=np.int64)),
            ARRIVAL: pa.array(np.arange(first, first + rows)),
        }


def window_column(kind: pa.DataType, starts: Ints, ends: Ints) -> pa.Array:
    """Return windows, as bounds in microseconds, in a column of folded results: start and end."""
    bounds = [pa.array(each).cast(kind[0].type) for each in (starts, ends)]
    return pa.StructArray.from_arrays(bounds, fields=list(kind))


class InputColumn:
    """One input column of a batch, in the forms that fields fold."""

    def __init__(self, array: pa.Array) -> None:
        """Wrap an array; a chunked one is joined first."""
        self._array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array

    @cached_property
    def valid(self) -> Mask:
        """Return the mask of values that are not null, or `ALL_VALID`."""
        if self._array.null_count == 0:
            return ALL_VALID
        return np.asarray(self._array.is_valid().to_numpy(zero_copy_only=False))

    @cached_property
    def integers(self) -> Ints:
        """Return integers, dates, times, booleans or short decimals as int64."""
        array = self._array
        if pa.types.is_decimal(array.type):
            return self.pair[0]
        if pa.types.is_date32(array.type):
            array = array.view(pa.int32())
        elif pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type):
            array = array.view(pa.int64())
        return _filled(array.cast(pa.int64()), 0)

    @property
    def numbers(self) -> npt.NDArray[np.signedinteger[Any]]:
        """Return the integers, in as few bytes as they are stored in if none is null."""
        narrow = pa.types.is_signed_integer(self._array.type) and not self._array.null_count
        return np.asarray(self._array.to_numpy()) if narrow else self.integers

    @cached_property
    def floats(self) -> Floats:
        return _filled(self._array.cast(pa.float64(), safe=False), 0.0)

    @cached_property
    def pair(self) -> tuple[Ints, Ints]:
        """Return integers or decimals as low and high words of 128 bits."""
        array = self._array
        if not pa.types.is_decimal(array.type):
            low = self.integers
            return low, low >> 63
        words = np.frombuffer(array.buffers()[1], dtype=np.int64)
        words = words[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)
        return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])

    @cached_property
    def ordered(self) -> Ints:
        """Return int64 of the same order as the values (floats: NaN greatest)."""
        return self._ordered(self.floats) if self._is_floating else self.integers

    @cached_property
    def ranked(self) -> Ints:
        """Return int64 of the same order as the values, -0.0 and 0.0 alike."""
        return self._ordered(self.floats + 0.0) if self._is_floating else self.integers

    @property
    def _is_floating(self) -> bool:
        return bool(pa.types.is_floating(self._array.type))

    @staticmethod
    def _ordered(floats: Floats) -> Ints:
        out = np.empty(len(floats), dtype=np.int64)
        order_floats(floats.view(np.int64), out)
        return out


def _filled(array: pa.Array, value: float) -> npt.NDArray[Any]:
    if array.null_count:
        array = pc.fill_null(array, value)
    return np.asarray(array.to_numpy(zero_copy_only=False))
