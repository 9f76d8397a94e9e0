from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.plan.balance.rebalancing import spread
from icestream.plan.balance.sizing import (
    GROW_AFTER,
    SHRINK_AFTER,
    BatchMeasurements,
    Bounds,
    Sizing,
    room_of,
    sized,
    wanted_tasks,
)

LOADS = st.lists(st.floats(0, 10), min_size=1, max_size=12)


def measured(
    loads: Sequence[float],
    *,
    batch: float | None = None,
    interval: float | None = None,
    cores: int = 16,
    tasks: int = 1,
) -> BatchMeasurements:
    return BatchMeasurements(loads, spread(loads, tasks), batch, interval, cores)


def run(sizing: Sizing, bounds: Bounds, loads: Sequence[float], batches: int) -> list[Sizing]:
    found = [sizing]
    for _ in range(batches):
        found.append(sized(found[-1], bounds, measured(loads, tasks=found[-1].tasks)))
    return found[1:]


def test_work_that_is_worth_more_tasks_gets_them_after_two_batches() -> None:
    found = run(Sizing(2), Bounds(2, 8), [0.2] * 8, 3)
    assert [each.tasks for each in found] == [2, 8, 8]
    assert found[1].why == "shards take 1.60 s of a batch, and a task has room for 0.20 s"
    assert found[2].why == found[1].why, "the reason of the last change stays"


def test_tasks_without_work_go_after_eight_batches() -> None:
    found = run(Sizing(8), Bounds(2, 8), [0.05] * 8, SHRINK_AFTER + 1)
    assert [each.tasks for each in found] == [8] * (SHRINK_AFTER - 1) + [3, 3]


def test_a_batch_that_ends_well_before_the_next_trigger_needs_no_more_tasks() -> None:
    # of 2 seconds a batch should take 1.4; 0.4 go to reading and committing
    calm = measured([0.3] * 4, batch=1.6, interval=2.0)
    assert room_of(calm) == pytest.approx(1.0)
    assert wanted_tasks(calm, room_of(calm)) == 2
    assert wanted_tasks(measured([0.05] * 4, batch=0.3, interval=2.0), 1.3) == 1


def test_a_shard_that_is_too_hot_wants_no_tasks_beside_it() -> None:
    assert wanted_tasks(measured([4.0, 0.1, 0.1, 0.1]), 0.2) == 2
    assert wanted_tasks(measured([1.0] * 8, cores=3), 0.2) == 3


def test_one_odd_batch_changes_nothing() -> None:
    bounds, steady, odd = Bounds(1, 8), [0.1] * 8, [2.0] * 8
    before = run(Sizing(4), bounds, steady, 2)[-1]
    assert before.tasks == 4
    struck = sized(before, bounds, measured(odd, tasks=4))
    assert struck.tasks == 4
    assert [each.tasks for each in run(struck, bounds, steady, GROW_AFTER)] == [4] * GROW_AFTER


def test_new_bounds_hold_at_once() -> None:
    assert sized(Sizing(8), Bounds(1, 3), measured([1.0] * 8)).tasks == 3
    assert sized(Sizing(1), Bounds(2, 2), measured([0.0] * 8)).tasks == 2


@given(LOADS, st.integers(1, 6), st.integers(0, 6), st.integers(1, 12))
def test_bounded_tasks_stay_within_their_bounds(
    loads: list[float], least: int, more: int, first: int
) -> None:
    bounds = Bounds(least, least + more)
    for each in run(Sizing(first), bounds, loads, 12):
        assert bounds.least <= each.tasks <= bounds.most


@given(LOADS, st.integers(1, 8))
def test_a_steady_load_settles(loads: list[float], first: int) -> None:
    found = run(Sizing(first), Bounds(1, 8), loads, 4 * SHRINK_AFTER)
    assert len({each.tasks for each in found[2 * SHRINK_AFTER :]}) == 1


@pytest.mark.parametrize(("least", "most"), [(0, 3), (4, 2)])
def test_bounds_with_nothing_between_are_refused(least: int, most: int) -> None:
    with pytest.raises(DefinitionError, match="max tasks must be >= min tasks"):
        Bounds(least, most)
