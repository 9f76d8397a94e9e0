"""Rows of keys in a file, beside a dictionary."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from icestream.core.arrays import Ints, Mask
from icestream.core.errors import StorageError
from icestream.core.times import INFINITY
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.queue.cold_table import ColdTable, marks_of

WIDTH = 24
#: word of a row that says when it is due
DUE = 3


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena.create(str(tmp_path), Budget(1 << 24).account("arena"))


def rows_of(keys: Ints, dice: np.random.Generator) -> Ints:
    rows = dice.integers(0, 1000, (len(keys), WIDTH))
    rows[:, 0], rows[:, 1], rows[:, -1] = keys, keys * 7, 9
    return rows


def ids(keys: Ints) -> tuple[np.ndarray, np.ndarray]:
    return keys.view(np.uint64), (keys * 7).view(np.uint64)


def plain_of(rows: Ints) -> dict[int, list[int]]:
    return {int(row[0]): row.tolist() for row in rows}


def table_in(arena: Arena, window: int = 4 << 20) -> ColdTable:
    """Return a table that has all words but the last, which is always 9."""
    blank = np.full(WIDTH, 9, dtype=np.int64)
    return ColdTable(arena, "keys", blank, range(WIDTH - 1), [DUE, DUE + 1], window)


def all_rows(table: ColdTable) -> Ints:
    return np.concatenate([np.empty((0, WIDTH), dtype=np.int64), *table.scan()])


@pytest.mark.parametrize("window", [4 << 20, 40_000])
def test_oracle_a_table_is_a_dictionary(arena: Arena, window: int) -> None:
    dice = np.random.default_rng(3)
    plain: dict[int, list[int]] = {}
    for step in range(60):
        table = table_in(arena, window)
        named = np.unique(dice.integers(0, 6000, dice.integers(1, 300)))
        found, rows = table.fetch(*ids(named))
        assert found.tolist() == [key in plain for key in named.tolist()]
        assert rows.tolist() == [plain[key] for key in named.tolist() if key in plain]
        if step % 4 == 3:
            found, rows = table.take(*ids(named))
            assert rows.tolist() == [plain.pop(key) for key in named[found].tolist()]
        elif step % 4 == 2:
            change_some(table, plain, named, dice)
        else:
            changed = rows_of(named, dice)
            table.put(changed)
            plain |= plain_of(changed)
        if step % 10 == 9:
            seen = []
            for rows in table.scan():
                seen += rows.tolist()
                rows[:, DUE:-1] += 1
                table.put(rows[::2])
                table.take(*ids(rows[1::2, 0].copy()))
                plain |= plain_of(rows[::2])
                for key in rows[1::2, 0].tolist():
                    del plain[key]
            assert len(seen) == len({row[0] for row in seen})
        assert len(table) == len(plain)
        assert sorted(all_rows(table).tolist()) == sorted(plain.values())


def change_some(
    table: ColdTable, plain: dict[int, list[int]], named: Ints, dice: np.random.Generator
) -> None:
    """Add one to a word of rows that are there, and put two of three new ones."""
    marks = marks_of(*ids(named))
    order = np.argsort(marks)
    rows = rows_of(named[order], dice)

    def change(some: slice, found: Mask) -> Mask:
        assert found.tolist() == [key in plain for key in rows[some, 0].tolist()]
        rows[some][found, DUE] += 1
        return found | (rows[some, 0] % 3 > 0)

    table.change(marks[order], rows, change)
    for row in rows.tolist():
        if row[0] in plain:
            plain[row[0]][DUE] += 1
            assert row == plain[row[0]]
        elif row[0] % 3:
            plain[row[0]] = row


def test_oracle_what_is_due_is_found_by_fences(arena: Arena) -> None:
    dice = np.random.default_rng(5)
    table = table_in(arena, 40_000)
    rows = rows_of(np.arange(5000), dice)
    table.put(rows)
    for due, before in ((0, 0), (0, 100), (1, 90), (0, 90), (1, 350), (0, 1000)):
        word = DUE + due
        taken = [np.empty((0, WIDTH), dtype=np.int64), *table.take_due(due, before)]
        wanted = rows[rows[:, word] < before]
        assert sorted(np.concatenate(taken).tolist()) == sorted(wanted.tolist())
        rows = rows[rows[:, word] >= before]
        assert len(table) == len(rows)
        assert (table.fences(due) >= before).all()
        assert table.fences(due).min() == rows[:, word].min(initial=INFINITY)
        late = rows_of(np.arange(5000 + before, 5010 + before), dice)
        table.put(late)
        rows = np.concatenate((rows[~np.isin(rows[:, 0], late[:, 0])], late))


def test_bounded_a_table_reads_a_window_at_a_time(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []

    def noted(handle: int, buffers: list[memoryview], offset: int) -> int:
        lengths.append(sum(map(len, buffers)))
        return whole(handle, buffers, offset)

    whole = os.preadv
    monkeypatch.setattr(os, "preadv", noted)
    table = table_in(arena, 1 << 16)
    table.put(rows_of(np.arange(20_000), np.random.default_rng(1)))
    assert len(all_rows(table)) == 20_000
    assert max(lengths) <= 1 << 16


def test_a_full_disk_is_reported_and_nothing_is_lost(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_in(arena)
    table.put(rows_of(np.arange(20), np.random.default_rng(1)))

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(StorageError, match="the disk is full"):
            table.put(rows_of(np.arange(20, 2000), np.random.default_rng(1)))
    assert len(table) == len(all_rows(table)) == 20
