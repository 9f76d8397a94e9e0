from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from icestream.core.arrays import Slots
from icestream.state.groups.cold.classifiers import Classifier, LeastFrequent, Smoothing
from icestream.state.groups.cold.manager import Manager, Policy
from tests.fixtures.cold_groups import PlainSubQuery, work, zipf

GROUPS, CHUNKS, CHUNK = 5000, 300, 500
ROOM = 1500 * 100


@dataclass(frozen=True)
class Dice:
    """Chooses without looking: what any classifier must beat, and how one is plugged in."""

    def opened(self, stats: Slots, slots: Slots, tick: int) -> None:
        pass

    def hit(self, stats: Slots, slots: Slots, tick: int) -> None:
        pass

    def coldest(
        self, stats: Slots, candidates: Slots, k: int, tick: int, memory: dict[str, Any]
    ) -> Slots:
        memory["throws"] = memory.get("throws", 0) + 1
        random = np.random.default_rng(memory["throws"])
        return random.permutation(candidates)[:k]


def misses(kind: str | Classifier, drift: int = 0) -> tuple[float, list[list[int]]]:
    """Return misses for each access within room for 3 of 10 groups, and what left."""
    query = PlainSubQuery("q", [100] * GROUPS)
    manager = Manager([query], Policy(k=64, classifier=kind))
    accesses = zipf(7, GROUPS, CHUNKS, CHUNK, drift=drift)
    found = work(manager, [query], {"q": accesses}, ROOM)
    return found["q"] / (CHUNKS * CHUNK), query.batches


def test_every_classifier_beats_dice_where_popularity_is_skewed() -> None:
    dice, _ = misses(Dice())
    for kind in ("clock", "lfu", "plain-lfu", "smoothing"):
        assert misses(kind)[0] < 0.85 * dice, kind


def test_counting_beats_the_clock_where_popularity_stays() -> None:
    clock, _ = misses("clock")
    for kind in ("lfu", "plain-lfu", Smoothing(0.01)):
        assert misses(kind)[0] < 0.95 * clock, kind


def test_forgetting_beats_plain_counts_where_the_hot_set_shifts() -> None:
    plain, _ = misses("plain-lfu", drift=10)
    for kind in ("clock", LeastFrequent(8), Smoothing(0.2)):
        assert misses(kind, drift=10)[0] < 0.8 * plain, kind


@pytest.mark.parametrize("kind", ["clock", "lfu", "smoothing"])
def test_the_same_accesses_make_the_same_choices(kind: str) -> None:
    assert misses(kind, drift=2) == misses(kind, drift=2)
