"""Blocks of tuples: which records of the log hold which stretch of tuples.

Idea: a block is a record of tuples sorted by (time, arrival); a table keeps its marker, its
number of tuples and its first and last time, in the order the blocks were written. It is the only
thing kept in memory for tuples that wait on the log, 32 bytes for up to 64 KB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCK = np.dtype(
    [("marker", np.uint64), ("rows", np.int64), ("first", np.int64), ("last", np.int64)]
)

Blocks = npt.NDArray[np.void]
