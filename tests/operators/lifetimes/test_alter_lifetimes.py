from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes, ColumnLifetimes
from icestream.plan.windows.lifetimes import (
    Forever,
    Hopping,
    Lifetime,
    Point,
    Shifted,
    WindowLifetime,
)
from tests.fixtures import lifetime_events as scenarios
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Event, bag_of, changes_from, heads

PLAIN = pa.schema([("x", pa.string())])


def on_the_grid(reach: int, slide: int) -> Callable[[int, int], tuple[int, int]]:
    """Look at windows one by one: the first that holds the event, and the first after it."""

    def lifetime(le: int, re: int) -> tuple[int, int]:
        ends = [end for end in range(-200, 400) if end % slide == 0]
        if re == INFINITY:
            return min(end for end in ends if end > le), INFINITY
        held = [end for end in ends if le < end and re > end - reach]
        return (held[0], held[-1] + slide) if held else (0, 0)

    return lifetime


CASES: list[tuple[Lifetime, Callable[[int, int], tuple[int, int]]]] = [
    (WindowLifetime(7), lambda le, _re: (le, le + 7)),
    (Forever(), lambda le, _re: (le, INFINITY)),
    (Point(), lambda le, _re: (le, le + 1)),
    (Shifted(4), lambda le, re: (le + 4, min(re + 4, INFINITY))),
    (Shifted(0), lambda le, re: (le, re)),
    (Hopping(12, 4), on_the_grid(12, 4)),
    (Hopping(5, 3), on_the_grid(5, 3)),
    (Hopping(2, 5), on_the_grid(2, 5)),
    (Hopping(1, 1), on_the_grid(1, 1)),
]


@pytest.mark.parametrize(("alter", "lifetime"), CASES)
@pytest.mark.parametrize("seed", range(5))
def test_oracle_altered_lifetimes(
    alter: Lifetime, lifetime: Callable[[int, int], tuple[int, int]], seed: int
) -> None:
    for batch in scenarios.scenario(Random(seed), [scenarios.port()]):
        for _, chunk in batch.chunks:
            found = AlterLifetimes(alter)(chunk)
            assert found.schema == chunk.schema
            oracle.assert_same_bag(bag_of(found), oracle.altered(bag_of(chunk), lifetime))


@given(dice=st.randoms(), alter=st.sampled_from([case[0] for case in CASES]))
def test_altered_changes_leave_the_past_alone(dice: Random, alter: Lifetime) -> None:
    before: oracle.Bag = Counter()
    for batch in scenarios.scenario(dice, [scenarios.port()]):
        after = Counter(before)
        for _, chunk in batch.chunks:
            for event, diff in oracle.events_of(AlterLifetimes(alter)(chunk)):
                after[event] += diff
        oracle.assert_past_is_kept(before, after, batch.watermark)
        before = oracle.without_zeros(after)


def test_lifetimes_end_at_infinity_at_the_latest() -> None:
    edges = [(INFINITY - 3, INFINITY - 1), (INFINITY - 3, INFINITY), (MINUS_INFINITY, INFINITY)]
    changes = changes_from([(Event((0, 0), le, re, ("a",)), 1) for le, re in edges], PLAIN)
    assert [re for _, re, _ in heads(AlterLifetimes(WindowLifetime(INFINITY))(changes))] == [
        INFINITY,
        INFINITY,
        INFINITY - 1 + MINUS_INFINITY + 1,
    ]
    assert heads(AlterLifetimes(Shifted(2))(changes)) == [
        (INFINITY - 1, INFINITY, 1),
        (INFINITY - 1, INFINITY, 1),
        (MINUS_INFINITY + 2, INFINITY, 1),
    ]
    # what would begin at or after the end of time is not there
    assert AlterLifetimes(Shifted(5))(changes).num_rows == 1
    assert heads(AlterLifetimes(Hopping(10, 1000))(changes))[-1][1] == INFINITY


def test_a_window_holds_what_was_alive_in_its_range() -> None:
    # range 4, slide 2:  0   1   2   3   4   5   6
    # a point at 1 is in [-2, 2) and [0, 4): seen from 2 on, before 6
    # a point at 2 is in [0, 4) and [2, 6): seen from 4 on, before 8
    points = [(Event((0, 0), at, at + 1, ("a",)), 1) for at in (1, 2)]
    changes = changes_from(points, PLAIN)
    assert heads(AlterLifetimes(Hopping(4, 2))(changes)) == [(2, 6, 1), (4, 8, 1)]


def test_lengths_are_checked() -> None:
    for wrong in (
        lambda: WindowLifetime(0),
        lambda: Shifted(-1),
        lambda: Hopping(0, 5),
        lambda: Hopping(5, 0),
    ):
        with pytest.raises(DefinitionError):
            wrong()


def test_columns_give_lifetimes() -> None:
    times = pa.timestamp("us", "UTC")
    schema = pa.schema([("since", times), ("until", times)])
    rows = [(3, 9), (3, 2), (4, None)]
    events = [(Event((7, 1), 2, 3, row), 1) for row in rows]
    changes = changes_from(events, schema)
    assert heads(ColumnLifetimes("since", "until")(changes)) == [(3, 10, 1)]
    assert heads(ColumnLifetimes(None, "until")(changes)) == [(2, 10, 1), (2, 3, 1)]
    assert heads(ColumnLifetimes("since", None)(changes)) == [
        (3, INFINITY, 1), (3, INFINITY, 1), (4, INFINITY, 1),
    ]  # fmt: skip
