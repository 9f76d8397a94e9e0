from __future__ import annotations

import numpy as np
import pytest

from examples.market.walk import LEVELS, walk

STEPS = np.arange(1 << LEVELS, dtype=np.int64)


def test_oracle_a_step_stands_alone() -> None:
    walks = STEPS % 3
    whole = walk(1, walks, STEPS)
    some = np.array([7, 100_000, 3], np.int64)
    assert np.array_equal(walk(1, walks[some], some), whole[some])


def test_oracle_differences_grow_as_those_of_a_walk() -> None:
    places = np.concatenate([walk(seed, STEPS * 0, STEPS) for seed in range(4)])
    for distance in (1, 4, 64, 1024):
        difference = places[distance:] - places[:-distance]
        assert np.mean(difference**2) == pytest.approx(distance, rel=0.25)


def test_walks_and_seeds_go_their_own_ways() -> None:
    steps = STEPS[: 1 << 16]
    one, another = walk(1, steps * 0, steps), walk(1, steps * 0 + 1, steps)
    other_seed = walk(2, steps * 0, steps)
    for other in (another, other_seed):
        assert abs(np.corrcoef(np.diff(one), np.diff(other))[0, 1]) < 0.05


def test_a_walk_begins_and_ends_at_nothing() -> None:
    ends = np.array([0, 1 << LEVELS, 2 << LEVELS], np.int64)
    assert walk(1, ends * 0, ends).tolist() == [0, 0, 0]
