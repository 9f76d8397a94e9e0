"""Where equal rows of sorted columns begin."""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import slice_bounds


def test_bounds_of_slices() -> None:
    assert slice_bounds(np.array([4, 4, 5, 9, 9, 9])).tolist() == [0, 2, 3, 6]
    assert slice_bounds(np.array([], dtype=np.int64)).tolist() == [0]
