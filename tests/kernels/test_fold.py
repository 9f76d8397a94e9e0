from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.kernels import fold
from icestream.kernels.fold import ALL_VALID
from tests.oracles.kernels.fold import (
    assign_entries_reference,
    new_keys_reference,
    order_floats_reference,
    routes_of_reference,
)

ids = st.integers(0, 5).map(lambda n: (n * 0x9E3779B97F4A7C15) % 2**64)
keys = st.lists(st.tuples(ids, ids, st.integers(-2, 2)), max_size=80)
words = st.integers(-(2**63), 2**63 - 1)


def columns(
    drawn: list[tuple[int, int, int]],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    id_high, id_low, pane = zip(*drawn, strict=True) if drawn else ((), (), ())
    return np.array(id_high, np.uint64), np.array(id_low, np.uint64), np.array(pane, np.int64)


@given(keys)
@settings(max_examples=60)
def test_parity_events_share_an_entry_exactly_when_group_and_pane_agree(
    drawn: list[tuple[int, int, int]],
) -> None:
    id_high, id_low, pane = columns(drawn)
    entries, panes = np.empty((256, 3), np.int64), np.empty(256, np.int64)
    slots, opened = np.empty(len(id_high), np.int64), np.empty(len(id_high), np.int64)
    identity = np.array([0, 0, 42])
    done, used, listed = fold.assign_entries(
        id_high,
        id_low,
        pane,
        0,
        np.zeros(512, np.int32),
        entries,
        panes,
        0,
        identity,
        slots,
        opened,
    )
    expected, first = assign_entries_reference(id_high, id_low, pane)
    assert (done, used, listed) == (len(id_high), len(set(expected)), len(first))
    assert slots.tolist() == expected
    assert opened[:listed].tolist() == first
    for at, event in enumerate(first):
        assert entries[at].view(np.uint64).tolist() == [id_high[event], id_low[event], 42]
        assert panes[at] == pane[event]


@given(keys, st.integers(1, 4))
@settings(max_examples=40)
def test_parity_a_full_table_stops_at_the_event_that_needs_a_new_entry(
    drawn: list[tuple[int, int, int]], capacity: int
) -> None:
    id_high, id_low, pane = columns(drawn)
    expected, _ = assign_entries_reference(id_high, id_low, pane)
    slots, opened = np.empty(len(id_high), np.int64), np.empty(len(id_high), np.int64)
    done, used, _ = fold.assign_entries(
        id_high,
        id_low,
        pane,
        0,
        np.zeros(16, np.int32),
        np.empty((capacity, 2), np.int64),
        np.empty(capacity, np.int64),
        0,
        np.zeros(2, np.int64),
        slots,
        opened,
    )
    stop = next((i for i, entry in enumerate(expected) if entry >= capacity), len(expected))
    assert done == stop
    assert used == len(set(expected[:stop]))
    assert slots[:stop].tolist() == expected[:stop]


@given(keys)
@settings(max_examples=60)
def test_parity_new_keys(drawn: list[tuple[int, int, int]]) -> None:
    id_high, id_low, pane = columns(drawn)
    rows = np.arange(len(id_high))
    seen, last = np.empty((128, 2), np.uint64), np.empty(128, np.int64)
    fresh = np.empty(len(id_high), np.int64)
    used, found = fold.new_keys(
        id_high, id_low, pane, rows, len(rows), np.zeros(256, np.int32), seen, last, 0, fresh
    )
    first, latest = new_keys_reference(id_high, id_low, pane, rows.tolist())
    assert used == found == len(first)
    assert fresh[:found].tolist() == first
    assert last[:used].tolist() == latest
    assert seen[:used].tolist() == [[id_high[i], id_low[i]] for i in first]


values = st.lists(
    st.tuples(st.integers(0, 3), words, words, st.floats(-1e9, 1e9), st.booleans()), max_size=60
)


@given(values, st.booleans())
@settings(max_examples=60)
def test_parity_fold_of_every_field(
    drawn: list[tuple[int, int, int, float, bool]], nulls: bool
) -> None:
    slots = np.array([each[0] for each in drawn], np.int64)
    low = np.array([each[1] for each in drawn], np.int64)
    high = np.array([each[2] for each in drawn], np.int64)
    valid = np.array([each[4] for each in drawn], np.bool_) if nulls else ALL_VALID
    here = [
        [i for i in range(len(drawn)) if slots[i] == e and (not nulls or valid[i])]
        for e in range(4)
    ]

    def run(
        kernel: Callable[..., None], start: int, *inputs: npt.NDArray[np.generic]
    ) -> list[list[int]]:
        entries = np.full((4, 3), start, np.int64)
        kernel(entries, 1, slots, *inputs, valid, 0, len(slots))
        assert entries[:, 0].tolist() == [start] * 4
        words: list[list[int]] = entries[:, 1:].tolist()
        return words

    assert [e[0] for e in run(fold.fold_count, 0)] == [len(each) for each in here]
    small = low >> 20
    assert [e[0] for e in run(fold.fold_sum_i64, 0, small)] == [
        sum(int(small[i]) for i in each) for each in here
    ]
    entries = np.zeros((4, 4), np.int64)
    both = np.stack([small, -small], axis=1)
    fold.fold_sums_i64(entries, np.array([1, 3]), slots, both, 0, len(slots))
    totals = [sum(int(small[i]) for i in np.flatnonzero(slots == e)) for e in range(4)]
    assert entries.T.tolist() == [[0] * 4, totals, [0] * 4, [-each for each in totals]]
    wide = [sum(int(low[i]) % 2**64 + (int(high[i]) << 64) for i in each) for each in here]
    assert [
        (e[0] % 2**64 + (e[1] << 64)) % 2**128 for e in run(fold.fold_sum_i128, 0, low, high)
    ] == [total % 2**128 for total in wide]
    least, most = 2**63 - 1, -(2**63)
    assert [e[0] for e in run(fold.fold_min, least, low)] == [
        min((int(low[i]) for i in each), default=least) for each in here
    ]
    assert [e[0] for e in run(fold.fold_max, most, low)] == [
        max((int(low[i]) for i in each), default=most) for each in here
    ]


@given(values, st.booleans())
@settings(max_examples=60)
def test_parity_fold_of_products(
    drawn: list[tuple[int, int, int, float, bool]], nulls: bool
) -> None:
    slots = np.array([each[0] for each in drawn], np.int64)
    x, y = (np.array([each[i] for each in drawn], np.int64) for i in (1, 2))
    valid = np.array([each[4] for each in drawn], np.bool_) if nulls else ALL_VALID
    here = [
        [i for i in range(len(drawn)) if slots[i] == e and (not nulls or valid[i])]
        for e in range(4)
    ]
    entries = np.zeros((4, 2), np.int64)
    fold.fold_products_i128(entries, 0, slots, x, x >> 63, y, y >> 63, valid, 0, len(slots))
    found = [(low % 2**64 + (high << 64)) % 2**128 for low, high in entries.tolist()]
    assert found == [sum(int(x[i]) * int(y[i]) for i in each) % 2**128 for each in here]


@given(
    st.integers(-(10**37), 10**37).filter(bool),
    st.integers(-(2**127), 2**127 - 1),
)
@settings(max_examples=100)
def test_parity_products_of_two_words(x: int, wide: int) -> None:
    # any two factors whose product fits 128 bits
    y = int(Fraction(wide, x))
    a, b, c, d = [
        np.array([value % 2**64 - (value % 2**64 >> 63 << 64)], np.int64)
        for number in (x, y)
        for value in (number, number >> 64)
    ]
    entries = np.zeros((1, 2), np.int64)
    fold.fold_products_i128(entries, 0, np.zeros(1, np.int64), a, b, c, d, ALL_VALID, 0, 1)
    low, high = entries[0].tolist()
    assert (high << 64) + low % 2**64 == x * y


few = st.sampled_from((-(2**63), -1, 0, 1, 2**63 - 1))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.tuples(few, few, few, words), st.booleans())),
    st.sampled_from((3, 4)),
    st.booleans(),
)
@settings(max_examples=60)
def test_parity_fold_of_the_least_words(
    drawn: list[tuple[int, tuple[int, ...], bool]], count: int, nulls: bool
) -> None:
    slots = np.array([slot for slot, _, _ in drawn], np.int64)
    rows = np.array([row[:count] for _, row, _ in drawn], np.int64).reshape(-1, count)
    valid = np.array([there for _, _, there in drawn], np.bool_) if nulls else ALL_VALID
    nothing = [2**63 - 1] * count
    entries = np.full((3, count + 1), 2**63 - 1, np.int64)
    fold.fold_least(entries, 1, slots, rows, valid, 0, len(slots))
    for slot in range(3):
        here = [
            list(row[:count]) for at, row, there in drawn if at == slot and (there or not nulls)
        ]
        assert entries[slot, 1:].tolist() == min([*here, nothing])
    assert (entries[:, 0] == 2**63 - 1).all()


@given(st.lists(st.floats(), min_size=1, max_size=30))
@settings(max_examples=100)
def test_parity_order_floats(drawn: list[float]) -> None:
    # -0.0 ranks below 0.0, so that the least of both does not depend on their order
    out = np.empty(len(drawn), np.int64)
    fold.order_floats(np.array(drawn).view(np.int64), out)
    ranks = order_floats_reference(drawn)
    for a, rank in zip(out, ranks, strict=True):
        for b, other in zip(out, ranks, strict=True):
            assert (a < b) == (rank < other)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(1, 300))
@settings(max_examples=60)
def test_parity_routes_of(drawn: list[int], key_groups: int) -> None:
    id_high = np.array(drawn, np.uint64)
    route = np.arange(key_groups) * 7 % 5
    out, load = np.empty(len(id_high), np.int64), np.zeros(key_groups, np.int64)
    fold.routes_of(id_high, key_groups, route, out, load)
    assert out.tolist() == routes_of_reference(id_high, key_groups, route)
    assert load.sum() == len(id_high)
