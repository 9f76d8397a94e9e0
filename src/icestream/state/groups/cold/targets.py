"""How many bytes each sub-query gives up when memory nears its limit.

Idea: a fraction of the held bytes must be evicted. *Proportional*: every sub-query gives up bytes
in proportion to its bytes and weight. *Benefit*: the value of a byte of memory is measured by the
misses among recently evicted groups (they would have been hits with a little more memory), per byte
and tick. Popularity falls off like one over the rank, so the value of the last byte grows like one
over the bytes kept; values are equal everywhere if bytes are kept in proportion to bytes times
value.

Invariants:
1. Targets add up to the bytes that must go, or to all bytes, and none exceeds what is held
   (`test_targets_add_up_and_fit`).
2. With equal weights and no measurements, both rules take the same fraction of every sub-query
   (`test_without_measurements_both_rules_agree`).
3. More misses of a sub-query never make it give up more (`test_worth_is_kept`).

Cost: O(n^2) at worst for n sub-queries.

Limits: value is one number per sub-query, and the curve behind it is assumed; it is measured
continuously, so a wrong curve costs rounds, not exactness.

References: the weighted targets of ICE's cold state manager; ghost entries as in ARC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from icestream.core.errors import DefinitionError

Rule = Literal["proportional", "benefit"]


@dataclass(frozen=True)
class SubQueryLoad:
    """What one sub-query of a shard holds, and the recent cost of its evictions."""

    subquery: str
    #: bytes of groups in memory
    bytes: int
    #: how readily it gives up memory, relative to others
    weight: float = 1.0
    #: groups that were read back soon after eviction, and the cost of reading them
    misses: float = 0.0
    cost: float = 0.0
    #: recently evicted bytes, summed over ticks
    exposure: float = 0.0


def excess(held: int, limit: int, threshold: float, free: float) -> int:
    """Return the target of all: how many bytes to evict, the fraction `free` past the threshold."""
    if held < threshold * limit:
        return 0
    return max(int(free * held), held - int(threshold * limit))


def spread(loads: Sequence[SubQueryLoad], need: int, rule: Rule) -> list[int]:
    """Return the target of each load: how many of `need` bytes it gives up."""
    check_rule(rule)
    caps = [load.bytes for load in loads]
    if rule == "proportional":
        return _fill([load.weight * load.bytes for load in loads], caps, need)
    wanted = [
        load.bytes * worth / load.weight for load, worth in zip(loads, _worth(loads), strict=True)
    ]
    kept = _fill(wanted, caps, sum(caps) - need)
    return [cap - keep for cap, keep in zip(caps, kept, strict=True)]


def check_rule(rule: str) -> None:
    """Raise unless this rule for setting eviction targets exists."""
    if rule not in get_args(Rule):
        msg = f"the rule of targets must be one of {', '.join(get_args(Rule))}; got {rule!r}"
        raise DefinitionError(msg)


def _worth(loads: Sequence[SubQueryLoad]) -> list[float]:
    """Estimate the cost of misses per byte given up and tick.

    A sub-query with little history is assumed to be average: as if it had been observed long enough
    for one more miss to be due, and had that miss.
    """
    misses = sum(load.misses for load in loads)
    exposure = sum(load.exposure for load in loads)
    if not misses or not exposure:
        return [1.0] * len(loads)
    usual = sum(load.cost for load in loads) / misses
    return [
        (load.misses + 1.0)
        / (load.exposure + exposure / misses)
        * (load.cost / load.misses if load.misses else usual)
        for load in loads
    ]


def _fill(wanted: Sequence[float], caps: Sequence[int], total: int) -> list[int]:
    """Divide `total` in proportion to `wanted`, up to each cap; the excess goes to the others."""
    shares = [0] * len(caps)
    left = min(max(total, 0), sum(caps))
    open_ = [i for i, cap in enumerate(caps) if cap > 0]
    while left > 0 and open_:
        sum_wanted = sum(wanted[i] for i in open_)
        parts = [
            left * wanted[i] / sum_wanted if sum_wanted > 0 else left / len(open_) for i in open_
        ]
        full = [i for i, part in zip(open_, parts, strict=True) if part >= caps[i]]
        for i in full:
            shares[i] = caps[i]
            left -= caps[i]
        if not full:
            for i, part in zip(open_, parts, strict=True):
                shares[i] = int(part)
            break
        open_ = [i for i in open_ if i not in full]
    rest = min(max(total, 0), sum(caps)) - sum(shares)
    for i in range(len(caps)):
        more = min(rest, caps[i] - shares[i])
        shares[i] += more
        rest -= more
    return shares
