from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import numbers_of


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 9))))
def test_oracle_ranges_one_after_the_other(drawn: list[tuple[int, int]]) -> None:
    begins = np.array([begin for begin, _ in drawn], np.int64)
    ends = begins + np.array([size for _, size in drawn], np.int64)
    found = numbers_of(begins, ends)
    assert found.dtype == np.int64
    assert found.tolist() == [
        number for begin, size in drawn for number in range(begin, begin + size)
    ]
