"""Times of keys over whole batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.queue.windows.key_times import going_up, link_groups
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


@given(keys=st.lists(st.integers(0, 3), max_size=12), again=st.integers(0, 12))
def test_parity_groups_learn_the_time(keys: list[int], again: int) -> None:
    """Groups are numbered as they come, so the lists have each once."""
    groups = np.arange(len(keys), dtype=np.int64)
    owner = np.array(keys, dtype=np.int64)
    first, after = np.full(4, -1, dtype=np.int64), np.full(12, -1, dtype=np.int64)
    known = link_groups(owner[:again], groups[:again], 0, first, after)
    assert link_groups(owner, groups, known, first, after) == len(keys)
    for key in range(4):
        found, group = [], int(first[key])
        while group >= 0:
            found.append(group)
            group = int(after[group])
        assert found == [number for number, of in enumerate(keys) if of == key][::-1]
