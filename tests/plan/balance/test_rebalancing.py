from __future__ import annotations

from statistics import pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.plan.balance.rebalancing import (
    hot_shards,
    isolated,
    rebalanced,
    spread,
    totals,
)

LOADS = st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=40)


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[float], list[int], int]:
    loads = draw(LOADS)
    tasks = draw(st.integers(1, 9))
    places = st.integers(0, tasks - 1)
    return loads, draw(st.lists(places, min_size=len(loads), max_size=len(loads))), tasks


def variance(loads: list[float], placed: tuple[int, ...] | list[int], tasks: int) -> float:
    return pvariance(totals(loads, placed, tasks))


@given(placements(), st.integers(0, 20))
def test_rebalancing_never_raises_variance(
    given_: tuple[list[float], list[int], int], most: int
) -> None:
    loads, places, tasks = given_
    before = variance(loads, places, tasks)
    for moves in range(most):
        placed = rebalanced(loads, places, tasks, tolerance=0.0, most_moves=moves)
        after = variance(loads, placed, tasks)
        assert after <= before
        assert after < before or placed == rebalanced(
            loads, places, tasks, tolerance=0.0, most_moves=max(0, moves - 1)
        )
        before = after


@given(placements(), st.integers(0, 20), st.sampled_from((0.0, 0.1, 0.5)))
def test_bounded_moves(
    given_: tuple[list[float], list[int], int], most: int, tolerance: float
) -> None:
    loads, places, tasks = given_
    placed = rebalanced(loads, places, tasks, tolerance=tolerance, most_moves=most)
    assert placed == rebalanced(loads, places, tasks, tolerance=tolerance, most_moves=most)
    moved = [shard for shard, where in enumerate(placed) if where != places[shard]]
    assert len(moved) <= most
    assert all(loads[shard] > 0 for shard in moved)
    assert all(0 <= where < tasks for where in placed)
    sums = totals(loads, places, tasks)
    if max(sums) <= sum(sums) / tasks * (1 + tolerance):
        assert not moved


@given(placements(), st.sampled_from((0.0, 0.1, 0.5)))
def test_oracle_no_move_of_the_most_loaded_task_is_left(
    given_: tuple[list[float], list[int], int], tolerance: float
) -> None:
    loads, places, tasks = given_
    placed = rebalanced(loads, places, tasks, tolerance=tolerance, most_moves=10_000)
    sums = totals(loads, placed, tasks)
    most, least = sums.index(max(sums)), sums.index(min(sums))
    if sums[most] > sum(sums) / tasks * (1 + tolerance):
        before = variance(loads, placed, tasks)
        for shard, where in enumerate(placed):
            if where == most:
                trial = [*placed[:shard], least, *placed[shard + 1 :]]
                assert variance(loads, trial, tasks) >= before * (1 - 1e-9)
                for back, there in enumerate(placed):
                    if there == least and loads[back] > 0:
                        changed = [*trial[:back], most, *trial[back + 1 :]]
                        assert variance(loads, changed, tasks) >= before * (1 - 1e-9)


def test_units_change_places_where_one_is_too_big_to_move() -> None:
    loads, places = [24.0] * 4 + [14.0] * 5, [0] * 4 + [1] * 5
    placed = rebalanced(loads, places, 2, tolerance=0.05, most_moves=4)
    assert totals(loads, placed, 2) == [86, 80]
    assert sum(map(int.__ne__, placed, places)) == 2
    # one move alone is half of a change
    assert rebalanced(loads, places, 2, tolerance=0.05, most_moves=1) == tuple(places)


def test_the_most_loaded_gives_to_the_least_and_the_second_to_the_second_least() -> None:
    # task 0 has 10 + 4 + 2, task 1 has 9 + 3, task 2 has 4, task 3 has 0
    loads, places = [10.0, 4.0, 2.0, 9.0, 3.0, 4.0], [0, 0, 0, 1, 1, 2]
    placed = rebalanced(loads, places, 4, tolerance=0.1, most_moves=2)
    # gaps 16 and 8: nearest to 8 is 10, nearest to 4 is 3
    assert placed == (3, 0, 0, 1, 2, 2)
    assert totals(loads, placed, 4) == [6, 9, 7, 10]


