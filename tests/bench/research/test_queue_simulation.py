from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research.queue_simulation import ALL_SCHEDULES, Outcome, simulate
from bench.research.workloads import (
    UpdateWorkload,
    clocks,
    equal,
    in_turn,
    one_per_tick,
    poisson,
    slow_and_fast,
    zipf,
)
from icestream.core.errors import DefinitionError
from icestream.state.queue.order import SCHEDULES
from tests.oracles.plain_service import PlainServer, area

COST = 1_000


@st.composite
def streams(draw: st.DrawFn) -> UpdateWorkload:
    keys = draw(st.integers(1, 6))
    gaps = draw(st.lists(st.integers(1, 3 * COST), min_size=1, max_size=60))
    chosen = draw(st.lists(st.integers(0, keys - 1), min_size=len(gaps), max_size=len(gaps)))
    times = np.cumsum(np.array(gaps, dtype=np.int64))
    until = int(times[-1]) + draw(st.integers(1, 5 * COST))
    return UpdateWorkload(times, np.array(chosen, dtype=np.int64), keys, until)


def updates_of(stream: UpdateWorkload) -> list[tuple[int, int]]:
    return list(zip(stream.times.tolist(), stream.keys.tolist(), strict=True))


def areas(stream: UpdateWorkload, found: Outcome, until: int) -> tuple[float, float]:
    """Integrate both kinds of staleness over all keys, by the definition."""
    each = found.services
    taken = list(zip(each.taken.tolist(), each.key.tolist(), each.value.tolist(), strict=True))
    given_to = list(
        zip(each.delivered.tolist(), each.key.tolist(), each.value.tolist(), strict=True)
    )
    updates = updates_of(stream)
    keys = range(stream.key_count)
    return (
        sum(area(updates, taken, key, until) for key in keys),
        sum(area(updates, given_to, key, until) for key in keys),
    )


@settings(max_examples=60, deadline=None)
@given(
    streams(),
    st.sampled_from([*sorted(SCHEDULES), "index"]),
    st.integers(300, 4_000),
    st.booleans(),
)
def test_oracle_services_are_those_of_the_plain_model(
    stream: UpdateWorkload, schedule: str, cost: int, known: bool
) -> None:
    rates = (stream.rates + 1e-9) if known else None
    found = simulate(stream, cost, schedule, rates=rates)
    gaps = None if rates is None else (1.0 / rates).tolist()
    plain = PlainServer(schedule, cost, gaps).run(updates_of(stream), stream.until)
    assert found.services.key.tolist() == [each.key for each in plain]
    assert found.services.since.tolist() == [each.since for each in plain]
    assert found.services.value.tolist() == [each.value for each in plain]
    assert found.services.taken.tolist() == [each.taken for each in plain]


@settings(max_examples=60, deadline=None)
@given(streams(), st.sampled_from(ALL_SCHEDULES), st.integers(300, 4_000))
def test_oracle_staleness_is_that_of_the_definition(
    stream: UpdateWorkload, schedule: str, cost: int
) -> None:
    found = simulate(stream, cost, schedule)
    queue, application = areas(stream, found, stream.until)
    span = stream.until
    assert found.queue_of_key.sum() * span == pytest.approx(queue)
    assert found.application_of_key.sum() * span == pytest.approx(application)


@settings(max_examples=60, deadline=None)
@given(streams(), st.sampled_from([*sorted(SCHEDULES), "index"]), st.data())
def test_the_two_kinds_of_staleness_stay_in_their_bound(
    stream: UpdateWorkload, schedule: str, data: st.DataObject
) -> None:
    costs = np.array(
        data.draw(
            st.lists(st.integers(1, 4_000), min_size=stream.key_count, max_size=stream.key_count)
        )
    )
    # long enough for every cycle to be complete
    until = stream.until + int(costs.max()) * (stream.key_count + 2)
    found = simulate(stream, costs, schedule, until=until)
    each = found.services
    for key in range(stream.key_count):
        mine = each.key == key
        least = float((each.wait[mine] * each.cost[mine]).sum())
        most = least + float((each.cost[mine] ** 2).sum()) / 2
        apart = (found.application_of_key[key] - found.queue_of_key[key]) * until
        assert least - 1e-3 <= apart <= most + 1e-3


def test_the_bound_holds_over_long_runs_of_every_schedule() -> None:
    for load in (0.5, 1.0, 5.0):
        for shares in (equal(1), equal(10), zipf(20, 0.9), slow_and_fast(10, 8, 50)):
            stream = poisson(shares, 5_000, COST / load, seed=3)
            until = stream.until + COST * (len(shares) + 2)
            for schedule in SCHEDULES:
                found = simulate(stream, COST, schedule, until=until)
                wait, cost = found.services.wait, found.services.cost
                least = float((wait * cost).sum()) / until / stream.key_count
                most = least + float((cost**2).sum()) / 2 / until / stream.key_count
                apart = found.application.average - found.queue.average
                assert least * (1 - 1e-9) <= apart <= most * (1 + 1e-9)


