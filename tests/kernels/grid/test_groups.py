from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from icestream.core.arrays import Table
from icestream.kernels import hash_index
from icestream.kernels.grid import groups
from icestream.operators.folding.fields import Field, SlidingLayout
from tests.oracles.kernels.field_words import merge_words_reference
from tests.oracles.kernels.grid.groups import empty_rows_reference, take_next_reference

#: sums of integers and doubles, with an inverse; a maximum, a minimum and choices without one
LAYOUT = SlidingLayout.of(
    (
        Field("sum_i128", "x"),
        Field("max", "x"),
        Field("first", "x"),
        Field("sum_f64", "y"),
        Field("min", "x"),
        Field("least_by", "x", ("y",)),
    )
).typical


class GroupIndex(RuleBasedStateMachine):
    """Inserts and removes groups, many of which share their place in the index, beside a dict."""

    @initialize()
    def start(self) -> None:
        self.rows = np.zeros((64, 3), dtype=np.int64)
        self.index = np.zeros(128, dtype=np.int32)
        self.known: dict[tuple[int, int], int] = {}
        self.free = list(range(64))

    @rule(id_high=st.integers(0, 3), place=st.integers(120, 130), more=st.integers(0, 1))
    def toggle(self, id_high: int, place: int, more: int) -> None:
        id_low = (place << 20) + more
        if (id_high, id_low) in self.known:
            slot = self.known.pop((id_high, id_low))
            hash_index.remove_all(self.index, self.rows, np.array([slot]))
            self.free.append(slot)
        elif self.free:
            slot = self.free.pop(0)
            self.rows[slot, :2] = id_high, id_low
            hash_index.insert_all(self.index, self.rows, np.array([slot]))
            self.known[id_high, id_low] = slot

    @invariant()
    def finds_what_the_dict_holds(self) -> None:
        every = [
            (id_high, (p << 20) + m)
            for id_high in range(4)
            for p in range(120, 131)
            for m in (0, 1)
        ]
        id_high, id_low = np.array(every, dtype=np.uint64).T.copy()
        slots = np.empty(len(every), dtype=np.int64)
        missing = hash_index.find(self.index, self.rows, id_high, id_low, slots)
        assert slots.tolist() == [self.known.get(key, -1) for key in every]
        assert missing == len(every) - len(self.known)


GroupIndex.TestCase.settings = settings(max_examples=20, stateful_step_count=60)
test_parity_groups_beside_a_dict = GroupIndex.TestCase


def entries_of(drawn: dict[int, tuple[int, int]]) -> Table:
    """Make one entry for each group."""
    table = np.tile(LAYOUT.entry_identity, (len(drawn), 1))
    for row, (group, (x, y)) in zip(table, sorted(drawn.items()), strict=True):
        # id_high, id_low, rows, sum (low, high), max, choice, min, choice, digits
        first, least = [y, x, group, x], [y, x, group, x, y]
        row[:] = [group, group, 1, x, x >> 63, x, *first, x, *least, y << 59, x]
    return table


