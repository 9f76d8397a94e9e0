from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY
from icestream.kernels.lifetimes.pairs import (
    is_in_order,
    narrow,
    number_pairs,
    pair_up,
    partnered,
    stretches,
)
from tests.oracles.kernels.lifetimes.pairs import (
    number_pairs_reference,
    pair_up_reference,
    stretches_reference,
)

INTERVALS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 9) | st.just(INFINITY)).map(
        lambda row: (row[0], row[1], min(row[1] + row[2], INFINITY))
    )
)


def column(rows: list[tuple[int, int, int]], place: int) -> Ints:
    return np.array([row[place] for row in rows], dtype=np.int64)


def all_pairs(
    probes: list[tuple[int, int, int]],
    stored: list[tuple[int, int, int]],
    capacity: int,
    narrowed: bool,
) -> list[tuple[int, int]]:
    bounds = np.array(
        [0, *accumulate(sum(row[0] == group for row in stored) for group in range(4))],
        dtype=np.int64,
    )
    groups, (le, re) = column(probes, 0), (column(probes, place) for place in (1, 2))
    firsts, lasts = bounds[groups], bounds[groups + 1]
    stored_le, stored_re = column(stored, 1), column(stored, 2)
    if narrowed:
        assert is_in_order(bounds, stored_le)
        narrow(le, re, bounds, stored_le, stored_re, firsts, lasts)
    marked = np.zeros(len(probes), dtype=np.bool_)
    partnered(le, re, firsts, lasts, stored_le, stored_re, marked)
    state = np.zeros(2, dtype=np.int64)
    found: list[tuple[int, int]] = []
    while True:
        left, right = (np.empty(capacity, dtype=np.int64) for _ in range(2))
        count = pair_up(le, re, firsts, lasts, stored_le, stored_re, state, left, right)
        found += zip(left[:count].tolist(), right[:count].tolist(), strict=True)
        if count < capacity:
            assert np.flatnonzero(marked).tolist() == sorted({probe for probe, _ in found})
            return found


@given(probes=INTERVALS, stored=INTERVALS, capacity=st.integers(1, 7))
def test_parity_pairs_of_random_intervals(
    probes: list[tuple[int, int, int]], stored: list[tuple[int, int, int]], capacity: int
) -> None:
    stored.sort(key=lambda row: row[0])
    assert all_pairs(probes, stored, capacity, narrowed=False) == pair_up_reference(probes, stored)
    stored.sort()
    assert all_pairs(probes, stored, capacity, narrowed=True) == pair_up_reference(probes, stored)


def test_order_is_asked_of_each_group_alone() -> None:
    le = np.array([5, 6, 1, 2], dtype=np.int64)
    assert is_in_order(np.array([0, 2, 4]), le)
    assert not is_in_order(np.array([0, 3, 4]), le)


@pytest.mark.parametrize("seed", range(40))
def test_parity_stretches_of_random_covers(seed: int) -> None:
    dice = np.random.default_rng(seed)

    def rows(count: int) -> list[tuple[int, int, int, int]]:
        le = dice.integers(0, 12, count)
        re = le + dice.integers(1, 9, count)
        owners, counts = dice.integers(0, 3, count), dice.choice([1, 1, 2, -1], count)
        return list(zip(*(part.tolist() for part in (owners, le, re, counts)), strict=True))

    before, after = rows(int(dice.integers(0, 9))), rows(int(dice.integers(0, 9)))
    edges = [
        (owner, time, sign * count * was, sign * count * (not was))
        for was, part in ((True, before), (False, after))
        for owner, le, re, count in part
        for time, sign in ((le, 1), (re, -1))
    ]
    edges.sort(key=lambda edge: edge[:2])
    table = np.array(edges, dtype=np.int64).reshape(-1, 4).T.copy()
    out = [np.empty(len(edges), dtype=np.int64) for _ in range(4)]
    count = stretches(*table, *out)
    found = list(zip(*(part[:count].tolist() for part in out), strict=True))
    assert found == stretches_reference(before, after)


@given(words=st.lists(st.tuples(st.sampled_from((0, 1, 2**64 - 1)), st.integers(0, 3))))
def test_parity_numbers_of_random_pairs(words: list[tuple[int, int]]) -> None:
    id_high = np.array([word[0] for word in words], dtype=np.uint64)
    id_low = np.array([word[1] for word in words], dtype=np.uint64)
    numbers, heads = (np.empty(len(words), dtype=np.int64) for _ in range(2))
    index = np.zeros(1 << (2 * len(words) + 1).bit_length(), dtype=np.int64)
    count = number_pairs(id_high, id_low, index, numbers, heads)
    assert (numbers.tolist(), heads[:count].tolist()) == number_pairs_reference(id_high, id_low)
