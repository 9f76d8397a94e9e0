"""Names for the types of flat arrays."""

from __future__ import annotations

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
