"""The least expected staleness of any schedule of updates, by exact search.

Idea: time is discrete. At the beginning of a tick some keys are updated, by a given law; then a
server that is free may take a key, which keeps it busy for `cost` ticks; over the tick every
waiting key's staleness grows from its age to its age plus one, an area of age + 1/2. The state is
the age of each key's first waiting update and the ticks until the server is free; least
expected area to the horizon follows from the last tick backwards. With keys that are alike, states
that differ only in the names of keys are merged.

Invariants:
1. A schedule that idles, or knows the future, is never worse than the best that does neither
   (`test_idling_and_foresight_never_cost`).
2. The expected area of a rule is the mean of what a simulation finds over all possible streams
   (`test_oracle_the_programme_is_the_mean_of_all_simulated_streams`).

Cost: states grow as the horizon to the power of the keys; up to 4 keys and 20 ticks take seconds.

Limits: knowing the future is evaluated stream by stream, so streams are enumerated: laws of one
update per tick and horizons up to 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

#: age of each key's first waiting update, in ticks; None for a key that does not wait
Ages = tuple[int | None, ...]
#: picks a waiting key
Rule = Callable[[Ages], int]
#: probability, and the keys updated at the beginning of a tick
Law = Sequence[tuple[float, frozenset[int]]]


def one_per_tick(shares: Sequence[float]) -> Law:
    """One key is updated at every tick, drawn by its share."""
    return [(share, frozenset((key,))) for key, share in enumerate(shares)]


def independent(chances: Sequence[float]) -> Law:
    """Every key is updated with its own chance, whatever the others do."""
    law = []
    for updated in product((False, True), repeat=len(chances)):
        chance = 1.0
        for key, happens in enumerate(updated):
            chance *= chances[key] if happens else 1.0 - chances[key]
        if chance > 0.0:
            law.append((chance, frozenset(key for key, happens in enumerate(updated) if happens)))
    return law


def longest_waiting(ages: Ages) -> int:
    """Pick the key that waits longest; the first of several."""
    return max(range(len(ages)), key=lambda key: (_age(ages, key), -key))


@dataclass(frozen=True)
class SmallSystem:
    """A small system whose best schedule can be searched for."""

    keys: int
    #: ticks the server is busy with a key
    cost: int
    #: ticks
    horizon: int
    law: Law
    #: whether keys differ only in their ages
    alike: bool = True

    def least(self, *, idling: bool = False) -> float:
        """Return the least expected area of queue staleness without knowing the future.

        Args:
            idling: whether the server may also stay free while keys wait.
        """
        return self._expected(lambda ages: [*_waiting(ages), *([None] if idling else [])])

    def of_rule(self, rule: Rule) -> float:
        """Return the expected area of a schedule that always serves by a rule."""
        return self._expected(lambda ages: [rule(ages)], named=True)

    def foreseen(self) -> float:
        """Return the expected least area of schedules that know every update in advance."""
        total = 0.0
        for draws in product(self.law, repeat=self.horizon):
            chance = 1.0
            for probability, _ in draws:
                chance *= probability
            total += chance * self._best_of_stream([updated for _, updated in draws])
        return total

    def _expected(
        self, choices: Callable[[Ages], list[int | None]], *, named: bool = False
    ) -> float:
        merge = self.alike and not named

        @cache
        def ahead(tick: int, busy: int, ages: Ages) -> float:
            if tick == self.horizon:
                return 0.0
            total = 0.0
            for chance, updated in self.law:
                total += chance * chosen(tick, busy, _canonical(_updated(ages, updated), merge))
            return total

        @cache
        def chosen(tick: int, busy: int, ages: Ages) -> float:
            if busy or not _waiting(ages):
                return passed(tick, busy, ages)
            return min(
                passed(tick, busy, ages)
                if key is None
                else passed(tick, self.cost, _canonical(_without(ages, key), merge))
                for key in choices(ages)
            )

        def passed(tick: int, busy: int, ages: Ages) -> float:
            return _growth(ages) + ahead(tick + 1, max(busy - 1, 0), _older(ages))

        return ahead(0, 0, (None,) * self.keys)

    def _best_of_stream(self, stream: Sequence[frozenset[int]]) -> float:
        @cache
        def ahead(tick: int, busy: int, ages: Ages) -> float:
            if tick == self.horizon:
                return 0.0
            now = _updated(ages, stream[tick])
            best = _growth(now) + ahead(tick + 1, max(busy - 1, 0), _older(now))
            if not busy:
                for key in _waiting(now):
                    left = _without(now, key)
                    after = ahead(tick + 1, self.cost - 1, _older(left))
                    best = min(best, _growth(left) + after)
            return best

        return ahead(0, 0, (None,) * self.keys)


def _age(ages: Ages, key: int) -> int:
    age = ages[key]
    return -1 if age is None else age


def _waiting(ages: Ages) -> list[int]:
    return [key for key, age in enumerate(ages) if age is not None]


def _updated(ages: Ages, updated: frozenset[int]) -> Ages:
    return tuple(0 if age is None and key in updated else age for key, age in enumerate(ages))


def _without(ages: Ages, served: int) -> Ages:
    return tuple(None if key == served else age for key, age in enumerate(ages))


def _older(ages: Ages) -> Ages:
    return tuple(None if age is None else age + 1 for age in ages)


def _growth(ages: Ages) -> float:
    """Return the area under the staleness of all keys over a tick."""
    return sum(age + 0.5 for age in ages if age is not None)


def _canonical(ages: Ages, merge: bool) -> Ages:
    return tuple(sorted(ages, key=lambda age: -1 if age is None else age)) if merge else ages
