from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.times import INFINITY
from icestream.operators.lifetimes.output_modes import NowOutput, UpdateOutput
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


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_oracle_update_is_now_where_rows_are_only_replaced(seed: int, stays: bool) -> None:
    dice = np.random.default_rng(seed)
    both = [kind(PLAIN, stays=stays, windows=stays) for kind in (NowOutput, UpdateOutput)]
    stores = [PlainGroups(each.synopses) for each in both]
    held: dict[tuple[int, int], Event] = {}
    for now in range(1, 30):
        steps: list[tuple[Event, int]] = []
        for _ in range(int(dice.integers(0, 6))):
            group = (int(dice.integers(0, 4)) << 61, 1)
            lifetime = (1000, 1001) if stays else (now, INFINITY)
            old, new = held.get(group), Event(group, *lifetime, (f"{dice.integers(0, 3)}",))
            steps += [*([] if old is None else [(old, -1)]), (new, 1)]
            held[group] = new
        emitted = []
        for output, groups in zip(both, stores, strict=True):
            groups.begin(now - 1)
            list(output.on_changes(0, changes_from(steps, PLAIN), groups, now - 1))
            groups.begin(now)
            emitted.append(
                sorted(
                    (high, x, count)
                    for batch in output.on_instant(groups, now)
                    for high, x, (_, _, count) in zip(
                        batch.column(3).to_pylist(),
                        batch.column("x").to_pylist(),
                        heads(batch),
                        strict=True,
                    )
                )
            )
        # a row that was replaced by an equal one is not written again
        assert set(emitted[1]) <= set(emitted[0])
        touched = {event.group[0] for event, _ in steps}
        assert {high for high, _, _ in emitted[0]} == touched
        for high, x, count in emitted[0]:
            assert (x, count) == (held[high, 1].payload[0], 1)
        ids = np.array([*held], dtype=np.uint64).reshape(-1, 2)
        slots = stores[1].locate(ids[:, 0].copy(), ids[:, 1].copy())
        assert stores[1].read(0, slots).rows.num_rows == 0