@given(
    panes=st.lists(
        st.dictionaries(
            st.integers(0, 3), st.tuples(st.integers(-5, 5), st.integers(-9, 9)), max_size=4
        ),
        min_size=1,
        max_size=14,
    ),
    reach=st.integers(1, 5),
    flips=st.sets(st.integers(0, 14)),
    backs=st.integers(0, 4),
    builds=st.sets(st.integers(0, 14)),
)
@settings(max_examples=100)
def test_parity_running_aggregates_beside_recomputation(
    panes: list[dict[int, tuple[int, int]]],
    reach: int,
    flips: set[int],
    backs: int,
    builds: set[int],
) -> None:
    # windows of `reach` panes that slide by one; suffixes are made when needed, and now and then
    # when not, of all panes but some of the last (`backs`); the next suffixes are made of those
    # behind, now and then, to be taken when needed
    ops, places, identity = LAYOUT.ops, LAYOUT.places, LAYOUT.group_identity
    rows = np.tile(identity, (4, 1))
    rows[:, 0] = rows[:, 1] = np.arange(4)
    slices = [entries_of(drawn) for drawn in panes]
    stack: list[Table] = []
    following: list[Table] = []
    # panes before the first have suffixes, those before the second get them with the next stack
    flipped = turning = 0

    def slots(table: Table) -> Table:
        return np.ascontiguousarray(table[:, 0])

    def pushed(table: Table, at: int) -> Table:
        suffixes = np.empty((len(table), LAYOUT.suffix_words), dtype=np.int64)
        groups.push_suffix(rows, slots(table), table, ops, places, at, suffixes)
        return suffixes

    for end in range(1, len(panes) + 1):
        newest, start = slices[end - 1], max(0, end - reach)
        groups.touch(rows, slots(newest), np.full(len(newest), end - 1))
        also = LAYOUT.next_back_at if following else 0
        groups.add_slice(rows, slots(newest), newest, ops, places, also)

        out = np.empty((4, LAYOUT.field_words), dtype=np.int64)
        out_slots = np.empty(4, dtype=np.int64)
        done = groups.emit(rows, 0, 4, ops, places, LAYOUT.suffixes_at, out, out_slots, 0, False)
        expected: dict[int, list[int]] = {}
        for table in slices[start:end]:
            for row in table.tolist():
                words = expected.setdefault(row[0], LAYOUT.entry_identity.tolist())
                for op, place in zip(ops.tolist(), places.tolist(), strict=True):
                    merge_words_reference(words, row, place, op)
        assert done == (4, len(expected))
        for slot, fields in zip(out_slots[: done[1]].tolist(), out.tolist(), strict=False):
            assert fields == expected[slot][2:]

        if end < reach:
            continue
        if start == flipped and following:
            groups.take_next(
                rows, 4, ops, places, identity, LAYOUT.suffixes_at, LAYOUT.suffix_words
            )
            stack, following, flipped = following, [], turning
        if start >= flipped or end in flips:
            groups.start_flip(rows, 4, ops, places, identity)
            stack, following, flipped = [], [], max(start + 1, end - backs)
            for table in reversed(slices[flipped:end]):
                groups.push_back(rows, slots(table), table, ops, places)
            for table in reversed(slices[start:flipped]):
                stack.append(pushed(table, LAYOUT.suffixes_at))
        if end in builds and not following and flipped < end:
            turning = end
            for table in reversed(slices[flipped:end]):
                following.append(pushed(table, LAYOUT.next_suffix_at))
        leaving = slices[start]
        dead = np.empty(len(leaving), dtype=np.int64)
        count = groups.expire_slice(
            rows,
            slots(leaving),
            leaving,
            ops,
            places,
            identity,
            stack.pop(),
            LAYOUT.suffixes_at,
            start,
            dead,
        )
        gone = [g for g in panes[start] if all(g not in later for later in panes[start + 1 : end])]
        assert sorted(dead[:count].tolist()) == sorted(gone)
        for slot in gone:
            assert rows[slot, groups.FIELDS :].tolist() == identity[groups.FIELDS :].tolist()


@given(seed=st.integers(0, 2**32), used=st.integers(0, 5))
@settings(max_examples=40)
def test_parity_taking_the_next_suffix_and_back(seed: int, used: int) -> None:
    dice = np.random.default_rng(seed)
    identity, at, width = LAYOUT.group_identity, LAYOUT.suffixes_at, LAYOUT.suffix_words
    rows = dice.integers(-4, 4, size=(5, len(identity)))
    # rows | low high | max | choice | min | choice | digits
    backs = [groups.FIELDS + word for word in range(3, 14)]
    assert len(backs) == width
    expected = rows.copy()
    expected[:used] = take_next_reference(rows[:used], backs, identity, at, width)
    groups.take_next(rows, used, LAYOUT.ops, LAYOUT.places, identity, at, width)
    assert rows.tolist() == expected.tolist()


def test_emit_goes_on_where_a_full_table_stopped_it() -> None:
    rows = np.tile(LAYOUT.group_identity, (7, 1))
    rows[[0, 2, 3, 6], groups.FIELDS] = [1, 2, 3, 4]
    out = np.empty((3, LAYOUT.field_words), dtype=np.int64)
    slots = np.empty(3, dtype=np.int64)
    places, at = LAYOUT.places, LAYOUT.suffixes_at
    assert groups.emit(rows, 0, 7, LAYOUT.ops, places, at, out, slots, 0, False) == (6, 3)
    assert slots.tolist() == [0, 2, 3]
    assert groups.emit(rows, 6, 7, LAYOUT.ops, places, at, out, slots, 0, False) == (7, 1)
    assert (slots[0], out[0, 0]) == (6, 4)


@given(seed=st.integers(0, 2**32), used=st.integers(0, 9), end=st.integers(-3, 3))
@settings(max_examples=40)
def test_parity_emptying_all_rows_at_once(seed: int, used: int, end: int) -> None:
    dice = np.random.default_rng(seed)
    identity = LAYOUT.group_identity
    rows = dice.integers(-4, 4, size=(used, len(identity)))
    rows[:, groups.FIELDS] = dice.integers(0, 3, size=used)
    expected, gone = empty_rows_reference(rows, identity, end)
    dead = np.empty(used, dtype=np.int64)
    count = groups.empty_rows(rows, used, identity, end, dead)
    assert dead[:count].tolist() == gone
    assert rows.tolist() == expected.tolist()
