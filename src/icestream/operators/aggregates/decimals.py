"""Decimals as words of 128 bits and as Python's integers.

Invariant: quotients round halves away from zero, as Spark's do
(`test_averages_of_decimals_round_halves_away_from_zero`).

Cost: divisions go row by row, with Python's integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats, Mask, Table


def integers_of_words(words: Table) -> list[int]:
    """Return an aggregate's decimals as integers, given as low and high words."""
    return [(high << 64) + low % 2**64 for low, high in words.tolist()]


def floats_of_words(words: Table) -> Floats:
    """Return an aggregate's decimals, 128-bit integers as words, as floats."""
    low, high = words[:, 0], words[:, 1]
    long = high * 2.0**64 + low.astype(np.uint64)
    return np.where(high == low >> 63, low.astype(np.float64), long)


def decimals_of_words(words: Table, there: Mask, kind: pa.DataType) -> pa.Array:
    """Return an aggregate's decimals whose digits are words, null where not `there`."""
    bits = pa.array(there, pa.bool_()).buffers()[1]
    packed = np.ascontiguousarray(words)
    return pa.Array.from_buffers(kind, len(there), [bits, pa.py_buffer(packed)])


def decimals_of_integers(digits: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Return an aggregate's decimals whose digits are given as Python's integers."""
    mask = 2**64 - 1
    words = [((each or 0) & mask, ((each or 0) >> 64) & mask) for each in digits]
    table = np.array(words, dtype=np.uint64).reshape(-1, 2).view(np.int64)
    there = np.array([each is not None for each in digits], dtype=np.bool_)
    return decimals_of_words(table, there, kind)


def quotient(numerator: int, denominator: int) -> int:
    """Divide digits of decimals and round halves away from zero."""
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    magnitude = (2 * abs(numerator) + denominator) // (2 * denominator)
    return magnitude if numerator >= 0 else -magnitude


def average_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of an aggregate that averages decimals, as in Spark."""
    return pa.decimal128(min(38, kind.precision + 4), min(38, kind.scale + 4))
