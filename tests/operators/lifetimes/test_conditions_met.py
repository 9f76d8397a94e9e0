from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes.conditions_met import ConditionsMet
from tests.oracles.lifetimes import Event, changes_from, events_of
from tests.oracles.plain_groups import PlainGroups

PAYLOAD = pa.schema([("k", pa.string()), ("a", pa.bool_()), ("b", pa.bool_())])
CONDITIONS = ("a", "b")

Row = tuple[int, str, bool | None, bool | None]


def pushed(groups: PlainGroups, rows: list[Row], watermark: int) -> list[tuple[Event, int]]:
    groups.begin(watermark)
    events = [(Event((ord(k), 1), le, INFINITY, (k, *met)), 1) for le, k, *met in rows]
    operator = ConditionsMet(PAYLOAD, ["k"], CONDITIONS)
    made = operator.on_changes(0, changes_from(events, PAYLOAD), groups, watermark)
    return [pair for batch in made for pair in events_of(batch)]


def new_groups() -> PlainGroups:
    return PlainGroups(ConditionsMet(PAYLOAD, ["k"], CONDITIONS).synopses)


def test_an_earlier_event_adds_the_time_before_the_instant_known_so_far() -> None:
    #      10        20        30
    # a              |---------------->       b at 30 and 20, then at 10
    # b     |========|---------------->
    groups, g = new_groups(), (ord("x"), 1)
    first = pushed(groups, [(30, "x", False, True), (20, "x", True, True)], MINUS_INFINITY)
    assert first == [(Event(g, 20, INFINITY, ("x", True, True)), 1)]
    assert pushed(groups, [(10, "x", None, True)], MINUS_INFINITY) == [
        (Event(g, 10, 20, ("x", False, True)), 1)
    ]
    assert pushed(groups, [(15, "x", False, True)], MINUS_INFINITY) == []


@pytest.mark.parametrize("seed", range(5))
def test_oracle_conditions_are_met_from_the_first_event(seed: int) -> None:
    random, groups = Random(seed), new_groups()
    came: list[Row] = []
    shown: Counter[tuple[str, int, int]] = Counter()
    for watermark in (MINUS_INFINITY, MINUS_INFINITY, 5, 12):
        rows: list[Row] = [
            (
                max(random.randrange(20), watermark),
                random.choice("xyz"),
                random.random() < 0.3,
                random.choice([None, False, True]),
            )
            for _ in range(8)
        ]
        came += rows
        for event, count in pushed(groups, rows, watermark):
            key, *flags = event.payload
            for place, flag in enumerate(flags):
                for instant in range(event.le, min(event.re, 20)) if flag else ():
                    shown[key, place, instant] += count
        wanted = {
            (key, place, instant)
            for le, key, *flags in came
            for place, flag in enumerate(flags)
            for instant in range(le, 20)
            if flag
        }
        assert shown == Counter(wanted)


def test_bounded_conditions_are_one_row_of_words() -> None:
    groups = new_groups()
    for instant in range(50, 0, -1):
        pushed(groups, [(instant, "x", True, instant % 2 == 0)], MINUS_INFINITY)
    groups.begin(MINUS_INFINITY)
    slots = groups.locate(*(pa.array([each], pa.uint64()).to_numpy() for each in (ord("x"), 1)))
    assert groups.read(0, slots).rows.to_pylist() == [{"__since.a": 1, "__since.b": 2}]


def current(groups: PlainGroups, rows: list[Row]) -> list[tuple[Event, int]]:
    groups.begin(0)
    events = [(Event((ord(k), 1), le, INFINITY, (k, *met)), 1) for le, k, *met in rows]
    operator = ConditionsMet(PAYLOAD, ["k"], CONDITIONS).current()
    assert operator is not None
    made = operator.on_changes(0, changes_from(events, PAYLOAD), groups, 0)
    return [pair for batch in made for pair in events_of(batch)]


def current_groups() -> PlainGroups:
    operator = ConditionsMet(PAYLOAD, ["k"], CONDITIONS).current()
    assert operator is not None
    return PlainGroups(operator.synopses)


@pytest.mark.parametrize("seed", range(5))
def test_oracle_conditions_that_are_met_now(seed: int) -> None:
    random, groups = Random(seed), current_groups()
    wanted: set[tuple[str, int]] = set()
    shown: Counter[tuple[str, int]] = Counter()
    for _ in range(6):
        rows: list[Row] = [
            (3, random.choice("xyz"), random.random() < 0.1, random.choice([None, None, True]))
            for _ in range(3)
        ]
        wanted |= {(key, n) for _, key, *flags in rows for n, flag in enumerate(flags) if flag}
        for event, count in current(groups, rows):
            assert (event.le, event.re) == (3, INFINITY)
            key, *flags = event.payload
            shown.update({(key, n): count for n, flag in enumerate(flags) if flag})
        assert shown == Counter(wanted)


def test_bounded_conditions_are_one_word() -> None:
    groups = current_groups()
    for instant in range(50):
        current(groups, [(instant, "x", True, instant % 2 == 0)])
    groups.begin(0)
    slots = groups.locate(*(pa.array([each], pa.uint64()).to_numpy() for each in (ord("x"), 1)))
    assert groups.read(0, slots).rows.to_pylist() == [{"__met": 3}]


def test_more_conditions_than_bits_keep_their_times() -> None:
    names = [f"c{number}" for number in range(64)]
    payload = pa.schema([("k", pa.string()), *((name, pa.bool_()) for name in names)])
    assert ConditionsMet(payload, ["k"], names).current() is None
