from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from icestream.core.arrays import Slots
from icestream.state.groups.cold.classifiers import Classifier, LeastFrequent, Smoothing
from icestream.state.groups.cold.manager import Manager, Policy
from icestream.state.groups.cold.targets import Rule
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


def misses(
    kind: str | Classifier, drift: int = 0, sample: int = 1
) -> tuple[float, list[list[int]]]:
    """Return misses for each access within room for 3 of 10 groups, and what left."""
    query = PlainSubQuery("q", [100] * GROUPS)
    manager = Manager([query], Policy(k=64, classifier=kind, sample=sample))
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
def test_a_sample_of_hits_does_almost_as_well(kind: str) -> None:
    exact, _ = misses(kind)
    sampled, _ = misses(kind, sample=4)
    assert sampled < 1.15 * exact
    assert sampled < misses(Dice())[0]


@pytest.mark.parametrize("kind", ["clock", "lfu", "smoothing"])
def test_the_same_accesses_make_the_same_choices(kind: str) -> None:
    assert misses(kind, drift=2) == misses(kind, drift=2)


def once(chunks: int, size: int) -> Iterator[Slots]:
    """Yield groups that never come back."""
    for chunk in range(chunks):
        yield np.arange(chunk * size, (chunk + 1) * size)


def shared(rule: Rule, kind: str, case: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return misses and bytes kept of two sub-queries that share memory."""
    steady = zipf(1, GROUPS, CHUNKS, 300)
    if case == "visitors":
        other, limit = PlainSubQuery("other", [100] * (CHUNKS * 300)), 200_000
        accesses = once(CHUNKS, 300)
    elif case == "large groups":
        other, limit = PlainSubQuery("other", [1000] * GROUPS), 1_000_000
        accesses = zipf(2, GROUPS, CHUNKS, 300)
    else:
        other, limit = PlainSubQuery("other", [100] * GROUPS), 300_000
        accesses = zipf(2, GROUPS, CHUNKS, 30)
    queries = [PlainSubQuery("steady", [100] * GROUPS), other]
    manager = Manager(queries, Policy(k=64, classifier=kind, targets=rule))
    found = work(manager, queries, {"steady": steady, "other": accesses}, limit)
    return found, {query.name: query.bytes_held() for query in queries}


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", ["clock", "lfu", "smoothing"])
@pytest.mark.parametrize(
    ("case", "ratio"), [("visitors", 0.6), ("large groups", 0.8), ("seldom used", 0.97)]
)
def test_targets_by_benefit_take_from_the_sub_query_with_colder_bytes(
    kind: str, case: str, ratio: float
) -> None:
    fair, kept_fairly = shared("proportional", kind, case)
    better, kept = shared("benefit", kind, case)
    assert sum(better.values()) < ratio * sum(fair.values())
    assert kept["steady"] > kept_fairly["steady"]
