"""Divides the memory of a version among the shards of its components.

Idea: a shard can return memory only by spilling, so each gets at least what it holds and a stated
minimum to work with. Free memory goes to shards whose state has grown lately, because they will
most likely grow again; a part of it goes to all equally, because a shard that never had room shows
no growth.

Invariants:
1. Quotas add up to the budget exactly (`test_oracle_quotas_keep_their_promises`).
2. No shard gets less than it holds, nor less than the minimum
   (`test_oracle_quotas_keep_their_promises`).
3. Of two shards that hold the same, the one that grew more gets no less
   (`test_growth_is_rewarded`).
4. The same shards get the same quotas in whatever order they are given
   (`test_quotas_do_not_depend_on_the_order_of_holders`).

Cost: O(n log n) for n shards, in integers.

Limits: if the held bytes and the minima exceed the budget, there is no such split: BudgetError. A
version that spills first should therefore report what it holds after the spill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from icestream.core.errors import BudgetError
from icestream.core.units import format_bytes, format_memory
from icestream.operators.grid.slice_log import SLICE_BYTES
from icestream.plan.computation import Computation

#: a component and one of its shards
Place = tuple[int, int]

#: part of the free memory that goes to all places equally
ALIKE = Fraction(1, 4)

#: minimum bytes of one shard, for its work buffers and some groups, and of each of its groupings
LEAST_QUOTA = 16 * SLICE_BYTES
LEAST_SHARE = 8 * SLICE_BYTES


@dataclass(frozen=True)
class ShardMemory:
    """What a shard of a component holds, and its growth."""

    #: bytes held at the end of the last version
    held: int
    #: bytes of recent growth, before anything was spilled; shrinking counts as 0
    growth: int = 0


def quotas(budget: int, holdings: Mapping[Place, ShardMemory], least: int) -> dict[Place, int]:
    """Return the bytes that each place may hold in the next version; they add up to the budget.

    `least` is what any place needs to process a chunk.
    """
    if not holdings:
        return {}
    places = sorted(holdings)
    floors = {place: max(least, holdings[place].held) for place in places}
    free = budget - sum(floors.values())
    if free < 0:
        held = sum(each.held for each in holdings.values())
        msg = (
            f"{len(places)} shards hold {format_bytes(held)} and need {format_bytes(least)} each, "
            f"together "
            f"{format_bytes(budget - free)}, but the memory budget is {format_bytes(budget)}: give "
            f"the query at least {format_bytes(-free)} more with .memory(...), or fewer shards"
        )
        raise BudgetError(msg)
    alike = int(free * ALIKE)
    grown = {place: max(0, holdings[place].growth) for place in places}
    shares = _split(alike, dict.fromkeys(places, 1))
    by_growth = _split(free - alike, grown if any(grown.values()) else dict.fromkeys(places, 1))
    return {place: floors[place] + shares[place] + by_growth[place] for place in places}


def advised(
    error: BudgetError, memory: int, shards: int, quota_of: Callable[[int], int]
) -> BudgetError:
    """Return an error about quotas that begins with the memory the query needs, as users write it.

    A new checkpoint may have more shards by default if there is more memory.

    `quota_of` returns what the shard that failed gets of a budget.
    """
    if not error.needed:
        return error
    # the same memory is not enough, whatever the shard needs
    enough = memory + memory // 16
    while (quota := quota_of(enough)) < error.needed:
        enough += max(enough // 32, error.needed - quota)
    better = BudgetError(
        f'Give the query at least .memory("{format_memory(enough)}").shards({shards}); it has '
        f"{format_bytes(memory)} and as many shards. {error}"
    )
    better.needed, better.shard = error.needed, error.shard
    return better


def _split(amount: int, weights: Mapping[Place, int]) -> dict[Place, int]:
    """Split an amount by weights into whole bytes that add up to it; among equals, the first win.

    Every place gets its exact share rounded down; the largest remainders then get a byte each.
    """
    whole = sum(weights.values())
    parts = {place: divmod(amount * weight, whole) for place, weight in weights.items()}
    split = {place: part for place, (part, _) in parts.items()}
    left = amount - sum(split.values())
    if left:
        ranked = sorted((-rest, -weights[place], place) for place, (_, rest) in parts.items())
        for _, _, place in ranked[:left]:
            split[place] += 1
    return split


def least_quota(plan: Computation | None = None) -> int:
    """Return the bytes that a shard of any component needs; without a plan, that of any plan."""
    return LEAST_QUOTA if plan is None else plan.least_quota(LEAST_QUOTA, LEAST_SHARE)
