"""Units of state and the tasks that run them."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from icestream.plan.placing import rebalanced, spread


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[float], tuple[int, ...], int]:
    units = draw(st.integers(1, 24))
    tasks = draw(st.integers(1, units))
    load = st.floats(0, 100, allow_nan=False)
    loads = draw(st.lists(load, min_size=units, max_size=units))
    return loads, tuple(unit * tasks // units for unit in range(units)), tasks


def sums(loads: list[float], placement: tuple[int, ...], tasks: int) -> list[float]:
    return [sum(x for x, at in zip(loads, placement, strict=True) if at == t) for t in range(tasks)]


@given(placements(), st.integers(1, 24))
def test_every_task_has_a_shard_and_every_shard_one_task(
    case: tuple[list[float], tuple[int, ...], int], wanted: int
) -> None:
    loads, placement, _ = case
    tasks = min(wanted, len(loads))
    assert set(spread(loads, placement, tasks)) == set(range(tasks))


@given(placements(), st.integers(0, 24))
def test_evening_out_never_makes_it_worse(
    case: tuple[list[float], tuple[int, ...], int], moves: int
) -> None:
    loads, placement, tasks = case
    evened = rebalanced(loads, placement, tasks, tolerance=0.1, most_moves=moves)
    assert set(evened) == set(range(tasks))
    assert sum(a != b for a, b in zip(placement, evened, strict=True)) <= moves
    before, after = (statistics.pvariance(sums(loads, each, tasks)) for each in (placement, evened))
    assert after <= before * (1 + 1e-9) + 1e-9


def test_a_new_number_of_tasks_moves_little() -> None:
    loads = [1.0] * 16
    two = tuple(unit // 8 for unit in range(16))
    four = spread(loads, two, 4)
    assert sorted(four.count(task) for task in range(4)) == [4, 4, 4, 4]
    assert sum(a != b for a, b in zip(two, four, strict=True)) == 8
    back = spread(loads, four, 2)
    assert sorted(back.count(task) for task in range(2)) == [8, 8]
    assert sum(a != b for a, b in zip(four, back, strict=True)) == 8


def test_a_hot_unit_is_left_alone_with_its_task() -> None:
    loads = [10.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    placement = spread(loads, (0,) * 8, 2)
    assert placement.count(placement[0]) == 1


def test_loads_within_the_tolerance_stay() -> None:
    placement = rebalanced([5, 5, 6, 6], (0, 0, 1, 1), 2, tolerance=0.25, most_moves=4)
    assert placement == (0, 0, 1, 1)
