"""Groups in rows, beside lists and columns."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.core.arrays import Ints
from icestream.kernels.groups import heap as k
from icestream.kernels.groups import inline_groups
from icestream.kernels.groups.extents import HEADER, LENGTH, SHAPE
from tests.oracles.kernels.groups.inline_groups import (
    adopt_reference,
    draft_reference,
    packed_reference,
)

SYNOPSES, BLOCKS, WIDTH = 2, 80, 9
#: columns of an entry before packed words
ENTRY = np.array([k.ID_HIGH, k.ID_LOW, k.GROUP + k.ROOT, k.GROUP + k.PARTS + k.ROOT])
FIRST = len(ENTRY) + inline_groups.BESIDE - 1


class Memory:
    """A directory and a heap of a few blocks."""

    def __init__(self, groups: int, block_words: int) -> None:
        self.table = np.zeros((groups, k.GROUP + SYNOPSES * k.PARTS), dtype=np.int64)
        for synopsis in range(SYNOPSES):
            self.table[:, self.at(synopsis) + k.FLAGS] = k.WHOLE
        self.blocks = np.zeros((BLOCKS, block_words), dtype=np.int64)
        self.links = np.zeros(BLOCKS, dtype=np.int32)
        self.facts = np.zeros(k.HEAP_FACTS, dtype=np.int64)

    def at(self, synopsis: int) -> int:
        return k.GROUP + synopsis * k.PARTS

    def put(self, slot: int, synopsis: int, words: list[int]) -> None:
        array, ends = np.array(words, dtype=np.int64), np.array([0, len(words)])
        memory = (self.table, self.at(synopsis), self.blocks, self.links, self.facts)
        k.install(*memory, np.array([slot]), array, ends, np.zeros(1, dtype=np.int64))

    def words(self, slot: int, synopsis: int) -> list[int]:
        out = np.empty(int(self.table[slot, self.at(synopsis) + k.WORDS]), dtype=np.int64)
        one, zero = np.array([slot]), np.zeros(1, dtype=np.int64)
        memory = (self.table, self.at(synopsis), self.blocks, self.links)
        k.gather(*memory, one, zero, out, zero.copy())
        return out.tolist()


@pytest.mark.parametrize("block_words", [1, 3, 8])
def test_parity_small_groups_in_rows(block_words: int) -> None:
    dice = np.random.default_rng(block_words)
    memory, groups = Memory(12, block_words), []
    for slot in range(12):
        sizes = dice.integers(0, 6, SYNOPSES)
        groups.append([dice.integers(0, 99, size).tolist() for size in sizes.tolist()])
        for synopsis, words in enumerate(groups[-1]):
            if words and (synopsis, slot) != (0, 3):
                memory.put(slot, synopsis, words)
    # one is not all in memory
    memory.table[3, memory.at(0) + k.FLAGS] = 0
    slots = np.arange(12)
    memory.table[:, k.HEAT] = dice.integers(0, 99, 12)
    entries = memory.table[:, ENTRY]
    rows = np.full((12, FIRST + 1 + WIDTH), -1)
    heap = (memory.blocks, memory.links, memory.facts)
    inline_groups.stow(memory.table, ENTRY, *heap, slots, 7, rows)
    assert rows[:, : len(ENTRY)].tolist() == entries.tolist()
    heats = memory.table[:, k.HEAT].tolist()
    assert rows[:, len(ENTRY)].tolist() == [heat << inline_groups.HEAT_BITS | 7 for heat in heats]
    assert memory.facts[k.FREE_COUNT] == memory.facts[k.USED]
    expected = packed_reference(groups, WIDTH + 1)
    expected[3] = [0] * (WIDTH + 1)
    assert rows[:, FIRST:].tolist() == expected

    back = Memory(12, block_words)
    back.table[5, back.at(1) + k.ROOT] = k.NO_ROOT
    kept = [
        [words if row[0] and (slot, s) != (5, 1) else [] for s, words in enumerate(group)]
        for slot, (group, row) in enumerate(zip(groups, expected, strict=True))
    ]
    inline_groups.unpack(back.table, back.blocks, back.links, back.facts, slots, rows, FIRST)
    found = [[back.words(slot, s) for s in range(SYNOPSES)] for slot in range(12)]
    assert found == kept
    cleans = back.table[:, k.GROUP + k.CLEAN :: k.PARTS].tolist()
    assert cleans == [[len(words) for words in group] for group in kept]


def test_parity_extents_of_inline_groups() -> None:
    dice, width = np.random.default_rng(8), 2
    groups = [
        [dice.integers(0, 99, width * size).tolist() for size in sizes]
        for sizes in dice.integers(0, 3, (10, SYNOPSES)).tolist()
    ]
    rows = np.zeros((10, FIRST + 1 + WIDTH), dtype=np.int64)
    rows[:, :2] = dice.integers(0, 99, (10, 2))
    rows[:, FIRST:] = packed_reference(groups, WIDTH + 1)
    for synopsis in range(SYNOPSES):
        headers, begins = np.empty((10, HEADER), dtype=np.int64), np.empty(10, dtype=np.int64)
        inline_groups.plan_extents(rows, FIRST, synopsis, width, headers, begins)
        assert headers[:, :2].tolist() == rows[:, :2].tolist()
        for group, header, begin in zip(groups, headers.tolist(), begins.tolist(), strict=True):
            count, words = draft_reference(group, synopsis, width)
            assert header[SHAPE] == 1 << 32 | count
            assert rows.reshape(-1)[begin : begin + header[LENGTH]].tolist() == words


def test_blocks_needed_are_those_taken() -> None:
    memory = Memory(4, 2)
    rows = np.zeros((4, FIRST + 1 + WIDTH), dtype=np.int64)
    rows[:, FIRST] = [3, 1 | 4 << inline_groups.BITS, 0, 2 << inline_groups.BITS]
    needed = inline_groups.blocks_needed(rows, FIRST, SYNOPSES, 2)
    slots = np.arange(4)
    inline_groups.unpack(
        memory.table, memory.blocks, memory.links, memory.facts, slots, rows, FIRST
    )
    assert needed == memory.facts[k.USED] == 6


def test_parity_entries_of_groups() -> None:
    dice = np.random.default_rng(3)
    tables = [np.zeros((9, k.GROUP + SYNOPSES * k.PARTS), dtype=np.int64) for _ in range(2)]
    rows: Ints = dice.integers(-1, 5, (4, FIRST + 1))
    slots = np.array([7, 0, 3, 4])
    inline_groups.adopt(tables[0], ENTRY, slots, rows)
    adopt_reference(tables[1], ENTRY, slots, rows)
    assert tables[0].tolist() == tables[1].tolist()
    assert (tables[0][slots, k.GROUP + k.FLAGS] != 0).any()
    rows[:, len(ENTRY)] = [heat << inline_groups.HEAT_BITS | 2 for heat in (9, 8, 7, 6)]
    inline_groups.warm(tables[1], len(ENTRY), slots, rows, 3)
    assert tables[1][slots, k.HEAT].tolist() == [4, 4, 3, 3]
    assert tables[1][slots, k.PAGED].tolist() == [1, 1, 1, 1]


def test_an_entry_has_the_share_of_worn_words() -> None:
    memory, columns = Memory(3, 8), [k.ROOT, k.COLD, k.CHAIN]
    at = memory.at(1)
    entry = np.array([k.ID_HIGH, k.ID_LOW, *(at + column for column in columns)])
    memory.table[:, at + k.COLD] = 1_000
    memory.table[:, at + k.CHAIN] = 7 << 32 | 3
    memory.table[:, at + k.FLAGS] |= np.array([0, 250, 3_000]) << k.FLAG_BITS
    rows = np.empty((3, len(entry)), dtype=np.int64)
    inline_groups.copy_entries(memory.table, entry, np.arange(3), rows)
    back = Memory(3, 8)
    inline_groups.adopt(back.table, entry, np.arange(3), rows)
    assert (back.table[:, at + k.CHAIN] == 7 << 32 | 3).all()
    assert (back.table[:, at + k.FLAGS] >> k.FLAG_BITS).tolist() == [0, 250, 1_000]