def test_a_simulation_is_a_function_of_its_arguments() -> None:
    stream = poisson(zipf(30, 0.9), 3_000, COST / 2, seed=1)
    for schedule in ALL_SCHEDULES:
        one, other = (simulate(stream, COST, schedule, seed=5) for _ in range(2))
        assert one.queue == other.queue
        assert one.application == other.application
        assert one.services.key.tolist() == other.services.key.tolist()


def test_a_single_key_is_served_alike_by_every_update_schedule() -> None:
    stream = in_turn(1, 2_000, COST / 5)
    found = {name: simulate(stream, COST, name).application.average for name in SCHEDULES}
    assert len(set(found.values())) == 1
    # the oldest pending update is up to a fifth of a service old when a service begins
    assert found["inplace"] == pytest.approx(1.3 * COST, rel=0.01)


def test_append_queues_fall_behind_and_update_queues_do_not() -> None:
    stream = in_turn(10, 20_000, COST / 5)
    found = {name: simulate(stream, COST, name).application.average for name in ALL_SCHEDULES}
    assert found["append"] > 100 * found["inplace"]
    assert found["shedding"] > 1.8 * found["inplace"]


def test_equal_keys_are_served_by_index_as_by_inplace() -> None:
    stream = one_per_tick(equal(20), 5_000, COST / 3, seed=2)
    one, other = (
        simulate(stream, COST, name, rates=np.full(20, 3 / 20 / COST))
        for name in ("index", "inplace")
    )
    assert one.services.key.tolist() == other.services.key.tolist()


def test_linecutting_is_inplace_without_slow_keys_and_with_slow_keys_only() -> None:
    for slow in (0, 10):
        stream = one_per_tick(slow_and_fast(10, slow, 50), 20_000, COST / 5, seed=4)
        rates = slow_and_fast(10, slow, 50) * 5 / COST
        cut, kept = (
            simulate(stream, COST, name, rates=rates).queue.average
            for name in ("linecutting", "inplace")
        )
        assert cut == pytest.approx(kept, rel=0.01)


def test_important_keys_are_fresher() -> None:
    stream = poisson(equal(50), 40_000, COST / 4, seed=6)
    importance = np.where(np.arange(50) < 5, 8.0, 1.0)
    plain = simulate(stream, COST, "index", warm_up=stream.until // 10)
    weighed = simulate(stream, COST, "index", importance=importance, warm_up=stream.until // 10)
    assert weighed.queue_of_key[:5].mean() < 0.5 * plain.queue_of_key[:5].mean()
    least = (importance * plain.queue_of_key).sum() / importance.sum()
    assert (importance * weighed.queue_of_key).sum() / importance.sum() < 0.95 * least


def test_index_is_fresher_than_linecutting_and_inplace_where_rates_differ() -> None:
    for load in (0.95, 2.0, 5.0):
        shares = zipf(100, 0.9)
        stream = poisson(shares, 60_000, COST / load, seed=7)
        for rates in (None, shares * load / COST):
            found = {
                name: simulate(
                    stream, COST, name, rates=rates, warm_up=stream.until // 20
                ).queue.average
                for name in ("index", "linecutting", "inplace")
            }
            assert found["index"] < found["linecutting"] / 1.1
            assert found["index"] < found["inplace"] / 1.03


@pytest.mark.parametrize("load", [1.5, 2.0, 5.0])
def test_keys_with_even_gaps_are_served_right_after_their_updates(load: float) -> None:
    stream = in_turn(50, int(6_000 * load), COST / load)
    found = {
        name: simulate(stream, COST, name, warm_up=stream.until // 2).queue.average
        for name in ("index", "linecutting", "inplace")
    }
    assert found["index"] < 1.015 * found["linecutting"]
    assert found["index"] < 0.85 * found["inplace"]


def test_even_keys_are_served_in_turn_where_services_are_free() -> None:
    stream = clocks(equal(50), 4_000, COST / 0.7, seed=3)
    one, other = (simulate(stream, COST, name).queue.average for name in ("index", "inplace"))
    assert one == pytest.approx(other, rel=0.02)


def test_no_even_key_is_left_out_for_good_when_it_is_always_updated_too_early() -> None:
    # a service takes as long as a whole round: the same key is always the last to be updated
    stream = in_turn(20, 20_000, COST / 20)
    found = simulate(stream, COST, "index")
    assert np.bincount(found.services.key, minlength=20).min() > 20


def test_wrong_schedules_and_costs_are_refused() -> None:
    stream = in_turn(1, 10, COST)
    with pytest.raises(DefinitionError, match="choose one of"):
        simulate(stream, COST, "lifo")
    with pytest.raises(DefinitionError, match="> 0"):
        simulate(stream, 0, "inplace")
