"""Chains of extents, beside lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.arrays import Ints
from icestream.core.errors import DamageError
from icestream.core.times import INFINITY
from icestream.kernels.groups import extents as kernels
from icestream.kernels.groups.heap import ID_HIGH, ID_LOW, NO_ROOT
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.groups import extents as chained
from icestream.state.groups.extents import ExtentLog, Extents, extents_of
from icestream.state.groups.options import ROWS
from icestream.state.groups.unsealed import UnsealedRecords
from icestream.state.rows import RowCodec
from tests.fixtures.group_space import GroupSpace, Task

GROUPS = 30
IDS = np.arange(GROUPS, dtype=np.uint64) << np.uint64(59)


def copied(found: chained.Chains) -> tuple[Ints, Ints]:
    """Return the words of chains, and where each begins and the last one ends."""
    offsets = np.concatenate(([0], np.cumsum(found.sizes)))
    words, places = np.empty(int(offsets[-1]), dtype=np.int64), offsets[:-1].copy()
    found.copy(words, places)
    assert places.tolist() == offsets[1:].tolist()
    return words, offsets


class Chains:
    """Writes extents of groups and remembers what is in them."""

    def __init__(self, folder: Path, record_bytes: int = 256) -> None:
        self.space = GroupSpace(str(folder), ())
        arena = Arena.create(str(folder / "arenas"), Budget(1 << 22).account("arena"))
        self.task = Task(self.space, Budget(1 << 22), arena)
        self.log = ExtentLog(self.task, 0, "groups-0", record_bytes)
        self.roots = np.full(GROUPS, NO_ROOT)
        self.expiries = np.full(GROUPS, -(2**63))
        self.words: list[list[tuple[int, list[int]]]] = [[] for _ in range(GROUPS)]

    def write(self, groups: Ints, sizes: Ints, expiry: Ints, *, mirrored: bool) -> None:
        words = np.random.default_rng(len(self.words[0])).integers(0, 1 << 40, int(sizes.sum()))
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        expiry = np.maximum(expiry, self.expiries[groups])
        headers = np.zeros((len(groups), kernels.HEADER), dtype=np.int64)
        headers[:, ID_HIGH], headers[:, ID_LOW] = IDS[groups].view(np.int64), groups
        headers[:, kernels.SHAPE] = [1 + len(self.words[group]) << 32 for group in groups.tolist()]
        headers[:, kernels.LENGTH] = sizes
        headers[:, kernels.BACK] = self.roots[groups]
        headers[:, kernels.LATEST] = expiry
        headers[:, kernels.BACK_LATEST] = self.expiries[groups]
        extents = Extents(headers, words, offsets[:-1])
        self.roots[groups] = self.log.write(0, extents, 1, mirrored=mirrored)
        self.expiries[groups] = expiry
        for number, group in enumerate(groups.tolist()):
            piece = words[offsets[number] : offsets[number + 1]].tolist()
            self.words[group].append((int(expiry[number]), piece))

    def seal(self) -> None:
        for lifetime in self.space.lifetimes:
            self.task.seal(lifetime)
        self.space.next_ordinal += len(self.space.lifetimes)

    def check(self, watermark: int) -> None:
        names = np.arange(GROUPS, dtype=np.uint64)
        found = self.log.read_chains(IDS, names, self.roots, self.expiries, watermark)
        words, offsets = copied(found)
        for group, pieces in enumerate(self.words):
            expected = [word for expiry, piece in pieces if expiry > watermark for word in piece]
            assert words[offsets[group] : offsets[group + 1]].tolist() == expected


@pytest.mark.parametrize("seed", range(4))
def test_oracle_chains_are_read_oldest_first(tmp_path: Path, seed: int) -> None:
    dice = np.random.default_rng(seed)
    chains = Chains(tmp_path)
    for step in range(12):
        groups = np.sort(dice.choice(GROUPS, 10, replace=False))
        expiry = np.where(dice.random(10) < 0.1, INFINITY, step + 5)
        mirrored = bool(step % 3)
        chains.write(groups, dice.integers(0, 60, 10), expiry, mirrored=mirrored)
        if not mirrored or dice.random() < 0.3:
            chains.seal()
        chains.check(-1)


def test_a_chain_ends_where_all_has_expired(tmp_path: Path) -> None:
    chains = Chains(tmp_path)
    every = np.arange(GROUPS)
    for step in range(6):
        chains.write(every, np.full(GROUPS, 3), np.full(GROUPS, 10 * step), mirrored=False)
        chains.seal()
    for info in chains.task.log.segments.values():
        if info.expiry <= 25:
            (tmp_path / info.name).unlink()
    chains.check(25)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_bounded_a_pass_reads_each_extent_once(tmp_path: Path, is_sealed: bool) -> None:
    chains = Chains(tmp_path, record_bytes=1 << 16)
    for step in range(6):
        some = np.arange(0, GROUPS, step + 1)
        chains.write(some, np.full(len(some), 3), np.full(len(some), 10), mirrored=not is_sealed)
        if is_sealed:
            chains.seal()
    chains.check(-1)
    assert chains.log.traffic.extents_read == chains.log.traffic.extents
    assert chains.log.traffic.bytes_read == 3 * 8 * chains.log.traffic.extents


def test_records_keep_to_their_size_unless_an_extent_does_not(tmp_path: Path) -> None:
    chains = Chains(tmp_path, record_bytes=1024)
    sizes = np.full(GROUPS, 5)
    sizes[7] = 1000
    chains.write(np.arange(GROUPS), sizes, np.full(GROUPS, 10), mirrored=False)
    chains.seal()
    (info,) = [info for _, info in chains.task.sealed]
    reader = chains.task.reader(info)
    lengths = reader.directory["length"].tolist()
    found = np.concatenate([extents_of(record.payload)[1] for record in reader.scan()])
    reader.close()
    assert sum(length > 1024 for length in lengths) == 1
    assert found[:, 1].tolist() == list(range(GROUPS))


#: an extent of a row that never expires, the first of its chain
SOUND = [0, 0, 1 << 32 | 1, 2 | kernels.FIRST | kernels.LASTING, 2 << 32, 77]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([0], "no sound extent"),
        (SOUND[:-1], "no sound extent"),
        ([*SOUND[:3], 2**32 - 1, *SOUND[4:]], "no sound extent"),
        ([1, *SOUND[1:]], "no sound extent"),
        ([*SOUND[:-1], 78], "no sound extent"),
        ([*SOUND[:3], 2 | kernels.LASTING, 0, *SOUND[4:]], "beginning of a chain"),
        ([*SOUND[:4], 0, 77], "no rows"),
        ([*SOUND[:4], 1 << 62, 77], "no rows"),
        ([*SOUND[:4], -1, 77], "no rows"),
    ],
)
def test_extents_that_make_no_sense_are_damage(tmp_path: Path, words: list[int], what: str) -> None:
    chains = Chains(tmp_path)
    codec = RowCodec(pa.schema([("x", pa.int64())]))
    writer = chains.task.segment(ROWS)
    marker = writer.next_marker
    record = np.array(words, dtype=np.int64)
    if what == "beginning of a chain":
        record[kernels.BACK] = marker
    if what != "no sound extent":
        record[kernels.LENGTH] |= kernels.checksum(record, 0, len(record), marker)
    assert writer.append(record, operator=0, synopsis=0, rows=1, expiry=INFINITY) == marker
    chains.seal()
    one, roots = np.zeros(1, dtype=np.uint64), np.full(1, marker)
    with pytest.raises(DamageError, match=what):
        copied(chains.log.read_chains(one, one, roots, np.full(1, INFINITY), 0, codec=codec))


def test_records_that_extents_do_not_fill_are_refused() -> None:
    places, headers = extents_of(np.array([*SOUND, *SOUND]).tobytes())
    assert places.tolist() == [0, len(SOUND)]
    assert headers.tolist() == [[*SOUND[:4], NO_ROOT, INFINITY, -INFINITY - 1]] * 2
    for words in ([], SOUND[:-1], [*SOUND, 1], [*SOUND[:3], 2**32 - 1, *SOUND[4:]]):
        with pytest.raises(ValueError, match="does not contain the extents"):
            extents_of(np.array(words, dtype=np.int64).tobytes())


def test_unsealed_records_are_read_back(tmp_path: Path) -> None:
    unsealed = UnsealedRecords(Arena.create(str(tmp_path), Budget(1 << 20).account("arena")), "g")
    first, other, second = (5 << 32) + 7, (5 << 32) + 20, 6 << 32
    for marker, size in ((first, 3), (second, 4), (other, 2)):
        unsealed.keep(marker, np.arange(size) + marker)
    of_five = np.array([first + 2, other, other + 1])
    found = [
        (origin, words.tolist(), count) for origin, words, count in unsealed.stretches(of_five)
    ]
    assert found == [
        (first, [first, first + 1, first + 2], 1),
        (other, [other, other + 1], 2),
    ]
    outside = np.array([first - 1, first, first + 3, other + 2])
    assert unsealed.holds(outside).tolist() == [False, True, False, False]
    unsealed.begin({6})
    assert not unsealed.holds(of_five).any()
    assert unsealed.holds(np.array([second, second + 3])).all()
    unsealed.begin(set())
    assert not unsealed.holds(np.array([second])).any()
