"""Groups that leave memory, beside selections by column."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.core.arrays import Table
from icestream.kernels.groups import eviction
from icestream.kernels.groups import heap as k
from tests.oracles.kernels.groups.eviction import (
    judge_leaving_reference,
    judge_reference,
    let_go_reference,
    list_apart_reference,
)

SLOTS = 400
AT = k.GROUP + k.PARTS


def directory(seed: int) -> Table:
    """Return groups with two synopses, of which the second is all that counts."""
    dice = np.random.default_rng(seed)
    table = dice.integers(0, 4, (SLOTS, k.GROUP + 2 * k.PARTS))
    table[:, AT + k.WORDS] = dice.integers(0, 2, SLOTS) * dice.integers(0, 30, SLOTS)
    table[:, AT + k.CLEAN] = table[:, AT + k.WORDS] - dice.integers(0, 2, SLOTS)
    table[:, AT + k.FLAGS] = dice.integers(0, 16, SLOTS)
    table[:, AT + k.ROOT] = dice.choice([k.NO_ROOT, 3 << 32 | 7], SLOTS)
    table[:, AT + k.COLD] = dice.choice([0, 5, 600, 50_000], SLOTS)
    table[:, AT + k.CHAIN] = 7 << 32 | dice.integers(0, 12, SLOTS)
    return table


@pytest.mark.parametrize("deltas", [False, True])
def test_parity_groups_with_news(deltas: bool) -> None:
    table, slots = directory(2), np.random.default_rng(2).permutation(SLOTS)[:300]
    whole = np.empty(len(slots), dtype=np.bool_)
    reported = eviction.judge(table, AT, slots, 2, 6, deltas, whole)
    wanted, *counts = judge_reference(table, AT, slots, 2, 6, deltas)
    assert whole.tolist() == wanted.tolist()
    assert list(reported) == counts


@pytest.mark.parametrize("scattered", [0, 64])
@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("clean_is_free", [False, True])
def test_parity_groups_that_leave(scattered: int, deltas: bool, clean_is_free: bool) -> None:
    table = directory(scattered)
    slots = np.random.default_rng(1).permutation(SLOTS)[:300]
    held = np.empty(len(slots), dtype=np.int64)
    dirty, whole = np.empty((2, len(slots)), dtype=np.bool_)
    how = (10, 8, scattered, deltas, clean_is_free)
    count, written = eviction.judge_eviction(table, AT, slots, *how, held, dirty, whole)
    wanted = judge_leaving_reference(table, AT, slots, *how)
    assert held[:count].tolist() == wanted[0].tolist()
    assert dirty[:count].tolist() == wanted[1].tolist()
    assert whole[:count].tolist() == wanted[2].tolist()
    assert written == wanted[1].sum() > 0


@pytest.mark.parametrize("scattered", [0, 64])
def test_parity_groups_in_many_small_extents(scattered: int) -> None:
    table, slots = directory(3), np.random.default_rng(3).permutation(SLOTS)[:300]
    apart = np.empty(len(slots), dtype=np.int64)
    count = eviction.list_apart(table, AT, slots, 8, scattered, apart)
    assert apart[:count].tolist() == list_apart_reference(table, AT, slots, 8, scattered)
    assert (0 < count < len(slots)) == (scattered > 0)


def test_parity_groups_that_have_left() -> None:
    table, slots = directory(1), np.arange(0, SLOTS, 3)
    twin = table.copy()
    eviction.let_go(table, AT, slots)
    let_go_reference(twin, AT, slots)
    np.testing.assert_array_equal(table, twin)
