"""Where units of state go so that tasks have equal loads: which to move, and which not to.

Idea: tasks are sorted by their measured load, and the most loaded gives a unit to the least
loaded, the second most to the second least, and so on, as long as that is necessary and variance
falls. A unit is suitable if it is smaller than the gap between the two; of those, the one nearest
to half of the gap is moved: the largest that does not reverse the order of the two or, if that
balances better, the smallest that does. If units are too large for that, two are exchanged. A unit
that is too hot for any balance gets a task of its own.

    24 24 24 24 | 14 14 14 14 14    96 and 70: moving a 24 would reverse them, to 72 and 94;
    14 24 24 24 | 24 14 14 14 14    exchanging it for a 14 gives 86 and 80

Invariants:
1. Variance never rises (`test_rebalancing_never_raises_variance`,
   `test_isolating_never_raises_variance`).
2. There are never more moves than allowed, each moves a unit with load, and equal inputs give equal
   moves (`test_bounded_moves`).
3. If a task remains out of tolerance, no move of one unit of the most loaded task helps, and no
   exchange of it for one of the least loaded
   (`test_oracle_no_move_of_the_most_loaded_task_is_left`).
4. For another number of tasks, no more is moved than any way to that balance must move, except for
   one unit per task (`test_oracle_spreading_moves_little_more_than_it_must`).

Cost: a move sorts the tasks and scans the units of two: O(S log S + units log units).

References: Shah et al. (2003), as summarised by Madsen, Zhou, Su (2016), section 3.2.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from icestream.core.errors import DefinitionError

#: load of a task above the mean, as a fraction of it, that is tolerated
TOLERANCE = 0.15
#: fraction of the mean that a shard without load counts, so that one task does not get them all
_LEAST_WEIGHT = 1e-3
#: rounding error of a load, as a fraction of it
_ROUNDING = 1e-9


def totals(loads: Sequence[float], task_of: Sequence[int], tasks: int) -> list[float]:
    """Return the load of each task, to rebalance them."""
    sums = [0.0] * tasks
    for load, task in zip(loads, task_of, strict=True):
        sums[task] += load
    return sums


def rebalanced(
    loads: Sequence[float],
    task_of: Sequence[int],
    tasks: int,
    *,
    tolerance: float = TOLERANCE,
    most_moves: int,
) -> tuple[int, ...]:
    """Return a task for each shard, with more equal loads of the tasks.

    Args:
        loads: the measured cost of each shard.
        task_of: the current task of each shard.
        tasks: the number of tasks.
        tolerance: load of a task above the mean, as a fraction of it, that is tolerated.
        most_moves: the most shards to move.
    """
    _check(loads, task_of, tasks)
    placed = list(task_of)
    sums = totals(loads, placed, tasks)
    ceiling = sum(sums) / tasks * (1 + tolerance)
    held: list[list[int]] = [[] for _ in range(tasks)]
    for unit, task in enumerate(placed):
        if loads[unit] > 0:
            held[task].append(unit)
    moves = 0
    going = True
    while going:
        going = False
        order = sorted(range(tasks), key=lambda task: (-sums[task], task))
        for most, least in zip(order[: tasks // 2], reversed(order), strict=False):
            if moves == most_moves or sums[most] <= ceiling:
                break
            gap = sums[most] - sums[least]
            shard, back = _suitable(loads, held[most], gap), None
            if not _enough(loads, shard, sums[most], sums[least], ceiling):
                shard, back = _changed(loads, held[most], held[least], gap, shard)
            if back is not None and moves + 1 == most_moves:
                return tuple(placed)
            if shard is None:
                continue
            for moving, here, there in ((shard, most, least), (back, least, most)):
                if moving is not None:
                    held[here].remove(moving)
                    held[there].append(moving)
                    sums[here] -= loads[moving]
                    sums[there] += loads[moving]
                    placed[moving] = there
                    moves += 1
            going = True
    return tuple(placed)


def spread(
    loads: Sequence[float],
    tasks: int,
    *,
    task_of: Sequence[int] | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[int, ...]:
    """Return a task for each shard, rebalanced after the number of tasks has changed.

    Shards of removed tasks must move; of the others, only those that load a task above the
    tolerance. Without `task_of` all shards are placed from scratch.
    """
    if task_of is None:
        task_of = [tasks] * len(loads)
    if tasks < 1 or len(loads) != len(task_of):
        msg = f"{len(loads)} loads and {len(task_of)} places cannot be spread over {tasks} tasks"
        raise DefinitionError(msg)
    weights = _weights(loads)
    ceiling = sum(weights) / tasks * (1 + tolerance) * (1 + _ROUNDING)
    placed = list(task_of)
    sums = [0.0] * tasks
    leaving = []
    for task in range(tasks):
        shards = [shard for shard, where in enumerate(placed) if where == task]
        sums[task] = sum(weights[shard] for shard in shards)
        for shard in _shed(weights, shards, sums[task] - ceiling):
            sums[task] -= weights[shard]
            leaving.append(shard)
    leaving += [shard for shard, where in enumerate(placed) if where >= tasks]
    for shard in sorted(leaving, key=lambda shard: (-weights[shard], shard)):
        # stay in place if that is the lightest task anyway
        home = placed[shard]
        least = min(range(tasks), key=lambda task: (sums[task], task != home, task))
        placed[shard] = least
        sums[least] += weights[shard]
    return tuple(placed)


def hot_shards(
    loads: Sequence[float], tasks: int, *, tolerance: float = TOLERANCE
) -> tuple[int, ...]:
    """Return the shards that rebalancing cannot help: each alone loads a task too much."""
    ceiling = sum(loads) / tasks * (1 + tolerance)
    hot = [shard for shard, load in enumerate(loads) if load > ceiling]
    return tuple(sorted(hot, key=lambda shard: (-loads[shard], shard)))


def isolated(
    loads: Sequence[float],
    task_of: Sequence[int],
    tasks: int,
    *,
    tolerance: float = TOLERANCE,
    most_moves: int,
) -> tuple[int, ...]:
    """Return a task for each shard, rebalanced away from those that are too hot.

    The hot shard stays, because its neighbours are lighter. The heaviest neighbours go first, each
    to the least loaded task, as long as variance falls.
    """
    _check(loads, task_of, tasks)
    placed = list(task_of)
    sums = totals(loads, placed, tasks)
    hot = hot_shards(loads, tasks, tolerance=tolerance)
    moves = 0
    for center in hot:
        here = placed[center]
        beside = [
            shard
            for shard, where in enumerate(placed)
            if where == here and shard not in hot and loads[shard] > 0
        ]
        for shard in sorted(beside, key=lambda shard: (-loads[shard], shard)):
            least = min(range(tasks), key=lambda task: (sums[task], task))
            if moves == most_moves:
                return tuple(placed)
            if _falls(loads[shard], sums[here] - sums[least]):
                sums[here] -= loads[shard]
                sums[least] += loads[shard]
                placed[shard] = least
                moves += 1
    return tuple(placed)


def _suitable(loads: Sequence[float], shards: Sequence[int], gap: float) -> int | None:
    """Return the shard that reduces a gap most, if one reduces variance."""
    able = [shard for shard in shards if _falls(loads[shard], gap)]
    return min(
        able, key=lambda shard: (abs(loads[shard] - gap / 2), -loads[shard], shard), default=None
    )


def _enough(
    loads: Sequence[float], shard: int | None, most: float, least: float, ceiling: float
) -> bool:
    """Return whether moving a shard leaves both tasks within tolerance."""
    return shard is not None and max(most - loads[shard], least + loads[shard]) <= ceiling


def _changed(
    loads: Sequence[float],
    shards: Sequence[int],
    others: Sequence[int],
    gap: float,
    alone: int | None,
) -> tuple[int | None, int | None]:
    """Return what reduces a gap most: a shard alone, or one exchanged for another."""
    best = math.inf if alone is None else abs(loads[alone] - gap / 2)
    chosen: tuple[int | None, int | None] = alone, None
    ordered = sorted(others, key=lambda shard: (loads[shard], shard))
    weights = [loads[shard] for shard in ordered]
    for shard in shards:
        at = bisect_left(weights, loads[shard] - gap / 2)
        for back in ordered[max(0, at - 1) : at + 1]:
            change = loads[shard] - loads[back]
            if _falls(change, gap) and abs(change - gap / 2) < best * (1 - _ROUNDING):
                best, chosen = abs(change - gap / 2), (shard, back)
    return chosen


def _falls(load: float, gap: float) -> bool:
    """Return whether moving a load across a gap reduces variance by more than rounding."""
    return 0 < load < gap * (1 - _ROUNDING)


def _shed(weights: Sequence[float], shards: Sequence[int], excess: float) -> list[int]:
    """Return shards to give up so that an excess is removed, and little more."""
    shed = []
    left = sorted(shards, key=lambda shard: (-weights[shard], shard))
    for shard in list(left):
        if excess > 0 and weights[shard] <= excess:
            shed.append(shard)
            left.remove(shard)
            excess -= weights[shard]
    if excess > 0 and len(left) > 1:
        # all others are larger: take the smallest
        shed.append(left[-1])
    return shed


def _weights(loads: Sequence[float]) -> list[float]:
    mean = sum(loads) / max(1, len(loads))
    return [max(load, mean * _LEAST_WEIGHT, 1e-300) if mean > 0 else 1.0 for load in loads]


def _check(loads: Sequence[float], task_of: Sequence[int], tasks: int) -> None:
    if len(loads) != len(task_of) or not all(0 <= task < tasks for task in task_of):
        msg = f"{len(loads)} loads need as many places on {tasks} tasks; got {list(task_of)}"
        raise DefinitionError(msg)
