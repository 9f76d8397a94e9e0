"""Chains of blocks, beside lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from icestream.core.arrays import Ints
from icestream.kernels.groups import heap as k
from tests.oracles.kernels.groups.heap import ChainsReference, sift_reference, sort_free_reference

GROUPS, AT, BLOCKS = 7, k.GROUP, 60


def rows_of(dice: np.random.Generator, count: int, expiries: Ints) -> tuple[Ints, Ints]:
    """Return rows of two to seven words, the second of which is an expiry."""
    sizes = dice.integers(2, 8, count)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    words = dice.integers(0, 1000, int(offsets[-1]))
    words[offsets[:-1]] = sizes << 32
    words[offsets[:-1] + 1] = expiries
    return words, offsets


def changes_of(dice: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Return a few rows and their groups."""
    slots = dice.integers(0, GROUPS, 4)
    return slots, *rows_of(dice, len(slots), np.full(len(slots), 5))


class Memory:
    """A directory of a few groups and a heap of a few blocks."""

    def __init__(self, block_words: int) -> None:
        self.table = np.zeros((GROUPS, k.GROUP + k.PARTS), dtype=np.int64)
        self.blocks = np.zeros((BLOCKS, block_words), dtype=np.int64)
        self.links = np.zeros(BLOCKS, dtype=np.int32)
        self.facts = np.zeros(k.HEAP_FACTS, dtype=np.int64)

    def append(self, slots: Ints, words: Ints, offsets: Ints, watermark: int = -1) -> int:
        memory = (self.blocks, self.links, self.facts)
        return k.append(self.table, AT, *memory, slots, words, offsets, 0, 1, watermark)

    def replace(self, slots: Ints, words: Ints, offsets: Ints, bounds: Ints) -> int:
        memory = (self.blocks, self.links, self.facts)
        rows = (words, offsets, bounds)
        return k.replace(self.table, AT, *memory, slots, *rows, 0, 1, -1, True)

    def gather(self, slot: int, skipped: int = 0) -> list[int]:
        count = int(self.table[slot, AT + k.WORDS]) - skipped
        out, places = np.empty(count, dtype=np.int64), np.zeros(1, dtype=np.int64)
        slots, skip = np.array([slot]), np.array([skipped])
        k.gather(self.table, AT, self.blocks, self.links, slots, skip, out, places)
        assert places.tolist() == [count]
        return out.tolist()

    def sort_free(self) -> None:
        k.sort_free(self.links, self.facts, np.zeros(BLOCKS, dtype=np.bool_))

    def check(self) -> None:
        """Every block is in one chain, free, or was never used."""
        seen: list[int] = []
        for slot in range(GROUPS):
            seen += self.chain(int(self.table[slot, AT + k.HEAD]))
        free = self.chain(int(self.facts[k.FREE]))
        assert len(free) == self.facts[k.FREE_COUNT]
        assert sorted(seen + free) == list(range(int(self.facts[k.USED])))

    def chain(self, first: int) -> list[int]:
        found = []
        while first:
            found.append(first - 1)
            first = int(self.links[first - 1])
        return found


