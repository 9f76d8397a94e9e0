"""Extents in records and slots in directories, beside dictionaries."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.kernels.synopses import extents as kernels
from icestream.kernels.synopses import heap as k
from icestream.kernels.windows.groups import remove
from icestream.kernels.words import Ints


def record_of(dice: np.random.Generator, count: int) -> Ints:
    """Return a record of extents whose identities often share hi."""
    pairs = sorted({(int(dice.integers(0, 5)) << 61, n) for n in dice.integers(0, 30, count)})
    headers = np.zeros((len(pairs), kernels.HEADER), dtype=np.int64)
    headers[:, :2] = np.array(pairs, dtype=np.uint64).reshape(-1, 2).view(np.int64)
    headers[:, kernels.LENGTH] = dice.integers(0, 6, len(pairs))
    words = dice.integers(0, 1000, int(headers[:, kernels.LENGTH].sum()))
    return np.concatenate(([len(pairs)], headers.reshape(-1), words))


@pytest.mark.parametrize("seed", range(8))
def test_parity_extents_in_a_record(seed: int) -> None:
    dice = np.random.default_rng(seed)
    record = record_of(dice, int(dice.integers(0, 40)))
    hi = dice.integers(0, 5, 60).astype(np.uint64) << np.uint64(61)
    lo = dice.integers(0, 30, 60).astype(np.uint64)
    found, twin = np.empty(60, dtype=np.int64), np.empty(60, dtype=np.int64)
    total = kernels.find_extents(record, hi, lo, found)
    assert total == kernels.find_extents_reference(record, hi, lo, twin)
    assert found.tolist() == twin.tolist()
    there = found[found >= 0]
    outs = [np.empty(total, dtype=np.int64) for _ in range(2)]
    sizes = [np.empty(len(there), dtype=np.int64) for _ in range(2)]
    kernels.copy_extents(record, there, outs[0], sizes[0])
    kernels.copy_extents_reference(record, there, outs[1], sizes[1])
    assert outs[0].tolist() == outs[1].tolist()
    assert sizes[0].tolist() == sizes[1].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_parity_copying_pieces(seed: int) -> None:
    dice = np.random.default_rng(seed)
    source, sizes = dice.integers(0, 99, 50), dice.integers(0, 6, 9)
    begins = dice.integers(0, 44, 9)
    places = np.cumsum(sizes) - sizes
    outs = [np.zeros(int(sizes.sum()), dtype=np.int64) for _ in range(2)]
    moved = [places.copy(), places.copy()]
    kernels.copy_pieces(source, begins, sizes, outs[0], moved[0])
    kernels.copy_pieces_reference(source, begins, sizes, outs[1], moved[1])
    assert outs[0].tolist() == outs[1].tolist()
    assert moved[0].tolist() == moved[1].tolist() == (places + sizes).tolist()


def test_parity_slots_beside_a_dictionary() -> None:
    dice = np.random.default_rng(5)
    table = np.zeros((64, k.GROUP), dtype=np.int64)
    index, facts = np.zeros(128, dtype=np.int32), np.zeros(3, dtype=np.int64)
    blank = np.zeros(k.GROUP, dtype=np.int64)
    expected: dict[tuple[int, int], int] = {}
    for step in range(1, 80):
        wanted = {(int(n), int(n) << 21) for n in dice.integers(0, 60, 6)} - set(expected)
        hi, lo = (np.array([w[c] for w in wanted], dtype=np.uint64) for c in (0, 1))
        slots = np.empty(len(wanted), dtype=np.int64)
        kernels.open_slots(index, table, facts, blank, hi, lo, step, slots)
        expected |= dict(zip(wanted, slots.tolist(), strict=True))
        gone = [w for w in expected if dice.random() < 0.2]
        closed = np.array([expected.pop(w) for w in gone], dtype=np.int64)
        for slot in closed.tolist():
            remove(index, table, slot)
        kernels.close_slots(table, facts, closed)
        assert kernels.used_slots_reference(table, facts) == expected


def test_parity_stamping_groups() -> None:
    dice = np.random.default_rng(6)
    tables = [np.zeros((20, k.GROUP), dtype=np.int64) for _ in range(2)]
    for chunk in range(1, 5):
        slots = dice.integers(0, 20, 12)
        kernels.stamp(tables[0], slots, chunk)
        kernels.stamp_reference(tables[1], slots, chunk)
        assert tables[0].tolist() == tables[1].tolist()
