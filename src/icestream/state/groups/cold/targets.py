"""How many bytes each sub-query gives up when memory nears its limit.

Idea: a part of what is held must leave. *Proportional*: every sub-query gives in proportion to its
bytes and weight. *Benefit*: what a byte of memory is worth is measured by the misses among groups
that left lately (they would have been hits with a little more memory), for each byte and tick.
Popularity falls off like one over the rank, so the worth of the last byte grows as one over the
bytes kept; making it equal everywhere means to keep bytes in proportion to bytes times worth.

Invariants:
1. Targets add up to what must leave, or to all there is, and none exceeds what is held
   (`test_targets_add_up_and_fit`).
2. Equal weights and nothing measured: both rules give every sub-query the same part
   (`test_without_measurements_both_rules_agree`).
3. More misses of a sub-query never make it give more (`test_worth_is_kept`).
4. The answer depends on nothing but the arguments, and survives JSON
   (`test_targets_survive_json`).

Cost: O(n^2) at worst for n pairs of shard and sub-query.

Limits: worth is one number for each sub-query, the curve behind it is assumed; it is measured anew
all the time, so a wrong curve costs rounds, not exactness.

References: the weighted targets of ICE's cold state manager; ghost entries as in ARC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from icestream.core.errors import DefinitionError

Rule = Literal["proportional", "benefit"]


@dataclass(frozen=True)
class SubQueryLoad:
    """What one sub-query of one shard holds, and what giving up memory cost it lately."""

    subquery: str
    #: bytes of groups in memory
    bytes: int
    #: how readily it gives up memory, against others
    weight: float = 1.0
    #: groups that came back soon after they left, and what reading them cost
    misses: float = 0.0
    cost: float = 0.0
    #: bytes that had left lately, summed over ticks
    exposure: float = 0.0
    shard: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SubQueryLoad:
        """Return the load that `to_json` wrote."""
        return cls(**value)


@dataclass(frozen=True)
class Targets:
    """Bytes to give up, by shard and sub-query; those that give up nothing are left out."""

    shards: Mapping[int, Mapping[str, int]]

    def of(self, shard: int) -> dict[str, int]:
        """Return the targets of one shard by sub-query."""
        return dict(self.shards.get(shard, {}))

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return a JSON object; its keys are text."""
        return {str(shard): dict(found) for shard, found in self.shards.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, int]]) -> Targets:
        """Return the targets that `to_json` wrote."""
        return cls({int(shard): dict(found) for shard, found in value.items()})


def excess(held: int, limit: int, threshold: float, free: float) -> int:
    """Return how many bytes must leave: none below the threshold, else a part `free` of all."""
    if held < threshold * limit:
        return 0
    return max(int(free * held), held - int(threshold * limit))


def targets(
    loads: Sequence[SubQueryLoad],
    limit: int,
    *,
    held: int | None = None,
    threshold: float = 0.9,
    free: float = 0.2,
    rule: Rule = "proportional",
) -> Targets:
    """Return what every sub-query of all shards that share a limit of bytes must give up.

    `held` is what they hold in all, where that is more than the groups in memory.
    """
    together = sum(load.bytes for load in loads) if held is None else held
    found: dict[int, dict[str, int]] = {}
    shares = spread(loads, excess(together, limit, threshold, free), rule)
    for load, share in zip(loads, shares, strict=True):
        if share:
            found.setdefault(load.shard, {})[load.subquery] = share
    return Targets(found)


def spread(loads: Sequence[SubQueryLoad], need: int, rule: Rule) -> list[int]:
    """Return how many of `need` bytes each load gives up."""
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
    """Raise unless there is such a rule."""
    if rule not in get_args(Rule):
        msg = f"targets are set by one of the rules {', '.join(get_args(Rule))}; got {rule!r}"
        raise DefinitionError(msg)


def _worth(loads: Sequence[SubQueryLoad]) -> list[float]:
    """Estimate the cost of misses for each byte given up and tick.

    A sub-query that was watched little is taken to be like all together: as if it had been watched
    for so long that one more miss was due, and had it.
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
    """Share out `total` in proportion to `wanted`, nobody above the cap; what is over goes on."""
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