@pytest.mark.parametrize("block_words", [1, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_parity_chains_beside_lists(seed: int, block_words: int) -> None:
    dice = np.random.default_rng(seed)
    memory, twin = Memory(block_words), ChainsReference(GROUPS)
    for _ in range(60):
        count = int(dice.integers(0, 5))
        slots = dice.integers(0, GROUPS, count)
        words, offsets = rows_of(dice, count, np.full(count, 5))
        done = memory.append(slots, words, offsets)
        twin.append(slots[:done], words, offsets)
        if dice.random() < 0.3:
            others = np.unique(slots)
            bounds = np.sort(dice.integers(0, count + 1, len(others) + 1))
            kept = memory.replace(others, words, offsets, bounds)
            twin.replace(others[:kept], words, offsets, bounds)
        some = np.unique(dice.integers(0, GROUPS, int(dice.integers(0, 3))))
        if done < count or dice.random() < 0.3:
            k.drop(memory.table, AT, block_words, memory.links, memory.facts, some)
            twin.drop(some)
        if dice.random() < 0.2:
            memory.sort_free()
        memory.check()
        for slot in range(GROUPS):
            expected = twin.words(slot)
            assert memory.gather(slot) == expected
            if twin.rows[slot]:
                skipped = len(twin.rows[slot][0])
                assert memory.gather(slot, skipped) == expected[skipped:]


@pytest.mark.parametrize("seed", range(5))
def test_parity_free_blocks_in_order(seed: int) -> None:
    dice, memory = np.random.default_rng(seed), Memory(3)
    for _ in range(10):
        memory.append(*changes_of(dice))
    k.drop(memory.table, AT, 3, memory.links, memory.facts, dice.permutation(GROUPS)[: seed + 1])
    expected = sort_free_reference(memory.links, memory.facts)
    memory.sort_free()
    assert memory.chain(int(memory.facts[k.FREE])) == expected
    assert len(expected) == memory.facts[k.FREE_COUNT] > 0
    memory.check()


@pytest.mark.parametrize("clean", range(7))
def test_install_gives_a_run_to_each_group_and_knows_what_is_clean(clean: int) -> None:
    memory = Memory(3)
    slots, offsets, words = np.array([4, 1]), np.array([0, 6, 7]), np.arange(7)
    cleans = np.array([clean, 0])
    arrays = (memory.blocks, memory.links, memory.facts)
    k.install(memory.table, AT, *arrays, slots, words, offsets, cleans)
    assert memory.gather(4) == [0, 1, 2, 3, 4, 5]
    assert memory.gather(4, skipped=clean) == list(range(clean, 6))
    assert memory.gather(1) == [6]
    memory.check()


def test_replace_stops_before_the_group_without_blocks() -> None:
    memory = Memory(1)
    words, offsets = rows_of(np.random.default_rng(1), 40, np.full(40, 5))
    slots, bounds = np.array([0, 1, 2]), np.array([0, 2, 40, 40])
    assert memory.replace(slots, words, offsets, bounds) == 1
    assert memory.gather(0) == words[: offsets[2]].tolist()
    assert memory.gather(1) == []
    memory.check()


def test_replace_leaves_out_what_has_expired_and_hides_what_is_on_the_log() -> None:
    memory = Memory(4)
    memory.table[:, AT + k.ROOT] = k.NO_ROOT
    memory.table[2, AT + k.ROOT] = 77
    words, offsets = rows_of(np.random.default_rng(1), 3, np.array([5, 9, 7]))
    arrays = (memory.blocks, memory.links, memory.facts)
    rows = (words, offsets, np.array([0, 1, 3]))
    k.replace(memory.table, AT, *arrays, np.array([2, 3]), *rows, 0, 1, 5, True)
    assert memory.gather(2) == []
    assert memory.gather(3) == words[offsets[1] :].tolist()
    assert memory.table[3, AT + k.EXPIRY] == 9
    assert memory.table[[2, 3], AT + k.FLAGS].tolist() == [k.WHOLE | k.STALE, k.WHOLE]


def test_append_stops_where_blocks_end() -> None:
    memory = Memory(1)
    dice = np.random.default_rng(1)
    words, offsets = rows_of(dice, 40, np.full(40, 5))
    slots = np.arange(40) % GROUPS
    done = memory.append(slots, words, offsets)
    assert offsets[done] <= BLOCKS < offsets[done + 1]
    assert memory.table[:, AT + k.WORDS].sum() == offsets[done]


def test_append_leaves_out_what_has_expired_and_notes_the_latest() -> None:
    memory = Memory(4)
    words, offsets = rows_of(np.random.default_rng(1), 3, np.array([5, 9, 7]))
    memory.append(np.array([2, 2, 2]), words, offsets, watermark=5)
    assert memory.table[2, AT + k.WORDS] == offsets[3] - offsets[1]
    assert memory.table[2, AT + k.EXPIRY] == 9


@pytest.mark.parametrize("expiry_at", [-1, 1])
@pytest.mark.parametrize("seed", range(8))
def test_parity_sifting_rows(seed: int, expiry_at: int) -> None:
    dice = np.random.default_rng(seed)
    counts = dice.integers(0, 5, 6)
    words, starts = rows_of(dice, int(counts.sum()), dice.integers(0, 10, int(counts.sum())))
    ends = np.concatenate(([0], np.cumsum(counts)))
    offsets = starts[ends]
    pairs = itertools.pairwise(ends.tolist())
    cleans = np.array([starts[dice.integers(a, b + 1)] - starts[a] for a, b in pairs])
    expected = sift_reference(words, offsets, cleans, expiry_at, 4)
    found = [np.empty(6, dtype=np.int64) for _ in range(3)]
    k.sift(words, offsets, cleans, expiry_at, 4, *found)
    kept = [words[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert (kept, *(each.tolist() for each in found)) == expected


@pytest.mark.parametrize(("sign_at", "expected"), [(-1, [8, 3]), (1, [6, 0])])
def test_worn_words(sign_at: int, expected: list[int]) -> None:
    memory = Memory(8)
    # rows of 3, 5 and 3 words; the first one cancels another
    words, offsets = np.array([3, -1, 0, 5, 1, 0, 0, 0, 3, 2, 0]), np.array([0, 3, 8, 11])
    memory.table[:, AT + k.FLAGS] = k.WHOLE
    k.wear(memory.table, AT, np.array([0, 0, 1]), words, offsets, sign_at)
    assert (memory.table[:2, AT + k.FLAGS] >> k.FLAG_BITS).tolist() == expected
    assert (memory.table[:, AT + k.FLAGS] & k.PLAIN_FLAGS == k.WHOLE).all()
