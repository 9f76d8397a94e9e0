from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.times import INFINITY
from tests.fixtures import lifetime_events as scenarios
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Bag, Event, Payload, at, bag_of, snapshots

G = (0, 0)


def bag(*events: tuple[int, int, Payload]) -> Bag:
    return Counter(Event(G, *event) for event in events)


def test_answers_of_a_small_case_are_those_on_paper() -> None:
    #          0   1   2   3   4   5   6
    # left     a-----------)   b-------)
    # right        x-------)
    left = bag((0, 3, ("a", 1)), (4, 6, ("b", 2)))
    right = bag((1, 3, ("x",)))
    assert oracle.join(left, right) == bag((1, 3, ("a", 1, "x")))
    assert oracle.difference(left, right) == bag((0, 1, ("a", 1)), (4, 6, ("b", 2)))
    assert oracle.aggregate(left, oracle.count(), oracle.total(1)) == bag(
        (0, 3, (1, 1)), (4, 6, (1, 2))
    )
    both = bag((0, 5, (1,)), (2, 4, (7,)))
    assert oracle.aggregate(both, oracle.most(0), oracle.least(0), oracle.mean(0)) == bag(
        (0, 2, (1, 1, 1.0)), (2, 4, (7, 1, 4.0)), (4, 5, (1, 1, 1.0))
    )
    best = oracle.top(both, 1, lambda row: -row[0], lambda row, rank: (*row, rank))
    assert best == bag((0, 2, (1, 1)), (2, 4, (7, 1)), (4, 5, (1, 1)))
    lasting = oracle.altered(left, lambda le, _re: (le, INFINITY + le))
    assert lasting == bag((0, INFINITY, ("a", 1)), (4, INFINITY, ("b", 2)))


def test_snapshots_forget_how_lifetimes_are_cut() -> None:
    whole, cut = bag((0, 9, ("a",))), bag((0, 4, ("a",)), (4, 9, ("a",)))
    assert snapshots(whole) == snapshots(cut)
    with pytest.raises(AssertionError, match="missing"):
        oracle.assert_same_bag(whole, cut)
    with pytest.raises(AssertionError, match="stretches"):
        oracle.assert_same_snapshots(whole, bag((0, 9, ("b",))))


def test_nan_is_one_value_and_changes_come_back_as_they_were() -> None:
    schema = scenarios.port().schema
    event = Event(G, 0, 1, ("a", None, oracle.plain(float("nan"))))
    changes = oracle.changes_from([(event, 1), (event, 2)], schema)
    assert bag_of(changes) == Counter({event: 3})
    assert math.isnan(changes.column("score")[0].as_py())
    assert oracle.heads(changes) == [(0, 1, 1), (0, 1, 2)]


@given(
    dice=st.randoms(),
    kind=st.sampled_from([scenarios.ScenarioKind(), scenarios.ScenarioKind(cuts=True)]),
)
def test_changes_leave_the_past_alone(dice: Random, kind: scenarios.ScenarioKind) -> None:
    before: Bag = Counter()
    for batch in scenarios.scenario(dice, [scenarios.port()], kind):
        after = Counter(before)
        for _, changes in batch.chunks:
            for event, diff in oracle.events_of(changes):
                assert event.le < event.re
                after[event] += diff
        assert all(count >= 0 for count in after.values())
        oracle.assert_past_is_kept(before, after, batch.watermark)
        before = oracle.without_zeros(after)


@given(dice=st.randoms())
def test_the_answer_at_an_instant_is_that_over_what_is_alive(dice: Random) -> None:
    kind = scenarios.ScenarioKind(batches=2, cuts=True)
    scenario = scenarios.scenario(dice, [scenarios.port(), scenarios.port()], kind)
    chunks = [chunk for batch in scenario for chunk in batch.chunks]
    left, right = (bag_of(*(c for at_port, c in chunks if at_port == port)) for port in (0, 1))
    joined, rest = oracle.join(left, right), oracle.difference(left, right)
    counts = oracle.aggregate(left, oracle.count())
    for instant in oracle.instants_of(left, right):
        ours, theirs = at(left, instant), at(right, instant)
        pairs: Counter[tuple[oracle.Group, Payload]] = Counter()
        for (group, one), count in ours.items():
            for (other, two), times in theirs.items():
                if group == other:
                    pairs[group, one + two] += count * times
        assert at(joined, instant) == pairs
        covered = {group for group, _ in theirs}
        assert at(rest, instant) == {k: n for k, n in ours.items() if k[0] not in covered}
        alive: Counter[oracle.Group] = Counter()
        for (group, _), count in ours.items():
            alive[group] += count
        assert at(counts, instant) == {(group, (n,)): 1 for group, n in alive.items()}


def test_a_scenario_drawn_twice_is_the_same() -> None:
    first, second = (
        [
            (batch.watermark, [(port, part.to_pylist()) for port, part in batch.chunks])
            for batch in scenarios.scenario(Random(4), [scenarios.port()])
        ]
        for _ in range(2)
    )
    assert repr(first) == repr(second)