def test_moving_skew_is_evened_out() -> None:
    loads = [1.0] * 256
    for shard in range(0, 256, 8):
        loads[shard] = 4.0
    placed = rebalanced(
        loads, [shard % 8 for shard in range(256)], 8, tolerance=0.05, most_moves=256
    )
    sums = totals(loads, placed, 8)
    assert max(sums) <= 1.05 * sum(sums) / 8
    assert sum(where != shard % 8 for shard, where in enumerate(placed)) <= 40


@given(placements(), st.integers(1, 12), st.sampled_from((0.0, 0.1)))
def test_oracle_spreading_moves_little_more_than_it_must(
    given_: tuple[list[float], list[int], int], after: int, tolerance: float
) -> None:
    loads, places, _ = given_
    # as they are counted: nothing weighs nothing
    mean = sum(loads) / len(loads)
    loads = [max(load, mean / 1000) if mean else 1.0 for load in loads]
    placed = spread(loads, after, task_of=places, tolerance=tolerance)
    assert all(0 <= where < after for where in placed)
    ceiling = sum(loads) / after * (1 + tolerance)
    sums = totals(loads, places, max([after, *places]) + 1)
    must = sum(sums[after:]) + sum(max(0.0, load - ceiling) for load in sums[:after])
    moved = sum(loads[shard] for shard, where in enumerate(placed) if where != places[shard])
    assert moved <= must + sum(load > ceiling for load in sums[:after]) * max(loads) + 1e-6
    # list scheduling: nobody has more than the mean and one unit
    assert max(totals(loads, placed, after)) <= max(ceiling, sum(loads) / after + max(loads)) + 1e-6


def test_more_tasks_take_from_all_and_fewer_give_to_all() -> None:
    loads = [1.0] * 12
    placed = spread(loads, 3, task_of=[0] * 6 + [1] * 6, tolerance=0.0)
    assert totals(loads, placed, 3) == [4, 4, 4]
    assert sum(where == 2 for where in placed) == 4
    back = spread(loads, 2, task_of=placed, tolerance=0.0)
    assert totals(loads, back, 2) == [6, 6]
    assert sum(a != b for a, b in zip(placed, back, strict=True)) == 4
    # nothing measured yet: by number
    assert totals(loads, spread([0.0] * 12, 4), 4) == [3, 3, 3, 3]
    assert spread([], 4) == ()
    with pytest.raises(DefinitionError, match="0 tasks"):
        spread([1.0], 0)


@given(placements(), st.integers(0, 20))
def test_isolating_never_raises_variance(
    given_: tuple[list[float], list[int], int], most: int
) -> None:
    loads, places, tasks = given_
    placed = isolated(loads, places, tasks, most_moves=most)
    assert variance(loads, placed, tasks) <= variance(loads, places, tasks) * (1 + 1e-9)
    assert sum(a != b for a, b in zip(placed, places, strict=True)) <= most
    hot = hot_shards(loads, tasks)
    assert all(placed[shard] == places[shard] for shard in hot)


def test_a_hot_shard_keeps_its_task_to_itself() -> None:
    loads = [90.0, 5.0, 5.0, 10.0, 10.0]
    assert hot_shards(loads, 3) == (0,)
    placed = isolated(loads, [0, 0, 0, 1, 2], 3, most_moves=9)
    assert placed[0] == 0
    assert 0 not in placed[1:]


def test_places_that_are_not_there_are_refused() -> None:
    with pytest.raises(DefinitionError, match="places"):
        rebalanced([1.0, 2.0], [0, 3], 2, most_moves=1)
