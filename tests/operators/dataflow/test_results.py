from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import BudgetError
from icestream.core.times import INFINITY
from icestream.operators.dataflow.results import (
    ROWS_AT_ONCE,
    HeldRowBuffer,
    LifetimeRows,
    ResultBuffer,
)
from icestream.operators.lifetimes.changes import changes_of
from tests.oracles.lifetimes import heads

PAYLOAD = pa.schema([("name", pa.string())])
INSTANT = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def changes(*events: tuple[int, int, int, str | None]) -> pa.RecordBatch:
    le, re, diff = (
        np.array([event[place] for event in events], dtype=np.int64) for place in range(3)
    )
    payload = pa.record_batch([pa.array([e[3] for e in events], pa.string())], PAYLOAD)
    nobody = np.zeros(len(events), dtype=np.uint64)
    return changes_of(payload, le, re, diff, nobody, nobody)


def at(instant: int) -> datetime:
    return EPOCH + timedelta(microseconds=instant)


def test_a_lifetime_without_an_end_has_a_null_there() -> None:
    (rows,) = LifetimeRows(PAYLOAD, INSTANT, "append")(
        changes((-5, INFINITY, 1, "a"), (1, 2, 1, None))
    )
    assert rows.to_pylist() == [
        {"lifetime": {"start": at(-5), "end": None}, "name": "a"},
        {"lifetime": {"start": at(1), "end": at(2)}, "name": None},
    ]


def test_an_event_that_comes_several_times_is_several_rows() -> None:
    (rows,) = LifetimeRows(PAYLOAD, INSTANT, "changes")(changes((1, 2, 3, "a"), (1, 2, -2, "b")))
    assert rows.column("change").to_pylist() == [1, 1, 1, -1, -1]
    assert rows.column("name").to_pylist() == ["a", "a", "a", "b", "b"]


def test_rows_have_the_columns_that_were_promised() -> None:
    for mode in ("append", "changes"):
        rows = LifetimeRows(PAYLOAD, pa.timestamp("us"), mode)
        (made,) = rows(changes((1, 2, 1, "a")))
        assert made.schema.equals(rows.schema)
        assert ("change" in made.schema.names) == (mode == "changes")
        assert [each.num_rows for each in rows(changes())] == [0]


def test_bounded_an_event_that_comes_very_often() -> None:
    rows = LifetimeRows(PAYLOAD, INSTANT, "changes")
    often = rows(changes((1, 2, -2, "a"), (1, 2, 1 << 29, "b"), (1, 2, 1, "c")))
    first, second = next(often), next(often)
    assert first.num_rows == second.num_rows == ROWS_AT_ONCE
    assert first.column("name").to_pylist()[:3] == ["a", "a", "b"]
    assert first.column("change").to_pylist()[:3] == [-1, -1, 1]
    made = list(rows(changes((1, 2, 2 * ROWS_AT_ONCE, "a"), (1, 2, 1, "b"))))
    assert [each.num_rows for each in made] == [ROWS_AT_ONCE, ROWS_AT_ONCE, 1]


@pytest.mark.parametrize("count", [1 << 31, -(2**63), 2**63 - 1])
def test_events_that_come_too_often_are_refused(count: int) -> None:
    with pytest.raises(BudgetError, match="too many rows of a result"):
        list(LifetimeRows(PAYLOAD, INSTANT, "append")(changes((1, 2, count, "a"))))


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([-1, 1])), max_size=5)))
def test_oracle_changes_that_are_held_back_add_up(batches: list[list[tuple[int, int]]]) -> None:
    buffer, emitted = ResultBuffer(1 << 20), []
    for batch in batches:
        emitted += list(buffer.take(changes(*((le, 9, diff, "a") for le, diff in batch))))
    assert emitted == []
    found = [each for batch in buffer.rest() for each in heads(batch)]
    sums = Counter[int]()
    for le, diff in (each for batch in batches for each in batch):
        sums[le] += diff
    added = Counter[int]()
    for le, _, diff in found:
        added[le] += diff
    assert added == {le: n for le, n in sums.items() if n}
    # none cancel each other
    assert len({(le, diff > 0) for le, _, diff in found}) == len(added)
    assert list(buffer.rest()) == []


def test_bounded_changes_are_held_back_while_there_is_room() -> None:
    room, held = 4_000, 0
    buffer = ResultBuffer(room)
    for first in range(0, 1_000, 20):
        batch = changes(*((number, 1_000, 1, "a") for number in range(first, first + 20)))
        emitted = sum(each.num_rows for each in buffer.take(batch))
        assert emitted in (0, held + 20)
        held = 0 if emitted else held + 20
        assert held * (batch.nbytes // 20) <= room


def of_groups(*rows: tuple[int, str]) -> pa.RecordBatch:
    made = changes(*((0, INFINITY, 1, name) for _, name in rows))
    groups = pa.array([group for group, _ in rows], pa.uint64())
    return made.set_column(3, made.schema.field(3), groups)


def test_rows_by_key_are_the_last_ones() -> None:
    buffer = HeldRowBuffer()

    def taken(*rows: tuple[int, str]) -> list[list[tuple[int, str]]]:
        made = buffer.take(of_groups(*rows)) if rows else buffer.rest()
        return [[(row["__hi"], row["name"]) for row in each.to_pylist()] for each in made]

    assert taken((1, "a"), (2, "b")) == [[(1, "a"), (2, "b")]]
    # group 3 is torn: its rows come again
    assert taken((3, "c"), (3, "d")) == []
    assert taken((3, "e")) == []
    assert taken((4, "f")) == [[(3, "e")]]
    assert taken((5, "g"), (6, "h")) == [[(4, "f")], [(5, "g"), (6, "h")]]
    assert taken((7, "i")) == []
    assert taken() == [[(7, "i")]]
    assert taken() == []
