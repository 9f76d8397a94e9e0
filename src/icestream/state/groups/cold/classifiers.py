"""Three classifiers of cold groups: clock, LFU and exponential smoothing.

Idea: a classifier writes two words for each slot, in an array it does not own, and finds the k
coldest of the slots it receives. Its other memory (the hand of the clock) is a small JSON object
that the caller stores, so any process can continue where another stopped.

Invariants:
1. Opening a slot counts as a hit at that tick
   (`test_what_was_just_opened_outlives_what_was_not_hit_for_long`).
2. Among groups opened together, one that is hit again is never chosen before one that is not; the
   clock guarantees this from one sweep to the next
   (`test_a_hot_group_is_never_chosen_before_one_never_touched`).
3. The clock gives a hit slot one more turn of its hand (`test_the_clock_gives_a_second_chance`).
4. Old hits fade: a group that was hit often, long ago, leaves before one that is hit now and then
   (`test_old_fame_fades`), except with plain LFU (`test_plain_lfu_never_forgets`).
5. The same calls make the same choices in every process
   (`test_a_choice_is_the_same_in_another_process`).
6. The coldest are those that sorting by score, last hit and slot puts first
   (`test_oracle_the_coldest_are_those_a_sort_puts_first`).

Cost: O(hits) and O(candidates) for a batch of any size, 16 bytes per slot.

Limits: slots that are equally cold leave in the order of their numbers.

References: the cold state manager of ICE (clock, LFU, exponential smoothing).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Floats, Ints, Slots
from icestream.core.errors import DefinitionError
from icestream.kernels.groups.cold import Stats, clock_sweep, fade_all, fade_hit

#: the memory of a classifier apart from the words of its slots: a JSON object
Memory = dict[str, Any]


class Classifier(Protocol):
    """Ranks the slots of one sub-query; its `repr` names it with its parameters."""

    def opened(self, stats: Stats, slots: Slots, tick: int) -> None:
        """Start the statistics of slots that hold a group from now on, as if just hit."""
        ...

    def hit(self, stats: Stats, slots: Slots, tick: int) -> None:
        """Count a hit for every slot, each time it is listed; a negative first word is no score."""
        ...

    def coldest(self, stats: Stats, candidates: Slots, k: int, tick: int, memory: Memory) -> Slots:
        """Return the `k` coldest of some ascending, distinct slots, or all if they are fewer."""
        ...


@dataclass(frozen=True)
class ClockClassifier:
    """Not used since the hand last passed: a cheap approximation of least recently used."""

    def opened(self, stats: Stats, slots: Slots, tick: int) -> None:
        """Set the reference bit."""
        stats[slots, 0] = 1
        stats[slots, 1] = tick

    def hit(self, stats: Stats, slots: Slots, tick: int) -> None:
        """Set the reference bit."""
        self.opened(stats, slots, tick)

    def coldest(self, stats: Stats, candidates: Slots, k: int, tick: int, memory: Memory) -> Slots:
        """Advance the hand until it has taken enough slots."""
        out = np.empty(min(k, len(candidates)), dtype=np.int64)
        if not len(out):
            return out
        start = int(np.searchsorted(candidates, memory.get("hand", 0))) % len(candidates)
        _, at = clock_sweep(stats, candidates, start, len(out), out)
        memory["hand"] = int(candidates[at - 1]) + 1
        return out


@dataclass(frozen=True)
class _Rates:
    """How scores grow and fade."""

    #: what a hit adds
    gain: float
    #: what is left of a score after a step
    retain: float
    #: ticks per step; 0 means no step is ever made
    period: int


class _Fading(ABC):
    """Scores that grow with every hit and decay by a constant factor as ticks pass."""

    @property
    @abstractmethod
    def rates(self) -> _Rates:
        """How scores grow and fade."""

    def opened(self, stats: Stats, slots: Slots, tick: int) -> None:
        """Start with one hit."""
        scores, last = _parts(stats)
        scores[slots] = self.rates.gain
        last[slots] = tick

    def hit(self, stats: Stats, slots: Slots, tick: int) -> None:
        """Decay the scores to this tick, then add a hit."""
        rates = self.rates
        fade_hit(*_parts(stats), slots, tick, rates.period, rates.gain, rates.retain)

    def coldest(self, stats: Stats, candidates: Slots, k: int, tick: int, memory: Memory) -> Slots:
        """Return the slots with the lowest scores; of equal ones, those hit longest ago."""
        rates, (scores, last) = self.rates, _parts(stats)
        keys = np.empty(len(candidates))
        fade_all(scores, last, candidates, tick, rates.period, rates.retain, keys)
        chosen, ages = _least(keys, k), last[candidates]
        # of those as cold as the warmest that is chosen, the ones that were hit longest ago
        equal = np.flatnonzero(keys == keys[chosen].max(initial=-1.0))
        chosen = chosen[~np.isin(chosen, equal)]
        chosen = np.append(chosen, equal[_least(ages[equal], k - len(chosen))])
        return candidates[chosen[np.lexsort((chosen, ages[chosen], keys[chosen]))]]


@dataclass(frozen=True)
class LeastFrequent(_Fading):
    """Used least often; every `period` ticks all counts are halved, never if it is 0."""

    period: int = 32

    def __post_init__(self) -> None:
        if self.period < 0:
            msg = f"period must be >= 0 ticks (0 never halves the counts); got {self.period}"
            raise DefinitionError(msg)

    @property
    def rates(self) -> _Rates:
        return _Rates(gain=1.0, retain=0.5, period=self.period)


@dataclass(frozen=True)
class Smoothing(_Fading):
    """Lowest exponentially smoothed rate of hits: a hit adds alpha, a tick keeps 1 - alpha."""

    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            msg = f"the smoothing factor alpha must be between 0 and 1; got {self.alpha}"
            raise DefinitionError(msg)

    @property
    def rates(self) -> _Rates:
        """Add alpha for a hit, keep 1 - alpha of it at every tick."""
        return _Rates(gain=self.alpha, retain=1.0 - self.alpha, period=1)


#: classifiers by name
BY_NAME: Mapping[str, Callable[[], Classifier]] = {
    "clock": ClockClassifier,
    "lfu": LeastFrequent,
    "plain-lfu": lambda: LeastFrequent(period=0),
    "smoothing": Smoothing,
}


def classifier(choice: str | Classifier) -> Classifier:
    """Return the classifier of cold groups with this name, or the one that is passed."""
    if not isinstance(choice, str):
        return choice
    if choice not in BY_NAME:
        msg = f"no classifier is called {choice!r}; choose one of {', '.join(sorted(BY_NAME))}"
        raise DefinitionError(msg)
    return BY_NAME[choice]()


def _least(values: Floats | Ints, count: int) -> Ints:
    """Return the places of the `count` least values, or of all; of equal ones, the first."""
    if count >= len(values):
        return np.arange(len(values))
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    bound = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < bound)
    return np.append(below, np.flatnonzero(values == bound)[: count - len(below)])


def _parts(stats: Stats) -> tuple[Floats, Ints]:
    words: npt.NDArray[np.float64] = stats.view(np.float64)
    return words[:, 0], stats[:, 1]
