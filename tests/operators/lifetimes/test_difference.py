from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Slots
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes.difference import LEFT, RIGHT, StreamDifference
from icestream.state.groups.spec import GroupRows
from tests.fixtures import lifetime_events as scenarios
from tests.fixtures.lifetime_kinds import KINDS
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Event, changes_from, events_of
from tests.oracles.plain_groups import PlainGroups

ONE, TWO = scenarios.port("one_"), scenarios.port("two_")
PLAIN = pa.schema([("x", pa.string())])
G = (7, 1)


def simple(*events: tuple[int, int, str, int]) -> pa.RecordBatch:
    return changes_from([(Event(G, le, re, (x,)), diff) for le, re, x, diff in events], PLAIN)


def pushed(
    groups: PlainGroups, port: int, changes: pa.RecordBatch, watermark: int = MINUS_INFINITY
) -> list[pa.RecordBatch]:
    groups.begin(watermark)
    return list(StreamDifference(PLAIN).on_changes(port, changes, groups, watermark))


@given(dice=st.randoms(), kind=KINDS)
def test_oracle_difference_in_any_chunks(dice: Random, kind: scenarios.ScenarioKind) -> None:
    difference = StreamDifference(ONE.schema)
    for step in scenarios.play(difference, scenarios.scenario(dice, [ONE, TWO], kind)):
        left, right = step.inputs
        step.check(oracle.difference(left, right))


@pytest.mark.sample(10)
@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_oracle_difference_over_long_scenarios(seed: int, present: bool) -> None:
    dice = Random(seed)
    kind = scenarios.ScenarioKind(
        batches=8, revisions=14, groups=5, shuffled=seed % 2 == 0, cuts=seed % 4 < 2
    )
    operator = StreamDifference(ONE.schema, present=present)
    answer = oracle.accompanied if present else oracle.difference
    groups = PlainGroups(operator.synopses, piece_rows=seed % 3)
    for step in scenarios.play(operator, scenarios.scenario(dice, [ONE, TWO], kind), groups):
        if step.complete:
            step.check(answer(*step.inputs))


def test_left_events_go_where_right_ones_come() -> None:
    #        0   1   2   3   4   5
    # left   a-------------------)
    # right      x-------)              comes, is doubled, goes once, goes for good
    groups = PlainGroups(StreamDifference(PLAIN).synopses)
    (found,) = pushed(groups, LEFT, simple((0, 5, "a", 2)))
    assert events_of(found) == [(Event(G, 0, 5, ("a",)), 2)]
    (found,) = pushed(groups, RIGHT, simple((1, 3, "x", 1)))
    assert events_of(found) == [(Event(G, 1, 3, ("a",)), -2)]
    assert pushed(groups, RIGHT, simple((1, 3, "y", 1))) == []
    assert pushed(groups, RIGHT, simple((1, 3, "x", -1))) == []
    (found,) = pushed(groups, LEFT, simple((2, INFINITY, "b", 1)))
    assert events_of(found) == [(Event(G, 3, INFINITY, ("b",)), 1)]
    (found,) = pushed(groups, RIGHT, simple((1, 3, "y", -1)))
    assert sorted(events_of(found)) == [
        (Event(G, 1, 3, ("a",)), 2),
        (Event(G, 2, 3, ("b",)), 1),
    ]


def test_left_rows_are_read_only_when_the_cover_changes() -> None:
    reads: list[int] = []

    class Watched(PlainGroups):
        def read(self, synopsis: int, slots: Slots) -> GroupRows:
            reads.append(synopsis)
            return super().read(synopsis, slots)

    groups = Watched(StreamDifference(PLAIN).synopses)
    for port, change, expected in (
        (LEFT, (0, 5, "a", 1), [RIGHT]),
        (RIGHT, (0, 5, "x", 1), [RIGHT, LEFT]),
        (RIGHT, (0, 4, "y", 1), [RIGHT]),
    ):
        reads.clear()
        pushed(groups, port, simple(change))
        assert reads == expected


@given(dice=st.randoms())
def test_bounded_expired_rows_are_gone(dice: Random) -> None:
    difference = StreamDifference(ONE.schema)
    groups = PlainGroups(difference.synopses)
    kind = scenarios.ScenarioKind(cuts=True, shuffled=True)
    scenario = scenarios.scenario(dice, [ONE, TWO], kind)
    assert all(step.watermark < INFINITY for step in scenarios.play(difference, scenario, groups))
    for watermark in (*range(scenario[-1].watermark, 60, 5), INFINITY - 1):
        kept = scenarios.rows_kept(groups, 2, watermark)
        assert all(end > watermark for rows in kept for end in rows["__re"].to_pylist())
    assert not any(rows.num_rows for rows in scenarios.rows_kept(groups, 2, INFINITY))
