from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from icestream.core.arrays import Slots
from icestream.core.errors import DefinitionError, InputError
from icestream.operators.lifetimes.changes import DIFF
from icestream.operators.process.declarations import ObjectState, pickled
from icestream.operators.process.operator import UserDefined
from icestream.operators.process.per_group import StatefulProcessor, StatefulProcessorHandle
from icestream.operators.process.stored_state import living, with_expiry
from icestream.operators.process.values import Row
from icestream.state.groups.spec import GroupRows
from tests.oracles.plain_groups import PlainGroups
from tests.oracles.process import (
    OPS,
    PAYLOAD,
    Batch,
    InputRow,
    Scripted,
    accepted,
    changes_of_steps,
    counted,
    run,
    simulate,
)


@st.composite
def lives(draw: st.DrawFn) -> list[Batch]:
    """Batches of chunks whose rows come in time order, none before the watermark."""
    batches: list[Batch] = []
    watermark = 0
    for _ in range(draw(st.integers(1, 4))):
        steps = draw(
            st.lists(
                st.builds(
                    InputRow,
                    st.integers(1, 5),
                    st.integers(watermark, watermark + 12),
                    st.sampled_from(OPS),
                    st.integers(0, 9),
                ),
                max_size=25,
            )
        )
        steps.sort(key=lambda step: step.time)
        cuts = sorted(draw(st.lists(st.integers(0, len(steps)), max_size=3)))
        bounds = [0, *cuts, len(steps)]
        chunks = [steps[first:last] for first, last in pairwise(bounds)]
        watermark += draw(st.integers(0, 12))
        batches.append((chunks, watermark))
    return batches


def operator(ttl_ms: int | None = None) -> UserDefined:
    return UserDefined(Scripted(ttl_ms), "user long", PAYLOAD)


@settings(max_examples=150)
@given(lives())
def test_oracle_per_group_state_is_a_dictionary(batches: list[Batch]) -> None:
    one = operator()
    groups = PlainGroups(one.synopses)
    made: list[pa.RecordBatch] = []
    watermark = 0
    for chunks, after in batches:
        for chunk in chunks:
            groups.begin(watermark)
            made += one.on_changes(0, changes_of_steps(chunk), groups, watermark)
            one = pickle.loads(pickle.dumps(one))
        watermark = after
        made += one.on_watermark(groups, watermark)
    assert counted(made) == simulate(batches)


class Mapped(StatefulProcessor):
    """Executes commands on a map."""

    output = "user long, what string"

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._map = handle.getMapState("map", "key long, name string", "times long", self._ttl_ms)

    def handleInputRows(self, key: Row, rows: Any, timers: Any) -> Iterator[Any]:  # noqa: N802
        del timers
        for op, a in zip(rows["op"], rows["a"], strict=True):
            at: Row = (a, "\0" * (a % 3))
            seen: Any = None
            match op:
                case "put":
                    self._map.updateValue(at, (a + len(rows["op"]),))
                case "get":
                    seen = self._map.getValue(at), self._map.containsKey(at), self._map.exists()
                case "remove":
                    self._map.removeKey(at)
                case "wipe":
                    self._map.clear()
                case "items":
                    seen = sorted(self._map.iterator()), sorted(self._map.values())
            yield {"user": key[0], "what": f"{op} {seen}"}


@pytest.mark.parametrize("ttl", [None, 20])
def test_oracle_a_map_beyond_memory_is_a_dictionary(ttl: int | None) -> None:
    ops = ["put"] * 12 + ["get"] * 6 + ["remove"] * 3 + ["items"] * 2 + ["wipe"]
    for seed in range(12):
        dice = np.random.default_rng(seed)
        batches: list[Batch] = []
        for number in range(6):
            times = np.sort(dice.integers(10_000 * number, 10_000 * number + 9_000, 40)).tolist()
            some = [int(each) for each in dice.integers(0, 25, 40)]
            count = len(ops) - (number % 3 > 0)
            said = [ops[int(each)] for each in dice.integers(0, count, 40)]
            steps = [InputRow(1, *each) for each in zip(times, said, some, strict=True)]
            batches.append(([steps[:20], steps[20:]], 10_000 * (number + 1)))
        made = []
        for piece_rows in (0, 1 + seed % 4):
            one = UserDefined(Mapped(ttl), "user long", PAYLOAD)
            made.append(counted(run(one, PlainGroups(one.synopses, piece_rows), batches)))
        assert made[0] == made[1]


