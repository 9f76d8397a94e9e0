from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from icestream.operators.frames.blocks import BLOCK, BlockTable
from icestream.state.arena import PAGE, Arena
from icestream.state.budget import Budget, Refused


def test_parity_blocks_beside_a_list(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(1 << 20).account("groups"))
    dice = np.random.default_rng(1)
    table = BlockTable(arena, "blocks")
    listed: list[tuple[int, ...]] = []
    for step in range(30):
        new = [tuple(row) for row in dice.integers(0, 99, (int(dice.integers(0, 40)), 4)).tolist()]
        table.append(np.array(new, dtype=BLOCK))
        listed += new
        if step % 3 == 0:
            chosen = dice.random(len(listed)) < 0.7
            table.keep(chosen)
            listed = [row for row, keep in zip(listed, chosen, strict=True) if keep]
        again = BlockTable(arena, "blocks")
        assert [tuple(row) for row in again.all.tolist()] == listed
        assert len(again) == len(listed)


def test_bounded_refused_blocks_change_nothing(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(PAGE).account("groups"))
    table = BlockTable(arena, "blocks")
    table.append(np.array([(1, 2, 3, 4)], dtype=BLOCK))
    with pytest.raises(Refused):
        table.append(np.zeros(1000, dtype=BLOCK))
    assert table.all.tolist() == [(1, 2, 3, 4)]
