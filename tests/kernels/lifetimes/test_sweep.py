from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Ints, Table
from icestream.kernels import field_words
from icestream.kernels.double_sums import add_doubles
from icestream.kernels.fold import ALL_VALID
from icestream.kernels.lifetimes.sweep import Flags, fold_equal, scale_rows, sweep_edges
from tests.oracles.kernels.lifetimes.sweep import (
    fold_equal_reference,
    scale_rows_reference,
    segments_reference,
    sweep_edges_reference,
)

#: digits 32 to 35: from 2**-128 up to 2**127
SUM = np.array([4, 32, 4, -1])
OPS = np.array(
    [field_words.ADD_I64, field_words.ADD_I128, field_words.ADD_I64, field_words.ADD_FIXED + 4]
)
PLACES = np.array([0, 1, 3, 4])
WIDTH = 8
LISTS = (OPS.tolist(), PLACES.tolist())

VALUES = st.tuples(
    st.integers(-(2**40), 2**40), st.sampled_from([0.5, -2.0, 1.25, 1e20, 0.0, None])
)
EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 2), VALUES), max_size=12)


def put_numbers(table: Table, numbers: Sequence[float]) -> None:
    bits = np.array(numbers, dtype=np.float64).view(np.int64)
    add_doubles(table, SUM, np.arange(len(table)), bits, ALL_VALID)


def row_of(count: int, whole: int, number: float | None) -> list[int]:
    row = np.zeros((1, WIDTH), dtype=np.int64)
    row[0, :4] = 1, whole, whole >> 63, number is not None
    put_numbers(row, [number or 0.0])
    scale_rows(row, np.array([count]), OPS, PLACES)
    return [int(word) for word in row[0]]


def rows_of(edges: list[tuple[int, int, tuple[int, float | None]]]) -> list[tuple[int, list[int]]]:
    return [(t, row_of(count, *value)) for t, count, value in edges if count]


def swept(
    group: Ints, time: Ints, kept: Flags, table: Table, watermark: int, *, empty: bool = False
) -> tuple[Ints, Ints, Table, Table, Table]:
    rows = len(group)
    groups, times = (np.empty(2 * rows, dtype=np.int64) for _ in range(2))
    made = np.empty((2 * rows, WIDTH), dtype=np.int64)
    parts, emitted = np.empty((4 * rows, 4), dtype=np.int64), np.empty((4 * rows, WIDTH), np.int64)
    order = np.lexsort((time, group))
    row_of_edge = np.where(kept, np.cumsum(kept), np.sum(kept) + np.cumsum(~kept)) - 1
    edges, segments = sweep_edges(
        group[order],
        time[order],
        row_of_edge[order],
        table[kept],
        table[~kept],
        watermark,
        OPS,
        PLACES,
        empty,
        groups,
        times,
        made,
        parts,
        emitted,
    )
    return groups[:edges], times[:edges], made[:edges], parts[:segments], emitted[:segments]


def table_of(rows: list[tuple[int, list[int]]]) -> tuple[Ints, Table]:
    times = np.array([t for t, _ in rows], dtype=np.int64)
    return times, np.array([row for _, row in rows], dtype=np.int64).reshape(len(rows), WIDTH)


@given(kept=st.lists(EDGES, max_size=3), added=st.lists(EDGES, max_size=3), late=st.integers(0, 9))
def test_parity_sweeping_beside_the_obvious_loop(
    kept: list[list[tuple[int, int, tuple[int, float | None]]]],
    added: list[list[tuple[int, int, tuple[int, float | None]]]],
    late: int,
) -> None:
    rows, owners, is_kept, expected = [], [], [], {}
    ahead: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
    for group in range(max(len(kept), len(added))):
        old = rows_of(kept[group]) if group < len(kept) else []
        new = rows_of(added[group]) if group < len(added) else []
        new = [(max(t, late), row) for t, row in new]
        rows += old + new
        owners += [group] * len(old + new)
        is_kept += [True] * len(old) + [False] * len(new)
        for (start, end, held), diff in sweep_edges_reference(old, new, *LISTS).items():
            if held[0] > 0:
                expected[group, start, end, diff] = held
        ahead[group] = [each for each in segments_reference(old + new, *LISTS) if each[1] > late]
    times, table = table_of(rows)
    group_of, edge_times, edges, parts, emitted = swept(
        np.array(owners, dtype=np.int64), times, np.array(is_kept, dtype=np.bool_), table, late
    )
    found = {
        tuple(part): tuple(held)
        for part, held in zip(parts.tolist(), emitted.tolist(), strict=True)
    }
    assert len(found) == len(parts)
    assert found == expected
    for group, segments in ahead.items():
        mine = group_of == group
        kept_rows = list(zip(edge_times[mine].tolist(), edges[mine].tolist(), strict=True))
        again = [each for each in segments_reference(kept_rows, *LISTS) if each[1] > late]
        assert [each for each in again if any(each[2])] == [
            each for each in segments if any(each[2])
        ]
        assert (edge_times[mine] < late).sum() <= 1


