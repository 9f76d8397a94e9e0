from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from bench.research.queue_optimum import (
    Ages,
    SmallSystem,
    independent,
    longest_waiting,
    one_per_tick,
)
from bench.research.queue_simulation import simulate
from bench.research.workloads import UpdateWorkload

TICK = 1_000


def shortest_waiting(ages: Ages) -> int:
    return min((age, key) for key, age in enumerate(ages) if age is not None)[1]


EQUAL = [
    SmallSystem(2, 2, 12, one_per_tick([0.5] * 2)),
    SmallSystem(3, 1, 10, independent([0.4] * 3)),
    SmallSystem(3, 2, 12, one_per_tick([1 / 3] * 3)),
    SmallSystem(3, 3, 14, independent([0.2] * 3)),
    SmallSystem(4, 2, 10, one_per_tick([0.25] * 4)),
    SmallSystem(4, 3, 9, independent([0.15] * 4)),
]


@pytest.mark.parametrize("case", EQUAL, ids=lambda case: f"{case.keys} keys of cost {case.cost}")
def test_oracle_equal_keys_are_served_best_in_place(case: SmallSystem) -> None:
    assert case.of_rule(longest_waiting) == pytest.approx(case.least(), rel=1e-12)
    assert case.of_rule(shortest_waiting) > case.least() * 1.001


def test_keys_that_differ_are_not_served_best_in_place() -> None:
    case = SmallSystem(3, 2, 14, independent([0.9, 0.9, 0.1]), alike=False)
    assert case.least() < case.of_rule(longest_waiting) * 0.999


def test_idling_and_foresight_never_cost() -> None:
    case = SmallSystem(2, 2, 8, one_per_tick([0.5] * 2))
    assert case.least(idling=True) <= case.least() + 1e-12
    assert case.foreseen() < 0.9 * case.least()


@pytest.mark.parametrize(("keys", "cost", "horizon"), [(2, 2, 8), (3, 2, 6), (2, 3, 8)])
def test_oracle_the_programme_is_the_mean_of_all_simulated_streams(
    keys: int, cost: int, horizon: int
) -> None:
    total = 0.0
    for drawn in product(range(keys), repeat=horizon):
        times = np.arange(horizon, dtype=np.int64) * TICK
        stream = UpdateWorkload(times, np.array(drawn, dtype=np.int64), keys, horizon * TICK)
        found = simulate(stream, cost * TICK, "inplace")
        total += float(found.queue_of_key.sum()) * horizon / TICK
    case = SmallSystem(keys, cost, horizon, one_per_tick([1 / keys] * keys))
    assert total / keys**horizon == pytest.approx(case.least(), rel=1e-9)
