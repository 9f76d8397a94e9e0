from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.kernels.queue import staleness as k
from icestream.state.queue.staleness import quantile
from tests.oracles.kernels.queue.staleness import settle_reference

RAMPS = st.lists(st.tuples(st.integers(-5, 1000), st.integers(0, 3000)), min_size=1, max_size=30)


@settings(max_examples=80, deadline=None)
@given(ramps=RAMPS)
def test_parity_ramps_are_settled_exactly(ramps: list[tuple[int, int]]) -> None:
    keys = np.zeros((1, 2), np.int64)
    profile = np.zeros((k.BINS, k.PROFILE))
    begin, area = 0, 0.0
    for opened, length in ramps:
        at = begin + length
        end = k.settle(keys, keys.view(np.float64), profile, 0, 0, opened, at)
        added, expected = settle_reference(begin, opened, at)
        area, begin = area + added, max(begin, at)
        assert end == expected
    assert keys.view(np.float64)[0, k.AREA] == area
    assert keys[0, k.FROM] == begin


@settings(max_examples=60, deadline=None)
@given(
    ramps=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 5000)), min_size=1, max_size=20),
    fresh=st.integers(0, 3000),
    part=st.sampled_from([0.1, 0.5, 0.9, 0.99]),
)
def test_parity_quantiles_beside_a_fine_sampling(
    ramps: list[tuple[int, int]], fresh: int, part: float
) -> None:
    profile = np.zeros((k.BINS, k.PROFILE))
    samples = [np.zeros(fresh * 4)]
    total = float(fresh)
    for first, length in ramps:
        keys = np.zeros((1, 2), np.int64)
        keys[0, k.FROM] = first
        k.settle(keys, keys.view(np.float64), profile, 0, 0, 0, first + length)
        samples.append(first + (np.arange(length * 4) + 0.5) / 4)
        total += length
    expected = float(np.quantile(np.concatenate(samples), part, method="inverted_cdf"))
    assert quantile(profile, total, part) == pytest.approx(expected, rel=1 / 16, abs=1.5)


def test_bins_grow_by_a_thirty_second() -> None:
    edges = k.bin_edges()
    assert [k.bin_of(value) for value in (0.0, 0.99, 1.0, 2.0, 2.0**70)] == [
        0,
        0,
        1,
        33,
        k.BINS - 1,
    ]
    for number in range(1, 500):
        assert k.bin_of(edges[number - 1]) == number
        assert k.bin_of(np.nextafter(edges[number], 0)) == number
        assert edges[number] / edges[number - 1] <= 1 + 1 / 32 + 1e-12
