"""Where equal rows of sorted columns begin and end, over whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints


def slice_bounds(*columns: npt.NDArray[Any]) -> Ints:
    """Return where rows that are equal in all columns begin in sorted columns, and the end."""
    rows = len(columns[0])
    fresh = np.zeros(rows + 1, dtype=np.bool_)
    fresh[0] = fresh[rows] = True
    for column in columns:
        fresh[1:-1] |= column[1:] != column[:-1]
    return np.flatnonzero(fresh)
