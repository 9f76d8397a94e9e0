from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icestream.kernels.multi_join import resident as k
from icestream.operators.multi_join.resident import FEWEST, Resident
from icestream.state.arena import PAGE, Arena
from icestream.state.budget import Budget, Refused


def add(resident: Resident, keys: list[int], port: int) -> None:
    id_high = np.array(keys, dtype=np.uint64) << np.uint64(32)
    payload = np.repeat(np.array([2 << 32, 7]).reshape(1, 2), len(keys), axis=0).ravel()
    resident.reserve(len(keys), len(payload))
    slots, _ = resident.open(id_high, id_high, port)
    times = np.zeros(len(keys), dtype=np.int64)
    begins = 2 * np.arange(len(keys))
    resident.link(slots, port, times, times + 9, payload, begins, fresh=True)


def test_a_refused_chunk_changes_nothing(tmp_path: Path) -> None:
    """Rows that were kept before are kept as they were, and found."""
    budget = Budget(12 * PAGE)
    arena = Arena.create(str(tmp_path), budget.account("test"))
    numbers: dict[str, Any] = {}
    resident = Resident(arena, "join", 2, 4, numbers)
    add(resident, [1, 2, 3], 0)
    before, heap = dict(numbers), resident.heap.tolist()
    with pytest.raises(Refused):
        resident.reserve(10_000, 20_000)
    assert numbers == before
    assert resident.heap.tolist() == heap
    id_high = np.array([2], dtype=np.uint64) << np.uint64(32)
    slots, hits = resident.open(id_high, id_high, 1)
    assert slots.tolist() == [1]
    assert hits.tolist() == [0]


def test_dropping_gives_bytes_back(tmp_path: Path) -> None:
    """After all rows left the arrays are as small as at first, and can be used again."""
    budget = Budget(1 << 24)
    arena = Arena.create(str(tmp_path), budget.account("test"))
    resident = Resident(arena, "join", 2, 4, {})
    small = arena.bytes
    add(resident, list(range(20_000)), 0)
    assert arena.bytes > 20 * small
    assert len(resident._places) > FEWEST
    resident.all_logged()
    resident.drop(np.ones(4, dtype=np.bool_), 0)
    assert arena.bytes == small
    assert resident.facts[:, k.BYTES].tolist() == [0] * 4
    add(resident, [1, 2], 1)
    assert resident.fresh == 2


def test_streams_are_those_of_resident_rows(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(1 << 24).account("test"))
    resident = Resident(arena, "join", 2, 4, {})
    add(resident, [1, 1, 2, 1 << 30], 0)
    add(resident, [1, 3, 3], 1)
    assert [each.tolist() for each in resident.streams()] == [[4, 3], [3, 2]]
    resident.all_logged()
    resident.drop(np.array([True, False, False, False]), 0)
    assert [each.tolist() for each in resident.streams()] == [[1, 0], [1, 0]]


def test_an_arena_is_attached_to_as_it_was_left(tmp_path: Path) -> None:
    account = Budget(1 << 24).account("test")
    arena = Arena.create(str(tmp_path), account)
    resident = Resident(arena, "join", 2, 4, arena.header.setdefault("join", {}))
    add(resident, [5, 6], 0)
    heap, facts = resident.heap.tolist(), resident.facts.tolist()
    arena.release("left")
    claimed = Arena.claim(str(tmp_path), "left", account)
    assert claimed is not None
    again = Resident(claimed, "join", 2, 4, claimed.header["join"])
    assert again.heap.tolist() == heap
    assert again.facts.tolist() == facts
    assert (again.fresh, again.logged) == (2, 0)
