from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.state.groups.cold.classifiers import (
    BY_NAME,
    Classifier,
    ClockClassifier,
    LeastFrequent,
    Smoothing,
    classifier,
)

SLOTS = 20
EVERY = [
    ClockClassifier(),
    LeastFrequent(),
    LeastFrequent(0),
    LeastFrequent(3),
    Smoothing(),
    Smoothing(0.5),
]
FADING = [kind for kind in EVERY if not isinstance(kind, ClockClassifier)]


def slots(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


def words(count: int = SLOTS) -> npt.NDArray[np.int64]:
    return np.zeros((count, 2), dtype=np.int64)


class Plain:
    """A list of hit ticks for each slot, looked at as a whole whenever a choice is made."""

    def __init__(self, kind: Classifier) -> None:
        self.kind = kind
        self.hits: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
        self.referenced = dict.fromkeys(range(SLOTS), False)
        self.hand = 0

    def opened(self, chosen: list[int], tick: int) -> None:
        for slot in chosen:
            self.hits[slot] = [tick]
            self.referenced[slot] = True

    def hit(self, chosen: list[int], tick: int) -> None:
        for slot in chosen:
            self.hits[slot].append(tick)
            self.referenced[slot] = True

    def coldest(self, candidates: list[int], k: int, tick: int) -> set[int]:
        if isinstance(self.kind, ClockClassifier):
            return self.swept(candidates, k)
        ranked = [(self.score(s, tick), max(self.hits[s], default=0), s) for s in candidates]
        return {slot for _, _, slot in sorted(ranked)[:k]}

    def score(self, slot: int, tick: int) -> float:
        if isinstance(self.kind, Smoothing):
            alpha = self.kind.alpha
            return round(sum(alpha * (1 - alpha) ** (tick - hit) for hit in self.hits[slot]), 12)
        assert isinstance(self.kind, LeastFrequent)
        period = self.kind.period
        return sum(
            0.5 ** (tick // period - hit // period) if period else 1 for hit in self.hits[slot]
        )

    def swept(self, candidates: list[int], k: int) -> set[int]:
        taken: set[int] = set()
        while len(taken) < min(k, len(candidates)):
            if self.hand in candidates and self.hand not in taken:
                if self.referenced[self.hand]:
                    self.referenced[self.hand] = False
                else:
                    taken.add(self.hand)
            self.hand = (self.hand + 1) % SLOTS
        return taken


some = st.lists(st.integers(0, SLOTS - 1), max_size=8)
moves = st.one_of(
    st.tuples(st.just("opened"), some),
    st.tuples(st.just("hit"), some),
    st.tuples(st.just("coldest"), some),
)


@pytest.mark.parametrize("kind", EVERY, ids=repr)
@given(st.lists(moves, max_size=40), st.integers(1, 6))
def test_parity_choices_beside_lists_of_hits(
    kind: Classifier, scenario: list[tuple[str, list[int]]], k: int
) -> None:
    stats, plain = words(), Plain(kind)
    memory: dict[str, Any] = {}
    for tick, (what, named) in enumerate(scenario):
        if what == "opened":
            kind.opened(stats, slots(*named), tick)
            plain.opened(named, tick)
        elif what == "hit":
            kind.hit(stats, slots(*named), tick)
            plain.hit(named, tick)
        else:
            candidates = sorted(set(named))
            found = kind.coldest(stats, slots(*candidates), k, tick, memory)
            assert len(found) == len(set(found.tolist())) == min(k, len(candidates))
            assert set(found.tolist()) == plain.coldest(candidates, k, tick)


@pytest.mark.parametrize("kind", FADING, ids=repr)
@given(st.sets(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS - 1), st.integers(0, 50))
def test_a_hot_group_is_never_chosen_before_one_never_touched(
    kind: Classifier, touched: set[int], later: int
) -> None:
    stats = words()
    kind.opened(stats, np.arange(SLOTS), 1)
    kind.hit(stats, slots(*sorted(touched)), 1 + later)
    cold = SLOTS - len(touched)
    chosen = kind.coldest(stats, np.arange(SLOTS), cold, 2 + later, {})
    assert touched.isdisjoint(chosen.tolist())


@given(st.sets(st.integers(0, SLOTS - 1), max_size=SLOTS - 2))
def test_a_group_hit_since_the_last_sweep_outlives_one_that_was_not(touched: set[int]) -> None:
    kind, stats = ClockClassifier(), words()
    memory: dict[str, Any] = {}
    kind.opened(stats, np.arange(SLOTS), 0)
    (gone,) = kind.coldest(stats, np.arange(SLOTS), 1, 0, memory).tolist()
    left = np.setdiff1d(np.arange(SLOTS), gone)
    kind.hit(stats, slots(*sorted(touched)), 1)
    cold = [slot for slot in left.tolist() if slot not in touched]
    chosen = kind.coldest(stats, left, len(cold), 1, memory)
    assert sorted(chosen.tolist()) == cold


def test_the_clock_gives_a_second_chance() -> None:
    kind, stats = ClockClassifier(), words(5)
    memory: dict[str, Any] = {}
    every = np.arange(5)
    kind.opened(stats, slots(1, 3), 0)
    # bits 0 1 0 1 0, hand before slot 0: it takes 0 and 2 and clears 1 on the way
    assert kind.coldest(stats, every, 2, 0, memory).tolist() == [0, 2]
    assert memory == {"hand": 3}
    # slot 3 is spared once more, slot 1 had its chance
    assert kind.coldest(stats, slots(1, 3, 4), 2, 0, memory).tolist() == [4, 1]
    assert kind.coldest(stats, slots(3), 2, 0, memory).tolist() == [3]


@pytest.mark.parametrize("kind", [LeastFrequent(4), Smoothing(0.2)], ids=repr)
def test_old_fame_fades(kind: Classifier) -> None:
    stats = words(2)
    kind.opened(stats, slots(0, 1), 0)
    kind.hit(stats, slots(*[0] * 100), 0)
    for tick in range(1, 60, 5):
        kind.hit(stats, slots(1), tick)
    assert kind.coldest(stats, slots(0, 1), 1, 60, {}).tolist() == [0]


def test_plain_lfu_never_forgets() -> None:
    kind, stats = LeastFrequent(0), words(2)
    kind.opened(stats, slots(0, 1), 0)
    kind.hit(stats, slots(*[0] * 100), 0)
    for tick in range(1, 500, 5):
        kind.hit(stats, slots(1), tick)
    assert kind.coldest(stats, slots(0, 1), 1, 10**9, {}).tolist() == [0]
    kind.hit(stats, slots(0), 10**9)
    assert kind.coldest(stats, slots(0, 1), 1, 10**9, {}).tolist() == [1]


@pytest.mark.parametrize("kind", [LeastFrequent(8), Smoothing()], ids=repr)
def test_what_was_just_opened_outlives_what_was_not_hit_for_long(kind: Classifier) -> None:
    stats = words(3)
    kind.opened(stats, slots(0, 1), 0)
    kind.hit(stats, slots(0, 1, 1), 1)
    kind.opened(stats, slots(2), 100)
    assert set(kind.coldest(stats, np.arange(3), 2, 100, {}).tolist()) == {0, 1}


def test_scores_that_faded_to_nothing_are_told_apart_by_their_last_hit() -> None:
    kind, stats = Smoothing(0.9), words(3)
    for slot, tick in ((0, 30), (1, 10), (2, 20)):
        kind.opened(stats, slots(slot), tick)
    assert kind.coldest(stats, np.arange(3), 2, 10**6, {}).tolist() in ([1, 2], [2, 1])


@pytest.mark.parametrize("kind", EVERY, ids=repr)
def test_a_choice_is_the_same_in_another_process(kind: Classifier) -> None:
    random = np.random.default_rng(5)
    stats = words()
    memory: dict[str, Any] = {}
    other, words_of_other = classifier(kind), words()
    text = json.dumps(memory)
    for tick in range(200):
        hits = random.integers(0, SLOTS, 10)
        candidates = np.unique(random.integers(0, SLOTS, 15))
        kind.hit(stats, hits, tick)
        found = kind.coldest(stats, candidates, 3, tick, memory)
        other.hit(words_of_other, hits, tick)
        reread = json.loads(text)
        assert found.tolist() == other.coldest(words_of_other, candidates, 3, tick, reread).tolist()
        text = json.dumps(reread)
        words_of_other = np.frombuffer(bytearray(words_of_other.tobytes()), np.int64).reshape(-1, 2)


@pytest.mark.parametrize("kind", EVERY, ids=repr)
def test_statistics_may_be_columns_of_a_wider_table(kind: Classifier) -> None:
    random = np.random.default_rng(6)
    stats, table = words(), np.full((SLOTS, 7), -5, dtype=np.int64)
    inside = table[:, 3:5]
    inside[:] = 0
    memory: dict[str, Any] = {}
    memory_inside: dict[str, Any] = {}
    for tick in range(30):
        hits, opened = random.integers(0, SLOTS, (2, 6))
        for part in (stats, inside):
            kind.opened(part, opened, tick)
            kind.hit(part, hits, tick)
        one = kind.coldest(stats, np.arange(SLOTS), 3, tick, memory)
        other = kind.coldest(inside, np.arange(SLOTS), 3, tick, memory_inside)
        assert one.tolist() == other.tolist()
    assert (stats == inside).all()
    assert (np.delete(table, (3, 4), axis=1) == -5).all()


@pytest.mark.parametrize("kind", EVERY, ids=repr)
def test_no_candidates_no_choice(kind: Classifier) -> None:
    assert kind.coldest(words(), slots(), 4, 0, {}).tolist() == []
    assert kind.coldest(words(), slots(1, 2), 0, 0, {}).tolist() == []
    kind.hit(words(), slots(), 0)


def test_classifiers_are_found_by_name() -> None:
    assert [repr(classifier(name)) for name in sorted(BY_NAME)] == [
        "ClockClassifier()",
        "LeastFrequent(period=32)",
        "LeastFrequent(period=0)",
        "Smoothing(alpha=0.05)",
    ]
    with pytest.raises(DefinitionError, match="choose one of clock, lfu, plain-lfu, smoothing"):
        classifier("lru")


def test_parameters_are_checked() -> None:
    with pytest.raises(DefinitionError, match="alpha"):
        Smoothing(1.0)
    with pytest.raises(DefinitionError, match="period"):
        LeastFrequent(-1)


@given(
    st.lists(
        st.tuples(st.sampled_from((0.0, 0.5, 1.0, 7.0)), st.integers(0, 3)), min_size=1, max_size=80
    ),
    st.data(),
)
def test_oracle_the_coldest_are_those_a_sort_puts_first(
    drawn: list[tuple[float, int]], data: st.DataObject
) -> None:
    stats = np.zeros((len(drawn), 2), dtype=np.int64)
    stats.view(np.float64)[:, 0], stats[:, 1] = zip(*drawn, strict=True)
    candidates = sorted(data.draw(st.sets(st.integers(0, len(drawn) - 1))))
    k = data.draw(st.integers(0, 20))
    slots = np.array(candidates, dtype=np.int64)
    found = LeastFrequent(period=2).coldest(stats, slots, k, 4, {})
    rows = [(drawn[s][0] * 0.5 ** (4 // 2 - drawn[s][1] // 2), drawn[s][1], s) for s in candidates]
    assert found.tolist() == [slot for _, _, slot in sorted(rows)[:k]]
