from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.arrays import Ints, Table
from icestream.kernels.double_sums import ORIGIN
from icestream.kernels.frames import moving as kernels
from icestream.kernels.grid.groups import FIELDS
from icestream.operators.folding.fields import Field, Layout, SumExtent
from icestream.operators.frames.layout import FrameLayout, SharedLayout, TupleLayout
from tests.oracles.kernels.frames.moving import window_reference

KINDS = ("sum_i64", "sum_i128", "sum_f64", "min", "max")
GROUPS = 3


def layout_of(kinds: list[str]) -> FrameLayout:
    fields = Layout.of(Field(kind, "x") for kind in kinds).fields
    # one digit, which counts units
    extents = (SumExtent(ORIGIN, ORIGIN + 40),) if "sum_f64" in kinds else ()
    return FrameLayout(fields, extents)


def of_integers(layout: FrameLayout) -> FrameLayout:
    """Return a layout with a sum of integers where the other has one of doubles with one digit."""
    return FrameLayout((*layout.fixed, *(Field("sum_i64", "y") for _ in layout.sums)))


def tuples_of(layout: FrameLayout, events: list[tuple[int, int]], times: list[int]) -> Table:
    """Make a tuple for each (group, value)."""
    nothing = Layout(layout.fixed).entry_identity
    table = np.zeros((len(events), TupleLayout(layout.fields).tuple_width), dtype=np.int64)
    table[:, : len(nothing)] = nothing
    fields = (*layout.fixed, *layout.sums)
    for row, (group, value), time in zip(table, events, times, strict=True):
        row[0], row[2], row[-1] = group, 1, time
        for field, place in zip(fields, layout.in_tuples.tolist(), strict=True):
            if field.kind == "sum_f64":
                row[place] = np.float64(value).view(np.int64)
            elif field.kind != "rows":
                row[place] = value
            if field.kind == "sum_i128":
                row[place + 1] = value >> 63
    return table


def groups_of(layout: FrameLayout) -> Table:
    return np.tile(layout.group_identity, (GROUPS, 1))


def fixed(layout: FrameLayout) -> tuple[Ints, Ints, Ints, Ints, int]:
    return (
        layout.ops,
        layout.in_tuples,
        layout.in_rows,
        layout.group_identity,
        layout.suffixes_at,
    )


EVENTS = st.lists(st.tuples(st.integers(0, GROUPS - 1), st.integers(-50, 50)), max_size=60)
CHOSEN = st.lists(st.sampled_from(KINDS), unique=True)


