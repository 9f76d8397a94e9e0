from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY
from icestream.operators.process.operator import UserDefined
from icestream.operators.process.per_group import StatefulProcessor
from icestream.operators.process.timers import DELETE, SET, TimerTable, timer_synopses
from icestream.operators.process.vectorised import VectorisedProcessor
from tests.oracles.plain_groups import PlainGroups
from tests.oracles.process import PAYLOAD, Batch, InputRow, counted, run

KEYS = pa.schema([("user", pa.int64())])
USERS = np.arange(4)


def store() -> PlainGroups:
    groups = PlainGroups(timer_synopses(KEYS))
    groups.locate(USERS.astype(np.uint64), USERS.astype(np.uint64))
    return groups


def keys() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(USERS * 10)], schema=KEYS)


def stored(groups: PlainGroups) -> dict[int, set[int]]:
    rows = groups.read(0, USERS)
    found: dict[int, set[int]] = {}
    for owner, at in zip(rows.owners.tolist(), rows.rows.column(0).to_pylist(), strict=True):
        assert at not in found.setdefault(owner, set())
        found[owner].add(at)
    return found


OPERATIONS = st.tuples(
    st.sampled_from(["set", "delete", "set_one", "delete_one", "pending"]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=4),
)


@settings(max_examples=150)
@given(st.lists(st.lists(OPERATIONS, max_size=5), max_size=4))
def test_oracle_a_table_of_timers_is_a_set_for_each_group(chunks: list[list[Any]]) -> None:
    groups = store()
    plain: dict[int, set[int]] = {user: set() for user in USERS.tolist()}
    for chunk in chunks:
        timers = TimerTable(groups, 0, USERS, 2)
        for method, pairs in chunk:
            for owner, at in [] if method == "pending" else pairs:
                change = plain[owner].discard if "delete" in method else plain[owner].add
                change(max(at, 2))
            what = DELETE if "delete" in method else SET
            if method.endswith("one"):
                for owner, at in pairs:
                    timers.note_one(owner, at, what)
            elif method != "pending":
                owners, at = (np.array(part, dtype=np.int64) for part in zip(*pairs, strict=True))
                timers.note(owners, at, what)
            else:
                owners, at = timers.pending()
                expected = [(owner, t) for owner in plain for t in sorted(plain[owner])]
                assert list(zip(owners.tolist(), at.tolist(), strict=True)) == expected
        timers.flush(keys())
        assert stored(groups) == {owner: kept for owner, kept in plain.items() if kept}
        known = groups.read(1, USERS)
        assert known.owners.tolist() == [owner for owner, kept in plain.items() if kept]
        assert known.rows.column("user").to_pylist() == [10 * o for o in known.owners.tolist()]
        for instant in range(11):
            due = [owner for owner, kept in plain.items() if min(kept, default=INFINITY) <= instant]
            assert groups.due(instant).tolist() == due


