"""The cold state manager: it observes which groups are used and chooses which ones are evicted.

Idea: sub-queries report hits; the statistics are stored by the sub-query. When memory nears its
limit, a *plan* gives each sub-query a target in proportion to its bytes, and every *step* evicts a
batch of the coldest groups of one sub-query until all targets are met. Steps run between chunks of
data, so no chunk waits for more than one of them. A refused reservation frees what it needs at
once.

Invariants:
1. Only candidates are evicted, never a pinned slot, and at most k in a batch
   (`test_bounded_only_candidates_leave_and_every_call_ends`).
2. Steps end when the targets are met, or when no group of a sub-query with a target can be evicted
   (the same test).
3. `free` frees the bytes requested, or all it can (`test_free_frees_enough_or_all_there_is`).
4. The manager's knowledge is the statistics and `state`; a manager made from these continues where
   the other stopped (`test_a_manager_made_from_the_state_goes_on_alike`).
5. A few groups that would have to be written stay if clean ones about as cold can be evicted
   (`test_some_clean_groups_leave_before_colder_ones_to_be_written`).
6. A batch has no more groups than needed (`test_bounded_a_batch_frees_a_group_too_much_at_most`).
7. A request for memory while a batch is being evicted starts no other batch
   (`test_a_batch_that_leaves_makes_no_other_leave`).

Failure: if `evict` raises, the batch is not counted as evicted; nothing else changes.

Cost: O(hits) to record hits, O(candidates) for a batch.

Limits: the last group of a batch may be much larger than the bytes missing.

References: the cold state manager of ICE; low priority of migrations (its section 7); clock
algorithms of operating systems, which skip dirty pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.errors import DefinitionError
from icestream.kernels.groups.cold import Stats
from icestream.state.groups.cold.classifiers import Classifier, Memory, classifier

#: of this many groups that would have to be written, one may stay if a clean one leaves instead
SPARED = 8


class SubQuery(Protocol):
    """The part of a grouped sub-query that the manager uses: groups by slot, and bytes."""

    @property
    def name(self) -> str:
        """Its name, unique among the sub-queries."""
        ...

    @property
    def stats(self) -> Stats:
        """Two words for each slot, zero at first; read again at every use."""
        ...

    def bytes_held(self) -> int:
        """Bytes of its groups in memory."""
        ...

    def candidates(self) -> Slots:
        """Slots of groups in memory that are not pinned, distinct and ascending."""
        ...

    def is_clean(self, slots: Slots) -> Mask:
        """Return which groups can be evicted without being written."""
        ...

    def resident(self, slots: Slots) -> Ints:
        """Return about how many bytes of memory each group takes."""
        ...

    def evict(self, slots: Slots) -> int:
        """Evict groups, so that they are no longer candidates; return the bytes freed.

        No slot is reused for another group before the manager is called again.
        """
        ...


@dataclass(frozen=True)
class Policy:
    """When to start evicting, how much to free, and how to choose."""

    #: a plan begins when this fraction of the limit is held
    threshold: float = 0.9
    #: fraction of the held bytes that a plan frees
    free: float = 0.2
    #: least fraction of the held bytes that a refused reservation frees
    urgent: float = 0.02
    #: maximum groups in a batch
    k: int = 8192
    #: classifier of sub-queries that have none of their own
    classifier: str | Classifier = "clock"
    #: classifiers by sub-query
    classifiers: Mapping[str, str | Classifier] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("threshold", "free"):
            _check(name, getattr(self, name), 0 < getattr(self, name) <= 1, "above 0, at most 1")
        _check("urgent", self.urgent, 0 <= self.urgent <= 1, "between 0 and 1")
        _check("k", self.k, self.k >= 1, "at least 1")
        for choice in (self.classifier, *self.classifiers.values()):
            classifier(choice)

    def classifier_of(self, subquery: str) -> Classifier:
        return classifier(self.classifiers.get(subquery, self.classifier))


@dataclass
class Ledger:
    """The manager's record of one sub-query; all of it goes into JSON."""

    #: classifier that wrote the statistics, with its parameters
    classifier: str
    memory: Memory = field(default_factory=dict)
    #: bytes, groups and batches evicted so far
    evicted: int = 0
    groups: int = 0
    batches: int = 0
    #: bytes still to evict
    target: int = 0
    #: bytes freed per group by the last batch
    size: float = 0.0


