from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from icestream.core.errors import StorageError
from icestream.operators.frames import rings as module
from icestream.operators.frames.rings import Rings
from icestream.state.arena import Arena
from icestream.state.budget import Budget


def arena_of(folder: Path) -> Arena:
    return Arena.create(str(folder), Budget(1 << 20).account("groups"))


def test_parity_rings_beside_a_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 4096)
    length, width, dice = 40, 3, np.random.default_rng(1)
    rings, known = Rings(arena_of(tmp_path), length, width), {}
    rings.open()
    with closing(rings):
        for _ in range(200):
            # numbers far apart leave holes in the file
            ring = int(dice.integers(0, 9)) * 1000
            first = int(dice.integers(0, length))
            rows = dice.integers(-9, 9, (int(dice.integers(1, length - first + 1)), width))
            rings.write(ring, first, rows)
            for slot, row in enumerate(rows, first):
                known[ring, slot] = row.tolist()
        pieces = list(rings.image())
    assert sum(len(piece) for _, piece in pieces) < 40 * 4096
    again = Rings(arena_of(tmp_path), length, width)
    again.open()
    with closing(again):
        for place, piece in pieces:
            again.load(place, memoryview(piece))
        for (ring, slot), row in known.items():
            out = np.empty((1, width), dtype=np.int64)
            again.read(ring, slot, out)
            assert out.tolist() == [row]


def test_a_file_that_lost_its_end_is_named(tmp_path: Path) -> None:
    rings = Rings(arena_of(tmp_path), 4, 1)
    rings.open()
    with closing(rings), pytest.raises(StorageError, match="restart to rebuild"):
        rings.read(0, 0, np.empty((1, 1), dtype=np.int64))
