from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Ints
from icestream.kernels.multi_join.gathering import (
    DAMAGED,
    FULL,
    GENERATION,
    ORDERING,
    PLACE,
    order_pairs,
    pairs_of,
    take_rows,
)
from icestream.kernels.multi_join.resident import PORT_BITS
from tests.oracles.kernels.multi_join.gathering import order_pairs_reference, take_rows_reference

PARTITIONS = 4
PORT = 2
ids = st.integers(0, 15).map(lambda n: n << 60 | 7)
marks = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), unique=True, max_size=8)


def words_of(rows: list[tuple[int, int]]) -> Ints:
    """Return rows of (id_high, words behind the head) as the log has them."""
    flat: list[int] = []
    for number, (id_high, more) in enumerate(rows):
        flat += [
            id_high if id_high < 2**63 else id_high - 2**64,
            number,
            0,
            9,
            (1 + more) << 32,
            *[number] * more,
        ]
    return np.array(flat, dtype=np.int64)


def taken(
    words: Ints,
    heap: Ints,
    ends: tuple[int, int] = (0, 2**64 - 1),
    epoch: int = 3,
    due: tuple[bool, ...] = (True,) * PARTITIONS,
    floor: tuple[int, ...] = (0,) * PARTITIONS,
    cleaned: tuple[int, ...] = (0,) * PARTITIONS,
    cuts: tuple[tuple[int, int], ...] = (),
) -> tuple[int, int]:
    table = np.array(sorted(cuts), dtype=np.int64).reshape(-1, 2)
    begins = np.searchsorted(table[:, 0], np.arange(PARTITIONS + 1))
    first, last = (np.uint64(end) for end in ends)
    facts = np.array(due), np.array(floor), np.array(cleaned)
    return take_rows(words, PORT, epoch, first, last, *facts, table, begins, heap, 0, 0)


@given(
    st.lists(st.tuples(ids, st.integers(0, 3)), max_size=12),
    st.tuples(ids, ids),
    st.integers(1, 6),
    st.tuples(*[st.booleans()] * PARTITIONS),
    st.tuples(*[st.integers(0, 6)] * PARTITIONS),
    st.tuples(*[st.integers(0, 6)] * PARTITIONS),
    marks,
)
def test_parity_rows_taken_from_a_record(
    rows: list[tuple[int, int]],
    ends: tuple[int, int],
    epoch: int,
    due: tuple[bool, ...],
    floor: tuple[int, ...],
    cleaned: tuple[int, ...],
    cuts: list[tuple[int, int]],
) -> None:
    """Rows in range, of partitions at hand, come with generations; rows out of order do not."""
    heap = np.zeros(1000, dtype=np.int64)
    words = words_of(rows)
    used, count = taken(words, heap, ends, epoch, due, floor, cleaned, tuple(cuts))
    if [id_high for id_high, _ in rows] != sorted(id_high for id_high, _ in rows):
        assert used == DAMAGED
        words, rows = words_of(sorted(rows)), sorted(rows)
        used, count = taken(words, heap, ends, epoch, due, floor, cleaned, tuple(cuts))
    within = [(id_high, ends[0] <= id_high <= ends[1]) for id_high, _ in rows]
    expected = take_rows_reference(within, epoch, list(due), list(floor), list(cleaned), cuts)
    pairs = pairs_of(heap, 0, count)
    assert heap[pairs[:, PLACE] + 1].tolist() == [number for number, _ in expected]
    assert pairs[:, GENERATION].tolist() == [each << PORT_BITS | PORT for _, each in expected]
    assert used == sum(5 + rows[number][1] for number, _ in expected)
    if rows:
        assert taken(words[:-1], heap)[0] == DAMAGED


def test_bounded_rows_that_do_not_fit_are_reported() -> None:
    """The room that ordering takes is kept free as well."""
    words = words_of([(n, 2) for n in range(10)])
    needed = len(words) + 10 * ORDERING
    assert taken(words, np.zeros(needed, dtype=np.int64)) == (len(words), 10)
    small = np.zeros(needed - 1, dtype=np.int64)
    assert taken(words, small) == (FULL, 9)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from((1, 2, 2**63 + 5)),
            st.integers(0, 2),
            st.integers(0, 9),
        ),
        max_size=30,
    ),
    st.integers(0, 5),
)
def test_parity_pairs_put_in_order(rows: list[tuple[int, int, int, int]], known: int) -> None:
    """Pairs come by port and identity, equals as they came; other pairs are left alone."""
    heap = np.zeros(20 * (len(rows) + known) + 20, dtype=np.int64)
    pairs = pairs_of(heap, known, known + len(rows))
    for number, (port, id_high, id_low, generation) in enumerate(rows):
        heap[5 * number : 5 * number + 2] = np.array([id_high, id_low], np.uint64).view(np.int64)
        pairs[number] = 5 * number, generation << PORT_BITS | port
    end = known + len(rows)
    counts = np.zeros(3, dtype=np.int64)
    breaks = [n for n in range(1, len(rows)) if rows[n][:2] < rows[n - 1][:2]]
    bounds = np.array([0, *breaks, len(rows)])
    order_pairs(heap, pairs, pairs_of(heap, end, end + len(rows)), bounds, counts)
    expected = order_pairs_reference(rows)
    assert (pairs // [5, 1]).tolist() == [list(each) for each in expected]
    assert counts.tolist() == [sum(row[0] == port for row in rows) for port in range(3)]
    assert not pairs_of(heap, 0, known).any()
