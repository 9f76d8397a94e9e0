"""Loops over self-delimiting rows, beside their slow twins."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.kernels import rows as kernels

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_parity_row_starts_and_fixed_parts(seed: int) -> None:
    dice = np.random.default_rng(seed)
    count, width = int(dice.integers(0, 40)), 3
    sizes = dice.integers(width, 9, count)
    starts = np.cumsum(sizes) - sizes
    fixed = dice.integers(-(2**62), 2**62, (count, width))
    fixed[:, 0] = sizes << 32 | dice.integers(0, 2**32, count)
    words, twin = (np.zeros(int(sizes.sum()), dtype=np.int64) for _ in range(2))
    kernels.spread_fixed(fixed, starts, words)
    kernels.spread_fixed_reference(fixed, starts, twin)
    assert words.tolist() == twin.tolist()
    found, found_twin = (np.zeros(count, dtype=np.int64) for _ in range(2))
    assert kernels.row_starts(words, found) == kernels.row_starts_reference(words, found_twin)
    assert found.tolist() == found_twin.tolist() == starts.tolist()
    back, back_twin = np.empty_like(fixed), np.empty_like(fixed)
    kernels.collect_fixed(words, starts, back)
    kernels.collect_fixed_reference(words, starts, back_twin)
    assert back.tolist() == back_twin.tolist() == fixed.tolist()


@pytest.mark.parametrize("unit", [1, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_parity_ragged_pieces_in_and_out(seed: int, unit: int) -> None:
    dice = np.random.default_rng(seed)
    counts = dice.integers(0, 12, int(dice.integers(0, 30)))
    begins = dice.integers(0, 50, len(counts))
    data = dice.integers(0, 256, 70 * unit).astype(np.uint8)
    sizes = (counts * unit + 7) // 8 * 8
    first = np.cumsum(sizes) - sizes
    raw, twin = (np.zeros(int(sizes.sum()), dtype=np.uint8) for _ in range(2))
    places, places_twin = first.copy(), first.copy()
    kernels.put_ragged(raw, places, data, begins, counts, unit)
    kernels.put_ragged_reference(twin, places_twin, data, begins, counts, unit)
    assert raw.tolist() == twin.tolist()
    assert places.tolist() == places_twin.tolist() == (first + sizes).tolist()
    out, out_twin = (np.empty(int(counts.sum()) * unit, dtype=np.uint8) for _ in range(2))
    places, places_twin = first.copy(), first.copy()
    kernels.take_ragged(raw, places, counts, unit, out)
    kernels.take_ragged_reference(raw, places_twin, counts, unit, out_twin)
    assert out.tolist() == out_twin.tolist()
    assert places.tolist() == places_twin.tolist()
    pieces = [data[b * unit : (b + c) * unit].tolist() for b, c in zip(begins, counts, strict=True)]
    assert out.tolist() == [byte for piece in pieces for byte in piece]
