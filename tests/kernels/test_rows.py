"""Loops over self-delimiting rows, beside their slow twins."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.kernels import rows as kernels
from tests.oracles.kernels.rows import (
    collect_fixed_reference,
    last_row_end_reference,
    put_ragged_reference,
    row_starts_reference,
    rows_fit_reference,
    spread_fixed_reference,
    take_ragged_reference,
)

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
    spread_fixed_reference(fixed, starts, twin)
    assert words.tolist() == twin.tolist()
    found, found_twin = (np.zeros(count, dtype=np.int64) for _ in range(2))
    assert kernels.row_starts(words, found) == row_starts_reference(words, found_twin)
    assert found.tolist() == found_twin.tolist() == starts.tolist()
    back, back_twin = np.empty_like(fixed), np.empty_like(fixed)
    kernels.collect_fixed(words, starts, back)
    collect_fixed_reference(words, starts, back_twin)
    assert back.tolist() == back_twin.tolist() == fixed.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_parity_the_end_of_the_last_row(seed: int) -> None:
    dice = np.random.default_rng(seed)
    sizes = dice.integers(1, 9, int(dice.integers(1, 40)))
    starts = np.cumsum(sizes) - sizes
    words = np.zeros(int(sizes.sum()), dtype=np.int64)
    words[starts] = sizes << 32
    for begin in starts.tolist():
        most = int(dice.integers(0, 60))
        wanted = last_row_end_reference(words, begin, most)
        assert kernels.last_row_end(words, begin, most) == wanted


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
    put_ragged_reference(twin, places_twin, data, begins, counts, unit)
    assert raw.tolist() == twin.tolist()
    assert places.tolist() == places_twin.tolist() == (first + sizes).tolist()
    out, out_twin = (np.empty(int(counts.sum()) * unit, dtype=np.uint8) for _ in range(2))
    places, places_twin = first.copy(), first.copy()
    kernels.take_ragged(raw, places, counts, unit, out)
    take_ragged_reference(raw, places_twin, counts, unit, out_twin)
    assert out.tolist() == out_twin.tolist()
    assert places.tolist() == places_twin.tolist()
    pieces = [data[b * unit : (b + c) * unit].tolist() for b, c in zip(begins, counts, strict=True)]
    assert out.tolist() == [byte for piece in pieces for byte in piece]


@pytest.mark.parametrize("seed", range(40))
def test_parity_rows_that_fit(seed: int) -> None:
    """Rows fit; with one number changed the kernel and its twin agree, whatever they say."""
    dice = np.random.default_rng(seed)
    places, units = np.array([[], []] if seed % 4 == 0 else [[1, 2, 2], [1, 8, 1]], dtype=np.int64)
    rows = []
    for _ in range(int(dice.integers(0, 6))):
        counts = dice.integers(0, 12, 2) if len(places) else np.array([7, -7])
        pieces = [-(-int(counts[p - 1]) * u // 8) for p, u in zip(places, units, strict=True)]
        size = 3 + int(sum(pieces))
        rows.append(np.array([size << 32 | 5, *counts, *dice.integers(-9, 9, size - 3)]))
    words = np.concatenate([np.empty(0, dtype=np.int64), *rows])
    offsets = np.cumsum([0, *map(len, rows)])
    ways = [(offsets[:-1], offsets[1:]), (offsets[:1], offsets[-1:])]
    for begins, ends in ways:
        assert kernels.rows_fit(words, begins, ends, 3, 2, places, units)
        assert rows_fit_reference(words, begins, ends, 3, 2, places, units)
    edges = (2**31, 2**62, -(2**63), 2**63 - 1, 2**63 - 2**32)
    strange = [-1, 0, 1, 1 << 32, 2 << 32, 3 << 32 | 2, 4 << 32, *edges]
    for place in range(len(words)):
        for value in strange:
            changed = words.copy()
            changed[place] = value
            for begins, ends in ways:
                expected = rows_fit_reference(changed, begins, ends, 3, 2, places, units)
                assert kernels.rows_fit(changed, begins, ends, 3, 2, places, units) == expected
