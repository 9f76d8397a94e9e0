"""The newest slices in memory, beside the log that has all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from icestream.operators.grid.slices import RecentSlices
from icestream.state.arena import PAGE, Arena
from icestream.state.budget import Budget

WIDTH = 4


def arena_of(folder: Path, quota: int = 1 << 20) -> Arena:
    return Arena.create(str(folder), Budget(quota).account("arena"))


def read(recent: RecentSlices, log: dict[int, np.ndarray], markers: list[int]) -> set[int]:
    """Check what is found against the log; return the markers that are not."""
    places = {marker: np.zeros_like(log[marker]) for marker in markers}
    whole = dict(places)
    recent.fill(places)
    for marker in markers:
        expected = np.zeros_like(log[marker]) if marker in places else log[marker]
        assert np.array_equal(whole[marker], expected)
    return set(places)


@pytest.mark.parametrize("ordinal", [1, 2**31 - 200, 2**32 - 1000])
def test_parity_recent_slices_beside_the_log(tmp_path: Path, ordinal: int) -> None:
    """Any slices, moved from task to task: what is found is right, and the newest are there."""
    dice = np.random.default_rng(ordinal)
    log: dict[int, np.ndarray] = {}
    arena = arena_of(tmp_path)
    for version in range(300):
        recent = RecentSlices(arena, WIDTH)
        sizes = dice.integers(1, 12 if version % 7 else 60, dice.integers(1, 4)).tolist()
        markers = [ordinal + version << 32 | at for at in range(len(sizes))]
        entries = dice.integers(0, 100, (sum(sizes), WIDTH))
        if len(entries) <= recent.most:
            recent.add(markers, sizes, entries)
        cuts = np.cumsum(sizes)[:-1]
        log |= dict(zip(markers, np.split(entries, cuts), strict=True))
        asked = dice.choice(np.array([*log], dtype=np.uint64), 5).tolist()
        missing = read(recent, log, [*dict.fromkeys([*asked, *markers])])
        assert missing.isdisjoint(markers) == (len(entries) <= recent.most)
        arena.release(f"v{version}")
        claimed = Arena.claim(str(tmp_path), f"v{version}", Budget(1 << 20).account("arena"))
        assert claimed is not None
        arena = claimed


def test_bounded_recent_slices_take_a_page(tmp_path: Path) -> None:
    arena = arena_of(tmp_path)
    recent = RecentSlices(arena, WIDTH)
    for marker in range(1, 500):
        recent.add([marker], [3], np.full((3, WIDTH), marker))
        assert arena.bytes == PAGE
    full = arena_of(tmp_path, quota=PAGE - 1)
    refused = RecentSlices(full, WIDTH)
    refused.add([1], [1], np.ones((1, WIDTH), dtype=np.int64))
    assert full.bytes == 0
    assert read(refused, {1: np.ones((1, WIDTH))}, [1]) == {1}


def test_entries_of_another_width_are_forgotten(tmp_path: Path) -> None:
    arena = arena_of(tmp_path)
    recent = RecentSlices(arena, WIDTH)
    recent.add([1], [2], np.ones((2, WIDTH), dtype=np.int64))
    recent.restart(WIDTH + 1)
    assert arena.bytes == 0
    wider = {1: np.ones((2, WIDTH + 1), dtype=np.int64)}
    assert read(recent, wider, [1]) == {1}
    recent.add([2], [2], wider[1])
    assert read(recent, {2: wider[1]}, [2]) == set()
