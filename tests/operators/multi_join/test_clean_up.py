from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.multi_join.clean_up import parts_of, runs_of
from icestream.operators.multi_join.spec import partitions_of


@given(st.sets(st.integers(0, 11)), st.sampled_from((12, 300)))
def test_runs_cover_exactly_the_partitions(chosen: set[int], partitions: int) -> None:
    """Both ends of a run are in its partitions; what is beside is not."""
    runs = runs_of(np.array(sorted(chosen), dtype=np.int64), partitions)
    covered: list[int] = []
    for first, last in runs:
        ends = partitions_of(np.array([first, last], dtype=np.uint64), partitions).tolist()
        covered += range(ends[0], ends[1] + 1)
        if first:
            before = np.array([first - 1], dtype=np.uint64)
            assert partitions_of(before, partitions)[0] == ends[0] - 1
        if last < 2**64 - 1:
            behind = np.array([last + 1], dtype=np.uint64)
            assert partitions_of(behind, partitions)[0] == ends[1] + 1
    assert covered == sorted(chosen)


@pytest.mark.parametrize(("first", "last"), [(0, 2**64 - 1), (7, 8), (3, 5)])
@pytest.mark.parametrize("parts", [1.5, 2, 7])
def test_parts_follow_each_other(first: int, last: int, parts: float) -> None:
    cut = parts_of(first, last, parts)
    assert len(cut) >= 2
    assert cut[0][0] == first
    assert cut[-1][1] == last
    assert all(low <= high for low, high in cut)
    assert all(a[1] + 1 == b[0] for a, b in pairwise(cut))
