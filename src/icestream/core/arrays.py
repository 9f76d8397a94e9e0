"""Flat arrays: names for their types, and ranges in them.

Invariant: ranges follow each other, each ascending; empty ones contribute nothing
(`test_oracle_ranges_one_after_the_other`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
#: truth values, one for each row
Mask = npt.NDArray[np.bool_]
#: one half of the 128-bit ids of groups
Ids = npt.NDArray[np.uint64]
#: positions of groups in a table
Slots = npt.NDArray[np.int64]
#: rows of words, two-dimensional
Table = npt.NDArray[np.int64]


def numbers_of(begins: Ints, ends: Ints) -> Ints:
    """Return the numbers of the half-open ranges, one range after the other."""
    sizes = ends - begins
    skipped: Ints = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
    return skipped + np.arange(len(skipped))


def slice_bounds(*columns: npt.NDArray[Any]) -> Ints:
    """Return where rows that are equal in all columns begin in sorted columns, and the end."""
    rows = len(columns[0])
    fresh = np.zeros(rows + 1, dtype=np.bool_)
    fresh[0] = fresh[rows] = True
    for column in columns:
        fresh[1:-1] |= column[1:] != column[:-1]
    return np.flatnonzero(fresh)
