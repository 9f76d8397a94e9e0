"""Sums of doubles as bytes of the log: the significant bytes of a number, and their position.

Idea: a number of `double_sums` is written as a two's complement without the zero bytes below and
the sign bytes above it, behind a head with its position, its size, and whether counts of infinities
and NaN follow.

Invariants:
1. Encoded numbers decode to the same digits (`test_oracle_numbers_survive_their_bytes`); bytes that
   are no numbers are refused (`test_bytes_that_are_no_sums_are_refused`).

Cost: 3 bytes and the significant bytes of the sum.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Bytes, Ints, Table, Words
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.double_sums import (
    COUNT,
    DIGITS,
    FIRST,
    PLACE,
    SPECIALS,
    SPECIALS_AT,
    bits_of,
    digit_sum,
    zeros_below,
)

#: bytes before the significant bytes of an encoded number, and their parts
HEAD_BYTES = 3
_SIZE_BIT, _SPECIALS_BIT, _PART = 11, 22, (1 << 11) - 1


@lean_kernel
def _complement(table: Table, i: int, of: Ints, words: Words) -> bool:
    """Write a number as words of a two's complement; return whether it is negative."""
    borrow = np.int64(0)
    for w in range(of[COUNT]):
        d = table[i, of[PLACE] + w]
        words[w] = np.uint64(d) - np.uint64(borrow)
        borrow = np.int64(1 if d < borrow else 0)
    return bool(borrow)


@lean_kernel
def _byte(words: Words, at: int) -> np.uint64:
    return np.uint64((words[at >> 3] >> np.uint64(8 * (at & 7))) & np.uint64(0xFF))


@lean_kernel
def _significant(words: Words, count: int, negative: bool) -> tuple[int, int]:
    """Return the first byte of a number that is not zero, and the end of those that matter."""
    first = 0
    while first < count and words[first] == np.uint64(0):
        first += 1
    if first == count:
        return 0, 0
    low = 8 * first + (zeros_below(words[first]) >> 3)
    sign = ~np.uint64(0) if negative else np.uint64(0)
    last = count - 1
    while last > first and words[last] == sign:
        last -= 1
    # with one bit for the sign
    return low, max(low, 8 * last + (bits_of(words[last] ^ sign) >> 3)) + 1


@kernel
def measure_sums(table: Table, sums: Table, bounds: Table, sizes: Ints) -> None:
    """Return the bytes of each row, and those of each of its numbers: first and last."""
    words = np.zeros(DIGITS + 1, dtype=np.uint64)
    for i in range(table.shape[0]):
        size = 0
        for s in range(sums.shape[0]):
            of = sums[s]
            low, high = _significant(words, of[COUNT], _complement(table, i, of, words))
            bounds[i, 2 * s] = low
            bounds[i, 2 * s + 1] = high
            size += HEAD_BYTES + high - low
            if _has_specials(table, i, of[SPECIALS_AT]):
                size += 8 * SPECIALS
        sizes[i] = size


@lean_kernel
def _has_specials(table: Table, i: int, at: int) -> bool:
    found = np.int64(0)
    if at >= 0:
        for w in range(SPECIALS):
            found |= table[i, at + w]
    return bool(found != 0)


@kernel
def encode_sums(table: Table, sums: Table, bounds: Table, begins: Ints, raw: Bytes) -> None:
    """Write the sums of each row as bytes."""
    words = np.zeros(DIGITS + 1, dtype=np.uint64)
    for i in range(table.shape[0]):
        at = begins[i]
        for s in range(sums.shape[0]):
            of = sums[s]
            negative = _complement(table, i, of, words)
            low = bounds[i, 2 * s]
            high = bounds[i, 2 * s + 1]
            words[of[COUNT]] = ~np.uint64(0) if negative else np.uint64(0)
            specials = _has_specials(table, i, of[SPECIALS_AT])
            head = (low + 8 * of[FIRST]) | ((high - low) << _SIZE_BIT)
            if high == low:
                head = 0
            head |= int(specials) << _SPECIALS_BIT
            for b in range(HEAD_BYTES):
                raw[at + b] = (head >> (8 * b)) & 0xFF
            at += HEAD_BYTES
            for b in range(low, high):
                raw[at] = _byte(words, b)
                at += 1
            if specials:
                for w in range(SPECIALS):
                    count = table[i, of[SPECIALS_AT] + w]
                    for b in range(8):
                        raw[at] = (count >> (8 * b)) & 0xFF
                        at += 1


@lean_kernel
def _head(raw: Bytes, at: int) -> np.int64:
    low, middle, high = np.int64(raw[at]), np.int64(raw[at + 1]), np.int64(raw[at + 2])
    return np.int64(low | (middle << 8) | (high << 16))


@kernel
def encoded_extents(raw: Bytes, begins: Ints, ends: Ints, extents: Table) -> bool:
    """Fill in, for each sum, the bits between which its numbers lie, and if it has specials.

    Returns False for bytes that are no sums.
    """
    for s in range(extents.shape[0]):
        extents[s, 0] = 64 * DIGITS
        extents[s, 1] = 0
        extents[s, 2] = 0
    for i in range(begins.size):
        at = begins[i]
        for s in range(extents.shape[0]):
            if at + HEAD_BYTES > ends[i]:
                return False
            head = _head(raw, at)
            low = head & _PART
            size = (head >> _SIZE_BIT) & _PART
            at += HEAD_BYTES + size
            if size:
                if low + size > 8 * DIGITS:
                    return False
                extents[s, 0] = min(extents[s, 0], 8 * low)
                extents[s, 1] = max(extents[s, 1], 8 * (low + size))
            if head >> _SPECIALS_BIT:
                extents[s, 2] = 1
                at += 8 * SPECIALS
        if at != ends[i]:
            return False
    return True


@kernel
def decode_sums(raw: Bytes, begins: Ints, sums: Table, table: Table) -> None:
    """Read the bytes of each row's fixed-point sums into a table that is zero there."""
    for i in range(begins.size):
        at = begins[i]
        for s in range(sums.shape[0]):
            of = sums[s]
            head = _head(raw, at)
            low = (head & _PART) - 8 * of[FIRST]
            size = (head >> _SIZE_BIT) & _PART
            at += HEAD_BYTES
            if size:
                negative = raw[at + size - 1] >= 128
                carry = np.int64(0)
                for w in range(of[COUNT]):
                    word = np.uint64(0)
                    for b in range(8):
                        place = 8 * w + b - low
                        byte = np.uint64(0xFF if negative and place >= 0 else 0)
                        if 0 <= place < size:
                            byte = np.uint64(raw[at + place])
                        word |= byte << np.uint64(8 * b)
                    digit, above = digit_sum(np.int64(word), np.int64(0), carry)
                    table[i, of[PLACE] + w] = digit
                    carry = above + np.int64(word >> np.uint64(63))
                at += size
            if head >> _SPECIALS_BIT:
                for w in range(SPECIALS):
                    count = np.int64(0)
                    for b in range(8):
                        count |= np.int64(raw[at]) << (8 * b)
                        at += 1
                    table[i, of[SPECIALS_AT] + w] = count
