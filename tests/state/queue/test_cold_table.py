"""Rows of keys in a file of pages, beside a dictionary."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icestream.core.arrays import Ints
from icestream.core.errors import StorageError
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.queue import cold_table
from icestream.state.queue.cold_table import ColdTable

WIDTH = 24
#: word of a row that says when it is due
DUE = 3


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena.create(str(tmp_path), Budget(1 << 24).account("arena"))


def rows_of(keys: Ints, dice: np.random.Generator) -> Ints:
    rows = dice.integers(0, 1000, (len(keys), WIDTH))
    rows[:, 0], rows[:, 1] = keys, keys * 7
    return rows


def ids(keys: Ints) -> tuple[np.ndarray, np.ndarray]:
    return keys.view(np.uint64), (keys * 7).view(np.uint64)


def plain_of(rows: Ints) -> dict[int, list[int]]:
    return {int(row[0]): row.tolist() for row in rows}


def all_rows(table: ColdTable) -> Ints:
    return np.concatenate([np.empty((0, WIDTH), dtype=np.int64), *table.scan()])


@pytest.mark.parametrize("window", [4 << 20, 3 * 4096])
def test_oracle_a_table_is_a_dictionary(
    arena: Arena, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_table, "WINDOW", window)
    dice = np.random.default_rng(3)
    plain: dict[int, list[int]] = {}
    for step in range(60):
        table = ColdTable(arena, "keys", WIDTH, DUE)
        named = np.unique(dice.integers(0, 6000, dice.integers(1, 300)))
        found, rows = table.fetch(*ids(named))
        assert found.tolist() == [key in plain for key in named.tolist()]
        assert rows.tolist() == [plain[key] for key in named.tolist() if key in plain]
        if step % 4 == 3:
            found, rows = table.take(*ids(named))
            assert rows.tolist() == [plain.pop(key) for key in named[found].tolist()]
        else:
            changed = rows_of(named[found], dice)
            table.over(changed)
            fresh = rows_of(named[~found], dice)
            table.put(fresh)
            plain |= plain_of(changed) | plain_of(fresh)
        if step % 10 == 9:
            seen = []
            for rows in table.scan():
                seen += rows.tolist()
                rows[:, DUE:] += 1
                table.over(rows[::2])
                table.take(*ids(rows[1::2, 0].copy()))
                plain |= plain_of(rows[::2])
                for key in rows[1::2, 0].tolist():
                    del plain[key]
            assert len(seen) == len({row[0] for row in seen})
        assert len(table) == len(plain)
        assert sorted(all_rows(table).tolist()) == sorted(plain.values())


def test_oracle_what_is_due_is_reported_until_it_is_taken(arena: Arena) -> None:
    dice = np.random.default_rng(5)
    table = ColdTable(arena, "keys", WIDTH, DUE)
    rows = rows_of(np.arange(5000), dice)
    table.put(rows)
    for before in (0, 100, 90, 350, 1000):
        due = np.concatenate([np.empty((0, WIDTH), dtype=np.int64), *table.due(before)])
        wanted = rows[rows[:, DUE] < before]
        assert sorted(due[:, 0].tolist()) == sorted(wanted[:, 0].tolist())
        table.take(*ids(due[:, 0].copy()))
        rows = rows[rows[:, DUE] >= before]
        late = rows_of(np.arange(5000 + before, 5010 + before), dice)
        table.put(late)
        rows = np.concatenate((rows, late))


def test_bounded_a_table_maps_a_window_at_a_time(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_table, "WINDOW", 1 << 16)
    lengths = []

    def mapped(handle: int, length: int, **how: Any) -> mmap.mmap:
        lengths.append(length)
        return whole(handle, length, **how)

    whole = mmap.mmap
    monkeypatch.setattr(mmap, "mmap", mapped)
    table = ColdTable(arena, "keys", WIDTH)
    table.put(rows_of(np.arange(20_000), np.random.default_rng(1)))
    assert len(all_rows(table)) == 20_000
    assert max(lengths) <= 2 << 16


def test_a_full_disk_is_reported_and_nothing_is_lost(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ColdTable(arena, "keys", WIDTH)
    table.put(rows_of(np.arange(20), np.random.default_rng(1)))

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(StorageError, match="the disk is full"):
            table.put(rows_of(np.arange(20, 2000), np.random.default_rng(1)))
    assert len(table) == len(all_rows(table)) == 20
