"""Passes over a directory, beside selections by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from icestream.core.arrays import Ints, Table
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.kernels.groups import directory_passes
from icestream.kernels.groups import heap as k
from icestream.kernels.groups.extents import HEADER
from icestream.kernels.hash_index import remove
from tests.oracles.kernels.groups.directory_passes import (
    compact_slots_reference,
    describe_reference,
    known_words_reference,
    list_gone_reference,
    list_held_reference,
    list_needed_reference,
    list_news_reference,
    list_over_reference,
    list_residue_reference,
    measure_reference,
    settle_reference,
    stamp_reference,
    used_slots_reference,
    words_of_reference,
)

SLOTS, SYNOPSES = 200, 2
AT = k.GROUP + k.PARTS


def directory(seed: int) -> Table:
    """Return groups of which much is zero, equal, or the end of time."""
    dice = np.random.default_rng(seed)
    table = dice.integers(0, 4, (SLOTS, k.GROUP + SYNOPSES * k.PARTS))
    for at in range(k.GROUP, table.shape[1], k.PARTS):
        table[:, at + k.WORDS] = dice.integers(0, 2, SLOTS) * dice.integers(0, 30, SLOTS)
        table[:, at + k.CLEAN] = dice.integers(0, table[:, at + k.WORDS] + 1)
        worn = dice.choice([0, 2, 20, 4000], SLOTS)
        table[:, at + k.FLAGS] = worn << k.FLAG_BITS | dice.integers(0, 16, SLOTS)
        table[:, at + k.ROOT] = dice.choice([k.NO_ROOT, 3 << 32 | 7, 9 << 32], SLOTS)
        table[:, at + k.COLD] = dice.choice([0, 0, 5, 5000], SLOTS)
        table[:, at + k.CHAIN] = dice.integers(0, 5, SLOTS) << 32 | dice.integers(0, 5, SLOTS)
        for instant in (k.EXPIRY, k.ROOT_EXPIRY, k.DUE):
            table[:, at + instant] = dice.choice([MINUS_INFINITY, 3, 7, INFINITY], SLOTS)
    return table


def some_slots(seed: int) -> Ints:
    return np.random.default_rng(seed).permutation(SLOTS)[:80]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("listed", "reference", "how"),
    [
        (directory_passes.list_news, list_news_reference, (AT, 3)),
        (directory_passes.list_residue, list_residue_reference, (AT, 3)),
        (directory_passes.list_over, list_over_reference, (AT, 5)),
        (directory_passes.list_held, list_held_reference, (2, 3)),
        (directory_passes.list_gone, list_gone_reference, ()),
    ],
)
def test_parity_lists_of_groups(
    listed: Callable[..., int], reference: Callable[..., list[int]], how: tuple[Any, ...], seed: int
) -> None:
    table = directory(seed)
    table[:20, k.GROUP :] = 0
    table[:20, [k.GROUP + k.DUE, AT + k.DUE]] = INFINITY
    slots = np.empty(SLOTS, dtype=np.int64)
    found = slots[: listed(table, *how, slots)].tolist()
    assert found == reference(table, *how)
    assert found


@pytest.mark.parametrize("seed", range(4))
def test_parity_entries_that_the_index_needs(seed: int) -> None:
    table, slots = directory(seed), some_slots(seed)
    table[:100, k.GROUP :] = 0
    table[:100, [k.GROUP + k.DUE, AT + k.DUE]] = INFINITY
    table[:50, k.PAGED] = 0
    out = np.empty(len(slots), dtype=np.int64)
    needed = out[: directory_passes.list_needed(table, slots, out)].tolist()
    assert needed == list_needed_reference(table, slots)
    assert directory_passes.known_words(table, 8) == known_words_reference(table, 8)


@pytest.mark.parametrize("with_cold", [False, True])
@pytest.mark.parametrize("block", [1, 8])
def test_parity_words_of_groups(with_cold: bool, block: int) -> None:
    table, slots = directory(1), some_slots(1)
    out = np.empty(len(slots), dtype=np.int64)
    parts = np.arange(k.GROUP, table.shape[1], k.PARTS)[1:]
    directory_passes.words_of(table, parts, slots, with_cold, block, out)
    assert out.tolist() == words_of_reference(table, parts, slots, with_cold, block).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_parity_measuring(seed: int) -> None:
    table, slots = directory(seed), some_slots(seed)
    whole = np.random.default_rng(seed).random(len(slots)) < 0.5
    skipped, cleans = np.empty((2, len(slots)), dtype=np.int64)
    offsets = np.empty(len(slots) + 1, dtype=np.int64)
    cold = directory_passes.measure(table, AT, slots, whole, skipped, offsets, cleans)
    expected = measure_reference(table, AT, slots, whole)
    found = (skipped, offsets, cleans)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected[:3]]
    assert cold == expected[3]


@pytest.mark.parametrize("is_logged", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_parity_describing_and_settling(seed: int, is_logged: bool) -> None:
    dice = np.random.default_rng(seed)
    table, slots = directory(seed), some_slots(seed)
    count = len(slots)
    whole = dice.random(count) < 0.5
    sizes = dice.integers(0, 3, count)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    rows, latest = dice.integers(0, 9, count), dice.choice([MINUS_INFINITY, 5, INFINITY], count)
    headers = np.empty((count, HEADER), dtype=np.int64)
    oldest, written = np.empty((2, count), dtype=np.int64)
    again = np.empty(count, dtype=np.bool_)
    given = (table, AT, slots, whole, offsets, rows, latest, 4, is_logged)
    there = directory_passes.describe(*given, headers, oldest, again, written)
    expected = describe_reference(*given)
    found = (headers, oldest, again)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected[:3]]
    assert written[:there].tolist() == expected[3]
    markers = np.full(count, k.NO_ROOT)
    markers[written[:there]] = 11 << 32 | np.arange(there)
    twin = table.copy()
    directory_passes.settle(table, AT, slots, whole, headers, sizes, oldest, markers)
    settle_reference(twin, AT, slots, whole, headers, sizes, oldest, markers)
    assert table.tolist() == twin.tolist()


def test_parity_slots_beside_a_dictionary() -> None:
    dice = np.random.default_rng(5)
    table = np.zeros((64, k.GROUP), dtype=np.int64)
    index, facts = np.zeros(128, dtype=np.int32), np.zeros(3, dtype=np.int64)
    blank = np.zeros(k.GROUP, dtype=np.int64)
    expected: dict[tuple[int, int], int] = {}
    for step in range(1, 80):
        wanted = {(int(n), int(n) << 21) for n in dice.integers(0, 60, 6)} - set(expected)
        id_high, id_low = (np.array([w[c] for w in wanted], dtype=np.uint64) for c in (0, 1))
        slots = np.empty(len(wanted), dtype=np.int64)
        directory_passes.open_slots(index, table, facts, blank, id_high, id_low, step, slots)
        expected |= dict(zip(wanted, slots.tolist(), strict=True))
        gone = [w for w in expected if dice.random() < 0.2]
        closed = np.array([expected.pop(w) for w in gone], dtype=np.int64)
        for slot in closed.tolist():
            remove(index, table, slot)
        directory_passes.close_slots(table, facts, closed)
        assert used_slots_reference(table, facts) == expected
    rows = compact_slots_reference(table)
    directory_passes.compact_slots(table, facts)
    assert table[: len(rows)].tolist() == rows.tolist()
    assert len(used_slots_reference(table, facts)) == len(rows) == len(expected)
    assert (table[len(rows) :, k.STAMP] == 0).all()


def test_parity_stamping_groups() -> None:
    dice = np.random.default_rng(6)
    tables = [np.zeros((20, k.GROUP), dtype=np.int64) for _ in range(2)]
    for chunk in range(1, 5):
        slots = dice.integers(0, 20, 12)
        directory_passes.stamp(tables[0], slots, chunk)
        stamp_reference(tables[1], slots, chunk)
        assert tables[0].tolist() == tables[1].tolist()
