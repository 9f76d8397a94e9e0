from __future__ import annotations

import numpy as np
import pytest

from bench.research.prediction import predict, relaxed
from bench.research.queue_simulation import simulate
from bench.research.workloads import equal, poisson, slow_and_fast, zipf
from icestream.core.errors import DefinitionError
from icestream.state.queue.order import SCHEDULES

COST = 1_000


@pytest.mark.parametrize("load", [1.5, 3.0, 10.0])
def test_no_schedule_is_below_the_relaxed_bound(load: float) -> None:
    for shares in (equal(30), zipf(60, 0.9), slow_and_fast(10, 8, 50)):
        rates = shares * load / COST
        bound = relaxed(rates, COST).bound
        stream = poisson(shares, 60_000, COST / load, seed=1)
        for schedule in SCHEDULES:
            found = simulate(stream, COST, schedule, warm_up=stream.until // 10)
            # random streams differ from their expectation by a little
            assert found.queue.average > 0.98 * bound


def test_index_comes_close_to_the_relaxed_bound_with_many_keys() -> None:
    shares = zipf(400, 0.9)
    stream = poisson(shares, 200_000, COST / 3, seed=1)
    found = simulate(stream, COST, "index", warm_up=stream.until // 4)
    assert found.queue.average == pytest.approx(relaxed(shares * 3 / COST, COST).bound, rel=0.05)


def test_the_relaxed_server_is_just_busy() -> None:
    rates = zipf(50, 0.9) * 4
    found = relaxed(rates, 1.0)
    assert found.services.sum() == pytest.approx(1.0)
    idle = relaxed(rates / 8, 1.0)
    assert (idle.bound, idle.price) == (0.0, 0.0)


def test_a_prediction_is_its_arguments() -> None:
    rates = np.full(100, 12.5)
    assert predict(rates, 0.004) == predict(rates, 0.004)
    assert predict(rates, 0.004, seed=1) != predict(rates, 0.004)


def test_equal_keys_under_overload_wait_for_their_turn() -> None:
    # 100 keys of 4 ms: a turn of 0.4 s; updates every 80 ms, so a key waits 0.32 s of it
    found = predict(np.full(100, 12.5), 0.004, "inplace")
    assert found.turn == pytest.approx(0.4, rel=0.02)
    assert found.queue == pytest.approx(0.32**2 / 2 / 0.4, rel=0.03)
    assert found.queue < found.application < found.queue + 0.005
    assert found.p50 < found.p99 < 0.5


def test_what_every_update_waits_for_grows_with_time() -> None:
    rates = np.full(10, 100.0)
    short, long = (predict(rates, 0.004, "append", seconds=s).application for s in (10, 20))
    assert long == pytest.approx(2 * short, rel=0.1)
    assert short == pytest.approx(10 * 0.75 / 2, rel=0.1)


def test_rates_and_costs_that_make_no_sense_are_refused() -> None:
    for rates, cost in (([], 1.0), ([0.0], 1.0), ([-1.0, 2.0], 1.0), ([1.0], 0.0)):
        with pytest.raises(DefinitionError, match="rates must be"):
            predict(np.array(rates), cost)
