from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.multi_join import resident as k
from tests.oracles.kernels.multi_join.resident import (
    combine_reference,
    compact_reference,
    ended_words_reference,
    index_keys_reference,
    link_reference,
    open_keys_reference,
    rows_by_port_reference,
)

#: key, port, le, re, words of payload
Row = tuple[int, int, int, int, list[int]]
PARTITIONS = 4

rows_of_ports = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(0, 2),
        st.integers(0, 9),
        st.integers(0, 9),
        st.lists(st.integers(-5, 5), max_size=3),
    ).map(lambda r: (r[0] * 0x3C6EF372FE94F82A % 2**64, r[1], r[2], r[2] + r[3], r[4])),
    max_size=25,
)


def payload(words: list[int]) -> list[int]:
    """Return a payload that says how long it is."""
    return [(1 + len(words)) << 32, *words]


class Pool:
    """Arrays for a few rows of three ports."""

    def __init__(self, rows: list[Row]) -> None:
        self.heap: Ints = np.zeros(1000, dtype=np.int64)
        self.keys: Table = np.zeros((100, k.HEADS + 3), dtype=np.int64)
        self.index = np.zeros(64, dtype=np.int32)
        self.facts: Table = np.zeros((PARTITIONS, k.FACTS), dtype=np.int64)
        self.used = self.keys_used = 0
        for row in rows:
            self.add([row], row[1])

    def add(self, rows: list[Row], port: int) -> None:
        id_high = np.array([row[0] for row in rows], dtype=np.uint64)
        slots, _ = self.open(id_high, id_high, port)
        words = [payload(row[4]) for row in rows]
        begins = np.cumsum([0, *map(len, words)])[:-1]
        le, re = (np.array([row[at] for row in rows], dtype=np.int64) for at in (2, 3))
        flat = np.array([word for each in words for word in each], dtype=np.int64)
        self.used = k.link(
            self.heap, self.used, self.keys, slots, port, le, re, flat, begins, self.facts, True
        )

    def open(self, id_high: Ids, id_low: Ids, port: int) -> tuple[Ints, Ints]:
        slots, hits = (np.empty(len(id_high), dtype=np.int64) for _ in range(2))
        self.keys_used, count = k.open_keys(
            self.index, self.keys, self.keys_used, id_high, id_low, port, slots, hits
        )
        return slots, hits[:count]

    def chain(self, id_high: int, port: int) -> list[tuple[int, int, list[int]]]:
        """Return lifetime and payload of the rows of a key and port, newest first."""
        matches = np.flatnonzero(
            self.keys[: self.keys_used, 0].view(np.uint64) == np.uint64(id_high)
        )
        at = int(self.keys[matches[0], k.HEADS + port]) if len(matches) else 0
        found = []
        while at:
            row = self.heap[at - 1 :]
            size = int(row[k.HEAD]) >> 32
            words = row[k.HEAD + 1 : k.HEAD + size].tolist()
            found.append((int(row[k.LE]), int(row[k.RE]), words))
            at = int(row[k.NEXT])
        return found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60))
def test_parity_keys_beside_a_dict(pairs: list[tuple[int, int]]) -> None:
    """Keys are numbered as they first come, also if halves of identities agree."""
    id_high, id_low = (
        np.array([pair[at] << 40 for pair in pairs], dtype=np.uint64) for at in (0, 1)
    )
    pool = Pool([])
    expected = np.empty(len(pairs), dtype=np.int64)
    open_keys_reference({}, id_high, id_low, expected)
    slots, hits = pool.open(id_high, id_low, 0)
    np.testing.assert_array_equal(slots, expected)
    assert len(hits) == 0
    index = np.zeros(64, dtype=np.int32)
    k.index_keys(index, pool.keys, pool.keys_used)
    assert index.tolist() == index_keys_reference(64, pool.keys, pool.keys_used)
    np.testing.assert_array_equal(pool.open(id_high, id_low, 0)[0], expected)


