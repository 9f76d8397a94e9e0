from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import BudgetError
from icestream.runtime.version.quotas import Place, ShardMemory, quotas

some_holdings = st.dictionaries(
    st.tuples(st.integers(0, 4), st.integers(0, 7)),
    st.builds(ShardMemory, held=st.integers(0, 10**6), growth=st.integers(-(10**5), 10**6)),
    min_size=1,
    max_size=20,
)


def needed(holdings: dict[Place, ShardMemory], least: int) -> int:
    return sum(max(least, each.held) for each in holdings.values())


@given(some_holdings, st.integers(0, 10**5), st.integers(0, 10**7))
def test_oracle_quotas_keep_their_promises(
    holdings: dict[Place, ShardMemory], least: int, free: int
) -> None:
    budget = needed(holdings, least) + free
    given_out = quotas(budget, holdings, least)
    assert given_out.keys() == holdings.keys()
    assert sum(given_out.values()) == budget
    for place, quota in given_out.items():
        assert quota >= max(least, holdings[place].held)


@given(some_holdings, st.integers(0, 10**6))
def test_quotas_do_not_depend_on_the_order_of_holders(
    holdings: dict[Place, ShardMemory], free: int
) -> None:
    budget = needed(holdings, 10) + free
    turned = dict(reversed(list(holdings.items())))
    assert quotas(budget, holdings, 10) == quotas(budget, turned, 10)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**7))
def test_growth_is_rewarded(slow: int, fast: int, free: int) -> None:
    slow, fast = sorted((slow, fast))
    holdings = {
        (0, 0): ShardMemory(1000, slow),
        (0, 1): ShardMemory(1000, fast),
        (1, 0): ShardMemory(50, 7),
    }
    given_out = quotas(needed(holdings, 10) + free, holdings, 10)
    # two shards that grew alike may differ by the last byte
    assert given_out[0, 1] >= given_out[0, 0] - (slow == fast) * 2


def test_a_shard_that_grew_twice_as_much_gets_twice_the_part_that_goes_by_growth() -> None:
    holdings = {(0, 0): ShardMemory(100, 50), (0, 1): ShardMemory(300, 100)}
    # 400 held, 600 free: 150 for all alike, 450 by growth
    assert quotas(1000, holdings, 10) == {(0, 0): 100 + 75 + 150, (0, 1): 300 + 75 + 300}


def test_a_shard_without_growth_still_gets_a_share() -> None:
    holdings = {(0, 0): ShardMemory(0, 0), (1, 0): ShardMemory(0, 10**9)}
    assert quotas(1000, holdings, 0)[0, 0] == 125


def test_before_anything_grew_all_get_the_same() -> None:
    holdings = {(component, 0): ShardMemory(0) for component in range(4)}
    assert set(quotas(4000, holdings, 100).values()) == {1000}


def test_a_budget_that_is_just_enough_is_given_out_as_it_is_held() -> None:
    holdings = {(0, 0): ShardMemory(70, 5), (0, 1): ShardMemory(10, 500)}
    assert quotas(90, holdings, 20) == {(0, 0): 70, (0, 1): 20}


def test_a_budget_below_what_is_held_says_how_much_is_missing() -> None:
    holdings = {(0, 0): ShardMemory(70_000), (0, 1): ShardMemory(10_000)}
    with pytest.raises(BudgetError, match=r"give the query at least .* more with \.memory"):
        quotas(80_000, holdings, 20_000)


def test_nobody_gets_nothing() -> None:
    assert quotas(100, {}, 10) == {}
