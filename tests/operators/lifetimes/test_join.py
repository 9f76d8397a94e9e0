from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Slots
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes import pairs
from icestream.operators.lifetimes.changes import changes_of
from icestream.operators.lifetimes.join import LEFT, RIGHT, StreamJoin
from icestream.state.groups.spec import GroupRows
from tests.fixtures import lifetime_events as scenarios
from tests.fixtures.lifetime_kinds import KINDS
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import Event, bag_of, changes_from, events_of
from tests.oracles.plain_groups import PlainGroups

ONE, TWO = scenarios.port("one_"), scenarios.port("two_")
PLAIN = pa.schema([("x", pa.string())])
G = (7, 1)


class Watched(PlainGroups):
    """Remembers what is read and rewritten."""

    def __init__(self, operator: StreamJoin) -> None:
        super().__init__(operator.synopses)
        self.reads: list[int] = []
        self.rewrites: list[int] = []

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        self.reads.append(synopsis)
        return super().read(synopsis, slots)

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        self.rewrites.append(synopsis)
        super().rewrite(synopsis, slots, rows)


def simple(*events: tuple[int, int, str, int]) -> pa.RecordBatch:
    return changes_from([(Event(G, le, re, (x,)), diff) for le, re, x, diff in events], PLAIN)


def pushed(
    join: StreamJoin, groups: PlainGroups, port: int, changes: pa.RecordBatch, watermark: int
) -> list[pa.RecordBatch]:
    groups.begin(watermark)
    return list(join.on_changes(port, changes, groups, watermark))


@given(dice=st.randoms(), kind=KINDS)
def test_oracle_join_in_any_chunks(dice: Random, kind: scenarios.ScenarioKind) -> None:
    join = StreamJoin(ONE.schema, TWO.schema)
    exact = not kind.cuts and not kind.holes
    for step in scenarios.play(join, scenarios.scenario(dice, [ONE, TWO], kind)):
        left, right = step.inputs
        step.check(oracle.join(left, right), exact=exact)


@pytest.mark.parametrize("seed", range(20))
def test_oracle_join_over_long_scenarios(seed: int) -> None:
    dice = Random(seed)
    kind = scenarios.ScenarioKind(
        batches=8, revisions=14, groups=5, shuffled=seed % 2 == 0, cuts=seed % 4 < 2
    )
    join = StreamJoin(ONE.schema, TWO.schema)
    groups = PlainGroups(join.synopses, piece_rows=seed % 3)
    for step in scenarios.play(join, scenarios.scenario(dice, [ONE, TWO], kind), groups):
        if step.complete:
            left, right = step.inputs
            step.check(oracle.join(left, right), exact=not kind.cuts)


@given(dice=st.randoms(), kind=KINDS)
def test_oracle_self_join(dice: Random, kind: scenarios.ScenarioKind) -> None:
    join = StreamJoin(ONE.schema, ONE.schema, [str(place) for place in range(6)])
    scenario = [
        scenarios.Batch(
            batch.watermark,
            [(port, chunk) for _, chunk in batch.chunks for port in (LEFT, RIGHT)],
        )
        for batch in scenarios.scenario(dice, [ONE], kind)
    ]
    for step in scenarios.play(join, scenario):
        if step.complete:
            step.check(
                oracle.join(step.inputs[0], step.inputs[0]), exact=not kind.cuts and not kind.holes
            )


@given(dice=st.randoms())
def test_oracle_join_with_a_condition_on_a_hidden_column(dice: Random) -> None:
    names = ["name", "size", "score", "other", "size_too", "score_too"]
    join = StreamJoin(
        ONE.schema,
        TWO.schema,
        names,
        lambda joined: pc.less(joined.column("size"), joined.column("size_too")),
        ["size_too", "score"],
    )
    assert join.result.names == ["name", "size", "other", "score_too"]

    def keep(one: oracle.Payload, two: oracle.Payload) -> bool:
        return one[1] is not None and two[1] is not None and one[1] < two[1]

    for step in scenarios.play(join, scenarios.scenario(dice, [ONE, TWO])):
        expected: oracle.Bag = Counter()
        left, right = step.inputs
        for event, count in oracle.join(left, right, keep).items():
            shown = tuple(event.payload[place] for place in (0, 1, 3, 5))
            expected[event._replace(payload=shown)] += count
        step.check(oracle.without_zeros(expected), exact=True)


def test_lifetimes_of_pairs_are_what_both_share() -> None:
    #        0   1   2   3   4   5
    # left   a-----------------)
    # right      x-------)y----)      z from 5: shares nothing
    join = StreamJoin(PLAIN, PLAIN, ["x", "y"])
    groups = PlainGroups(join.synopses)
    pushed(join, groups, LEFT, simple((0, 5, "a", 1)), MINUS_INFINITY)
    (found,) = pushed(
        join, groups, RIGHT, simple((1, 3, "x", 1), (3, 5, "y", 2), (5, 9, "z", 1)), MINUS_INFINITY
    )
    assert events_of(found) == [
        (Event(G, 1, 3, ("a", "x")), 1),
        (Event(G, 3, 5, ("a", "y")), 2),
    ]


