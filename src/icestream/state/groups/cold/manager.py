"""The cold state manager: it hears which groups are used and says which ones leave memory.

Idea: sub-queries tell of hits; statistics are written where the sub-query keeps them. When memory
nears its limit a *plan* gives each sub-query a target in bytes, and every *step* moves a batch of
the coldest groups of one sub-query until all targets are met. Steps come between chunks of data, so
no chunk waits for more than one of them. A refused reservation frees what it needs at once.

Invariants:
1. Only candidates leave, never a pinned slot, and at most k in a batch
   (`test_bounded_only_candidates_leave_and_every_call_ends`).
2. Steps end: with the targets met, or when nothing that is asked for can leave (the same test).
3. `free` frees what is asked, or all there is (`test_free_frees_enough_or_all_there_is`).
4. What the manager knows is the statistics and `state`; one that is made from these goes on where
   the other stopped (`test_a_manager_made_from_the_state_goes_on_alike`).
5. Managers that share a plan do what one does for all
   (`test_two_managers_with_joint_targets_do_what_one_does`).
6. A few groups that would have to be written stay if clean ones can leave that are about as cold
   (`test_some_clean_groups_leave_before_colder_ones_to_be_written`).
7. A batch has no more groups than it takes (`test_bounded_a_batch_frees_a_group_too_much_at_most`).
8. Asked for room while a batch leaves, it lets no other one leave
   (`test_a_batch_that_leaves_makes_no_other_leave`).

Failure: when `evict` raises, the batch is not counted as gone; nothing else changes.

Cost: O(hits / sample) to note hits, O(candidates) for a batch.

Limits: the last group of a batch may be much larger than what was missing.

References: the cold state manager of ICE; low priority of migrations, sampled hits (its section 7);
clocks of operating systems, which pass over pages that would have to be written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.errors import DefinitionError
from icestream.kernels.groups.cold import Stats, sample_places
from icestream.state.groups.cold.classifiers import Classifier, Memory, classifier
from icestream.state.groups.cold.targets import Rule, SubQueryLoad, check_rule, excess, spread

#: one in so many groups that would have to be written may stay if a clean one leaves instead
SPARED = 8


class SubQuery(Protocol):
    """A grouped sub-query, as far as the manager knows it: groups by slot, and bytes."""

    @property
    def name(self) -> str:
        """Its name, different from that of others."""
        ...

    @property
    def weight(self) -> float:
        """How readily it gives up memory, against others; 1 is usual."""
        ...

    @property
    def stats(self) -> Stats:
        """Two words for each slot, zero at first; asked for anew at every use."""
        ...

    def bytes_held(self) -> int:
        """Bytes of its groups in memory."""
        ...

    def candidates(self) -> Slots:
        """Slots of groups in memory that are not pinned, distinct and ascending."""
        ...

    def is_clean(self, slots: Slots) -> Mask:
        """Tell which groups leave without having to be written for it."""
        ...

    def resident(self, slots: Slots) -> Ints:
        """Return the bytes of memory that each of some groups takes, about."""
        ...

    def evict(self, slots: Slots) -> int:
        """Let groups leave memory, so that they are no candidates; return the bytes freed.

        No slot gets another meaning before the manager is called again.
        """
        ...


@dataclass(frozen=True)
class Policy:
    """When to begin, how much to free, and by what choice."""

    #: a plan begins when so much of the limit is held
    threshold: float = 0.9
    #: part of what is held that a plan frees
    free: float = 0.2
    #: part of what is held that a refused reservation frees at least
    urgent: float = 0.02
    #: groups in a batch, at most
    k: int = 8192
    #: chunks of data between two batches
    every: int = 1
    #: one of so many hits is counted
    sample: int = 1
    targets: Rule = "proportional"
    #: classifier of sub-queries that have none of their own
    classifier: str | Classifier = "clock"
    #: classifiers by sub-query
    classifiers: Mapping[str, str | Classifier] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check all numbers and names."""
        for name in ("threshold", "free"):
            _check(name, getattr(self, name), 0 < getattr(self, name) <= 1, "above 0, at most 1")
        _check("urgent", self.urgent, 0 <= self.urgent <= 1, "between 0 and 1")
        for name in ("k", "every", "sample"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        check_rule(self.targets)
        for choice in (self.classifier, *self.classifiers.values()):
            classifier(choice)

    def classifier_of(self, subquery: str) -> Classifier:
        """Return the classifier of a sub-query."""
        return classifier(self.classifiers.get(subquery, self.classifier))


@dataclass
class Ledger:
    """What a manager remembers of one sub-query; all of it goes into JSON."""

    #: classifier that wrote the statistics, with its parameters
    classifier: str
    memory: Memory = field(default_factory=dict)
    #: hits told so far
    hits: int = 0
    #: bytes, groups and batches that left so far
    evicted: int = 0
    groups: int = 0
    batches: int = 0
    #: bytes still to leave
    target: int = 0
    #: bytes freed for a group by the last batch
    size: float = 0.0
    #: groups count as having left lately until so many bytes left after them
    window: int = 0
    #: groups that came back although they left lately, and what that cost; older ones count less
    misses: float = 0.0
    cost: float = 0.0
    #: bytes that had left lately, summed over ticks; older ones count less
    exposure: float = 0.0


class Manager:
    """Serves one sub-query, several, or all of a shard."""

    def __init__(
        self,
        subqueries: Sequence[SubQuery],
        policy: Policy | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Go on from `state`, or start; statistics of another classifier are forgotten."""
        self.policy = policy or Policy()
        self._subqueries = {subquery.name: subquery for subquery in subqueries}
        if len(self._subqueries) < len(subqueries):
            msg = f"two sub-queries share a name: {[subquery.name for subquery in subqueries]}"
            raise DefinitionError(msg)
        for subquery in subqueries:
            _check(f"weight of {subquery.name}", subquery.weight, subquery.weight > 0, "above 0")
        known = state or {}
        #: logical time: chunks of data so far
        self.tick: int = known.get("tick", 0)
        self._waited: int = known.get("waited", 0)
        #: a batch is leaving
        self._busy = False
        self._classifiers = {name: self.policy.classifier_of(name) for name in self._subqueries}
        self.ledgers = {name: self._restored(name, known) for name in self._subqueries}

    @property
    def state(self) -> dict[str, Any]:
        """All that is remembered beside the statistics, as a JSON object."""
        ledgers = {name: asdict(ledger) for name, ledger in self.ledgers.items()}
        return {"tick": self.tick, "waited": self._waited, "ledgers": ledgers}

    @property
    def targets(self) -> dict[str, int]:
        """Bytes that are still to leave, by sub-query; empty when all targets are met."""
        return {name: ledger.target for name, ledger in self.ledgers.items() if ledger.target > 0}

    def opened(self, subquery: str, slots: Slots) -> None:
        """Hear of groups whose slots are new, before anything else is told of them."""
        self._classifiers[subquery].opened(self._subqueries[subquery].stats, slots, self.tick)

    def note(self, subquery: str, slots: Slots) -> None:
        """Hear of hits, one for each time a slot is named; a sample of them is counted."""
        ledger, one_in = self.ledgers[subquery], self.policy.sample
        if one_in > 1 and len(slots):
            places = np.empty(len(slots) // one_in + 2, dtype=np.int64)
            kept = sample_places(ledger.hits, len(slots), one_in, places)
            ledger.hits += len(slots)
            slots = slots[places[:kept]]
        else:
            ledger.hits += len(slots)
        self._classifiers[subquery].hit(self._subqueries[subquery].stats, slots, self.tick)

    def returned(self, subquery: str, slots: Slots, cost: float = 1.0) -> None:
        """Hear of groups that were read back, before their hits; `cost` is that of all reads.

        Costs are in any unit, the same for all sub-queries. A group that comes back under another
        slot than it left has zeros there.
        """
        ledger, first = self.ledgers[subquery], self._subqueries[subquery].stats[slots, 0]
        recent = (first < 0) & (ledger.evicted + first + 1 <= ledger.window)
        lately = int(np.count_nonzero(recent))
        if lately:
            ledger.misses += lately
            ledger.cost += cost * lately / len(slots)
        self.opened(subquery, slots)

    def advance(self) -> None:
        """Let a tick pass."""
        self.tick += 1
        for ledger in self.ledgers.values():
            ledger.exposure += min(ledger.evicted, ledger.window)

    def loads(self, shard: int = 0) -> list[SubQueryLoad]:
        """Return what targets are computed from."""
        return [
            SubQueryLoad(
                subquery=name,
                bytes=self._subqueries[name].bytes_held(),
                weight=self._subqueries[name].weight,
                misses=ledger.misses,
                cost=ledger.cost,
                exposure=ledger.exposure,
                shard=shard,
            )
            for name, ledger in self.ledgers.items()
        ]

    def plan(self, limit: int, held: int) -> dict[str, int]:
        """Set targets if memory nears its limit and none are open; return the open ones.

        `held` and `limit` are bytes of all that shares the limit, groups or not.
        """
        if not self.targets:
            need = excess(held, limit, self.policy.threshold, self.policy.free)
            if need:
                shares = spread(self.loads(), need, self.policy.targets)
                self.assign(dict(zip(self.ledgers, shares, strict=True)))
        return self.targets

    def assign(self, targets: Mapping[str, int]) -> None:
        """Take targets that were set elsewhere, in place of those still open."""
        for name, ledger in self.ledgers.items():
            ledger.target = targets.get(name, 0)
            ledger.misses /= 2
            ledger.cost /= 2
            ledger.exposure /= 2

    def turn(self, limit: int, held: int) -> bool:
        """Use the pause after a chunk of data: plan if need be, migrate a batch if it is time to.

        Returns whether all targets are met.
        """
        self.advance()
        if not self.plan(limit, held):
            self._waited = 0
            return True
        self._waited += 1
        if self._waited < self.policy.every:
            return False
        self._waited = 0
        return self.step()

    def step(self) -> bool:
        """Migrate one batch of the first sub-query with an open target; return whether none is.

        A target is given up for now when nothing more of that sub-query can leave.
        """
        for name in self.targets:
            if self._migrate(name, self.ledgers[name].target) is not None:
                break
            self.ledgers[name].target = 0
        return not self.targets

    def free(self, size: int) -> int:
        """Free at least `size` bytes now if that much can leave; return how many were freed."""
        held = sum(subquery.bytes_held() for subquery in self._subqueries.values())
        wanted, freed = max(size, int(self.policy.urgent * held)), 0
        able = set(self._subqueries)
        while freed < wanted and able:
            loads = [load for load in self.loads() if load.subquery in able and load.bytes > 0]
            shares = spread(loads, wanted - freed, self.policy.targets)
            if not any(shares):
                break
            for load, share in zip(loads, shares, strict=True):
                got = self._drain(load.subquery, share)
                freed += got
                if got < share:
                    able.discard(load.subquery)
        return freed

    def _drain(self, name: str, size: int) -> int:
        freed, trials = 0, 0
        while freed < size:
            got = self._migrate(name, size - freed, trials)
            if got is None:
                break
            freed += got
            trials += 1
        return freed

    def _migrate(self, name: str, missing: int, trials: int = 0) -> int | None:
        """Let a batch leave, of no more groups than seem needed; return bytes, None if none can."""
        subquery, ledger = self._subqueries[name], self.ledgers[name]
        candidates = subquery.candidates()
        if self._busy or not len(candidates):
            return None
        held = subquery.bytes_held()
        usual = held / len(candidates)
        # the coldest groups are often smaller than others, but not to be taken for much smaller
        # before a batch or two that were too small
        size = max(ledger.size, usual / 4 ** (trials + 1)) if ledger.batches else usual
        count = min(self.policy.k, -int(-missing // size)) if size > 0 else self.policy.k
        chosen = self._chosen(name, candidates, count)
        # groups are of very different sizes: those behind what is enough stay
        sums = np.cumsum(subquery.resident(chosen))
        chosen = chosen[: int(np.searchsorted(sums, missing)) + 1]
        self._busy = True
        try:
            freed = subquery.evict(chosen)
        finally:
            self._busy = False
        ledger.window = int(self.policy.free * held)
        ledger.evicted += freed
        ledger.groups += len(chosen)
        ledger.batches += 1
        ledger.size = freed / len(chosen)
        ledger.target = max(0, ledger.target - freed)
        subquery.stats[chosen, 0] = -1 - ledger.evicted
        if not freed and len(subquery.candidates()) >= len(candidates):
            return None
        return freed

    def _chosen(self, name: str, candidates: Slots, count: int) -> Slots:
        """Return the coldest groups; a few of those to be written stay if clean ones can leave."""
        coldest = self._coldest(name, candidates, count)
        clean = self._subqueries[name].is_clean(coldest)
        spared = min(len(coldest) // SPARED, int(np.count_nonzero(~clean)))
        if not spared or not clean.any():
            return coldest
        others = np.ones(len(candidates), dtype=np.bool_)
        others[np.searchsorted(candidates, coldest)] = False
        next_cold = self._coldest(name, candidates[others], spared)
        instead = next_cold[self._subqueries[name].is_clean(next_cold)]
        order = np.argsort(~clean, kind="stable")
        return np.concatenate((coldest[order[: len(coldest) - len(instead)]], instead))

    def _coldest(self, name: str, candidates: Slots, count: int) -> Slots:
        """Return the coldest of some groups."""
        stats, memory = self._subqueries[name].stats, self.ledgers[name].memory
        return self._classifiers[name].coldest(stats, candidates, count, self.tick, memory)

    def _restored(self, name: str, known: Mapping[str, Any]) -> Ledger:
        kind, ledger = repr(self._classifiers[name]), known.get("ledgers", {}).get(name)
        if ledger is None:
            return Ledger(kind)
        if ledger["classifier"] != kind:
            self._subqueries[name].stats[:] = 0
            return Ledger(**{**ledger, "classifier": kind, "memory": {}})
        return Ledger(**ledger)


def _check(name: str, value: float, holds: bool, wanted: str) -> None:
    if not holds:
        msg = f"cold state: {name} must be {wanted}; got {value}"
        raise DefinitionError(msg)
