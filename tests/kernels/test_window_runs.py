from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.window_runs import window_runs
from tests.oracles.kernels.window_runs import window_runs_reference


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(-40, 40)), max_size=40),
    st.sampled_from([0, 1, 7, 20]),
    st.integers(0, 6),
    st.booleans(),
)
def test_parity_runs_of_keys_and_windows(
    drawn: list[tuple[int, int, int]], length: int, offset: int, in_order: bool
) -> None:
    rows = sorted(drawn) if in_order else drawn
    id_high, id_low, times = ([row[place] for row in rows] for place in range(3))
    heads, starts = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    count = window_runs(
        np.array(id_high, dtype=np.uint64),
        np.array(id_low, dtype=np.uint64),
        np.array(times, dtype=np.int64),
        length,
        offset,
        heads,
        starts,
    )
    expected = window_runs_reference(id_high, id_low, times, length, offset)
    if expected is None:
        assert count == -1
    else:
        assert list(zip(heads[:count].tolist(), starts[:count].tolist(), strict=True)) == expected
    assert expected is not None or not in_order