@pytest.mark.parametrize("seed", range(10))
def test_sweeping_again_repeats_every_segment_to_the_bit(seed: int) -> None:
    dice = np.random.default_rng(seed)
    rows, late = 60, 30
    table = np.zeros((rows, WIDTH), dtype=np.int64)
    table[:, 0] = table[:, 3] = 1
    put_numbers(table, (dice.normal(size=rows) * 10.0 ** dice.integers(-9, 9, rows)).tolist())
    scale_rows(table, dice.choice([-1, 1, 3], rows), OPS, PLACES)
    times, group = dice.integers(0, 60, rows), np.zeros(rows, dtype=np.int64)
    nothing = np.zeros(rows, dtype=np.bool_)
    groups, edge_times, edges, parts, emitted = swept(group, times, nothing, table, late)
    again = swept(groups, edge_times, np.zeros(len(groups), np.bool_), edges, late)
    ahead = parts[:, 2] > late
    assert again[3].tolist() == parts[ahead].tolist()
    assert again[4].tolist() == emitted[ahead].tolist()


def test_a_sum_over_nothing_is_exactly_zero() -> None:
    # 0.1 and 1e36 come and go: doubles would lose the 0.1 and leave -0.1
    rows = [(0, row_of(1, 1, 0.1)), (1, row_of(1, 1, 1e36)), (2, row_of(-1, 1, 1e36))]
    rows.append((2, row_of(-1, 1, 0.1)))
    rows.append((3, row_of(1, 7, 1.0)))
    times, table = table_of(rows)
    nothing = np.zeros(len(rows), dtype=np.bool_)
    *_, parts, emitted = swept(np.zeros(len(rows), np.int64), times, nothing, table, -1)
    assert parts[:, 1].tolist() == [0, 1, 3]
    assert emitted[-1].tolist() == row_of(1, 7, 1.0)


def test_a_function_that_shows_nothing_goes_on_after_its_events() -> None:
    times, table = table_of([(2, row_of(1, 5, None)), (4, row_of(-1, 5, None))])
    group, nothing = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.bool_)
    groups, edge_times, edges, parts, _ = swept(group, times, nothing, table, 6, empty=True)
    assert parts[:, 1:3].tolist() == [[2, 4], [4, 2**63 - 1]]
    # what is left marks the beginning; swept again it still shows nothing, from the same instant on
    assert edge_times.tolist() == [4]
    assert not edges.any()
    again = swept(groups, edge_times, np.zeros(1, np.bool_), edges, 6, empty=True)
    assert again[3][:, 1:3].tolist() == [[4, 2**63 - 1]]


@given(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**120), 2**120)),
    st.sampled_from([0.5, -3.0, 0.0]),
    st.integers(-40, 40),
)
def test_parity_scaling_rows(whole: tuple[int, int], number: float, count: int) -> None:
    row = np.zeros((1, WIDTH), dtype=np.int64)
    low, high = whole[1] % 2**64, whole[1] >> 64
    row[0, :4] = whole[0], low - 2**64 if low >> 63 else low, high, 1
    put_numbers(row, [number])
    expected = scale_rows_reference(row[0].tolist(), count, OPS.tolist(), PLACES.tolist())
    scale_rows(row, np.array([count]), OPS, PLACES)
    assert row[0].tolist() == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-1, 1), VALUES), max_size=30
    )
)
def test_parity_rows_of_equal_slots_and_lifetimes_are_added_up(
    emitted: list[tuple[int, int, int, tuple[int, float | None]]],
) -> None:
    emitted = [each for each in emitted if each[2]]
    rows = np.array([row_of(count, *value) for *_, count, value in emitted], dtype=np.int64)
    rows = rows.reshape(len(emitted), WIDTH)
    slots, le = (np.array([each[at] for each in emitted], dtype=np.int64) for at in range(2))
    keys = list(zip(slots.tolist(), le.tolist(), (le + 1).tolist(), strict=True))
    wanted = fold_equal_reference(keys, rows.tolist(), OPS.tolist(), PLACES.tolist())
    heads, index = np.empty(len(emitted), dtype=np.int64), np.zeros(64, dtype=np.int64)
    count = fold_equal(slots, le, le + 1, rows, OPS, PLACES, index, heads)
    found = {keys[head]: row.tolist() for head, row in zip(heads[:count], rows, strict=False)}
    assert found == wanted
