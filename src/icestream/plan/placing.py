"""Sharing units of state out to tasks, moving as little as possible.

Idea: to even out, the unit that brings the most and the least loaded task nearest to each other
moves between them, again and again, as long as the two get nearer. For another number of tasks,
units of tasks that go are handed one by one, the heaviest first, to the least loaded task; tasks
that come are filled by evening out.

Invariants:
1. Every task has a unit, and every unit one task
   (`test_every_task_has_a_shard_and_every_shard_one_task`).
2. The variance of what tasks take never grows (`test_evening_out_never_makes_it_worse`).

Cost: O(units) for each move.

References: Shah et al., Flux, 2003.
"""

from __future__ import annotations

from collections.abc import Sequence


def rebalanced(
    loads: Sequence[float],
    task_of: Sequence[int],
    tasks: int,
    *,
    tolerance: float,
    most_moves: int,
) -> tuple[int, ...]:
    """Return the task of each unit once at most so many have moved to even out the loads.

    Nothing moves while no task takes more than the average by `tolerance` times the average.
    """
    placement = list(task_of)
    sums = _sums(loads, placement, tasks)
    for _ in range(most_moves):
        most = max(range(tasks), key=sums.__getitem__)
        if sums[most] <= (1 + tolerance) * sum(sums) / tasks:
            break
        least = min(range(tasks), key=sums.__getitem__)
        unit = _best(loads, placement, most, sums[most] - sums[least])
        if unit is None:
            break
        _move(unit, least, loads, placement, sums)
    return tuple(placement)


def spread(loads: Sequence[float], task_of: Sequence[int], tasks: int) -> tuple[int, ...]:
    """Return the task of each unit for another number of tasks."""
    placement = [min(task, tasks) for task in task_of]
    sums = _sums(loads, placement, tasks + 1)
    homeless = [unit for unit, task in enumerate(placement) if task == tasks]
    for unit in sorted(homeless, key=lambda each: (-loads[each], each)):
        _move(unit, _least(sums, placement, tasks), loads, placement, sums)
    for task in range(tasks):
        if task not in placement:
            giver = max(
                (each for each in range(tasks) if placement.count(each) > 1),
                key=sums.__getitem__,
            )
            mine = [unit for unit, at in enumerate(placement) if at == giver]
            heaviest = max(mine, key=lambda unit: loads[unit])
            _move(heaviest, task, loads, placement, sums)
    return rebalanced(loads, placement, tasks, tolerance=0.0, most_moves=len(placement))


def _sums(loads: Sequence[float], placement: Sequence[int], tasks: int) -> list[float]:
    sums = [0.0] * tasks
    for load, task in zip(loads, placement, strict=True):
        sums[task] += load
    return sums


def _least(sums: Sequence[float], placement: Sequence[int], tasks: int) -> int:
    """Return the task that takes least, of equals the one with fewest units."""
    return min(range(tasks), key=lambda task: (sums[task], placement.count(task)))


def _best(loads: Sequence[float], placement: Sequence[int], task: int, gap: float) -> int | None:
    """Return the unit of a task whose leaving narrows a gap most; None if none does."""
    mine = [unit for unit, at in enumerate(placement) if at == task]
    fitting = [unit for unit in mine if 0 < loads[unit] < gap]
    if len(mine) == 1 or not fitting:
        return None
    return min(fitting, key=lambda unit: abs(gap - 2 * loads[unit]))


def _move(
    unit: int, task: int, loads: Sequence[float], placement: list[int], sums: list[float]
) -> None:
    sums[placement[unit]] -= loads[unit]
    sums[task] += loads[unit]
    placement[unit] = task