@settings(max_examples=60)
@given(lives())
def test_oracle_chunks_do_not_show(batches: list[Batch]) -> None:
    together = [
        ([[step for chunk in chunks for step in chunk]], after) for chunks, after in batches
    ]
    assert simulate(batches) == simulate(together)
    made = [
        counted(run(operator(), PlainGroups(operator().synopses), part))
        for part in (batches, together)
    ]
    assert made[0] == made[1]


@settings(max_examples=100)
@given(lives(), st.integers(1, 20))
def test_oracle_what_outlives_its_time_is_gone(batches: list[Batch], ttl: int) -> None:
    spread = [
        (
            [[InputRow(s.user, s.time * 500, s.op, s.a * 500) for s in chunk] for chunk in chunks],
            after * 500,
        )
        for chunks, after in batches
    ]
    one = operator(ttl)
    made = run(one, PlainGroups(one.synopses), spread)
    assert counted(made) == simulate(spread, ttl * 1000)


class Recording(PlainGroups):
    """Notes which synopses are read and written."""

    def __init__(self, synopses: Any) -> None:
        super().__init__(synopses)
        self.names = [synopsis.name for synopsis in synopses]
        self.calls: list[tuple[str, str]] = []

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        del synopses
        yield slots

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        self.calls.append(("read", self.names[synopsis]))
        return super().read(synopsis, slots)

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        self.calls.append(("append", self.names[synopsis]))
        super().append(synopsis, slots, rows)

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        self.calls.append(("rewrite", self.names[synopsis]))
        super().rewrite(synopsis, slots, rows)
        if len(rows.owners):
            self.calls.pop()  # the append inside

    def rows(self, synopsis: str, user: int) -> int:
        slot = self.locate(np.array([user], dtype=np.uint64), np.array([user], dtype=np.uint64))
        return len(PlainGroups.read(self, self.names.index(synopsis), slot).owners)


def calls(groups: Recording, one: UserDefined, steps: list[InputRow]) -> set[tuple[str, str]]:
    groups.calls = []
    accepted(one.on_changes(0, changes_of_steps(steps), groups, 0))
    return set(groups.calls)


def test_appending_and_replacing_never_read() -> None:
    one = operator()
    groups = Recording(one.synopses)
    ops = ("append", "put list", "put", "remove", "insert", "teach", "forget", "empty", "wipe")
    steps = [InputRow(user, 1, op, 1) for user in range(4) for op in ops]
    assert not [call for call in calls(groups, one, steps) if call[0] == "read"]


def test_a_variable_is_read_once_for_all_groups() -> None:
    one = operator()
    groups = Recording(one.synopses)
    ops = ("count", "list", "items", "table", "object", "timers")
    list(
        one.on_changes(
            0,
            changes_of_steps([InputRow(u, t, op, 1) for u in range(9) for t, op in enumerate(ops)]),
            groups,
            0,
        )
    )
    reads = [name for kind, name in groups.calls if kind == "read"]
    assert sorted(reads) == ["__timers", "flags", "known", "recent", "seen", "things"]


def test_reading_writes_nothing() -> None:
    one = operator()
    groups = Recording(one.synopses)
    writes = ("count", "append", "put", "insert", "learn", "timer")
    calls(groups, one, [InputRow(u, 1, op, 100) for u in range(3) for op in writes])
    reads = ("list", "get", "items", "table", "object", "timers")
    found = calls(groups, one, [InputRow(u, 1, op, 100) for u in range(3) for op in reads])
    assert {kind for kind, _ in found} == {"read"}


def test_bounded_deltas_weigh_no_more_than_the_object() -> None:
    one = operator()
    groups = Recording(one.synopses)
    kinds = set()
    for turn in range(100):
        kinds |= calls(groups, one, [InputRow(1, 1, "learn", turn % 10)])
        assert groups.rows("known", 1) <= 1 + len(";".join(f"{i}={i}" for i in range(5)))
    assert {("append", "known"), ("rewrite", "known")} <= kinds


def test_bounded_deltas_appended_blindly_are_folded_when_read() -> None:
    one = operator()
    groups = Recording(one.synopses)
    for turn in range(100):
        calls(groups, one, [InputRow(1, 1, "teach", turn), InputRow(1, 1, "object", 0)])
        assert groups.rows("known", 1) <= 1 + len(";".join(f"{i}=9{i}" for i in range(5)))


