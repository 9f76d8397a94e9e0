"""Times of keys over whole batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.queue.windows.key_times import going_up
from tests.oracles.kernels.queue.windows.key_times import going_up_reference

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 6)))


@given(rows=ROWS, cut=st.integers(0, 9))
def test_parity_tuples_that_go_up(rows: list[tuple[int, int]], cut: int) -> None:
    last = np.full(4, -(2**63), dtype=np.int64)
    plain: dict[int, int] = {}
    for part in (rows[:cut], rows[cut:]):
        keys = np.array([key for key, _ in part], dtype=np.int64)
        times = np.array([time for _, time in part], dtype=np.int64)
        keep = np.empty(len(part), dtype=np.bool_)
        late = going_up(keys, times, last, keep)
        wanted = going_up_reference(keys.tolist(), times.tolist(), plain)
        assert keep.tolist() == wanted
        assert late == wanted.count(False)
    assert {key: int(last[key]) for key in plain} == plain
