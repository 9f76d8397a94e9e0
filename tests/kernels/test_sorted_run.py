"""Sorted entries, beside dictionaries."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.core.arrays import Ints, Table
from icestream.kernels import sorted_run as kernels
from tests.oracles.kernels.sorted_run import (
    find_in_runs_reference,
    merge_runs_reference,
    order_identities_reference,
)


def entries_of(dice: np.random.Generator, count: int) -> Table:
    """Return distinct entries in order, many with equal id_high and some above 2**63."""
    pairs = {(int(dice.integers(0, 4)) << 62, int(n)) for n in dice.integers(0, count, count)}
    rows = [(*pair, int(dice.integers(0, 1000))) for pair in sorted(pairs)]
    return np.array(rows, dtype=np.uint64).reshape(-1, 3).view(np.int64)


def runs_of(
    dice: np.random.Generator, page: int, most: int = 50
) -> tuple[list[Table], list[Table], Table, Ints]:
    """Return some runs, the arrays described with them, their descriptors, and their guides."""
    runs = [entries_of(dice, int(dice.integers(1, most))) for _ in range(int(dice.integers(0, 4)))]
    fences = [np.column_stack((run[::page, 0], run[::page, 2])) for run in runs]
    guides = [each[:: kernels.GUIDED] for each in fences]
    firsts = np.cumsum([0, *map(len, guides)])
    high_words = [run[:, 0].copy() for run in runs]
    described = [
        [run.ctypes.data, len(run), 3, first, fence.ctypes.data, high.ctypes.data]
        for run, high, fence, first in zip(runs, high_words, fences, firsts, strict=False)
    ]
    table = np.array(described, dtype=np.int64).reshape(-1, kernels.RUN)
    together = np.concatenate([np.empty((0, 2), dtype=np.int64), *guides]).reshape(-1)
    return runs, [*high_words, *fences], table, together


@pytest.mark.parametrize(("page", "most"), [(1, 50), (1, 2000), (3, 50), (100, 50)])
@pytest.mark.parametrize("seed", range(8))
def test_parity_entries_in_runs(seed: int, page: int, most: int) -> None:
    dice = np.random.default_rng(seed)
    runs, _described, table, guides = runs_of(dice, page, most)
    asked = sorted({(int(dice.integers(0, 4)) << 62, int(n)) for n in dice.integers(0, most, 60)})
    id_high, id_low = np.array(asked, dtype=np.uint64).T.copy()
    before = dice.random(len(asked)) < 0.1
    found, out = before.copy(), np.zeros((len(asked), 3), dtype=np.int64)
    kernels.find_in_runs(table, guides, page, id_high, id_low, found, out)
    wanted = find_in_runs_reference(runs, id_high, id_low, before)
    assert np.flatnonzero(found & ~before).tolist() == list(wanted)
    assert out[found & ~before].tolist() == list(wanted.values())


@pytest.mark.parametrize("room", [1, 7, 500])
@pytest.mark.parametrize("seed", range(8))
def test_parity_merging_runs(seed: int, room: int) -> None:
    runs, _described, table, _ = runs_of(np.random.default_rng(seed), 3)
    places, made, full = np.zeros(len(runs), dtype=np.int64), [], True
    while full:
        out = np.empty((room, 3), dtype=np.int64)
        count = kernels.merge_runs(table, places, out)
        made += out[:count].tolist()
        full = count == room
    assert made == merge_runs_reference(runs)
    assert places.tolist() == [len(run) for run in runs]


@pytest.mark.parametrize("seed", range(8))
def test_parity_the_order_of_identities(seed: int) -> None:
    dice = np.random.default_rng(seed)
    count = int(dice.integers(0, 500))
    id_high = dice.integers(0, 2**64, count, dtype=np.uint64)
    id_high[dice.random(count) < 0.2] = 7
    id_low = dice.integers(0, 3, count).astype(np.uint64)
    order = np.empty(count, dtype=np.int64)
    is_ordered = kernels.order_identities(id_high, id_low, order)
    assert not is_ordered or order.tolist() == order_identities_reference(id_high, id_low)
    assert kernels.order_identities(
        id_high[id_high != 7], id_low[id_high != 7], order[: (id_high != 7).sum()]
    )


def test_parity_identities_of_groups_inside_few_others_are_ordered() -> None:
    dice = np.random.default_rng(3)
    outer = dice.integers(0, 2**32, 7, dtype=np.uint64)[dice.integers(0, 7, 2_000)]
    id_high = outer << np.uint64(32) | dice.integers(0, 2**32, 2_000, dtype=np.uint64)
    id_low = dice.integers(0, 3, 2_000).astype(np.uint64)
    order = np.empty(2_000, dtype=np.int64)
    assert kernels.order_identities(id_high, id_low, order)
    assert order.tolist() == order_identities_reference(id_high, id_low)


def test_identities_that_all_begin_alike_are_left_alone() -> None:
    id_high = np.arange(1_000, dtype=np.uint64)[::-1].copy()
    assert not kernels.order_identities(id_high, id_high, np.empty(1_000, dtype=np.int64))
