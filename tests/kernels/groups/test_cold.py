from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.groups import heap
from icestream.kernels.groups.cold import (
    MOST_HEAT,
    clock_sweep,
    fade_hit,
    faded,
    list_coldest,
)
from tests.oracles.kernels.groups.cold import (
    clock_sweep_reference,
    fade_hit_reference,
    list_coldest_reference,
)

SLOTS = 24
slots_hit = st.lists(st.integers(0, SLOTS - 1), max_size=40)


def ints(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


@given(
    st.lists(st.integers(-1, 1), min_size=SLOTS, max_size=SLOTS),
    st.sets(st.integers(0, SLOTS - 1), min_size=1),
    st.data(),
)
def test_parity_the_hand_of_the_clock(
    bits: list[int], chosen: set[int], data: st.DataObject
) -> None:
    candidates = sorted(chosen)
    start = data.draw(st.integers(0, len(candidates) - 1))
    k = data.draw(st.integers(0, len(candidates)))
    stats = np.zeros((SLOTS, 2), dtype=np.int64)
    stats[:, 0] = bits
    referenced = {slot: bit > 0 for slot, bit in enumerate(bits)}
    out = np.empty(k, dtype=np.int64)
    count, at = clock_sweep(stats, ints(candidates), start, k, out)
    taken, expected_at = clock_sweep_reference(referenced, candidates, start, k)
    assert (out[:count].tolist(), count) == (taken, k)
    if count < len(candidates):
        assert at == expected_at
    for slot in range(SLOTS):
        assert (stats[slot, 0] > 0) == referenced[slot]
        assert slot not in taken or stats[slot, 0] == -1


@given(
    st.lists(slots_hit, max_size=30),
    st.sampled_from(((0, 1.0, 1.0), (4, 1.0, 0.5), (1, 0.1, 0.9), (1, 0.5, 0.5))),
)
def test_parity_fading_scores(
    hits_by_tick: list[list[int]], kind: tuple[int, float, float]
) -> None:
    period, gain, retain = kind
    stats = np.zeros((SLOTS, 2), dtype=np.int64)
    scores, last = stats.view(np.float64)[:, 0], stats[:, 1]
    hits: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
    for tick, slots in enumerate(hits_by_tick):
        fade_hit(scores, last, ints(slots), tick, period, gain, retain)
        for slot in slots:
            hits[slot].append(tick)
    now = len(hits_by_tick) + 3
    for slot in range(SLOTS):
        found = faded(scores[slot], last[slot], now, period, retain)
        assert found == pytest.approx(fade_hit_reference(hits[slot], now, period, gain, retain))


def test_a_mark_is_worth_nothing() -> None:
    marked = np.array([-1, -1000, -(2**40)], dtype=np.int64).view(np.float64)
    assert [faded(score, 5, 5, 1, 0.5) for score in marked] == [0.0, 0.0, 0.0]
    fade_hit(marked, np.zeros(3, dtype=np.int64), np.arange(3), 9, 1, 0.25, 0.5)
    assert marked.tolist() == [0.25] * 3


@pytest.mark.parametrize("seed", range(4))
def test_parity_groups_named_least_and_longest_ago(seed: int) -> None:
    dice = np.random.default_rng(seed)
    table = np.zeros((200, heap.GROUP), dtype=np.int64)
    table[:, heap.STAMP] = dice.choice([0, 1, 2, 600, 601, 602], 200)
    table[:, heap.HEAT] = dice.choice([0, 1, 7, MOST_HEAT, MOST_HEAT << 2], 200)
    for count in [0, 1, 30, 77, 130, 200]:
        slots = np.empty(200, dtype=np.int64)
        listed = list_coldest(table, 602, count, slots)
        assert slots[:listed].tolist() == list_coldest_reference(table, 602, count)
