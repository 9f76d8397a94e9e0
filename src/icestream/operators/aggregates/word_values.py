"""Conversion of words back to values, and the fields that add values up.

Invariant: an ordered word is converted back to its value; -0.0 is kept, and every NaN is the same
(`test_ordered_words_turn_back_into_their_values`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.operators.aggregates.decimals import decimals_of_words


def sum_kind(kind: pa.DataType) -> str:
    """Return the kind of field whose words add up values of a type without loss."""
    if pa.types.is_floating(kind):
        return "sum_f64"
    if pa.types.is_decimal(kind) or kind in (pa.int64(), pa.uint64()):
        return "sum_i128"
    return "sum_i64"


def decode_ordered(values: Ints, kind: pa.DataType, empty: npt.NDArray[np.bool_]) -> pa.Array:
    """Convert ordered words back to values of a type, null where `empty`."""
    if pa.types.is_floating(kind):
        bits = np.where(values < 0, values ^ np.int64(0x7FFFFFFFFFFFFFFF), values)
        return pa.array(bits.view(np.float64), mask=empty).cast(kind, safe=False)
    settled = np.where(empty, 0, values)
    if pa.types.is_decimal(kind):
        return decimals_of_words(np.stack([settled, settled >> 63], axis=1), ~empty, kind)
    integers = pa.array(settled, mask=empty)
    if pa.types.is_boolean(kind):
        return integers.cast(pa.bool_())
    if pa.types.is_date32(kind):
        return integers.cast(pa.int32()).cast(kind)
    return integers.cast(kind)
