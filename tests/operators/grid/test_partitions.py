from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import BudgetError
from icestream.operators.folding.fields import Field, Layout
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, identity_schema
from icestream.operators.grid.groups import ID_HIGH_END, ResidentGroups
from icestream.operators.grid.partitions import Partition, Partitions
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused
from icestream.state.keys import KeyCodec

KEYS = pa.schema([("name", pa.string())])
CODEC = KeyCodec(KEYS)
LAYOUT = Layout.of((Field("max", "x"),))


class Shard:
    """Partitions over a small budget, filled with groups as an operator fills them."""

    def __init__(self, folder: Path, total: int) -> None:
        self.budget = Budget(total)
        self.arena = Arena.create(str(folder), self.budget.account("groups"))
        self.attach()

    def attach(self) -> None:
        self.groups = ResidentGroups(LAYOUT, CODEC, self.arena)
        self.partitions = Partitions(self.arena, self.groups, LAYOUT.suffix_words, self.budget)

    def admit(self, numbers: range, width: int = 1) -> None:
        """Open groups, splitting where the budget refuses."""
        names = [f"{n:05d}" * width for n in numbers]
        batch = pa.record_batch([pa.array(names)], schema=KEYS)
        id_high, id_low = CODEC.identify(batch)
        last = np.zeros(len(id_high), dtype=np.int64)
        columns = [pa.array(id_high), pa.array(id_low), pa.array(last), batch.column(0)]
        table = pa.Table.from_arrays(columns, schema=identity_schema(KEYS))
        for partition in self.partitions.visit():
            while True:
                low, high = np.uint64(partition.low), np.uint64(partition.high - 1)
                inside = table.filter(pa.array((id_high >= low) & (id_high <= high)))
                here, there = (
                    inside.column(name).to_numpy() for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN)
                )
                try:
                    self.groups.admit(here, there, np.zeros(len(here), np.int64), inside)
                    break
                except Refused:
                    assert self.partitions.split(partition)

    def names(self) -> list[str]:
        """Collect the groups of all partitions by visiting them."""
        found = []
        for partition in self.partitions.visit():
            for _, keys in self.groups.image(partition.low, partition.high):
                found.extend(keys.column(0).to_pylist())
            assert sum(len(rows) for rows, _ in self.groups.image(0, ID_HIGH_END)) == len(
                self.groups
            )
        return sorted(found)

    def ranges(self) -> list[tuple[int, int]]:
        return [(f["low"], f["high"]) for f in self.arena.header["partitions"]]


def check_cover(ranges: list[tuple[int, int]]) -> None:
    assert ranges[0][0] == 0
    assert ranges[-1][1] == ID_HIGH_END
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


@pytest.mark.parametrize("total", [64 * 1024, 100 * 1024, 1 << 20])
def test_partitions_always_cover_every_group_once(tmp_path: Path, total: int) -> None:
    shard = Shard(tmp_path, total)
    for first in range(0, 3000, 500):
        shard.admit(range(first, first + 500))
        check_cover(shard.ranges())
    assert len(shard.partitions) > 1 if total < 1 << 20 else len(shard.partitions) == 1
    assert shard.names() == [f"{n:05d}" for n in range(3000)]


@pytest.mark.parametrize("total", [72 * 1024, 90 * 1024, 150 * 1024, 1 << 21])
def test_bounded_a_visit_sees_every_group_under_any_budget(tmp_path: Path, total: int) -> None:
    shard = Shard(tmp_path, total)
    for first in range(0, 1200, 300):
        shard.admit(range(first, first + 300), width=20)
        expected = [f"{n:05d}" * 20 for n in range(first + 300)]
        assert shard.names() == expected
        assert shard.partitions.groups == len(expected)
    assert shard.budget.peak <= total
    shard.arena.release("kept")
    claimed = Arena.claim(str(tmp_path), "kept", shard.budget.account("groups"))
    assert claimed is not None
    shard.arena = claimed
    shard.attach()
    assert shard.names() == expected


