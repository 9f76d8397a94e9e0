from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.kernels.queue import pages
from icestream.kernels.queue import unit_chains as k


@settings(max_examples=80, deadline=None)
@given(
    first=st.integers(1, 3),
    unit=st.integers(4, 6),
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 25)), max_size=40),
)
def test_parity_rows_in_chains_beside_lists(
    first: int, unit: int, steps: list[tuple[int, int]]
) -> None:
    pool = pages.PoolArrays(
        np.zeros(pages.POOL_FACTS, np.int64),
        np.zeros((64, pages.PAGE_WORDS), np.int64),
        np.zeros(64 * 16, np.int64),
    )
    pool.facts[pages.SHIFT] = 4
    space = np.zeros(pages.SPACE_FACTS, np.int64)
    space[pages.UNIT], space[pages.PER_PAGE] = unit, 16 // unit
    rows: dict[int, list[int]] = {}
    addresses: dict[int, int] = {}
    for number, (key, size) in enumerate(steps):
        if size == 0 and key in rows:
            k.free_row(pool, space, addresses.pop(key), True)
            del rows[key]
        elif size:
            if key not in rows:
                addresses[key] = k.take_row(pool, space, True)
            words = np.arange(100 * number, 100 * number + size)
            k.write_row(pool, space, addresses[key], first, True, words, 0, size)
            rows[key] = words.tolist()
        for each, row in rows.items():
            out = np.zeros(len(row), np.int64)
            k.read_row(pool, space, addresses[each], first, True, out, 0, len(row))
            assert out.tolist() == row
        units = [k.units_of(space, first, True, len(row)) for row in rows.values()]
        assert int(space[pages.USED]) == sum(units)


def test_rows_of_one_unit_are_copied_as_they_are() -> None:
    pool = pages.PoolArrays(
        np.zeros(pages.POOL_FACTS, np.int64),
        np.zeros((2, pages.PAGE_WORDS), np.int64),
        np.zeros(16, np.int64),
    )
    pool.facts[pages.SHIFT] = 3
    space = np.zeros(pages.SPACE_FACTS, np.int64)
    space[pages.UNIT], space[pages.PER_PAGE] = 4, 2
    address = k.take_row(pool, space, False)
    k.write_row(pool, space, address, 1, False, np.array([0, 5, 6, 7]), 1, 4)
    out = np.zeros(4, np.int64)
    k.read_row(pool, space, address, 1, False, out, 0, 3)
    assert out.tolist() == [5, 6, 7, 0]
    k.free_row(pool, space, address, False)
    assert int(space[pages.PAGES]) == 0
