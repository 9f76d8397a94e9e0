"""The obvious versions of the kernels in `icestream.kernels.rows`."""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Bytes, Ints, Table


def row_starts_reference(words: Ints, starts: Ints) -> int:
    """Do what `row_starts` does, with Python's numbers."""
    at, found = 0, []
    while at < len(words):
        found.append(at)
        at += int(words[at]) >> 32
    starts[: len(found)] = found
    return len(found)


def last_row_end_reference(words: Ints, begin: int, most: int) -> int:
    """Return what `last_row_end` returns, from a list of all ends."""
    starts = np.empty(len(words), dtype=np.int64)
    starts = starts[: row_starts_reference(words, starts)]
    ends = [*starts.tolist(), len(words)]
    return max(end for end in ends if begin <= end <= begin + most)


def rows_fit_reference(
    words: Ints, begins: Ints, ends: Ints, width: int, never: int, places: Ints, units: Ints
) -> bool:
    """Do what `rows_fit` does, one slice at a time."""
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        rows = words[begin:end].tolist()
        while rows:
            size = rows[0] >> 32
            row, rows = rows[: max(0, size)], rows[max(0, size) :]
            if size < width or len(row) < size or row[0] & never:
                return False
            counts = [row[place] for place in places.tolist()]
            pieces = [-(-c * u // 8) for c, u in zip(counts, units.tolist(), strict=True)]
            if min(counts, default=0) < 0 or width + sum(pieces) != size:
                return False
    return True


def spread_fixed_reference(fixed: Table, starts: Ints, words: Ints) -> None:
    """Do what `spread_fixed` does, on whole arrays."""
    words[starts[:, None] + np.arange(fixed.shape[1])] = fixed


def collect_fixed_reference(words: Ints, starts: Ints, fixed: Table) -> None:
    """Do what `collect_fixed` does, on whole arrays."""
    fixed[:] = words[starts[:, None] + np.arange(fixed.shape[1])]


def put_ragged_reference(
    raw: Bytes, places: Ints, data: Bytes, begins: Ints, counts: Ints, unit: int
) -> None:
    """Do what `put_ragged` does, one slice at a time."""
    for i, (place, begin, count) in enumerate(
        zip(places.tolist(), begins.tolist(), counts.tolist(), strict=True)
    ):
        size = count * unit
        raw[place : place + size] = data[begin * unit : begin * unit + size]
        places[i] = place + -(-size // 8) * 8


def take_ragged_reference(raw: Bytes, places: Ints, counts: Ints, unit: int, out: Bytes) -> None:
    """Do what `take_ragged` does, one slice at a time."""
    target = 0
    for i, (place, count) in enumerate(zip(places.tolist(), counts.tolist(), strict=True)):
        size = count * unit
        out[target : target + size] = raw[place : place + size]
        target += size
        places[i] = place + -(-size // 8) * 8