class Manager:
    """Manages one sub-query, several, or all of a shard."""

    def __init__(
        self,
        subqueries: Sequence[SubQuery],
        policy: Policy | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Continue from `state`, or start; statistics of another classifier are dropped."""
        self.policy = policy or Policy()
        self._subqueries = {subquery.name: subquery for subquery in subqueries}
        if len(self._subqueries) < len(subqueries):
            msg = f"two sub-queries share a name: {[subquery.name for subquery in subqueries]}"
            raise DefinitionError(msg)
        known = state or {}
        #: logical time: chunks of data so far
        self.tick: int = known.get("tick", 0)
        #: a batch is being evicted
        self._busy = False
        self._classifiers = {name: self.policy.classifier_of(name) for name in self._subqueries}
        self.ledgers = {name: self._restored(name, known) for name in self._subqueries}

    @property
    def state(self) -> dict[str, Any]:
        """Everything the manager remembers apart from the statistics, as a JSON object."""
        ledgers = {name: asdict(ledger) for name, ledger in self.ledgers.items()}
        return {"tick": self.tick, "ledgers": ledgers}

    @property
    def targets(self) -> dict[str, int]:
        """Bytes still to evict, by sub-query; empty when all targets are met."""
        return {name: ledger.target for name, ledger in self.ledgers.items() if ledger.target > 0}

    def opened(self, subquery: str, slots: Slots) -> None:
        """Record groups whose slots are new or were read back, before their hits."""
        self._classifiers[subquery].opened(self._subqueries[subquery].stats, slots, self.tick)

    def note(self, subquery: str, slots: Slots) -> None:
        """Record hits, one for each time a slot is listed."""
        self._classifiers[subquery].hit(self._subqueries[subquery].stats, slots, self.tick)

    def advance(self) -> None:
        """Advance the logical time by one tick."""
        self.tick += 1

    def plan(self, limit: int, held: int) -> dict[str, int]:
        """Set targets if memory nears its limit and none are open; return the open ones.

        `held` and `limit` are the bytes of everything under the limit, not only of groups.
        """
        if not self.targets:
            enough = int(self.policy.threshold * limit)
            if held >= enough:
                self.assign(self._shares(max(int(self.policy.free * held), held - enough)))
        return self.targets

    def assign(self, targets: Mapping[str, int]) -> None:
        """Accept targets; they replace those still open."""
        for name, ledger in self.ledgers.items():
            ledger.target = targets.get(name, 0)

    def turn(self, limit: int, held: int) -> bool:
        """Run after a chunk of data: plan if needed, evict a batch.

        Returns whether all targets are met.
        """
        self.advance()
        return not self.plan(limit, held) or self.step()

    def step(self) -> bool:
        """Evict one batch of the first sub-query with an open target; return whether none is open.

        A target is dropped for now when nothing more of that sub-query can be evicted.
        """
        for name in self.targets:
            if self._migrate(name, self.ledgers[name].target) is not None:
                break
            self.ledgers[name].target = 0
        return not self.targets

    def free(self, size: int) -> int:
        """Free at least `size` bytes now if that much can be evicted; return the bytes freed."""
        held = sum(subquery.bytes_held() for subquery in self._subqueries.values())
        wanted, freed = max(size, int(self.policy.urgent * held)), 0
        able = set(self._subqueries)
        while freed < wanted and able:
            for name, share in self._shares(wanted - freed, able).items():
                got = self._drain(name, share)
                freed += got
                if got < share or not share:
                    able.discard(name)
        return freed

    def _shares(self, need: int, able: Collection[str] | None = None) -> dict[str, int]:
        """Divide bytes to evict among sub-queries, in proportion to what they hold."""
        names = self._subqueries if able is None else [n for n in self._subqueries if n in able]
        held = {name: self._subqueries[name].bytes_held() for name in names}
        total = sum(held.values())
        need = min(need, total)
        return {name: -(-need * size // total) if total else 0 for name, size in held.items()}

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
        """Evict a batch of no more groups than seem needed; return bytes, None if none can go."""
        subquery, ledger = self._subqueries[name], self.ledgers[name]
        candidates = subquery.candidates()
        if self._busy or not len(candidates):
            return None
        held = subquery.bytes_held()
        usual = held / len(candidates)
        # the coldest groups are often smaller than others, but assume so only after a batch or two
        # freed too little
        size = max(ledger.size, usual / 4 ** (trials + 1)) if ledger.batches else usual
        count = min(self.policy.k, -int(-missing // size)) if size > 0 else self.policy.k
        chosen = self._chosen(name, candidates, count)
        # group sizes differ widely: groups beyond the required bytes stay
        sums = np.cumsum(subquery.resident(chosen))
        chosen = chosen[: int(np.searchsorted(sums, missing)) + 1]
        self._busy = True
        try:
            freed = subquery.evict(chosen)
        finally:
            self._busy = False
        ledger.evicted += freed
        ledger.groups += len(chosen)
        ledger.batches += 1
        ledger.size = freed / len(chosen)
        ledger.target = max(0, ledger.target - freed)
        subquery.stats[chosen, 0] = 0
        if not freed and len(subquery.candidates()) >= len(candidates):
            return None
        return freed

    def _chosen(self, name: str, candidates: Slots, count: int) -> Slots:
        """Return the coldest groups; a few dirty ones stay if clean ones can be evicted instead."""
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
        stats, memory = self._subqueries[name].stats, self.ledgers[name].memory
        return self._classifiers[name].coldest(stats, candidates, count, self.tick, memory)

    def _restored(self, name: str, known: Mapping[str, Any]) -> Ledger:
        kind, ledger = repr(self._classifiers[name]), known.get("ledgers", {}).get(name)
        if ledger is None:
            return Ledger(kind)
        ledger = {each.name: ledger[each.name] for each in fields(Ledger)}
        if ledger["classifier"] != kind:
            self._subqueries[name].stats[:] = 0
            return Ledger(**{**ledger, "classifier": kind, "memory": {}})
        return Ledger(**ledger)


def _check(name: str, value: float, holds: bool, wanted: str) -> None:
    if not holds:
        msg = f"cold state: {name} must be {wanted}; got {value}"
        raise DefinitionError(msg)