def test_images_are_removed_once_nobody_needs_them(tmp_path: Path) -> None:
    shard = Shard(tmp_path, 72 * 1024)
    for first in range(0, 1200, 300):
        shard.admit(range(first, first + 300), width=20)
    shard.names()
    files = list((tmp_path / shard.arena.name).glob("image-*"))
    named = {f["image"] for f in shard.arena.header["partitions"] if f["image"]}
    assert {file.name for file in files} == named
    assert len(files) == len(shard.partitions) - 1


def test_evicted_groups_come_back_with_the_next_visit(tmp_path: Path) -> None:
    shard = Shard(tmp_path, 1 << 20)
    assert not shard.partitions.evict()
    shard.admit(range(100))
    before = shard.budget.held
    assert shard.partitions.evict()
    assert shard.budget.held < before
    assert not shard.partitions.evict()
    assert len(shard.groups) == 0
    assert shard.names() == [f"{n:05d}" for n in range(100)]


def test_a_split_makes_the_suffixes_of_both_halves_stale(tmp_path: Path) -> None:
    shard = Shard(tmp_path, 1 << 20)
    shard.admit(range(50))
    (partition,) = shard.partitions.visit()
    assert partition.whole
    assert not partition.stale
    partition.suffixes.push(np.zeros((3, 1), dtype=np.int64))
    partition.next.push(np.zeros((2, 1), dtype=np.int64))
    partition.flipped = partition.turning = 7
    assert shard.partitions.split(partition)
    words = LAYOUT.suffix_words
    halves = [Partition(each, shard.arena, words) for each in shard.arena.header["partitions"]]
    (joined,) = shard.partitions.visit()
    assert [each.stale for each in (*halves, joined)] == [True, True, True]
    assert all(each.suffixes.size == each.next.size == 0 for each in halves)
    assert all(each.flipped < 0 and each.turning < 0 for each in (*halves, joined))
    assert joined.whole


def test_groups_that_never_fit_are_a_budget_error(tmp_path: Path) -> None:
    big = Shard(tmp_path / "big", 1 << 22)
    big.admit(range(1), width=60_000)
    (partition,) = big.partitions.visit()
    image = list(big.groups.image(partition.low, partition.high))
    small = Shard(tmp_path / "small", 64 * 1024)
    records = [(memoryview(rows.tobytes()), memoryview(_stream(keys))) for rows, keys in image]
    small.partitions.import_image(iter(records))
    with pytest.raises(BudgetError, match="Who holds what"):
        small.names()


def _stream(keys: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as stream:
        stream.write(keys)
    return bytes(sink.getvalue())


def test_the_room_of_groups_that_are_gone_leaves_too(tmp_path: Path) -> None:
    shard = Shard(tmp_path, 1 << 22)
    shard.admit(range(2000))
    shard.groups.release(np.arange(2000))
    held = shard.budget.held
    assert shard.partitions.evict()
    assert shard.budget.held < held // 10
    assert not shard.partitions.evict()
    shard.admit(range(3))
    assert len(shard.names()) == 3


def test_neighbours_that_fit_are_joined(tmp_path: Path) -> None:
    shard = Shard(tmp_path, 200 * 1024)
    shard.admit(range(4000))
    before = shard.names()
    split = len(shard.partitions)
    assert split > 2
    for partition in shard.partitions.visit():
        some = np.flatnonzero(shard.groups.rows[:, 0] != 0)
        shard.groups.release(some[: len(some) - 20])
        assert partition.low >= 0
    few = shard.names()
    assert set(few) < set(before)
    assert shard.names() == few
    check_cover(shard.ranges())
    assert len(shard.partitions) < split
    shard.admit(range(5000, 9000))
    assert len(shard.names()) == len(few) + 4000
    check_cover(shard.ranges())