@given(EVENTS, CHOSEN, st.integers(1, 12), st.integers(0, 3), st.integers(1, 3), st.integers(1, 9))
@settings(max_examples=60)
def test_parity_advance_beside_recomputation(
    events: list[tuple[int, int]], kinds: list[str], reach: int, step: int, every: int, room: int
) -> None:
    layout = layout_of(kinds)
    times = [number * step // 2 for number in range(len(events))]
    tuples, slots = tuples_of(layout, events, times), np.array([g for g, _ in events], np.int64)
    keys = np.array(times, dtype=np.int64)
    rows, progress = groups_of(layout), np.zeros(kernels.PROGRESS, dtype=np.int64)
    out = np.empty((room, layout.field_words), dtype=np.int64)
    out_slots, out_times = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    suffixes = np.empty((len(events), layout.suffix_words), dtype=np.int64)
    found = []
    reason = kernels.FULL
    while reason != kernels.DONE:
        reason = kernels.advance(
            rows, tuples, slots, keys, len(events), tuples, slots, keys, suffixes, True, reach,
            -(2**63), every, *fixed(layout), out, out_slots, out_times, progress,
        )  # fmt: skip
        filled = int(progress[kernels.FILLED])
        found += list(zip(out_times[:filled].tolist(), out_slots[:filled].tolist(),
                          out[:filled].tolist(), strict=True))  # fmt: skip
        progress[kernels.FILLED] = 0
    expected = []
    counts = [0] * GROUPS
    whole = of_integers(layout)
    integers = tuples_of(whole, events, times)
    for number, (group, _) in enumerate(events):
        counts[group] += 1
        inside = (slots[: number + 1] == group) & (keys[: number + 1] > keys[number] - reach)
        if counts[group] % every == 0:
            window = integers[: number + 1][inside]
            words = window_reference(window, whole.ops, whole.places)
            expected.append((times[number], group, words))
    assert found == expected
    if every > 1:
        assert rows[:, layout.extras_at + kernels.COUNT].tolist() == counts


@given(EVENTS, CHOSEN, st.integers(1, 7), st.integers(1, 3))
@settings(max_examples=60)
def test_parity_roll_beside_recomputation(
    events: list[tuple[int, int]], kinds: list[str], length: int, every: int
) -> None:
    layout = layout_of(kinds)
    tuples = tuples_of(layout, events, list(range(len(events))))
    slots = np.array([group for group, _ in events], dtype=np.int64)
    rows = groups_of(layout)
    rings = np.zeros((GROUPS * length, layout.ring_width), dtype=np.int64)
    whole = of_integers(layout)
    integers = tuples_of(whole, events, list(range(len(events))))
    for first in range(0, len(events), 13):
        part = tuples[first : first + 13]
        own = slots[first : first + 13]
        order = np.argsort(own, kind="stable")
        starts = np.searchsorted(own[order], np.arange(GROUPS + 1))
        out = np.empty((len(part), layout.field_words), dtype=np.int64)
        times, shown = np.empty(len(part), dtype=np.int64), np.zeros(len(part), dtype=np.bool_)
        kernels.roll(
            rows, part, order, starts, np.arange(GROUPS), rings, np.arange(GROUPS) * length,
            layout.in_rings, length, every, 0, *fixed(layout), out, times, shown,
        )  # fmt: skip
        for at in range(len(part)):
            number = first + at
            past = integers[: number + 1][slots[: number + 1] == slots[number]]
            assert shown[at] == (len(past) % every == 0)
            if shown[at]:
                words = window_reference(past[-length:], whole.ops, whole.places)
                assert out[at].tolist() == words
                assert times[at] == number


def test_a_tuple_takes_part_in_one_flip() -> None:
    layout = layout_of(["min"])
    count, reach = 300, 20
    tuples = tuples_of(layout, [(0, value) for value in range(count)], list(range(count)))
    slots, keys = np.zeros(count, dtype=np.int64), np.arange(count)
    progress, rows = np.zeros(kernels.PROGRESS, dtype=np.int64), groups_of(layout)
    out = np.empty((count, layout.field_words), dtype=np.int64)
    suffixes = np.empty((count, layout.suffix_words), dtype=np.int64)
    reason = kernels.advance(
        rows, tuples, slots, keys, count, tuples, slots, keys, suffixes, True, reach, -(2**63), 1,
        *fixed(layout), out, np.empty(count, np.int64), np.empty(count, np.int64), progress,
    )  # fmt: skip
    assert reason == kernels.DONE
    assert progress[kernels.FLIPS] <= count // reach
    assert out[:, 0].tolist() == [min(number + 1, reach) for number in range(count)]


def test_groups_are_shown_once_when_they_are_due() -> None:
    layout = layout_of(["max"])
    rows = groups_of(layout)
    rows[:, FIELDS] = [4, 5, 6]
    rows[:, layout.extras_at + kernels.DUE] = [30, 10, 20]
    out = np.empty((1, layout.field_words), dtype=np.int64)
    slots, times = np.empty(1, dtype=np.int64), np.empty(1, dtype=np.int64)

    def show(first: int) -> tuple[int, int]:
        done: tuple[int, int] = kernels.show_due(
            rows,
            first,
            GROUPS,
            20,
            layout.ops,
            layout.in_rows,
            layout.suffixes_at,
            layout.extras_at,
            out,
            slots,
            times,
            0,
        )
        return done

    assert show(0) == (2, 1)
    assert (slots[0], times[0], out[0, 0]) == (1, 10, 5)
    assert show(2) == (3, 1)
    assert (slots[0], times[0], out[0, 0]) == (2, 20, 6)
    assert show(0) == (3, 0)


def test_parity_frames_that_share_a_row_show_their_own_windows() -> None:
    chosen = [layout_of(["max"]), layout_of(["sum_i64", "max"])]
    shared = SharedLayout.of_frames(chosen)
    events, reaches = [(n % GROUPS, n * 7 % 11) for n in range(20)], (4, 9)
    whole = layout_of([f.kind for f in shared.fields if f.kind != "rows"])
    tuples = tuples_of(whole, events, list(range(20)))
    slots, keys = np.array([group for group, _ in events]), np.arange(20)
    rows = np.tile(shared.group_identity, (GROUPS, 1))
    for frame, reach in zip(shared.frames, reaches, strict=True):
        kernels.advance(
            rows, tuples, slots, keys, 20, tuples, slots, keys,
            np.empty((20, frame.suffix_words), np.int64), True, reach, 19 - reach, 0, *fixed(frame),
            np.empty((1, frame.field_words), np.int64), slots, keys.copy(),
            np.zeros(kernels.PROGRESS, np.int64),
        )  # fmt: skip
    for frame, own, reach in zip(shared.frames, chosen, reaches, strict=True):
        out = np.empty((2, frame.field_words), dtype=np.int64)
        found: list[list[int]] = []
        first, shown = 0, np.empty(2, dtype=np.int64)
        while first < GROUPS:
            first, filled = kernels.show_standing(
                rows, first, GROUPS, frame.ops, frame.in_rows, frame.suffixes_at, out, shown, 0
            )
            found += out[:filled].tolist()
        alone = tuples_of(own, events, list(range(20)))
        windows = [alone[(slots == group) & (keys > 19 - reach)] for group in range(GROUPS)]
        assert found == [window_reference(window, own.ops, own.places) for window in windows]
