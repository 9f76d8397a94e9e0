from __future__ import annotations

import pyarrow as pa

from icestream.core.times import INFINITY
from icestream.operators.lifetimes.now_mode import NowOutput
from tests.oracles.lifetimes import Event, changes_from, heads
from tests.oracles.plain_groups import PlainGroups

PLAIN = pa.schema([("x", pa.string())])
G = (7, 1)


def simple(*events: tuple[int, int, str, int]) -> pa.RecordBatch:
    return changes_from([(Event(G, le, re, (x,)), diff) for le, re, x, diff in events], PLAIN)


def test_a_key_is_emitted_when_a_row_begins_or_ends() -> None:
    output = NowOutput(PLAIN)
    groups = PlainGroups(output.synopses)
    groups.begin(0)
    list(output.on_changes(0, simple((2, 6, "a", 1), (4, INFINITY, "b", 2)), groups, 0))

    def emitted(now: int) -> list[tuple[str, int]]:
        groups.begin(now - 1)
        return [
            (x, count)
            for batch in output.on_instant(groups, now)
            for x, (_, _, count) in zip(batch.column("x").to_pylist(), heads(batch), strict=True)
        ]

    assert emitted(2) == [("a", 1)]
    assert emitted(3) == []
    assert sorted(emitted(4)) == [("a", 1), ("b", 2)]
    assert emitted(6) == [("b", 2)]
    groups.begin(6)
    list(output.on_changes(0, simple((4, INFINITY, "b", -2)), groups, 6))
    ((_, count),) = emitted(7)
    assert count == -1
    assert emitted(8) == []


def test_rows_that_stay_are_not_deleted_when_they_end() -> None:
    output = NowOutput(PLAIN, stays=True, windows=True)
    groups = PlainGroups(output.synopses)
    groups.begin(0)
    list(output.on_changes(0, simple((9, 10, "a", 1)), groups, 0))
    assert [heads(each) for each in output.on_instant(groups, 3)] == [[(9, 10, 1)]]
    groups.begin(12)
    assert list(output.on_instant(groups, 20)) == []


def test_bounded_now_holds_no_events_that_are_over() -> None:
    output = NowOutput(PLAIN)
    groups = PlainGroups(output.synopses)
    for instant in range(30):
        groups.begin(instant)
        event = simple((instant, instant + 3, "a", 1))
        list(output.on_changes(0, event, groups, instant))
        list(output.on_instant(groups, instant + 1))
        slots = groups.locate(event.column(3).to_numpy(), event.column(4).to_numpy())
        assert groups.read(0, slots).rows.num_rows <= 6
