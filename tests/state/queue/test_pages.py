from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.state.budget import Budget, Refused
from icestream.state.queue.arrays import HeapArrays
from icestream.state.queue.pages import OnDemandPages, PagePool


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 99)), max_size=80))
def test_oracle_spaces_share_a_pool(steps: list[tuple[int, bool, int]]) -> None:
    pool = PagePool(page_bytes=64)
    spaces = [OnDemandPages(pool, unit, f"space-{unit}") for unit in (1, 3, 8)]
    held: list[list[int]] = [[], [], []]
    for number, gives, which in steps:
        space, mine = spaces[number], held[number]
        if gives and mine:
            space.give(mine.pop(which % len(mine)))
        else:
            mine.append(space.take())
        words = [
            range(address, address + each.unit)
            for each, addresses in zip(spaces, held, strict=True)
            for address in addresses
        ]
        assert len({word for unit in words for word in unit}) == sum(map(len, words))
        pages = [{address // 8 for address in addresses} for addresses in held]
        assert [each.pages for each in spaces] == list(map(len, pages))
        assert [each.used for each in spaces] == list(map(len, held))
        assert pool.used == sum(map(len, pages)) <= pool.most
        assert all(not (a & b) for a in pages for b in pages if a is not b)


def test_bounded_reserved_units_are_there() -> None:
    budget = Budget(20_000)
    pool = PagePool(HeapArrays(budget.account("pool")), page_bytes=256)
    space = OnDemandPages(pool, 5)
    space.reserve(100)
    held = budget.held
    addresses = [space.take() for _ in range(100)]
    assert (space.pages, space.per_page, budget.held) == (17, 6, held)
    for address in addresses:
        space.give(address)
    assert (space.pages, space.most_pages, space.most_used) == (0, 17, 100)


def test_bounded_a_refused_reserve_changes_nothing() -> None:
    budget = Budget(4_000)
    pool = PagePool(HeapArrays(budget.account("pool")), page_bytes=256)
    space = OnDemandPages(pool, 4)
    taken = [space.take() for _ in range(8)]
    held = budget.held
    with pytest.raises(Refused):
        space.reserve(1000)
    assert (budget.held, space.used, space.pages) == (held, len(taken), 1)


def test_bounded_a_pool_has_no_more_pages_than_its_limit() -> None:
    pool = PagePool(page_bytes=64)
    pool.limit = 5
    pages = OnDemandPages(pool, 8)
    for _ in range(5):
        pages.take()
    with pytest.raises(Refused):
        pages.take()
    assert pool.capacity == pool.used == 5


def test_pages_that_cannot_be_are_refused() -> None:
    with pytest.raises(DefinitionError, match="power of two"):
        PagePool(page_bytes=100)
    with pytest.raises(DefinitionError, match="use larger pages"):
        OnDemandPages(PagePool(page_bytes=64), 9)
