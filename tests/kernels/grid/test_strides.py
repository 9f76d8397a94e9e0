from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.arrays import Table
from icestream.kernels import hash_index
from icestream.kernels.grid import groups, strides
from icestream.operators.folding.fields import Field, SlidingLayout
from tests.oracles.kernels.grid.strides import stride_reference

Slices = list[tuple[int, dict[int, int]]]

LAYOUT = SlidingLayout.of((Field("sum_i128", "x"), Field("max", "x")))
GROUPS = 4


class Supply:
    """Hands out slices, so many at a time, then one that is never due."""

    def __init__(self, slices: Slices, at_once: int) -> None:
        self._waiting = [slices[at : at + at_once] for at in range(0, len(slices), at_once)]
        self.arrays = arrays_of([])

    def advance(self) -> None:
        self.arrays = arrays_of(self._waiting.pop(0) if self._waiting else [(2**63 - 1, {})])


def arrays_of(slices: Slices) -> tuple[Table, Table, Table]:
    """Return panes, bounds and entries of slices."""
    bounds = np.cumsum([0, *(len(values) for _, values in slices)])
    rows = [
        [group, group, 1, value, value >> 63, value]
        for _, values in slices
        for group, value in sorted(values.items())
    ]
    entries = np.array(rows, dtype=np.int64).reshape(-1, LAYOUT.entry_width)
    return np.array([pane for pane, _ in slices], dtype=np.int64), bounds, entries


class Stack:
    """The suffixes of slices, the last slice's first; those that leave next are at its end."""

    def __init__(self) -> None:
        self._suffixes = np.empty((0, LAYOUT.suffix_words), dtype=np.int64)
        self.taken, self.ready = self._suffixes, 0

    def fill(self, rows: Table, backs: Slices, backwards: Slices) -> None:
        ops, places = LAYOUT.ops, LAYOUT.places
        groups.start_flip(rows, GROUPS, ops, places, LAYOUT.group_identity)
        _, _, entries = arrays_of(backs)
        groups.push_back(rows, np.ascontiguousarray(entries[:, 0]), entries, ops, places)
        self._push(rows, backwards, LAYOUT.suffixes_at)

    def fill_next(self, rows: Table, backwards: Slices) -> None:
        identity, at, width = LAYOUT.group_identity, LAYOUT.suffixes_at, LAYOUT.suffix_words
        self._push(rows, backwards, LAYOUT.next_suffix_at)
        groups.take_next(rows, GROUPS, LAYOUT.ops, LAYOUT.places, identity, at, width)

    def _push(self, rows: Table, backwards: Slices, at: int) -> None:
        _, _, entries = arrays_of(backwards)
        slots = np.ascontiguousarray(entries[:, 0])
        self._suffixes = np.empty((len(entries), LAYOUT.suffix_words), dtype=np.int64)
        groups.push_suffix(rows, slots, entries, LAYOUT.ops, LAYOUT.places, at, self._suffixes)

    def take(self, leaving: Supply, at: int, flipped: int) -> None:
        panes, bounds, _ = leaving.arrays
        self.ready = max(at, int(np.searchsorted(panes, flipped)))
        rest = len(self._suffixes) - int(bounds[self.ready] - bounds[at])
        self._suffixes, self.taken = self._suffixes[:rest], self._suffixes[rest:].copy()


def running_rows(slices: Slices) -> tuple[Table, npt.NDArray[np.int32]]:
    """Return rows that hold nothing yet and know their last pane, and their index."""
    rows = np.tile(LAYOUT.group_identity, (GROUPS, 1))
    rows[:, groups.ID_HIGH] = rows[:, groups.ID_LOW] = np.arange(GROUPS)
    for pane, values in slices:
        for group in values:
            rows[group, groups.LAST] = pane
    index = np.zeros(16, dtype=np.int32)
    hash_index.insert_all(index, rows, np.arange(GROUPS))
    return rows, index


