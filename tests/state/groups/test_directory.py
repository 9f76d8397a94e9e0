"""Slots of groups, beside a dictionary."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from icestream.core.arrays import Ids
from icestream.core.times import INFINITY
from icestream.kernels.groups.heap import DUE
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused
from icestream.state.groups import directory
from icestream.state.groups.directory import ENTRY, GroupDirectory, is_empty_entry, slot_order


def directory_in(folder: Path, limit: int = 1 << 20) -> GroupDirectory:
    return GroupDirectory(
        Arena.create(str(folder), Budget(1 << 22).account("arena")), "g", 2, limit
    )


def identities(numbers: list[int]) -> tuple[Ids, Ids]:
    id_high = np.array(numbers, dtype=np.uint64)
    return id_high, id_high << np.uint64(21)


def test_oracle_a_directory_is_a_dictionary(tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    known: dict[int, int] = {}
    groups = directory_in(tmp_path)
    for step in range(1, 60):
        wanted = sorted(set(dice.integers(0, 3000, 60).tolist()) - set(known))
        slots = groups.open(*identities(wanted), step)
        known |= dict(zip(wanted, slots.tolist(), strict=True))
        assert len(set(known.values())) == len(known) == groups.groups
        gone = [number for number in known if dice.random() < 0.1]
        groups.close(np.array([known.pop(number) for number in gone], dtype=np.int64))
        asked = dice.integers(0, 3000, 100).tolist()
        found = groups.find(*identities(asked)).tolist()
        assert found == [known.get(number, -1) for number in asked]
        assert sorted(groups.every().tolist()) == sorted(known.values())
        if step % 7 == 0:
            rows = groups.table[[known[number] for number in sorted(known)]]
            groups.shrink(int(dice.integers(0, 200_000)))
            slots = groups.find(*identities(sorted(known)))
            assert groups.table[slots].tolist() == rows.tolist()
            known = dict(zip(sorted(known), slots.tolist(), strict=True))


def test_a_refused_open_changes_nothing(tmp_path: Path) -> None:
    with mock.patch.object(directory, "LEAST_SLOTS", 1):
        groups = directory_in(tmp_path, limit=1)
        slots = groups.open(*identities([1, 2]), 1) if groups.room >= 2 else None
        room = groups.room
        with pytest.raises(Refused):
            groups.open(*identities(list(range(10, 10 + room + 2))), 1)
        assert groups.room == room
        assert groups.groups == (0 if slots is None else 2)
        assert groups.find(*identities([10])).tolist() == [-1]


def test_entries_come_back_as_they_were(tmp_path: Path) -> None:
    groups = directory_in(tmp_path)
    slots = groups.open(*identities([1, 2, 3]), 1)
    assert is_empty_entry(groups.entries(slots), 0).all()
    entries = groups.entries(slots)
    entries[:, 2:] = np.arange(entries[:, 2:].size).reshape(3, -1)
    groups.close(slots)
    again = groups.open(*identities([1, 2, 3]), 1)
    groups.adopt(again, entries)
    assert groups.entries(again).tolist() == entries.tolist()
    assert not is_empty_entry(entries, 1_000).any()
    entries[:, 2 + ENTRY.index(DUE) :: len(ENTRY)] = INFINITY
    assert not is_empty_entry(entries, 0).any()
    assert is_empty_entry(entries, 1_000).all()


@pytest.mark.parametrize("most", [10, 100, 1_000_000])
def test_slots_are_put_in_order(most: int) -> None:
    slots = np.random.default_rng(most).choice(most, 10, replace=False)
    assert slots[slot_order(slots)].tolist() == sorted(slots.tolist())
    assert slot_order(slots[:0]).tolist() == []
