"""Extents in records, beside the obvious versions."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY
from icestream.kernels.groups import extents as kernels
from icestream.kernels.groups import heap as k
from tests.oracles.kernels.groups.extents import (
    copy_pieces_reference,
    lay_out_reference,
    list_extents_reference,
    read_extents_reference,
)

MARKER = (3 << 32) + 11


def extents_of(dice: np.random.Generator, count: int) -> tuple[Ints, Ints, Ints]:
    """Return headers of extents, of all kinds, words, and where theirs begin."""
    headers = dice.integers(-(1 << 62), 1 << 62, (count, kernels.HEADER))
    headers[:, kernels.LENGTH] = dice.integers(0, 6, count) | dice.integers(0, 2, count) << 32
    headers[dice.random(count) < 0.5, kernels.LATEST] = INFINITY
    headers[dice.random(count) < 0.5, kernels.BACK_LATEST] = INFINITY
    first = dice.random(count) < 0.5
    headers[first, kernels.BACK], headers[first, kernels.BACK_LATEST] = k.NO_ROOT, -INFINITY - 1
    return headers, dice.integers(-1000, 1000, 40), dice.integers(0, 34, count)


def laid_out(headers: Ints, words: Ints, begins: Ints) -> tuple[Ints, Ints]:
    """Return a record and its markers."""
    ends = np.empty(len(headers) + 1, dtype=np.int64)
    kernels.sum_up(headers, ends)
    record = np.empty(int(ends[-1]), dtype=np.int64)
    markers = np.empty(len(headers), dtype=np.int64)
    kernels.lay_out(headers, words, begins, 0, len(headers), MARKER, record, markers)
    assert (markers - MARKER).tolist() == ends[:-1].tolist()
    return record, markers


@pytest.mark.parametrize("seed", range(8))
def test_parity_extents_in_a_record(seed: int) -> None:
    dice = np.random.default_rng(seed)
    headers, words, begins = extents_of(dice, 24)
    record, markers = laid_out(headers, words, begins)
    twin, twins = lay_out_reference(headers, words, begins, MARKER)
    assert (record.tolist(), markers.tolist()) == (twin, twins)
    places, listed = np.empty(len(record), dtype=np.int64), np.empty((99, kernels.HEADER), np.int64)
    count = kernels.list_extents(record, places, listed)
    assert places[:count].tolist() == list_extents_reference(record)
    assert (places[:count] + MARKER).tolist() == markers.tolist()
    assert kernels.list_extents(record[:-1], places, listed) == -1
    assert list_extents_reference(record[:-1]) is None
    chosen = np.sort(dice.choice(24, 14, replace=False))
    id_high, id_low = (headers[chosen, c].view(np.uint64) for c in (k.ID_HIGH, k.ID_LOW))
    sizes = np.empty(14, dtype=np.int64)
    assert kernels.measure_extents(record, MARKER, markers[chosen], id_high, id_low, sizes) == 14
    found, out = np.empty((14, kernels.HEADER), dtype=np.int64), np.empty(sizes.sum(), np.int64)
    kernels.copy_extents(record, MARKER, markers[chosen], found, out)
    assert found.tolist() == listed[chosen].tolist()
    assert np.delete(found, kernels.LENGTH, 1).tolist() == (
        np.delete(headers[chosen], kernels.LENGTH, 1).tolist()
    )
    ends = np.cumsum(sizes)
    read = [
        [*header, *out[end - size : end].tolist()]
        for header, size, end in zip(found.tolist(), sizes.tolist(), ends.tolist(), strict=True)
    ]
    assert read == read_extents_reference(record, MARKER, markers[chosen], id_high, id_low)


def test_a_changed_extent_is_not_sound() -> None:
    headers, words, begins = extents_of(np.random.default_rng(1), 3)
    headers[:, kernels.LENGTH] = 2
    record, markers = laid_out(headers, words, begins)
    id_high, id_low = (headers[:, c].copy().view(np.uint64) for c in (k.ID_HIGH, k.ID_LOW))
    sizes = np.empty(3, dtype=np.int64)

    def sound(stream: Ints, origin: int = MARKER) -> int:
        at = markers - MARKER + origin
        count = kernels.measure_extents(stream, origin, at, id_high, id_low, sizes)
        assert count == len(read_extents_reference(stream, origin, at, id_high, id_low))
        return count

    assert sound(record) == 3
    # the same words in another place
    assert sound(record, MARKER + 1) == 0
    assert sound(record[:-1]) == 2
    for word in range(len(record)):
        for bit in range(64):
            changed = record.copy().view(np.uint64)
            changed[word] ^= np.uint64(1 << bit)
            assert (
                sound(changed.view(np.int64))
                == np.searchsorted(markers - MARKER, word, "right") - 1
            )


@pytest.mark.parametrize("seed", range(4))
def test_parity_copying_pieces(seed: int) -> None:
    dice = np.random.default_rng(seed)
    source, sizes = dice.integers(0, 99, 50), dice.integers(0, 6, 9)
    begins = dice.integers(0, 44, 9)
    places = np.cumsum(sizes) - sizes
    outs = [np.zeros(int(sizes.sum()), dtype=np.int64) for _ in range(2)]
    moved = [places.copy(), places.copy()]
    kernels.copy_pieces(source, begins, sizes, outs[0], moved[0])
    copy_pieces_reference(source, begins, sizes, outs[1], moved[1])
    assert outs[0].tolist() == outs[1].tolist()
    assert moved[0].tolist() == moved[1].tolist() == (places + sizes).tolist()
