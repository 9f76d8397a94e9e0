from __future__ import annotations

import numpy as np
import pytest

from icestream.core.times import FURTHEST, INFINITY, MINUS_INFINITY
from icestream.kernels.lifetimes.first import keep_first
from tests.oracles.kernels.lifetimes.first import keep_first_reference


@pytest.mark.parametrize("seed", range(20))
def test_parity_first_events(seed: int) -> None:
    dice = np.random.default_rng(seed)
    count, groups = int(dice.integers(0, 40)), 4
    rows = np.sort(dice.integers(0, groups, count) * 100 + dice.integers(0, 30, count))
    begin = [0, -20, -FURTHEST][seed % 3]
    owners, starts = rows // 100, rows % 100 + begin
    ends = dice.integers(0, 20, groups) + begin
    until = np.where(dice.random(groups) < 0.5, MINUS_INFINITY, ends)
    within = [0, 3, 10, INFINITY][seed % 4]
    expected = keep_first_reference(owners.tolist(), starts.tolist(), within, until.tolist())
    kept = np.zeros(count, dtype=np.bool_)
    keep_first(owners, starts, within, until, kept)
    assert (kept.tolist(), until.tolist()) == expected
