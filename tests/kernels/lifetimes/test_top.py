from __future__ import annotations

import numpy as np
import pytest

from icestream.kernels.lifetimes.top import fill_segments
from tests.oracles.kernels.lifetimes.top import fill_segments_reference


@pytest.mark.parametrize("seed", range(40))
def test_parity_filling_segments(seed: int) -> None:
    dice = np.random.default_rng(seed)
    rows, segments, k = int(dice.integers(0, 25)), int(dice.integers(1, 20)), seed % 5 + 1
    ends = np.sort(dice.integers(0, segments + 1, (rows, 2)), axis=1)
    first, last = np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])
    counts, order = dice.integers(1, 4, rows), dice.permutation(rows)
    runs = np.full((k * segments, 4), -7)
    made = fill_segments(
        order, first, last, counts, k, np.arange(segments + 1), np.full(segments, k), runs
    )
    for less in {0, made // 2, made - 1} & set(range(made)):
        again = np.arange(segments + 1), np.full(segments, k), runs[:less].copy()
        assert fill_segments(order, first, last, counts, k, *again) == -1
    found: list[dict[int, int]] = [{} for _ in range(segments)]
    for row, start, stop, count in runs[:made].tolist():
        for segment in range(start, stop):
            assert row not in found[segment]
            found[segment][row] = count
    assert found == fill_segments_reference(
        order.tolist(), first.tolist(), last.tolist(), counts.tolist(), k, segments
    )


def test_neighbouring_segments_of_a_row_are_one_run() -> None:
    # row 0   |=====|          row 1, worse   |==========|
    first, last, counts = np.array([0, 0]), np.array([2, 4]), np.array([1, 1])
    runs = np.empty((4, 4), dtype=np.int64)
    made = fill_segments(
        np.arange(2), first, last, counts, 1, np.arange(5), np.ones(4, np.int64), runs
    )
    assert runs[:made].tolist() == [[0, 0, 2, 1], [1, 2, 4, 1]]
