"""Chains through mapped segments, beside lists."""

from __future__ import annotations

import numpy as np
import pytest

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY
from icestream.kernels.groups import chains
from icestream.kernels.groups import extents as kernels
from icestream.kernels.groups import heap as k
from tests.oracles.kernels.groups.chains import followed_reference

GROUPS = 6
STEP = 4


class Segments:
    """Extents of groups in segments, and what they say."""

    def __init__(self) -> None:
        self.streams: dict[int, Ints] = {}
        self.extents: dict[int, tuple[list[int], list[int]]] = {}
        self.roots = np.full(GROUPS, k.NO_ROOT)
        self.latest = np.full(GROUPS, -INFINITY - 1)
        self.length = np.zeros(GROUPS, dtype=np.int64)

    def write(self, dice: np.random.Generator, ordinal: int) -> None:
        groups = np.sort(dice.choice(GROUPS, int(dice.integers(1, GROUPS)), replace=False))
        self.length[groups] += 1
        headers = np.empty((len(groups), kernels.HEADER), dtype=np.int64)
        headers[:, k.ID_HIGH], headers[:, k.ID_LOW] = groups, groups + 100
        headers[:, kernels.SHAPE] = self.length[groups] << 32
        headers[:, kernels.LENGTH] = dice.integers(0, 5, len(groups))
        headers[:, kernels.BACK] = self.roots[groups]
        headers[:, kernels.BACK_LATEST] = self.latest[groups]
        self.latest[groups] = np.maximum(self.latest[groups], ordinal)
        headers[:, kernels.LATEST] = self.latest[groups]
        words, begins = dice.integers(0, 99, 20), dice.integers(0, 15, len(groups))
        ends = np.empty(len(groups) + 1, dtype=np.int64)
        kernels.sum_up(headers, ends)
        stream, markers = np.empty(int(ends[-1]), np.int64), np.empty(len(groups), np.int64)
        kernels.lay_out(headers, words, begins, 0, len(groups), ordinal << 32, stream, markers)
        self.streams[ordinal] = stream
        self.roots[groups] = markers
        for header, begin, marker in zip(headers, begins.tolist(), markers.tolist(), strict=True):
            theirs = words[begin : begin + int(header[kernels.LENGTH])].tolist()
            self.extents[marker] = (header.tolist(), theirs)

    def table(self, ordinals: list[int]) -> Ints:
        rows = [(n, self.streams[n].ctypes.data, len(self.streams[n])) for n in ordinals]
        return np.ascontiguousarray(np.array(rows, dtype=np.int64).reshape(-1, 3).T)


IDS = np.arange(GROUPS, dtype=np.uint64), np.arange(100, 100 + GROUPS, dtype=np.uint64)


@pytest.mark.parametrize("seed", range(6))
def test_parity_chains_through_mapped_segments(seed: int) -> None:
    dice = np.random.default_rng(seed)
    segments = Segments()
    for ordinal in range(5, 15):
        segments.write(dice, ordinal)
    watermark = int(dice.integers(0, 12))
    markers = segments.roots.copy()
    left = np.full(GROUPS, INFINITY)
    pieces, count, end = np.empty((3, chains.PIECE), dtype=np.int64), 0, chains.FULL
    known: list[int] = []
    while end == chains.FULL or (markers != k.NO_ROOT).any():
        if end == chains.FULL:
            pieces = np.concatenate((pieces, np.empty_like(pieces)))
        else:
            known = sorted({*known, int((markers >> 32).max())})
        count, end = chains.follow(
            segments.table(known), markers, *IDS, watermark, STEP, left, pieces, count
        )
        assert end in (chains.DONE, chains.FULL)
    sizes = np.bincount(pieces[:count, chains.CHAIN], pieces[:count, chains.SIZE], GROUPS)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    out = np.empty(int(offsets[-1]), dtype=np.int64)
    chains.copy_back(pieces[:count], out, offsets[:-1].copy())
    for group, root in enumerate(segments.roots.tolist()):
        expected = followed_reference(segments.extents, root, watermark)
        assert out[offsets[group] : offsets[group + 1]].tolist() == expected


def test_a_chain_in_a_circle_is_reported() -> None:
    segments = Segments()
    dice = np.random.default_rng(1)
    for ordinal in (5, 6):
        segments.length[:] = 0
        segments.write(dice, ordinal)
    followed = np.flatnonzero(segments.roots >> 32 == 6)
    again = [n for n in followed.tolist() if segments.extents[int(segments.roots[n])][0][4] > 0]
    assert again
    left, pieces = np.full(GROUPS, INFINITY), np.empty((99, chains.PIECE), dtype=np.int64)
    markers = np.full(GROUPS, k.NO_ROOT)
    markers[again[0]] = segments.roots[again[0]]
    table = segments.table([5, 6])
    _, end = chains.follow(table, markers, *IDS, 0, 1, left, pieces, 0)
    assert end == GROUPS + again[0]
    segments.streams[6][:] = 0
    markers[again[0]] = segments.roots[again[0]]
    assert chains.follow(table, markers, *IDS, 0, 1, left, pieces, 0)[1] == again[0]
