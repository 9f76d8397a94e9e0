from __future__ import annotations

import pyarrow as pa

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.lifetimes.first_events import FirstEvents
from icestream.operators.lifetimes.until_next import UntilNext
from tests.oracles.lifetimes import Event, changes_from, events_of
from tests.oracles.plain_groups import PlainGroups

PLAIN = pa.schema([("x", pa.string())])
G = (7, 1)


def came(*events: tuple[int, str]) -> pa.RecordBatch:
    return changes_from([(Event(G, le, le + 1, (x,)), 1) for le, x in events], PLAIN)


def pushed(groups: PlainGroups, changes: pa.RecordBatch, watermark: int) -> list[tuple[Event, int]]:
    groups.begin(watermark)
    made = UntilNext(PLAIN).on_changes(0, changes, groups, watermark)
    return sorted(pair for batch in made for pair in events_of(batch))


def test_a_version_is_put_between_two_others() -> None:
    #      10        20        30
    # a     |---------------------------->
    # c     |---------|                        c comes at 30, then b at 20
    groups = PlainGroups(UntilNext(PLAIN).synopses)
    assert pushed(groups, came((10, "a")), MINUS_INFINITY) == [(Event(G, 10, INFINITY, ("a",)), 1)]
    assert pushed(groups, came((30, "a")), MINUS_INFINITY) == [
        (Event(G, 10, 30, ("a",)), 1),
        (Event(G, 10, INFINITY, ("a",)), -1),
        (Event(G, 30, INFINITY, ("a",)), 1),
    ]
    assert pushed(groups, came((20, "b")), 15) == [
        (Event(G, 10, 20, ("a",)), 1),
        (Event(G, 10, 30, ("a",)), -1),
        (Event(G, 20, 30, ("b",)), 1),
    ]


def test_bounded_old_versions_are_gone() -> None:
    groups = PlainGroups(UntilNext(PLAIN).synopses)
    for number in range(50):
        pushed(groups, came((number * 10, f"v{number}")), number * 10 - 5)
    groups.begin(495)
    slots = groups.locate(*(pa.array([each], pa.uint64()).to_numpy() for each in G))
    assert groups.read(0, slots).rows.num_rows == 1


def test_bounded_groups_without_duplicates_are_forgotten() -> None:
    operator = FirstEvents(PLAIN, 100)
    groups = PlainGroups(operator.synopses)
    kept = []
    for number in range(50):
        groups.begin(number * 10)
        list(operator.on_changes(0, came((number * 10, "x")), groups, number * 10))
        for made in operator.on_watermark(groups, number * 10 + 5):
            kept += [event.le for event, _ in events_of(made)]
    assert kept == [0, 110, 220, 330, 440]
    groups.begin(1000)
    slots = groups.locate(*(pa.array([each], pa.uint64()).to_numpy() for each in G))
    assert [groups.read(number, slots).rows.num_rows for number in (0, 1)] == [0, 0]
