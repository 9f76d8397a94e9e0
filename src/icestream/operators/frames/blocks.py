"""Blocks of tuples: which records of the log hold which run of tuples.

Idea: a block is a record of tuples sorted by (time, arrival). A table has its marker, its number of
tuples and its first and last time, in the order in which the blocks were written. It is all that
memory holds for tuples on the log: 32 bytes for up to 64 KB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCK = np.dtype(
    [("marker", np.uint64), ("rows", np.int64), ("first", np.int64), ("last", np.int64)]
)

Blocks = npt.NDArray[np.void]