class Alarm(StatefulProcessor):
    """Rows set timers at their time plus `a`; a timer before 20 sets another."""

    output = "what string"

    def __init__(self, step: int) -> None:
        self.step = step

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getListState("fired", "at long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> None:  # noqa: N802
        for time, a in zip(rows.times, rows["a"], strict=True):
            timers.set(time + a)

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:  # noqa: N802
        if expired.instant < 20:
            timers.set(expired.instant + self.step)
        self.fired.appendValue((expired.instant,))
        yield {"what": f"{key[0]}: {[at for (at,) in self.fired.get()]}"}


class Alarms(VectorisedProcessor):
    """The same for many groups, without looking back."""

    output = "what string"

    def __init__(self, step: int) -> None:
        self.step = step

    def process(self, batch: Any, state: Any) -> None:
        batch.timers.set(batch.group, batch.times + batch.column("a"))

    def on_timers(self, batch: Any, state: Any) -> Any:
        early = batch.times < 20
        batch.timers.set(early, batch.times[early] + self.step)
        return [
            [f"{key}: {at}" for key, at in zip(batch.keys[0].to_pylist(), batch.times, strict=True)]
        ]


LIFE: list[Batch] = [
    ([[InputRow(1, 12, "", 0), InputRow(2, 10, "", 2), InputRow(1, 10, "", 0)]], 30),
    ([[InputRow(1, 31, "", 9)]], 39),
    ([], 40),
]


def test_oracle_timers_fire_in_order() -> None:
    one = UserDefined(Alarm(7), "user long", PAYLOAD)
    made = counted(run(one, PlainGroups(one.synopses), LIFE))
    assert sorted((row[0], row[-1]) for row in made) == [
        (10, "1: [10]"),
        (12, "1: [10, 12]"),
        (12, "2: [12]"),
        (17, "1: [10, 12, 17]"),
        (19, "1: [10, 12, 17, 19]"),
        (19, "2: [12, 19]"),
        (24, "1: [10, 12, 17, 19, 24]"),
        (26, "1: [10, 12, 17, 19, 24, 26]"),
        (26, "2: [12, 19, 26]"),
        (40, "1: [10, 12, 17, 19, 24, 26, 40]"),
    ]


def test_vectorised_timers_fire_at_the_same_instants() -> None:
    one = UserDefined(Alarms(7), "user long", PAYLOAD)
    made = counted(run(one, PlainGroups(one.synopses), LIFE))
    first = [f"1: {at}" for at in (10, 12, 17, 19, 24, 26, 40)]
    assert sorted(row[-1] for row in made) == sorted([*first, *(f"2: {at}" for at in (12, 19, 26))])


@pytest.mark.parametrize("processor", [Alarm(0), Alarms(0)])
def test_a_timer_may_only_set_later_ones(processor: Any) -> None:
    one = UserDefined(processor, "user long", PAYLOAD)
    with pytest.raises(DefinitionError, match=r"the timer at 10 set one at 10: .* only set later"):
        counted(run(one, PlainGroups(one.synopses), LIFE))


@pytest.mark.parametrize("processor", [Alarm(50), Alarms(50)])
def test_a_timer_in_the_past_fires_at_the_watermark(processor: Any) -> None:
    one = UserDefined(processor, "user long", PAYLOAD)
    life: list[Batch] = [([[InputRow(1, 9, "", -5)]], 9)]
    made = counted(run(one, PlainGroups(one.synopses), life, watermark=8))
    assert [row[0] for row in made] == [8]


def test_keys_are_kept_while_timers_wait() -> None:
    one = UserDefined(Alarm(7), "user long", PAYLOAD)
    groups = PlainGroups(one.synopses)
    names = [synopsis.name for synopsis in one.synopses]
    assert names == ["fired", "__timers", "__key"]

    def kept() -> list[Any]:
        slots: Ints = groups.locate(*(np.array([1, 2], dtype=np.uint64),) * 2)
        found: list[Any] = groups.read(2, slots).rows.column("user").to_pylist()
        return found

    list(run(one, groups, [([[InputRow(1, 25, "", 0), InputRow(2, 25, "", 20)]], 24)]))
    assert kept() == [1, 2]
    list(one.on_watermark(groups, 30))
    assert kept() == [2]
    list(one.on_watermark(groups, 45))
    assert kept() == []


class Spark(StatefulProcessor):
    """Uses the names and units of Spark."""

    output = "what string"

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:  # noqa: N802
        self.handle.registerTimer(5)
        self.handle.registerTimer(6)
        self.handle.deleteTimer(6)
        listed = list(self.handle.listTimers())
        yield {"what": f"{timers.getCurrentWatermarkInMs()} {listed}"}

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:  # noqa: N802
        yield {"what": f"{timers.getCurrentWatermarkInMs()} {expired.getExpiryTimeInMs()}"}


def test_the_names_of_spark_count_in_milliseconds() -> None:
    one = UserDefined(Spark(), "user long", PAYLOAD)
    life: list[Batch] = [([[InputRow(1, 4000, "", 0)]], 7000)]
    made = counted(run(one, PlainGroups(one.synopses), life, watermark=3999))
    assert sorted((row[0], row[-1]) for row in made) == [(4000, "3 [5]"), (5000, "7 5")]
