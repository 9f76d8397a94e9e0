from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.multi_join.owed import END, WALK, owed
from tests.oracles.kernels.multi_join.owed import owed_reference

#: id_high, id_low, le, re, twice the generation, and one more for new rows
Row = tuple[int, int, int, int, int]

ports_of_rows = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from((0, 1, 2**63 + 5)),
            st.integers(0, 1),
            st.integers(0, 5),
            st.integers(0, 6),
            st.sampled_from((1, 3, 5)) | st.sampled_from((0, 2, 3, 5)),
        ).map(lambda r: (*r[:3], r[2] + r[3], r[4])),
        max_size=9,
    ),
    min_size=2,
    max_size=4,
)


@given(ports_of_rows, st.integers(1, 7))
def test_parity_owed_combinations(ports: list[list[Row]], capacity: int) -> None:
    """Combinations of several generations come once, a few at a time; those of one do not."""
    ports = [sorted(rows, key=lambda row: (row[0], row[1], row[4])) for rows in ports]
    everything = [row for rows in ports for row in rows]
    heads = [
        [*np.array(row[:2], np.uint64).view(np.int64).tolist(), *row[2:4]] for row in everything
    ]
    heap = np.array([word for head in heads for word in (*head, 1 << 32)], dtype=np.int64)
    pairs = np.array([(5 * n, row[4]) for n, row in enumerate(everything)], dtype=np.int64)
    pairs = pairs.reshape(-1, 2)
    bounds = np.cumsum([0, *map(len, ports)])
    walk = np.zeros((len(ports), WALK), dtype=np.int64)
    walk[:, END] = bounds[:-1]
    state = np.full(1, -1, dtype=np.int64)
    made: list[tuple[list[int], list[int]]] = []
    count = capacity
    while count == capacity:
        found = np.empty((capacity, len(ports)), dtype=np.int64)
        lifetimes = np.empty((capacity, 2), dtype=np.int64)
        count = owed(heap, pairs, bounds, state, walk, found, lifetimes)
        made += zip((found[:count] // 5).tolist(), lifetimes[:count].tolist(), strict=True)
    expected = [
        ([int(bounds[port]) + n for port, n in enumerate(numbers)], [start, end])
        for numbers, start, end in owed_reference(ports)
    ]
    assert sorted(made) == sorted(expected)
