from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.multi_join.logged_rows import most_records, record_bounds


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(5, 40)), max_size=40))
def test_records_have_one_port_and_about_the_words_asked_for(rows: list[tuple[int, int]]) -> None:
    """A record is no larger than asked for by more than a row; so many were reserved for."""
    ports = np.array(sorted(row[0] for row in rows), dtype=np.int64)
    sizes = np.array([row[1] for row in rows], dtype=np.int64)
    bounds = record_bounds(ports, sizes, 64)
    assert bounds[-1] == len(rows)
    for first, last in pairwise(bounds):
        assert len(set(ports[first:last].tolist())) == 1
        assert sizes[first : last - 1].sum() <= 64 + 40
    payload = int(sizes.sum()) - 4 * len(rows)
    assert len(bounds) - 1 <= most_records(len(rows), payload, 3, 8 * 64)
