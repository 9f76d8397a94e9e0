"""Best rows first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY
from icestream.state.groups import ranked
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.spec import Synopsis
from tests.fixtures.group_space import GroupSpace

RANKED = (Synopsis("ranked", pa.schema([("rank", pa.float64()), ("x", pa.int64())]), rank="rank"),)


def rows_of(ranks: Ints) -> Ints:
    """Return rows of three words, the second of which is the rank."""
    words = np.zeros((len(ranks), 3), dtype=np.int64)
    words[:, 0] = 3 << 32
    words[:, 1] = ranks
    words[:, 2] = np.arange(len(ranks))
    return words.reshape(-1)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_are_best_first(seed: int) -> None:
    dice = np.random.default_rng(seed)
    counts = np.array([5000, 1, 300])
    ranks = dice.integers(-1000, 1000, int(counts.sum()))
    offsets = 3 * np.concatenate(([0], np.cumsum(counts)))
    pieces = ranked.cut(rows_of(ranks), offsets, 1, False, -1, INFINITY)
    for group in range(3):
        mine = np.flatnonzero(pieces.groups == group)
        assert pieces.levels[mine].tolist() == list(range(len(mine)))
        assert pieces.rows[mine].sum() == counts[group]
        begin, end = pieces.offsets[mine[0]], pieces.offsets[mine[-1] + 1]
        found = pieces.words[begin:end].reshape(-1, 3)
        first = offsets[group] // 3
        expected = np.sort(ranks[first : first + counts[group]])[::-1]
        assert found[:, 1].tolist() == expected.tolist()
        assert sorted(found[:, 2].tolist()) == list(range(first, first + counts[group]))
    sizes = np.diff(pieces.offsets)[pieces.groups == 0].tolist()
    assert len(sizes) == ranked.PIECES
    assert sizes[:-1] == sorted(sizes[:-1])


def test_the_best_rows_of_a_large_group_are_read_alone(tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    space = GroupSpace(str(tmp_path), RANKED, StoreOptions("evict"), block_bytes=4096)
    ranks = dice.normal(size=20_000)
    one = np.zeros(1, dtype=np.uint64)
    with space.version() as store:
        store.begin(0)
        (slot,) = slots = store.locate(one, one)
        batch = pa.record_batch([pa.array(ranks), pa.array(np.arange(20_000))], RANKED[0].schema)
        store.append(0, np.full(20_000, slot), batch)
        store.eviction.evict(slots)
    with space.version() as store:
        store.begin(0)
        slots = store.locate(one, one)
        more = pa.record_batch([pa.array([9.0, -9.0]), pa.array([-1, -2])], RANKED[0].schema)
        store.append(0, slots[[0, 0]], more)
        for count in (3, 100, 1000):
            best = store.read_best(0, slots, np.array([count])).rows.column(0).to_numpy()
            assert count <= len(best) < 10_000
            expected = np.sort(np.append(ranks, 9.0))[::-1][:count]
            assert np.sort(best)[::-1][:count].tolist() == expected.tolist()
        part = store.statistics["bytes_read"]
        # a large group is in several extents, and the best rows of each are read: three times here
        assert part < 3 * 20_000 * 24 / 2
        for asked in range(1, 3):
            assert store.read(0, slots).rows.num_rows == 20_002
            assert store.statistics["bytes_read"] - part >= asked * 20_000 * 24
        # it is too large to come back to memory
        assert store.read_best(0, slots, np.array([2])).rows.num_rows < 10_000
