from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import BudgetError
from icestream.state.budget import (
    Account,
    Budget,
    BudgetInTurns,
    Refused,
    buffers_in_turns,
    fail,
)


def test_a_refused_call_changes_nothing() -> None:
    budget = Budget(100)
    first, second = budget.account("first"), budget.account("second")
    first.reserve(70)
    with pytest.raises(Refused) as refused:
        second.reserve(31)
    assert (refused.value.owner, refused.value.needed, refused.value.free) == ("second", 31, 30)
    assert not second.try_reserve(31)
    with pytest.raises(Refused):
        first.resize(101)
    with pytest.raises(ValueError, match="cannot release"):
        second.release(1)
    assert (first.held, second.held, budget.held, budget.peak) == (70, 0, 70, 70)
    assert second.try_reserve(30)


def test_resize_sets_exactly_what_is_held() -> None:
    budget = Budget(100)
    account = budget.account("table")
    for size in (100, 0, 40, 41, 7):
        account.resize(size)
        assert account.held == budget.held == size


def test_peak_remembers_the_most_ever_held() -> None:
    budget = Budget(100)
    first, second = budget.account("first"), budget.account("second")
    first.reserve(50)
    second.reserve(30)
    first.release(50)
    second.reserve(40)
    assert (budget.held, budget.peak) == (70, 80)


def test_closing_gives_everything_back_once() -> None:
    budget = Budget(10)
    account = budget.account("index")
    account.reserve(10)
    account.close()
    account.close()
    assert budget.held == account.held == 0
    with pytest.raises(ValueError, match="closed"):
        account.reserve(1)


@pytest.mark.parametrize("call", [Account.reserve, Account.try_reserve, Account.release])
def test_negative_sizes_are_errors_of_the_program(call: object) -> None:
    assert callable(call)
    account = Budget(10).account("x")
    with pytest.raises(ValueError, match="negative"):
        call(account, -1)
    with pytest.raises(ValueError, match="negative"):
        Budget(-1)


def test_the_report_adds_up_owners_and_puts_the_largest_first() -> None:
    budget = Budget(8192)
    for owner, size in (("panes", 1024), ("keys", 1500), ("panes", 1024), ("idle", 0)):
        budget.account(owner).reserve(size)
    assert budget.report().splitlines() == [
        "panes      2.0 KB",
        "keys       1.5 KB",
        "free       4.5 KB",
        "total      8.0 KB",
    ]


def test_the_error_says_who_holds_what_and_how_much_more_is_needed() -> None:
    budget = Budget(4096)
    budget.account("panes").reserve(3072)
    error = fail(budget, 2048, "keys")
    assert isinstance(error, BudgetError)
    assert "keys needs 2.0 KB" in str(error)
    assert error.needed == 5120
    assert "panes      3.0 KB" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.needed == error.needed


def test_what_a_part_needs_is_told_of_the_whole() -> None:
    part = Budget(8192).part("windows", 2048)
    part.account("panes").reserve(1024)
    assert fail(part, 3072, "keys").needed == 2 * 8192


def test_a_refusal_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(Refused("keys", 2048, 1024)))
    assert str(copy) == "keys requested 2.0 KB, 1.0 KB is free"


CALLS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["reserve", "try_reserve", "release", "resize", "close"]),
        st.integers(0, 120),
    ),
    max_size=40,
)


@given(CALLS)
def test_oracle_any_sequence_of_calls_keeps_the_books_exact(
    calls: list[tuple[int, str, int]],
) -> None:
    budget, books, peak = Budget(200), [0, 0, 0, 0], 0
    accounts = [budget.account(str(i)) for i in range(4)]
    for who, call, size in calls:
        account, rest = accounts[who], 200 - sum(books)
        if call == "close":
            account.close()
            accounts[who], books[who] = budget.account(str(who)), 0
        elif call == "release":
            if size <= books[who]:
                account.release(size)
                books[who] -= size
        else:
            change = size - books[who] if call == "resize" else size
            fits = change <= rest
            if call == "try_reserve":
                assert account.try_reserve(size) == fits
            elif fits:
                getattr(account, call)(size)
            else:
                with pytest.raises(Refused):
                    getattr(account, call)(size)
            books[who] += change if fits else 0
        peak = max(peak, sum(books))
        assert [a.held for a in accounts] == books
        assert (budget.held, budget.peak) == (sum(books), peak)


def test_bounded_threads_together_never_hold_more_than_the_total() -> None:
    budget = Budget(1000)

    def work(owner: int) -> int:
        account, kept = budget.account(str(owner)), 0
        for step in range(2000):
            if account.try_reserve(step % 7):
                kept += step % 7
            if step % 3 == 0:
                account.release(kept)
                kept = 0
        return kept

    with ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(work, range(4)))
    assert budget.held == sum(kept)
    assert budget.peak <= 1000


def test_a_part_holds_of_the_whole() -> None:
    whole = Budget(100)
    part = whole.part("one", 60)
    first, second = part.account("a"), part.account("b")
    first.reserve(40)
    assert (part.held, whole.held, whole.holders()) == (40, 40, {"one": 40})
    assert not second.try_reserve(21)
    other = whole.account("other")
    other.reserve(55)
    assert part.free == 5
    assert not second.try_reserve(6)
    assert (part.held, whole.held) == (40, 95)
    with pytest.raises(ValueError, match="cannot release"):
        first.release(41)
    first.release(10)
    second.resize(15)
    assert (part.held, whole.held, whole.peak) == (45, 100, 100)
    first.close()
    assert (part.held, whole.held) == (15, 70)
    with pytest.raises(ValueError, match="closed"):
        first.reserve(1)
    assert (part.held, whole.held) == (15, 70)


@given(
    st.lists(st.integers(1, 1 << 30), min_size=1, max_size=20),
    st.integers(1, 8),
    st.data(),
)
def test_oracle_shards_in_turns_hold_no_more_than_their_quotas(
    quotas: list[int], tasks: int, data: st.DataObject
) -> None:
    tasks = min(tasks, len(quotas))
    buffers = buffers_in_turns(quotas, tasks)
    budgets = [BudgetInTurns(quota, buffers) for quota in quotas]
    own = [budget.total - buffers for budget in budgets]
    # an eighth of each quota stays for shards that are prepared meanwhile
    left = sum(quota // 8 for quota in quotas)
    assert sum(own) + tasks * buffers + left <= sum(quotas)
    held = [data.draw(st.integers(0, size)) for size in own]
    for budget, size, quota in zip(budgets, held, quotas, strict=True):
        budget.account("buffers").reserve(buffers)
        budget.account("groups").reserve(size)
        assert budget.whole(budget.held) <= quota
    charged = sum(budget.charged(budget.held) for budget in budgets)
    assert sum(held) + tasks * buffers <= charged <= sum(quotas)
