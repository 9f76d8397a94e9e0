from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.kernels.queue import pages as k

PAGES = 40


def make(unit: int) -> tuple[k.PoolArrays, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    pool = k.PoolArrays(
        np.zeros(k.POOL_FACTS, np.int64),
        np.zeros((PAGES, k.PAGE_WORDS), np.int64),
        np.zeros(PAGES * 8, np.int64),
    )
    pool.facts[k.SHIFT] = 3
    space = np.zeros(k.SPACE_FACTS, np.int64)
    space[k.UNIT], space[k.PER_PAGE] = unit, 8 // unit
    return pool, space


@settings(max_examples=80, deadline=None)
@given(unit=st.sampled_from([1, 2, 3, 8]), steps=st.lists(st.integers(-50, 50), max_size=100))
def test_parity_units_beside_sets(unit: int, steps: list[int]) -> None:
    pool, space = make(unit)
    used: list[int] = []
    for step in steps:
        pages = {address >> 3 for address in used}
        if step < 0 and used:
            address = used.pop(-step % len(used))
            k.give_unit(pool, space, address)
        elif len(pages) < PAGES:
            room = len(pages) * int(space[k.PER_PAGE]) - len(used)
            address = k.take_unit(pool, space)
            assert address not in used
            assert ((address >> 3) in pages) == (room > 0)
            used.append(address)
        pages = {address >> 3 for address in used}
        assert int(space[k.PAGES]) == int(pool.facts[k.PAGES_USED]) == len(pages)
        assert int(space[k.USED]) == len(used)
        assert int(space[k.MOST_USED]) >= len(used)


def test_nearly_full_pages_are_filled_first() -> None:
    pool, space = make(1)
    taken = [k.take_unit(pool, space) for _ in range(24)]
    for address in taken[:6]:
        k.give_unit(pool, space, address)
    k.give_unit(pool, space, taken[16])
    # the page with one hole, then the one with six
    assert k.take_unit(pool, space) == taken[16]
    assert k.take_unit(pool, space) in taken[:6]