def test_a_lifetime_cut_short_at_the_watermark_meets_changes_on_both_sides() -> None:
    # both sides are revised in one batch, in turns, and the right one ends at the watermark, 4
    join = StreamJoin(PLAIN, PLAIN, ["x", "y"])
    groups = PlainGroups(join.synopses)
    made = pushed(join, groups, LEFT, simple((0, 10, "a", 1)), MINUS_INFINITY)
    made += pushed(join, groups, RIGHT, simple((0, 8, "b", 1)), MINUS_INFINITY)
    made += pushed(join, groups, LEFT, simple((0, 10, "a", -1)), 4)
    made += pushed(join, groups, RIGHT, simple((0, 8, "b", -1), (0, 4, "b", 1)), 4)
    made += pushed(join, groups, LEFT, simple((0, 5, "a", 1)), 4)
    assert bag_of(*made) == {Event(G, 0, 4, ("a", "b")): 1}


def test_stored_rows_that_cancel_make_no_pairs() -> None:
    join = StreamJoin(PLAIN, PLAIN, ["x", "y"])
    groups = PlainGroups(join.synopses)
    revised = simple((0, 9, "a", 1), (0, 9, "a", -1), (0, 3, "a", 1), (3, 9, "b", 1))
    pushed(join, groups, RIGHT, revised, MINUS_INFINITY)
    (found,) = pushed(join, groups, LEFT, simple((4, 5, "x", 1)), MINUS_INFINITY)
    assert events_of(found) == [(Event(G, 4, 5, ("x", "b")), 1)]


def test_adding_to_a_side_does_not_read_it() -> None:
    join = StreamJoin(PLAIN, PLAIN, ["x", "y"])
    groups = Watched(join)
    pushed(join, groups, LEFT, simple((0, 5, "a", 1), (0, 5, "a", -1)), MINUS_INFINITY)
    assert set(groups.reads) == {1, 3}
    groups.reads.clear()
    pushed(join, groups, RIGHT, simple((0, 5, "a", 1)), MINUS_INFINITY)
    assert set(groups.reads) == {0, 2}


@given(dice=st.randoms())
def test_bounded_expired_rows_are_gone(dice: Random) -> None:
    join = StreamJoin(ONE.schema, TWO.schema)
    groups = PlainGroups(join.synopses)
    scenario = scenarios.scenario(
        dice, [ONE, TWO], scenarios.ScenarioKind(cuts=True, shuffled=True)
    )
    assert all(step.watermark < INFINITY for step in scenarios.play(join, scenario, groups))
    for watermark in (*range(scenario[-1].watermark, 60, 5), INFINITY - 1):
        kept = scenarios.rows_kept(groups, 4, watermark)
        assert all(end > watermark for rows in kept[:2] for end in rows["__re"].to_pylist())
        assert watermark <= scenario[-1].watermark or not any(rows.num_rows for rows in kept[2:])
    assert not any(rows.num_rows for rows in scenarios.rows_kept(groups, 4, INFINITY))


def test_bounded_output_comes_in_small_chunks() -> None:
    rows = 400
    names = pa.RecordBatch.from_pydict({"x": [str(row) for row in range(rows)]})
    le = np.arange(rows, dtype=np.int64)[::-1].copy()
    ids = np.zeros(rows, dtype=np.uint64)
    ones = np.ones(rows, dtype=np.int64)
    changes = changes_of(names, le, le + 10_000, ones, ids, ids)
    join = StreamJoin(PLAIN, PLAIN, ["x", "y"])
    groups = PlainGroups(join.synopses)
    assert pushed(join, groups, LEFT, changes, MINUS_INFINITY) == []
    made = pushed(join, groups, RIGHT, changes, MINUS_INFINITY)
    assert sum(part.num_rows for part in made) == rows * rows
    assert max(part.num_rows for part in made) == pairs.PAIRS_AT_ONCE
    distinct = {tuple(row.values()) for part in made for row in part.select(["x", "y"]).to_pylist()}
    assert len(distinct) == rows * rows


def test_names_are_checked() -> None:
    with pytest.raises(DefinitionError, match="rename"):
        StreamJoin(PLAIN, PLAIN)
    with pytest.raises(DefinitionError, match="2 columns but 1"):
        StreamJoin(PLAIN, PLAIN, ["x"])
    with pytest.raises(DefinitionError, match="cannot hide 'z'"):
        StreamJoin(PLAIN, PLAIN, ["x", "y"], hidden=["z"])