@given(
    drawn=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.dictionaries(st.integers(0, GROUPS - 1), st.integers(-9, 9), max_size=GROUPS),
        ),
        max_size=12,
    ),
    reach=st.integers(1, 6),
    slide=st.integers(1, 3),
    at_once=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    room=st.integers(1, 7),
    halves=st.booleans(),
)
@settings(max_examples=100)
def test_parity_strides_beside_folding_every_window(
    drawn: list[tuple[int, dict[int, int]]],
    reach: int,
    slide: int,
    at_once: tuple[int, int],
    room: int,
    halves: bool,
) -> None:
    # slices some panes apart, several of them perhaps in one pane; every window they are in;
    # suffixes cover all of a window, or its first half and, when that has left, the half
    # behind, while what comes after that joins the next back
    panes = np.cumsum([step for step, _ in drawn]).tolist()
    slices = [(pane, values) for pane, (_, values) in zip(panes, drawn, strict=True)]
    slide = min(slide, reach)
    starts = np.arange(-reach + 1, max(panes, default=0) + 1, slide)
    rows, index = running_rows(slices)
    entering, leaving = Supply(slices, at_once[0]), Supply(slices, at_once[1])
    fields = np.empty((room, LAYOUT.field_words), dtype=np.int64)
    slots, row_starts, row_ends = np.empty((3, room), dtype=np.int64)
    state = np.zeros(strides.STATE, dtype=np.int64)
    stack, flipped, turning = Stack(), -(2**63), 2**63 - 1
    half = -(-reach // (2 * slide)) * slide
    found: list[tuple[int, int, int, int]] = []
    gone: list[int] = []

    def between(first: int, last: int) -> Slices:
        return [each for each in slices if first <= each[0] < last]

    def take() -> None:
        for row in range(state[strides.ROWS]):
            assert row_ends[row] - row_starts[row] == reach
            total, most = fields[row, [1, 3]].tolist()
            found.append((int(row_starts[row]), int(slots[row]), total, most))
        state[strides.ROWS] = 0

    why = strides.NEEDS_ENTERING
    while why != strides.DONE:
        dead = np.empty(len(leaving.arrays[2]), dtype=np.int64)
        state[strides.DEAD] = 0
        why = strides.stride(
            rows,
            index,
            GROUPS,
            LAYOUT.ops,
            LAYOUT.places,
            LAYOUT.group_identity,
            starts,
            reach,
            slide,
            *entering.arrays,
            *leaving.arrays,
            stack.taken,
            LAYOUT.suffixes_at,
            stack.ready,
            flipped,
            LAYOUT.next_back_at,
            turning,
            fields,
            slots,
            row_starts,
            row_ends,
            dead,
            np.empty(GROUPS, dtype=np.int64),
            state,
        )
        assert why != strides.IS_MISSING
        gone += dead[: state[strides.DEAD]].tolist()
        if why == strides.NEEDS_ENTERING:
            entering.advance()
            state[strides.ENTERS] = 0
        elif why == strides.NEEDS_LEAVING:
            leaving.advance()
            state[strides.LEAVES] = 0
            stack.take(leaving, 0, flipped)
        elif why == strides.NEEDS_SUFFIXES:
            start = int(starts[state[strides.STEP]])
            if start == flipped and halves:
                stack.fill_next(rows, between(start, turning)[::-1])
                flipped, turning = turning, turning + half
            else:
                flipped = start + (half if halves else reach)
                turning = flipped + half if halves else 2**63 - 1
                stack.fill(rows, between(flipped, start + reach), between(start, flipped)[::-1])
            stack.take(leaving, int(state[strides.LEAVES]), flipped)
        elif why == strides.IS_FULL:
            take()
    take()
    assert found == stride_reference(starts.tolist(), reach, slices)
    left = starts[-1] + slide
    last = {group: pane for pane, values in slices for group in values}
    assert sorted(gone) == sorted(group for group, pane in last.items() if pane < left)


def test_a_group_that_is_not_there_is_reported_and_nothing_is_added() -> None:
    rows, index = running_rows([])
    before = rows.copy()
    entries = np.array([[1, 1, 1, 5, 0, 5], [7, 7, 1, 5, 0, 5]])
    slots = np.empty(2, dtype=np.int64)
    assert strides.locate(index, rows, entries, slots) > 0
    assert strides.locate(index[:0], rows, entries, slots) > 0
    assert strides.locate(index, rows, entries[:1], slots) == 0
    assert slots[0] == 1
    assert (rows == before).all()
