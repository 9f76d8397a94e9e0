from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research import service_price as k
from bench.research.prediction import relaxed
from bench.research.queue_simulation import simulate
from bench.research.workloads import equal, in_turn, poisson, zipf
from tests.oracles.service_price import PriceReference, even_wait_reference

COST = 1_000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-5, 100_000),
            st.floats(0, 1e6),
            st.sampled_from([0.25, 1.0, 3.0]),
            st.integers(0, 5_000),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=200,
    ),
    st.sampled_from([0.0, 500.0, 3_000.0]),
)
def test_parity_prices_are_those_of_the_reference(
    services: list[tuple[int, float, float, int, int]], cost: float
) -> None:
    facts = np.zeros(k.PRICE_WORDS)
    facts[k.COST] = cost
    reference = PriceReference(cost)
    now = 0
    for waited, gap, weight, passed, others in services:
        now += passed
        k.learn_price(facts, waited, gap, weight, now, others)
        reference.learn(waited, gap, weight, now, others)
        price = k.learnt_price(facts)
        assert price >= 0
        assert price == pytest.approx(reference.price, rel=1e-6, abs=1e-3)
        worth = k.worth_of(waited, gap, weight, price)
        assert worth == pytest.approx(
            reference.worth(waited, gap, weight, price), rel=1e-6, abs=1e-3 * (1 + gap)
        )


def test_a_fair_wait_is_where_the_mean_cost_of_a_cycle_is_least() -> None:
    for gap, weight, price in ((0.0, 1.0, 8.0), (5.0, 1.0, 8.0), (5.0, 4.0, 100.0)):
        waits = np.linspace(0.001, 40, 400_000)
        cost = (weight * waits * waits / 2 + price) / (waits + gap)
        assert k.fair_wait(gap, weight, price) == pytest.approx(waits[cost.argmin()], abs=1e-3)
    assert k.fair_wait(0.0, 1.0, 0.0) == 0.0


def test_nobody_waits_at_a_price_of_0() -> None:
    facts = np.zeros(k.PRICE_WORDS)
    facts[k.COST] = COST
    for number in range(1_000):
        k.learn_price(facts, 0, 50_000.0, 1.0, number * 10_000, 0)
    assert k.learnt_price(facts) == 0.0


def test_under_overload_the_price_is_that_of_the_relaxed_problem() -> None:
    shares, load = zipf(50, 0.6), 3.0
    rates = shares * load / COST
    stream = poisson(shares, 60_000, COST / load, seed=1)
    facts = np.zeros(k.PRICE_WORDS)
    facts[k.COST] = COST
    found = simulate(stream, COST, "index", rates=rates)
    each = found.services
    prices = []
    for wait, key, taken in zip(each.wait, each.key, each.taken, strict=True):
        k.learn_price(facts, int(wait), 1.0 / rates[key], 1.0, int(taken), 1)
        prices.append(k.learnt_price(facts))
    settled = float(np.mean(prices[len(prices) // 2 :]))
    assert settled == pytest.approx(relaxed(rates, COST).price, rel=0.1)


def test_a_queue_without_a_known_cost_has_a_price_too() -> None:
    facts = np.zeros(k.PRICE_WORDS)
    for number in range(100):
        k.learn_price(facts, 30_000, 50_000.0, 1.0, number * 1_000, 3)
    assert k.learnt_price(facts) == pytest.approx(30_000**2 / 2 + 30_000 * 50_000, rel=0.05)
    assert math.isinf(facts[k.FREE_FROM])


def test_light_loads_of_equal_keys_are_served_in_turn() -> None:
    stream = in_turn(5, 500, 2 * COST)
    found = simulate(stream, COST, "index", rates=equal(5) / (2 * COST))
    # the last update comes as the stream ends
    assert found.services.key.tolist() == stream.keys.tolist()[:-1]


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1e9), st.floats(0, 1), st.floats(0.5, 1e8), st.floats(0, 1e15))
def test_parity_waits_of_even_keys(waited: float, part: float, gap: float, price: float) -> None:
    found = k.even_wait(waited, part * gap, gap, price)
    wanted = even_wait_reference(waited, part * gap, gap, price)
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-3 * (1 + waited + gap))


def test_an_even_key_is_worth_most_right_after_its_update() -> None:
    gap = 1_000.0
    for missed in range(4):
        waits = [
            k.even_wait(missed * gap + phase, gap - phase, gap, 10 * gap * gap)
            for phase in np.linspace(0, gap, 20, endpoint=False).tolist()
        ]
        assert waits == sorted(waits, reverse=True)
        # that of a key without a clock that would be served at the same price
        price = gap * gap * (missed * missed + 3 * missed + 1) / 2
        assert k.fair_wait(gap, 1.0, price) == pytest.approx(waits[0])
    assert k.even_wait(700.0, 300.0, gap, 0.0) == 700.0
