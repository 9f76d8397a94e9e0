"""Distinct values of groups, counted by merging runs."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.kernels.tallies import tally_runs
from tests.oracles.kernels.tallies import tally_runs_reference


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("distinct", [1, 5, 10_000])
def test_parity_tallies_of_runs(distinct: int, ascending: bool) -> None:
    dice = np.random.default_rng(distinct)
    for _ in range(10):
        sizes = dice.choice([0, 1, 2, 7, 300], 12)
        bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        keys = dice.integers(-distinct, distinct, bounds[-1])
        if ascending:
            for first in range(0, len(keys), 50):
                keys[first : first + 50].sort()
        counts = dice.integers(1, 9, len(keys))
        out, out_counts = np.empty((2, len(keys)), dtype=np.int64)
        spare, spare_counts, ends = np.empty((3, 300), dtype=np.int64)
        out_bounds = np.empty(len(bounds), dtype=np.int64)
        total = tally_runs(
            keys, counts, bounds, out, out_counts, out_bounds, spare, spare_counts, ends
        )
        expected = tally_runs_reference(keys, counts, bounds)
        assert total == sum(map(len, expected))
        for group, wanted in enumerate(expected):
            mine = slice(out_bounds[group], out_bounds[group + 1])
            found = zip(out[mine].tolist(), out_counts[mine].tolist(), strict=True)
            assert list(found) == wanted