@pytest.mark.parametrize(("watermark", "alive"), [(19, 2), (20, 1), (29, 1), (30, 0)])
def test_rows_expire_when_the_watermark_reaches_them(watermark: int, alive: int) -> None:
    rows = with_expiry(pa.record_batch({"a": [1, 2]}), [20, 30])
    found = living(GroupRows(np.array([0, 1]), rows), watermark)
    assert found.owners.tolist() == [0, 1][2 - alive :]
    assert found.rows.num_rows == alive


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["learn", "teach", "object", "unlearn"]),
            st.integers(0, 30),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_oracle_objects_survive_as_deltas(turns: list[tuple[str, int, bool]]) -> None:
    chunks: list[list[InputRow]] = [[]]
    for op, a, ends in turns:
        chunks[-1].append(InputRow(1, 1, op, a))
        chunks += [[]] if ends else []
    chunks.append([InputRow(1, 1, "object", 0)])
    one = operator()
    batches: list[Batch] = [(chunks, 0)]
    assert counted(run(one, PlainGroups(one.synopses), batches)) == simulate(batches)


def test_a_covered_row_never_comes_back() -> None:
    # put at 9 lives to 10009, put at 1 covers it and alone would live to 10001
    one = operator(10)
    chunks: list[list[InputRow]] = [[InputRow(1, 9, "put", 3)], [InputRow(1, 1, "put", 6)]]
    batches: list[Batch] = [
        (chunks, 10_005),
        ([[InputRow(1, 10_005, "get", 3)]], 10_009),
        ([[InputRow(1, 10_009, "get", 3)]], 10_009),
    ]
    seen = {(row[0], row[-1]) for row in counted(run(one, PlainGroups(one.synopses), batches))}
    assert {(10_005, "get (6,)"), (10_009, "get None")} <= seen


class Failing(StatefulProcessor):
    output = "n long"

    def __init__(self, made: Any) -> None:
        self.made = made

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:  # noqa: N802
        if callable(self.made):
            self.made(self, rows, timers)
        elif key == (2,):
            yield self.made


STEPS = [InputRow(1, 1, "", 0), InputRow(2, 1, "", 0)]


def fail(made: Any) -> list[pa.RecordBatch]:
    one = UserDefined(Failing(made), "user long", PAYLOAD, name="fraud")
    return accepted(one.on_changes(0, changes_of_steps(STEPS), PlainGroups(one.synopses), 0))


def test_errors_name_the_operator_and_key() -> None:
    def divide(processor: Any, rows: Any, timers: Any) -> None:
        if rows["user"] == [2]:
            rows["user"][0] / 0

    with pytest.raises(DefinitionError, match=r"fraud, key \(2,\): user code failed with ZeroDiv"):
        fail(divide)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            lambda p, r, t: p.seen.update(("x",)),
            r"key \(1,\): 'x' does not fit the column 'n int32'",
        ),
        (lambda p, r, t: p.seen.update((2**40,)), r"1099511627776 does not fit the column"),
        (lambda p, r, t: r["amount"], r"key \(1,\): rows have no column 'amount'"),
        (lambda p, r, t: t.set(5), r"nothing handles it"),
        ({"m": 1}, r"columns \(m\), but \(n int64\) are declared"),
        ({"n": 1, "m": 1}, r"columns \(n, m\), but \(n int64\) are declared"),
        ({"n": "a"}, r"'a' does not fit the column 'n int64'"),
        ({"n": 1, "__le": 5, "__re": 5}, r"ends before it begins"),
        ({"n": 1, "__le": "now"}, r"whole number of microseconds; got 'now'"),
        (7, r"dicts or Arrow batches; got 7"),
        (pa.record_batch({"n": ["a"]}), r"\(n string\), but \(n int64\) are declared"),
    ],
)
def test_wrong_output_is_shown_beside_what_was_declared(made: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=f"fraud.*{why}"):
        fail(made)


def test_batches_may_be_handed_out_too() -> None:
    made = fail(pa.record_batch({"n": pa.array([4, 5], pa.int32()), "__le": [7, 8]}))
    assert counted(made) == {(7, 8, 1, 2, 2, 4): 1, (8, 9, 1, 2, 2, 5): 1}


