from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research.window_blocks.block_kernels import (
    DONE,
    FULL,
    WIDE_NEEDED,
    first_unfit,
    slide_averages,
    slide_totals,
)
from bench.research.window_blocks.exact_sums import ROW, WIDE
from tests.oracles.kernels.frames.blocks import (
    first_unfit_reference,
    slide_averages_reference,
    slide_totals_reference,
)

GROUPS = 3
Columns = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.int32]
]
events = st.lists(
    st.tuples(
        st.sampled_from((0, 0, 1, 3, 20)),
        st.integers(0, GROUPS - 1),
        st.one_of(st.floats(1, 1_000), st.sampled_from((1e300, -1e300, 1e-200, 0.0))),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=40,
)
windows = st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=3)


def columns(drawn: list[tuple[int, int, float, int]]) -> Columns:
    gaps, groups, values, weights = zip(*drawn, strict=True)
    return (
        np.cumsum(gaps, dtype=np.int64),
        np.array(groups, np.int32),
        np.array(values, np.float64),
        np.array(weights, np.int32),
    )


class Endless:
    """All blocks in memory: a frame for every block there will be."""

    def __init__(self, blocks: int, factor: int, watched: list[tuple[int, bool]]) -> None:
        self.factor = factor
        shape = (blocks, factor)
        self.cells = (
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.uint64),
            np.zeros(shape, np.int32),
        )
        self.tail = np.array([0, 0, factor])
        self.cursors = np.array([[0, 0, factor]] * len(watched))
        self.extents = np.array([length for length, _ in watched])
        self.by_rows = np.array([rows for _, rows in watched], np.int8)
        self.stops = 0

    def call(self, *rest: Any) -> tuple[Any, ...]:
        return (*self.cells, self.tail, self.cursors, self.extents, self.by_rows, *rest)

    def move(self, why: int) -> None:
        self.stops += 1
        mover = self.tail if why == FULL else self.cursors[why]
        mover[0] += 1
        mover[2] += self.factor


@given(events, windows, st.integers(1, 5), st.integers(1, 40))
@settings(max_examples=150)
def test_parity_sliding_averages_follow_the_definition(
    drawn: list[tuple[int, int, float, int]],
    watched: list[tuple[int, bool]],
    factor: int,
    cut: int,
) -> None:
    times, groups, values, weights = columns(drawn)
    blocks = Endless(len(drawn) + 1, factor, watched)
    sums = np.zeros(len(watched) * GROUPS * ROW, np.uint64)
    wide, scratch = np.zeros(0, np.uint64), np.zeros(WIDE, np.uint64)
    found = []
    for start in range(0, len(drawn), cut):
        part = slice(start, start + cut)
        new: tuple[Any, ...] = (
            times[part],
            groups[part],
            values[part].view(np.uint64),
            weights[part],
        )
        out = np.full((len(watched), len(new[0])), -1.0)
        at, why = slide_averages(*blocks.call(*new, 0, sums, wide, scratch, out))
        while why != DONE:
            if why == WIDE_NEEDED:
                wide = np.concatenate([wide, np.zeros(len(watched) * WIDE, np.uint64)])
            else:
                blocks.move(why)
            at, why = slide_averages(*blocks.call(*new, at, sums, wide, scratch, out))
        assert at == len(new[0])
        found.append(out)
    extents, by_rows = zip(*watched, strict=True)
    wanted = slide_averages_reference(times, groups, values, weights, extents, by_rows)
    np.testing.assert_array_equal(np.concatenate(found, axis=1), wanted)


@given(events, windows, st.integers(1, 5))
def test_parity_sliding_totals_follow_the_definition(
    drawn: list[tuple[int, int, float, int]], watched: list[tuple[int, bool]], factor: int
) -> None:
    times, groups, values, weights = columns(drawn)
    blocks = Endless(len(drawn) + 1, factor, watched)
    new: tuple[Any, ...] = (times, groups, values.view(np.uint64), weights)
    totals = np.zeros(len(watched), np.int64)
    at, why = slide_totals(*blocks.call(*new, 0, totals))
    while why != DONE:
        blocks.move(why)
        at, why = slide_totals(*blocks.call(*new, at, totals))
    extents, by_rows = zip(*watched, strict=True)
    assert totals.tolist() == slide_totals_reference(times, weights, extents, by_rows)


def test_a_stopped_event_is_answered_once() -> None:
    #   blocks of two tuples: event 2 meets a full block, then the end of a window's block
    times = np.arange(4)
    groups, weights = np.zeros(4, np.int32), np.ones(4, np.int32)
    values = np.array([1.0, 2.0, 1e300, 8.0])
    blocks = Endless(3, 2, [(2, False)])
    sums = np.zeros(GROUPS * ROW, np.uint64)
    wide, scratch = np.zeros(0, np.uint64), np.zeros(WIDE, np.uint64)
    out = np.zeros((1, 4))
    new: tuple[Any, ...] = (times, groups, values.view(np.uint64), weights)
    stops = []
    at, why = slide_averages(*blocks.call(*new, 0, sums, wide, scratch, out))
    while why != DONE:
        stops.append((at, why))
        before = sums.copy()
        again = slide_averages(*blocks.call(*new, at, sums, wide, scratch, out))
        assert again == (at, why)
        assert (sums == before).all()
        if why == WIDE_NEEDED:
            wide = np.zeros(WIDE, np.uint64)
        else:
            blocks.move(why)
        at, why = slide_averages(*blocks.call(*new, at, sums, wide, scratch, out))
    assert stops == [(2, FULL), (2, WIDE_NEEDED), (3, 0)]
    assert out.tolist() == [[1.0, 1.5, (2.0 + 1e300) / 2, (8.0 + 1e300) / 2]]


@given(st.lists(st.tuples(st.integers(-2, 4), st.integers(-1, 3)), max_size=12), st.integers(-3, 1))
def test_parity_the_first_unfit_event(drawn: list[tuple[int, int]], last: int) -> None:
    times = np.array([time for time, _ in drawn], np.int64)
    groups = np.array([group for _, group in drawn], np.int32)
    assert first_unfit(times, groups, last, 3) == first_unfit_reference(times, groups, last, 3)
