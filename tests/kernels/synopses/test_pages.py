"""Sorted entries, beside dictionaries."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.kernels.synopses import pages as kernels
from icestream.kernels.words import Table


def entries_of(dice: np.random.Generator, count: int) -> Table:
    """Return distinct entries in order, many with equal hi and some above 2**63."""
    pairs = {(int(dice.integers(0, 4)) << 62, int(n)) for n in dice.integers(0, 40, count)}
    rows = [(*pair, int(dice.integers(0, 1000))) for pair in sorted(pairs)]
    return np.array(rows, dtype=np.uint64).reshape(-1, 3).view(np.int64)


@pytest.mark.parametrize("seed", range(8))
def test_parity_entries_in_pages(seed: int) -> None:
    dice = np.random.default_rng(seed)
    entries = entries_of(dice, int(dice.integers(0, 50)))
    firsts = dice.integers(0, len(entries) + 1, 40)
    lasts = np.maximum(firsts, dice.integers(0, len(entries) + 1, 40))
    hi = dice.integers(0, 4, 40).astype(np.uint64) << np.uint64(62)
    lo = dice.integers(0, 40, 40).astype(np.uint64)
    found, twin = np.empty(40, dtype=np.int64), np.empty(40, dtype=np.int64)
    kernels.find_entries(entries, firsts, lasts, hi, lo, found)
    kernels.find_entries_reference(entries, firsts, lasts, hi, lo, twin)
    assert found.tolist() == twin.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_parity_merging_entries(seed: int) -> None:
    dice = np.random.default_rng(seed)
    older, newer = (entries_of(dice, int(dice.integers(0, 50))) for _ in range(2))
    out = np.empty((len(older) + len(newer), 3), dtype=np.int64)
    count = kernels.merge_entries(older, newer, out)
    assert out[:count].tolist() == kernels.merge_entries_reference(older, newer)


@pytest.mark.parametrize("seed", range(8))
def test_parity_the_order_of_identities(seed: int) -> None:
    dice = np.random.default_rng(seed)
    count = int(dice.integers(0, 500))
    hi = dice.integers(0, 2**64, count, dtype=np.uint64)
    hi[dice.random(count) < 0.2] = 7
    lo = dice.integers(0, 3, count).astype(np.uint64)
    order = np.empty(count, dtype=np.int64)
    is_ordered = kernels.order_identities(hi, lo, order)
    assert not is_ordered or order.tolist() == kernels.order_identities_reference(hi, lo)
    assert kernels.order_identities(hi[hi != 7], lo[hi != 7], order[: (hi != 7).sum()])


def test_identities_that_all_begin_alike_are_left_alone() -> None:
    hi = np.arange(1_000, dtype=np.uint64)[::-1].copy()
    assert not kernels.order_identities(hi, hi, np.empty(1_000, dtype=np.int64))
