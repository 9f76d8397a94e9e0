from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from icestream.state.arena import PAGE, Arena
from icestream.state.budget import Budget, Refused
from icestream.state.table import CountedTable

RECORD = np.dtype([("marker", np.uint64), ("rows", np.int64)])


def test_parity_a_table_beside_a_list(tmp_path: Path) -> None:
    account = Budget(1 << 20).account("groups")
    arena = Arena.create(str(tmp_path), account)
    dice = np.random.default_rng(1)
    listed: list[tuple[int, ...]] = []
    for step in range(60):
        table = CountedTable(arena, "records", RECORD)
        new = [tuple(row) for row in dice.integers(0, 99, (int(dice.integers(0, 40)), 2)).tolist()]
        if step % 5 == 4:
            table.replace(np.array(new, dtype=RECORD))
            table.trim()
            listed = new
        else:
            table.append(np.array(new, dtype=RECORD))
            listed += new
        if step % 3 == 0:
            chosen = dice.random(len(listed)) < 0.7
            table.keep(chosen)
            listed = [row for row, keep in zip(listed, chosen, strict=True) if keep]
        if step % 7 == 6:
            arena.release(f"v{step}")
            claimed = Arena.claim(str(tmp_path), f"v{step}", account)
            assert claimed is not None
            arena = claimed
        again = CountedTable(arena, "records", RECORD)
        assert [tuple(row) for row in again.records.tolist()] == listed
        assert again.rows.tolist() == [list(row) for row in listed]
        assert len(again) == len(listed)


def test_a_refused_change_leaves_the_table_alone(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(PAGE).account("groups"))
    table = CountedTable(arena, "records", RECORD)
    table.append(np.array([(1, 2)], dtype=RECORD))
    for change in (table.append, table.replace):
        with pytest.raises(Refused):
            change(np.zeros(1000, dtype=RECORD))
        assert table.records.tolist() == [(1, 2)]
