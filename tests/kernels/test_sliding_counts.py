"""Counts of windows that slide, beside counting each window anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.kernels.sliding_counts import (
    DISTINCT,
    LISTED,
    MOST,
    RANKS,
    frame_begins,
    slide_counts,
)
from tests.oracles.kernels.sliding_counts import frame_begins_reference, slide_counts_reference

FRACTIONS = np.array([0.0, 0.35, 0.5, 1.0])


@pytest.mark.parametrize("seed", range(12))
def test_parity_sliding_counts_beside_counters(seed: int) -> None:
    dice = np.random.default_rng(seed)
    codes, counts, starts, first, last, lows, sizes = ([] for _ in range(7))
    low = 0
    starts.append(0)
    for _ in range(4):
        size, entries, begin = int(dice.integers(1, 9)), int(dice.integers(1, 30)), len(starts) - 1
        for _ in range(entries):
            some = int(dice.integers(0, 3))
            codes += (low + dice.integers(0, size, some)).tolist()
            counts += dice.integers(1, 4, some).tolist()
            starts.append(len(codes))
        ends = np.sort(dice.integers(1, entries + 1, int(dice.integers(0, 20))))
        begins = np.maximum.accumulate(np.maximum(ends - dice.integers(1, 8, len(ends)), 0))
        begins = np.minimum(begins, ends - 1)
        first += (begin + begins).tolist()
        last += (begin + ends).tolist()
        lows += [low] * len(ends)
        sizes += [size] * len(ends)
        low += size
    given = [np.array(each, dtype=np.int64) for each in (codes, counts, starts, first, last)]
    reference: Any = slide_counts_reference
    expected = reference(*given, FRACTIONS.tolist())
    places = [np.array(each, dtype=np.int64) for each in (lows, sizes)]
    out = np.empty((len(first), 1 + 2 * len(FRACTIONS)), dtype=np.int64)
    tree = np.empty(64, dtype=np.int64)
    listed = np.empty(sum(len(each) for each, _, _ in expected), dtype=np.int64)
    arguments = (*given, *places)
    slide: Any = slide_counts
    slide(*arguments, DISTINCT, FRACTIONS, tree, out, listed)
    assert out[:, 0].tolist() == [len(each) for each, _, _ in expected]
    slide(*arguments, MOST, FRACTIONS, tree, out, listed)
    assert out[:, 0].tolist() == [most for _, most, _ in expected]
    slide(*arguments, LISTED, FRACTIONS, tree, out, listed)
    assert listed.tolist() == [code for each, _, _ in expected for code in each]
    slide(*arguments, RANKS, FRACTIONS, tree, out, listed)
    for row, (_, _, ranked) in zip(out.tolist(), expected, strict=True):
        assert row[0] == 0 if not ranked else row[1:] == ranked


@pytest.mark.parametrize("seed", range(8))
def test_parity_frames_begin_beside_a_search(seed: int) -> None:
    dice = np.random.default_rng(seed)
    owners = np.sort(dice.integers(0, 3, 40))
    times = dice.integers(-20, 20, 40)
    if seed % 2:
        times[:6] = [MINUS_INFINITY, MINUS_INFINITY + 3, INFINITY, INFINITY - 1, 0, 2**62]
    times = times[np.lexsort((times, owners))]
    ends = np.arange(1, 41)
    for reach, rows in ((1, INFINITY), (7, 3), (INFINITY, 5), (2**60, INFINITY)):
        first = np.empty(40, dtype=np.int64)
        frame_begins(owners, times, ends, reach, rows, first)
        assert first.tolist() == frame_begins_reference(owners, times, ends, reach, rows)