@given(rows_of_ports, rows_of_ports, st.integers(0, 2), st.integers(1, 5))
def test_parity_combinations_of_random_rows(
    stored: list[Row], chunk: list[Row], port: int, capacity: int
) -> None:
    """All combinations with a common instant come once, a few at a time."""
    pool = Pool(stored)
    id_high = np.array([row[0] for row in chunk], dtype=np.uint64)
    slots, hits = pool.open(id_high, id_high, port)
    le, re = (np.array([row[at] for row in chunk], dtype=np.int64) for at in (2, 3))
    others = np.array([each for each in range(3) if each != port])
    made: list[tuple[list[int], list[int]]] = []
    state, cursors, parts = np.array([0, -1]), np.zeros(2, np.int64), np.zeros((2, 2), np.int64)
    count = capacity
    while count == capacity:
        found, lifetimes = np.empty((capacity, 3), np.int64), np.empty((capacity, 2), np.int64)
        arrays = (hits, slots, le, re, others, state, cursors, parts, found, lifetimes)
        count = k.combine(pool.heap, pool.keys, *arrays)
        made += zip(found[:count].tolist(), lifetimes[:count].tolist(), strict=True)
    places: list[list[int]] = [[] for _ in range(3)]
    at = 0
    for row in stored:
        places[row[1]].append(at)
        at += k.HEAD + 1 + len(row[4])
    sides = [[(r[0], r[2], r[3]) for r in stored if r[1] == each] for each in others]
    expected = combine_reference([(r[0], r[2], r[3]) for r in chunk], sides)
    assert sorted(made) == sorted(
        ([n[0], *(places[other][m] for other, m in zip(others, n[1:], strict=True))], [start, end])
        for n, start, end in expected
    )


@given(rows_of_ports)
def test_parity_linked_rows_beside_a_list(rows: list[Row]) -> None:
    """Rows lie in the heap as they came, and bytes are counted for their partitions."""
    pool = Pool(rows)
    heap, sizes = link_reference(
        [(*row[:4], payload(row[4])) for row in rows], pool.keys.shape[1], PARTITIONS
    )
    found = pool.heap[: pool.used].copy()
    at = 0
    while at < pool.used:
        found[at + k.NEXT] = 0
        at += k.HEAD + (int(found[at + k.HEAD]) >> 32)
    assert found.tolist() == heap
    assert pool.facts[:, k.BYTES].tolist() == sizes
    assert pool.facts[:, k.MEMBERS].sum() == len(rows)


@given(rows_of_ports, st.sets(st.integers(0, PARTITIONS - 1)), st.integers(-1, 12))
def test_parity_compacting_beside_a_list(rows: list[Row], doomed: set[int], watermark: int) -> None:
    """What stays is what a fresh pool would have, chains and bytes included."""
    pool = Pool(rows)
    ended = [(row[3], 1 + len(row[4])) for row in rows]
    assert k.ended_words(pool.heap, pool.used, watermark) == ended_words_reference(ended, watermark)
    found, counts = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    k.rows_by_port(pool.heap, pool.used, found)
    rows_by_port_reference([row[1] for row in rows], counts)
    assert found.tolist() == counts.tolist()
    mask: npt.NDArray[Any] = np.isin(np.arange(PARTITIONS), list(doomed))
    arrays = (pool.heap, pool.used, pool.keys, pool.keys_used, mask, watermark, pool.facts)
    pool.used, pool.keys_used = k.compact(*arrays)
    expected = Pool(compact_reference(rows, doomed, PARTITIONS, watermark))
    assert pool.used == expected.used
    assert pool.keys_used == expected.keys_used
    np.testing.assert_array_equal(pool.facts[:, k.BYTES], expected.facts[:, k.BYTES])
    for id_high in {row[0] for row in rows}:
        for port in range(3):
            assert pool.chain(id_high, port) == expected.chain(id_high, port)