def test_nothing_of_a_failed_chunk_is_left_in_the_processor() -> None:
    one = UserDefined(Failing(lambda p, r, t: p.seen.update((len(r) // 0,))), "user long", PAYLOAD)
    with pytest.raises(DefinitionError):
        accepted(one.on_changes(0, changes_of_steps(STEPS), PlainGroups(one.synopses), 0))
    with pytest.raises(DefinitionError, match="only while rows or timers"):
        one._run._processor.seen.update((1,))  # type: ignore[union-attr]


def test_the_garbage_collector_is_left_as_it_was_found() -> None:
    def look(processor: Any, rows: Any, timers: Any) -> None:
        assert not gc.isenabled()
        rows["none"]

    for found in (True, False):
        (gc.enable if found else gc.disable)()
        try:
            with pytest.raises(DefinitionError, match="no column"):
                fail(look)
            assert gc.isenabled() is found
        finally:
            gc.enable()


def test_changes_that_take_out_are_refused() -> None:
    one = operator()
    changes = changes_of_steps(STEPS)
    out = changes.set_column(changes.schema.get_field_index(DIFF), DIFF, pa.array([1, -1]))
    with pytest.raises(InputError, match="Scripted does not accept retractions"):
        accepted(one.on_changes(0, out, PlainGroups(one.synopses), 0))


class Net(StatefulProcessor):
    output = "net long"
    handles_changes = True

    def init(self, handle: Any) -> None:
        self.net = handle.getValueState("net", "n long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:  # noqa: N802
        before = self.net.get() or (0,)
        self.net.update((before[0] + sum(rows.diffs),))
        if self.net.exists():
            yield {"net": before[0], "__diff": -1, "__le": 0}
        yield {"net": self.net.get()[0], "__le": 0, "__re": rows.ends[-1]}


def test_a_processor_may_handle_changes_and_revise_its_answers() -> None:
    one = UserDefined(Net(), "user long", PAYLOAD)
    changes = changes_of_steps([InputRow(1, 1, "", 0), InputRow(1, 2, "", 0)])
    out = changes.set_column(changes.schema.get_field_index(DIFF), DIFF, pa.array([3, -1]))
    made = counted(one.on_changes(0, out, PlainGroups(one.synopses), 0))
    assert made == {(0, 1, -1, 1, 1, 0): 1, (0, 3, 1, 1, 1, 2): 1}


def test_events_that_come_twice_are_handed_over_twice() -> None:
    one = operator()
    changes = changes_of_steps([InputRow(1, 1, "count", 5), InputRow(1, 2, "count", 1)])
    twice = changes.set_column(changes.schema.get_field_index(DIFF), DIFF, pa.array([2, 1]))
    made = counted(one.on_changes(0, twice, PlainGroups(one.synopses), 0))
    assert {row[-1] for row in made} == {"count (1, 5.0)", "count (2, 10.0)", "count (3, 11.0)"}


def test_nothing_is_pickled_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> bytes:
        raise AssertionError

    monkeypatch.setattr(pickle, "dumps", refuse)
    one = operator()
    batches: list[Batch] = [([[InputRow(1, t, op, 1) for t, op in enumerate(OPS)]], 30)]
    assert counted(run(one, PlainGroups(one.synopses), batches)) == simulate(batches)


class Diary(StatefulProcessor):
    output = "entries long"

    def init(self, handle: Any) -> None:
        self.diary = handle.getObjectState("diary", pickled(initial=list))

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:  # noqa: N802
        entries = self.diary.get()
        entries += rows.times
        self.diary.update(entries)
        yield {"entries": len(entries)}


def test_objects_are_pickled_when_asked_for() -> None:
    one = UserDefined(Diary(), "user long", PAYLOAD)
    batches: list[Batch] = [
        ([[InputRow(1, 1, "", 0)], [InputRow(1, 2, "", 0), InputRow(1, 3, "", 0)]], 3)
    ]
    made = counted(run(one, PlainGroups(one.synopses), batches))
    assert {row[-1] for row in made} == {1, 3}


def declare(method: str, *arguments: Any) -> UserDefined:
    class Declaring(StatefulProcessor):
        output = "n long"

        def init(self, handle: Any) -> None:
            getattr(handle, method)(*arguments)
            handle.getValueState("other", "n long")

    return UserDefined(Declaring(), "user long", PAYLOAD)


@pytest.mark.parametrize(
    ("method", "arguments", "why"),
    [
        ("getValueState", ("other", "n long"), "two state variables are called 'other'"),
        ("getValueState", ("a b", "n long"), "cannot name a state variable"),
        ("getValueState", ("a", "n long", 0), "longer ttl"),
        ("getMapState", ("a", "n long", "n long"), "two columns with the same name"),
        ("getMapState", ("a", "n struct<a:int>", "m long"), "keys of simple types"),
        ("getObjectState", ("a", ObjectState(bytes, bytes, delta=max)), "no apply"),
        ("getObjectState", ("a", ObjectState(bytes, bytes, apply=max, ttl=5)), "choose one"),
    ],
)
def test_what_cannot_be_kept_is_refused(method: str, arguments: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        declare(method, *arguments)


def test_keys_must_be_columns_of_the_input() -> None:
    with pytest.raises(DefinitionError, match=r"'user int32' is not among \(user int64"):
        UserDefined(Scripted(), "user int", PAYLOAD)


def test_an_operator_must_say_what_it_makes() -> None:
    with pytest.raises(DefinitionError, match="give it an output"):
        UserDefined(StatefulProcessor(), "user long", PAYLOAD)
