"""How the memory of a version is handed to the shards of its components.

Idea: a shard can give memory back, but only by spilling, so each is given at least what it holds
and a stated minimum to work with. What is left goes where state has grown lately, as it will most
likely grow there again; a part of it goes to all alike, because a shard that never had room shows
no growth.

Invariants:
1. Quotas add up to the budget exactly (`test_oracle_quotas_keep_their_promises`).
2. No shard gets less than it holds, nor less than the minimum
   (`test_oracle_quotas_keep_their_promises`).
3. Of two shards that hold alike, the one that grew more gets no less
   (`test_growth_is_rewarded`).
4. The same holders get the same quotas in whatever order they are given
   (`test_quotas_do_not_depend_on_the_order_of_holders`).

Cost: O(n log n) for n shards, in integers.

Limits: if what is held and the minima exceed the budget, there is no such split: BudgetError. A
version that spills first should therefore report what it holds after the spill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from icestream.core.errors import BudgetError
from icestream.core.units import format_bytes

#: a component and one of its shards
Place = tuple[int, int]

#: part of the free memory that goes to all places alike
ALIKE = Fraction(1, 4)


@dataclass(frozen=True)
class ShardMemory:
    """What a shard of a component holds, and how fast that grew."""

    #: bytes held at the end of the last version
    held: int
    #: bytes that it grew by lately, before anything was spilled; shrinking counts as nothing
    growth: int = 0


def quotas(budget: int, holdings: Mapping[Place, ShardMemory], least: int) -> dict[Place, int]:
    """Return the bytes that each place may hold in the next version; they add up to the budget.

    `least` is what any place needs to take in a chunk.
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


def _split(amount: int, weights: Mapping[Place, int]) -> dict[Place, int]:
    """Split an amount by weights into whole bytes that add up to it; of equals, the first get more.

    Every place gets its exact share rounded down, then those whose share was cut most get a byte.
    """
    whole = sum(weights.values())
    parts = {place: divmod(amount * weight, whole) for place, weight in weights.items()}
    split = {place: part for place, (part, _) in parts.items()}
    left = amount - sum(split.values())
    for place in sorted(parts, key=lambda each: (-parts[each][1], -weights[each], each))[:left]:
        split[place] += 1
    return split
