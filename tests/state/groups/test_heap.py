"""Where the blocks are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused
from icestream.state.groups.directory import GroupDirectory
from icestream.state.groups.heap import Heap


def heap_in(folder: Path, limit: int, quota: int = 1 << 22) -> Heap:
    arena = Arena.create(str(folder), Budget(quota).account("arena"))
    directory = GroupDirectory(arena, "g", 1, 1 << 20)
    directory.open(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64), 1)
    return Heap(arena, "g", directory, 8, limit)


def test_bounded_a_heap_keeps_its_limit(tmp_path: Path) -> None:
    heap = heap_in(tmp_path, limit=68 * 1000)
    heap.grow(10)
    heap.grow(900)
    assert heap.free >= 900
    assert heap.bytes <= 68 * 1000 + 2 * 4096
    with pytest.raises(Refused):
        heap.grow(2000)


def test_a_refused_heap_is_as_it_was(tmp_path: Path) -> None:
    heap = heap_in(tmp_path, limit=1 << 30, quota=1 << 19)
    heap.grow(100)
    slots, words = np.array([1]), np.arange(100)
    heap.install(0, slots, words, np.array([0, 100]), np.array([40]))
    free = heap.free
    with pytest.raises(Refused):
        heap.grow(1_000_000)
    assert heap.free == free
    out, places = np.empty(100, dtype=np.int64), np.zeros(1, dtype=np.int64)
    heap.gather(0, slots, np.zeros(1, dtype=np.int64), out, places)
    assert out.tolist() == words.tolist()
    heap.drop(0, slots)
    assert heap.taken == 0


def test_a_heap_grows_as_far_as_the_budget_lets_it(tmp_path: Path) -> None:
    heap = heap_in(tmp_path, limit=1 << 30, quota=1 << 18)
    heap.grow(1000)
    there = heap.free
    heap.grow(there + 100)
    assert heap.free >= there + 100
