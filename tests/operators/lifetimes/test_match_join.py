from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes.changes import DIFF, LE, payload_of
from icestream.operators.lifetimes.join import LEFT, RIGHT, StreamJoin
from icestream.operators.lifetimes.match_join import MatchJoin
from tests.oracles.lifetimes import Event, changes_from
from tests.oracles.plain_groups import PlainGroups

SIDES = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.int64())])
GROUPS = ((2**64 - 1, 7), (0, 0), (5, 1))
Rows = Counter[tuple[int, tuple[Any, ...]]]


def smaller(rows: pa.RecordBatch) -> pa.Array:
    return pc.less(rows.column("a"), rows.column("b"))


def operator(kind: str, bounds: tuple[int, int], early: tuple[int, int], where: bool) -> MatchJoin:
    pairs = StreamJoin(*SIDES, residual=smaller if where else None)
    needs_none = kind == "anti" and not where
    return MatchJoin(*SIDES, None if needs_none else pairs, kind, bounds, early)


def rows_of(batches: Iterator[pa.RecordBatch]) -> Rows:
    found: Rows = Counter()
    for made in batches:
        names = ("a", "b")
        values = [payload_of(made).to_pylist(), made.column(LE).to_pylist()]
        for row, le, diff in zip(*values, made.column(DIFF).to_pylist(), strict=True):
            assert diff > 0
            found[le, tuple(row.get(name) for name in names)] += diff
    return found


def expected(
    sides: list[list[Event]],
    kind: str,
    bounds: tuple[int, int],
    early: tuple[int, int],
    where: bool,
    watermark: int,
) -> Rows:
    """Return the pairs of all events, and the events without a partner that are decided."""
    found: Rows = Counter()
    partnered: list[set[int]] = [set(), set()]
    for i, left in enumerate(sides[LEFT]):
        for j, right in enumerate(sides[RIGHT]):
            near = bounds[0] <= right.le - left.le <= bounds[1] and left.group == right.group
            a, b = left.payload[0], right.payload[0]
            if near and (not where or (a is not None and b is not None and a < b)):
                partnered[LEFT].add(i)
                partnered[RIGHT].add(j)
                if kind != "anti":
                    found[left.le, (a, b)] += 1
    last = {LEFT: bounds[1] - early[RIGHT], RIGHT: -bounds[0] - early[LEFT]}
    for side in (LEFT, RIGHT) if kind == "full" else (LEFT,):
        for number, event in enumerate(sides[side]):
            decided = event.le + max(last[side], -early[side]) < watermark
            if decided and number not in partnered[side]:
                value = event.payload[0]
                found[event.le, (value, None) if side == LEFT else (None, value)] += 1
    return found


@pytest.mark.sample(24)
@pytest.mark.parametrize("seed", range(200))
def test_oracle_match_joins_in_any_chunks(seed: int) -> None:
    dice = Random(seed)
    kind, where = ("left", "full", "anti")[seed % 3], dice.random() < 0.4
    low, high = sorted(dice.randint(-9, 9) for _ in range(2))
    bounds = low, high
    wait = max(high, 0, -low if kind == "full" else 0)
    early = wait + dice.randint(0, 3), wait + dice.randint(0, 3)
    joined = operator(kind, bounds, early, where)
    groups = PlainGroups(joined.synopses, piece_rows=dice.choice([0, 1, 3]))
    sides: list[list[Event]] = [[], []]
    found: Rows = Counter()
    watermark, time = MINUS_INFINITY, 0
    for number in range(6):
        after = INFINITY if number == 5 else time + dice.randint(0, 12)
        news = [[_event(dice, time, early[side]) for _ in range(dice.randint(0, 7))]
                for side in (LEFT, RIGHT)]  # fmt: skip
        entire = dice.random() < 0.5
        order = [RIGHT, LEFT] if entire else [LEFT, RIGHT, LEFT, RIGHT]
        for place, side in enumerate(order):
            mine = news[side] if entire else news[side][place // 2 :: 2]
            changes = changes_from([(each, 1) for each in mine], SIDES[side])
            groups.begin(watermark)
            if entire and side == LEFT:
                made = joined.on_last_changes(side, changes, groups, watermark, after)
            else:
                made = joined.on_changes(side, changes, groups, watermark)
            found += rows_of(made)
            sides[side] += mine
        groups.begin(watermark)
        found += rows_of(joined.on_watermark(groups, after))
        assert found == expected(sides, kind, bounds, early, where, after)
        watermark = time = after


def _event(dice: Random, time: int, early: int) -> Event:
    le = time + dice.randint(0, 15) + early
    return Event(dice.choice(GROUPS), le, le + 1, (dice.choice([0, 1, 2, None]),))


def one(side: int, time: int) -> pa.RecordBatch:
    return changes_from([(Event(GROUPS[0], time, time + 1, (time,)), 1)], SIDES[side])


def test_pairs_come_with_their_second_event() -> None:
    #   left   5 |         row with nulls: none
    #   right       8 |
    joined = operator("full", (-4, 4), (4, 4), where=False)
    groups = PlainGroups(joined.synopses)
    assert rows_of(joined.on_changes(LEFT, one(LEFT, 5 + 4), groups, 0)) == Counter()
    groups.begin(0)
    made = rows_of(joined.on_changes(RIGHT, one(RIGHT, 8 + 4), groups, 0))
    assert made == Counter({(9, (9, 12)): 1})
    assert rows_of(joined.on_watermark(groups, INFINITY)) == Counter()


def test_bounded_decided_rows_are_gone() -> None:
    joined = operator("full", (-4, 4), (4, 4), where=False)
    groups = PlainGroups(joined.synopses)
    for side in (LEFT, RIGHT):
        list(joined.on_changes(side, one(side, 14), groups, 0))
    slots = groups.locate(*(pa.array([word], pa.uint64()).to_numpy() for word in GROUPS[0]))
    for watermark, rows in ((18, 1), (19, 0)):
        list(joined.on_watermark(groups, watermark))
        groups.begin(watermark)
        assert [len(groups.read(side, slots).owners) for side in (LEFT, RIGHT)] == [rows, rows]
