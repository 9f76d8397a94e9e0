from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.multi_join import resident as k
from icestream.kernels.multi_join.rows import gather_payloads, list_rows, log_starts, pack_rows
from tests.oracles.kernels.multi_join.rows import (
    gather_payloads_reference,
    log_starts_reference,
    packed_reference,
)

rows_of_keys = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(-9, 9),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    ),
    max_size=20,
)


@given(rows_of_keys, st.integers(0, 20))
def test_parity_rows_listed_packed_and_found_again(
    rows: list[tuple[int, int, int, list[int]]], known: int
) -> None:
    """Rows behind a place are listed, and packed with the identity of their key."""
    keys = np.zeros((4, k.HEADS + 3), dtype=np.int64)
    keys[:, 0], keys[:, 1] = [5, -7, 9, -(2**63)], [1, 2, 3, -4]
    heap: list[int] = []
    begins: list[int] = []
    for key, port, le, words in rows:
        begins.append(len(heap))
        heap += [key << k.PORT_BITS | port, le, le + 3, 99, (1 + len(words)) << 32, *words]
    begin = [*begins, len(heap)][min(known, len(rows))]
    flat = np.array(heap, dtype=np.int64)
    places, ports = (np.empty(len(rows), dtype=np.int64) for _ in range(2))
    id_high = np.empty(len(rows), dtype=np.uint64)
    count = list_rows(flat, begin, len(flat), keys, places, ports, id_high)
    new = rows[known:]
    assert places[:count].tolist() == begins[known:]
    assert ports[:count].tolist() == [row[1] for row in new]
    assert id_high[:count].view(np.int64).tolist() == [int(keys[row[0], 0]) for row in new]
    expected = packed_reference(
        [
            (*keys[key, :2].tolist(), le, le + 3, [(1 + len(words)) << 32, *words])
            for key, _, le, words in new
        ]
    )
    packed = np.empty(len(expected), dtype=np.int64)
    assert pack_rows(flat, keys, places[:count], packed) == len(expected)
    assert packed.tolist() == expected
    starts = np.empty(len(rows), dtype=np.int64)
    assert starts[: log_starts(packed, starts)].tolist() == log_starts_reference(packed)


@given(
    st.lists(
        st.one_of(st.integers(-2, 3).map(lambda n: n << 32), st.integers(-(2**63), 2**63 - 1)),
        max_size=30,
    )
)
def test_parity_rows_of_a_record_that_makes_no_sense(words: list[int]) -> None:
    """Rows that are empty or run past the end are told as such, and nothing else is touched."""
    record = np.array(words, dtype=np.int64)
    starts = np.full(len(words) // 5 + 3, 77, dtype=np.int64)
    count = log_starts(record, starts)
    expected = log_starts_reference(record)
    assert count == (-1 if expected is None else len(expected))
    assert starts[: max(0, count)].tolist() == (expected or [])
    assert starts[-2:].tolist() == [77, 77]


@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=3), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=10),
)
def test_parity_gathered_payloads(payloads: list[list[int]], chosen: list[int]) -> None:
    """Payloads come in the order, and as often, as they are asked for."""
    flat: list[int] = []
    begins: list[int] = []
    for words in payloads:
        begins.append(len(flat))
        flat += [(1 + len(words)) << 32, *words]
    heap = np.array(flat, dtype=np.int64)
    places = np.array([begins[n % len(begins)] for n in chosen], dtype=np.int64)
    expected = gather_payloads_reference(heap, places)
    made = np.empty(len(expected), dtype=np.int64)
    gather_payloads(heap, places, made)
    assert made.tolist() == expected
