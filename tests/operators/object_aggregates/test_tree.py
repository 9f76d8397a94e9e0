"""Nodes of windows and portions of slices, beside looking at every pane and group."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.object_aggregates.directory import SLICE
from icestream.operators.object_aggregates.tree import (
    FAN,
    LEVELS,
    SliceRange,
    first_pane,
    highest_level,
    nodes_of,
    portions,
)


@given(st.integers(-5000, 5000), st.integers(1, 3000), st.integers(0, LEVELS))
def test_oracle_nodes_cover_a_window_once(start: int, length: int, highest: int) -> None:
    panes = [
        pane
        for level, place in nodes_of(start, start + length, highest)
        for pane in range(first_pane(level, place), first_pane(level, place + 1))
    ]
    assert panes == list(range(start, start + length))


@given(st.integers(-(10**6), 10**6), st.integers(1, 20_000))
def test_bounded_a_window_has_few_nodes(start: int, length: int) -> None:
    highest = highest_level(length, 1)
    levels = [level for level, _ in nodes_of(start, start + length, highest)]
    assert len(levels) <= 2 * (FAN - 1) * (math.log(length, FAN) + 1) + length // FAN**highest
    for level in range(highest):
        assert levels.count(level) <= 2 * (FAN - 1)


def test_nodes_that_serve_one_window_are_not_made() -> None:
    assert highest_level(1, 1) == 0
    assert highest_level(4, 1) == 0
    assert highest_level(5, 1) == 1
    assert highest_level(8, 5) == 0
    assert highest_level(17, 1) == 2
    assert highest_level(10**9, 1) == LEVELS


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
            st.integers(1, 5000),
        ),
        max_size=12,
    ),
    st.integers(1, 8000),
)
def test_oracle_portions_hold_every_slice_once(
    given_slices: list[tuple[int, int, int, int]], limit: int
) -> None:
    targets = {
        target: np.array(
            [
                (0, 0, n, size, min(a, b), max(a, b))
                for n, (t, a, b, size) in enumerate(given_slices)
                if t == target
            ],
            dtype=SLICE,
        )
        for target in range(4)
    }
    found = list(portions(targets.items(), limit))
    pieces = [piece for portion in found for piece in portion]
    assert [piece.target for piece in pieces] == [each for each in range(4) if len(targets[each])]
    for portion in found:
        size = sum(int(each.slices["bytes"].sum()) for each in portion)
        assert size <= limit or len(portion) == 1
    for piece in pieces:
        assert (piece.slices == targets[piece.target]).all()


def test_a_part_of_a_piece_has_the_slices_of_its_range() -> None:
    slices = np.array([(0, 0, 1, 10, 0, 5), (0, 0, 2, 10, 5, 9), (0, 0, 3, 10, 9, 9)], dtype=SLICE)
    part = SliceRange(7, slices).part(5, 9)
    assert part.slices["marker"].tolist() == [1, 2]
    assert (part.low, part.high) == (5, 9)
