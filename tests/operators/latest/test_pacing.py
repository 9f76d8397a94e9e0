from __future__ import annotations

import pytest

from icestream.operators.latest.pacing import MOST_KEYS, Pace, ServingTime


def served(pace: Pace, budget: int, call: int, each: int) -> tuple[int, int]:
    """Serve for a budget with a function of such a cost; return keys and time."""
    spent = keys = 0
    while count := pace.slice(budget - spent, first=not keys):
        took = call + each * count
        pace.learn(count, took)
        spent += took
        keys += count
    return keys, spent


@pytest.mark.parametrize(("call", "each"), [(0, 10_000), (5_000, 1_000), (50_000, 10), (0, 1)])
def test_bounded_slices_end_within_the_time_there_is(call: int, each: int) -> None:
    pace, budget = Pace(), 500_000
    served(pace, budget, call, each)
    for _ in range(10):
        keys, spent = served(pace, budget, call, each)
        assert spent <= 1.01 * budget
        most = min((budget - call) // each, MOST_KEYS)
        assert keys >= 0.6 * most


def test_a_batch_without_time_serves_one_key() -> None:
    pace = Pace()
    assert served(pace, 0, 0, 1_000_000)[0] == 1
    assert served(pace, 0, 0, 1_000_000)[0] == 1


def test_one_slow_call_is_not_believed() -> None:
    """A model that loads in its first call, or a pause later, costs that call alone."""
    pace = Pace()
    assert pace.slice(500_000, first=True) == 1
    pace.learn(1, 10_000_000)
    assert served(pace, 500_000, 0, 1_000)[0] >= 400
    pace.learn(100, 5_000_000)
    assert served(pace, 500_000, 0, 1_000)[0] >= 400
    again = Pace()
    again.learn(1, 1_000)
    again.learn(1, 10_000_000)
    assert served(again, 500_000, 0, 1_000)[0] >= 400


def test_a_share_is_a_part_of_what_others_left() -> None:
    time = ServingTime(800, [1.0, 2.0, 1.0])
    assert time.share() == 200
    time.spent += 20
    assert time.share() == 520
    time.spent += 520
    assert time.share() == 260


def test_fixed_and_single_cost_are_told_apart() -> None:
    pace = Pace()
    for count in (1, 10, 100, 50):
        pace.learn(count, 2_000 + 30 * count)
    assert pace.cost == pytest.approx((2_000, 30))


def test_a_cost_that_rises_is_found_out() -> None:
    pace = Pace()
    for _ in range(20):
        pace.learn(100, 1_000)
    for _ in range(40):
        pace.learn(100, 100_000)
    assert sum(pace.cost) == pytest.approx(1_000, rel=0.1)
