from __future__ import annotations

import numpy as np
import pytest

from bench.updates.seen_staleness import KeyInstants, mean_staleness


def test_oracle_the_integral_is_that_of_the_definition() -> None:
    dice = np.random.default_rng(4)
    keys, end = 3, 4_000
    made = dice.integers(0, keys, 60), np.sort(dice.integers(1, end, 60))
    chosen = np.sort(dice.choice(60, 20, replace=False))
    at = made[1][chosen] + dice.integers(0, 300, 20)
    delivered = KeyInstants(made[0][chosen], made[1][chosen], at)
    total = 0.0
    for key in range(keys):
        mine, got = made[0] == key, delivered.keys == key
        for instant in np.arange(0, end) + 0.5:
            seen = got & (at <= instant)
            known = delivered.times[seen].max() if seen.any() else -1
            missing = made[1][mine & (made[1] > known) & (made[1] <= instant)]
            total += instant - missing.min() if len(missing) else 0.0
    expected = total / (keys * end) / 1e6
    found = mean_staleness(made, delivered, keys, 0, end)
    assert found == pytest.approx(expected, rel=2e-3)


def test_a_key_without_updates_is_never_stale() -> None:
    nothing = np.empty(0, np.int64)
    assert mean_staleness((nothing, nothing), KeyInstants(nothing, nothing, nothing), 2, 0, 10) == 0
