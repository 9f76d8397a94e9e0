"""Rows of 64-bit words, one after the other, each with its length.

Idea: the upper half of a row's first word is the number of its words, the lower half has null bits.
A fixed part of equal length follows, then pieces of bytes, each padded to whole words. The loops
here traverse such rows and copy variable-length pieces in and out; the layer above knows the
columns.

Invariants:
1. What `put_ragged` writes `take_ragged` reads back (`test_parity_ragged_pieces_in_and_out`).
2. `row_starts` visits every row once (`test_parity_row_starts_and_fixed_parts`), `last_row_end`
   cuts between two of them (`test_parity_the_end_of_the_last_row`).
3. `rows_fit` accepts valid rows and nothing that would make a traversal or a copy go wrong
   (`test_parity_rows_that_fit`).

Cost: one pass over the words copied.
"""

from __future__ import annotations

from icestream.core.arrays import Bytes, Ints, Table
from icestream.kernels.addresses import copy_bytes
from icestream.kernels.compile import kernel


@kernel
def row_starts(words: Ints, starts: Ints) -> int:
    """Fill `starts` with the word at which each row of words begins; return how many."""
    at = 0
    count = 0
    while at < words.size:
        starts[count] = at
        count += 1
        at += words[at] >> 32
    return count


@kernel
def last_row_end(words: Ints, begin: int, most: int) -> int:
    """Return where the last row ends that ends within `most` words of `begin`, a row's start."""
    end = begin
    while end < words.size and end + (words[end] >> 32) <= begin + most:
        end += words[end] >> 32
    return int(end)


@kernel
def rows_fit(
    words: Ints, begins: Ints, ends: Ints, width: int, never: int, places: Ints, units: Ints
) -> bool:
    """Return whether the words between some places are whole rows of words.

    A row has `width` words and its variable-length pieces, each of as many units as one of its
    words states. None of the null bits in `never` is set in its first word.
    """
    for i in range(begins.size):
        at = begins[i]
        end = ends[i]
        while at < end:
            size = words[at] >> 32
            if size < width or size > end - at or words[at] & never:
                return False
            needed = width
            for p in range(places.size):
                count = words[at + places[p]]
                if count < 0 or count > 8 * size:
                    return False
                needed += (count * units[p] + 7) >> 3
            if needed != size:
                return False
            at += size
    return True


@kernel
def spread_fixed(fixed: Table, starts: Ints, words: Ints) -> None:
    """Write the fixed part of each row of words to its place."""
    for i in range(fixed.shape[0]):
        at = starts[i]
        for w in range(fixed.shape[1]):
            words[at + w] = fixed[i, w]


@kernel
def collect_fixed(words: Ints, starts: Ints, fixed: Table) -> None:
    """Read the fixed part of each row of words."""
    for i in range(fixed.shape[0]):
        at = starts[i]
        for w in range(fixed.shape[1]):
            fixed[i, w] = words[at + w]


@kernel
def put_ragged(
    raw: Bytes, places: Ints, data: Bytes, begins: Ints, counts: Ints, unit: int
) -> None:
    """Write ragged columns into rows: `counts` units from `begins` to `places`."""
    for i in range(places.size):
        size, target = counts[i] * unit, places[i]
        copy_bytes(raw, target, data, begins[i] * unit, size)
        places[i] = target + ((size + 7) & -8)


@kernel
def take_ragged(raw: Bytes, places: Ints, counts: Ints, unit: int, out: Bytes) -> None:
    """Copy ragged columns out of rows of words: `counts` units at `places`, without gaps."""
    target = 0
    for i in range(places.size):
        size, source = counts[i] * unit, places[i]
        copy_bytes(out, target, raw, source, size)
        target += size
        places[i] = source + ((size + 7) & -8)
