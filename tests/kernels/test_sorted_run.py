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
    pairs = {(int(dice.integers(0, 4)) << 62, int(n)) for n in dice.integers(0, 40, count)}
    rows = [(*pair, int(dice.integers(0, 1000))) for pair in sorted(pairs)]
    return np.array(rows, dtype=np.uint64).reshape(-1, 3).view(np.int64)


def runs_of(dice: np.random.Generator, page: int) -> tuple[list[Table], list[Ints], Table, Table]:
    """Return some runs, their high words, what tells of them, and their fences."""
    runs = [entries_of(dice, int(dice.integers(1, 50))) for _ in range(int(dice.integers(0, 4)))]
    fences = [np.column_stack((run[::page, 0], run[::page, 2])) for run in runs]
    firsts = np.cumsum([0, *map(len, fences)])
    high_words = [run[:, 0].copy() for run in runs]
    reported = [
        [run.ctypes.data, len(run), 3, first, high.ctypes.data]
        for run, high, first in zip(runs, high_words, firsts, strict=False)
    ]
    table = np.array(reported, dtype=np.int64).reshape(-1, kernels.RUN)
    return runs, high_words, table, np.concatenate([np.empty((0, 2), dtype=np.int64), *fences])


@pytest.mark.parametrize("page", [1, 3, 100])
@pytest.mark.parametrize("seed", range(8))
def test_parity_entries_in_runs(seed: int, page: int) -> None:
    dice = np.random.default_rng(seed)
    runs, _high_words, table, fences = runs_of(dice, page)
    asked = sorted({(int(dice.integers(0, 4)) << 62, int(n)) for n in dice.integers(0, 40, 60)})
    id_high, id_low = np.array(asked, dtype=np.uint64).T.copy()
    before = dice.random(len(asked)) < 0.1
    found, out = before.copy(), np.zeros((len(asked), 3), dtype=np.int64)
    kernels.find_in_runs(table, fences, page, id_high, id_low, found, out)
    wanted = find_in_runs_reference(runs, id_high, id_low, before)
    assert np.flatnonzero(found & ~before).tolist() == list(wanted)
    assert out[found & ~before].tolist() == list(wanted.values())


@pytest.mark.parametrize("room", [1, 7, 500])
@pytest.mark.parametrize("seed", range(8))
def test_parity_merging_runs(seed: int, room: int) -> None:
    runs, _high_words, table, _ = runs_of(np.random.default_rng(seed), 3)
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


def test_identities_that_all_begin_alike_are_left_alone() -> None:
    id_high = np.arange(1_000, dtype=np.uint64)[::-1].copy()
    assert not kernels.order_identities(id_high, id_high, np.empty(1_000, dtype=np.int64))
