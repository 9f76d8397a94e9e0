from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from icestream.core.arrays import Slots
from icestream.core.errors import DefinitionError
from icestream.operators.process.declarations import (
    Declared,
    ListState,
    MapState,
    ObjectState,
    TableState,
    ValueState,
)
from icestream.operators.process.operator import UserDefined
from icestream.operators.process.per_group import StatefulProcessor
from icestream.operators.process.vectorised import VectorisedProcessor
from icestream.state.groups.spec import GroupRows
from tests.oracles.plain_groups import PlainGroups
from tests.oracles.process import PAYLOAD, Batch, InputRow, accepted, changes_of_steps, counted, run

OUTPUT = "user long, what string"


class OneByOne(StatefulProcessor):
    """Something with every kind of state, one group at a time."""

    output = OUTPUT

    def __init__(self, ttl: int | None) -> None:
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        ttl = None if self.ttl is None else self.ttl // 1000
        self.totals = handle.getValueState("totals", "n long, total double", ttl)
        self.recent = handle.getListState("recent", "a long", ttl)
        self.codes = handle.getMapState("codes", "code long", "times long", ttl)
        self.things = handle.getTableState("things", "x long", ttl)

    def look(self, what: str) -> str:
        parts = [
            str(self.totals.get()),
            str([a for (a,) in self.recent.get()]),
            str([(key, value) for (key,), (value,) in self.codes.iterator()]),
            str(self.things.all().column("x").to_pylist()),
        ]
        return f"{what} {' '.join(parts)}"

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:  # noqa: N802
        values = rows["a"]
        n, total = self.totals.get() or (0, 0.0)
        self.totals.update((n + len(values), total + sum(values)))
        if len(values) == 3:
            self.recent.clear()
        self.recent.appendList([(a,) for a in values])
        before = self.codes.getValue((values[-1] % 4,))
        for a in values:
            self.codes.updateValue((a % 4,), (a,))
        if values[0] % 3 == 0:
            self.codes.removeKey((values[0] % 4,))
        self.things.append([{"x": a} for a in values])
        self.things.delete(pc.less(self.things.all().column("x"), values[-1]))
        if values[0] == 7:
            self.codes.clear()
        if values[0] == 5:
            self.totals.clear()
        timers.set(timers.now + values[-1])
        timers.delete(timers.now + 3)
        yield {"user": key[0], "what": self.look(f"{before} {timers.list()}")}

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:  # noqa: N802
        self.recent.appendValue((expired.instant,))
        self.totals.update((-1, 0.5))
        if expired.instant % 4 == 0:
            self.things.clear()
            timers.set(expired.instant + 1)
        if expired.instant % 6 == 0:
            timers.set(expired.instant + 5)
            self.codes.updateValue((9,), (expired.instant,))
        yield {"user": key[0], "what": self.look("fired")}


class AllAtOnce(VectorisedProcessor):
    """The same, many groups at a time."""

    state: ClassVar[dict[str, Declared]] = {}
    output = OUTPUT

    def __init__(self, ttl: int | None) -> None:
        kinds = {
            "totals": ValueState("n long, total double", ttl),
            "recent": ListState("a long", ttl),
            "codes": MapState("code long", "times long", ttl),
            "things": TableState("x long", ttl),
        }
        self.state = kinds  # type: ignore[misc]

    def look(self, batch: Any, state: Any, what: list[str]) -> dict[str, Any]:
        count = len(batch)
        totals = [tuple(row.values()) for row in state.totals.get().to_pylist()]
        there = state.totals.exists()
        recent: list[list[Any]] = [[] for _ in range(count)]
        codes: list[list[Any]] = [[] for _ in range(count)]
        things: list[list[Any]] = [[] for _ in range(count)]
        owners, rows = state.recent.read()
        for owner, a in zip(owners, rows.column("a").to_pylist(), strict=True):
            recent[owner].append(a)
        owners, keys, values = state.codes.items()
        columns = (owners, keys.column(0).to_pylist(), values.column(0).to_pylist())
        for owner, key, value in zip(*columns, strict=True):
            codes[owner].append((key, value))
        owners, rows = state.things.read()
        for owner, x in zip(owners, rows.column("x").to_pylist(), strict=True):
            things[owner].append(x)
        seen = [
            f"{what[i]} {totals[i] if there[i] else None} {recent[i]} {codes[i]} {things[i]}"
            for i in range(count)
        ]
        return {"user": batch.keys.column("user"), "what": seen}

    def process(self, batch: Any, state: Any) -> Any:
        a = batch.column("a")
        first, last = a[batch.starts[:-1]], a[batch.last]
        old = state.totals.numpy()
        n, total = old["n"] + batch.sizes, old["total"] + batch.reduce(np.add, a)
        state.totals.set({"n": n, "total": total})
        state.recent.clear(batch.sizes == 3)
        state.recent.append(batch.group, [a])
        found, rows = state.codes.get(np.arange(len(batch)), [last % 4])
        values = rows.column(0).to_pylist()
        before = [(value,) if there else None for there, value in zip(found, values, strict=True)]
        state.codes.put(batch.group, [a % 4], [a])
        odd = np.flatnonzero(first % 3 == 0)
        state.codes.remove(odd, [first[odd] % 4])
        state.things.append(batch.group, pa.record_batch({"x": a}))
        owners, rows = state.things.read()
        state.things.delete(rows.column("x").to_numpy() < last[owners])
        state.codes.clear(first == 7)
        state.totals.clear(first == 5)
        now = batch.times[batch.last]
        batch.timers.set(np.arange(len(batch)), now + last)
        batch.timers.delete(np.ones(len(batch), dtype=bool), now + 3)
        owners, at = batch.timers.list()
        waiting = [at[owners == i].tolist() for i in range(len(batch))]
        what = [f"{b} {w}" for b, w in zip(before, waiting, strict=True)]
        return self.look(batch, state, what)

    def on_timers(self, batch: Any, state: Any) -> Any:
        state.recent.append(batch.group, [batch.times])
        count = len(batch)
        state.totals.set([np.full(count, -1), np.full(count, 0.5)])
        fours, sixes = batch.times % 4 == 0, batch.times % 6 == 0
        state.things.clear(fours)
        batch.timers.set(fours, batch.times[fours] + 1)
        batch.timers.set(sixes, batch.times[sixes] + 5)
        state.codes.put(batch.group[sixes], [np.full(sixes.sum(), 9)], [batch.times[sixes]])
        return self.look(batch, state, ["fired"] * count)


@st.composite
def lives(draw: st.DrawFn) -> list[Batch]:
    batches: list[Batch] = []
    watermark = 0
    for _ in range(draw(st.integers(1, 4))):
        step = st.builds(
            InputRow,
            st.integers(1, 6),
            st.integers(watermark, watermark + 9),
            st.just(""),
            st.integers(0, 9),
        )
        chunks = draw(st.lists(st.lists(step, max_size=12), max_size=3))
        watermark += draw(st.integers(0, 9))
        batches.append((chunks, watermark))
    return batches


@settings(max_examples=150)
@given(lives(), st.sampled_from([None, 3, 8]))
def test_parity_both_forms_give_equal_results(batches: list[Batch], ttl: int | None) -> None:
    scale = 1000 if ttl else 1
    spread: list[Batch] = [
        ([[InputRow(s.user, s.time * scale, "", s.a) for s in c] for c in chunks], after * scale)
        for chunks, after in batches
    ]
    made = []
    for processor in (OneByOne(ttl and ttl * scale), AllAtOnce(ttl and ttl * scale)):
        one = UserDefined(processor, "user long", PAYLOAD)
        made.append(counted(run(one, PlainGroups(one.synopses), spread)))
    assert made[0] == made[1]


class Writing(VectorisedProcessor):
    """Only writes, or looks at what it has just written."""

    state: ClassVar[dict[str, Declared]] = {
        "totals": ValueState("n long"),
        "recent": ListState("a long"),
        "codes": MapState("code long", "times long"),
    }
    output = "n long"

    def process(self, batch: Any, state: Any) -> Any:
        a, count = batch.column("a"), len(batch)
        state.totals.set([batch.sizes])
        state.totals.set([batch.sizes * 10], mask=batch.sizes > 1)
        state.recent.append(batch.group, [a])
        state.recent.replace(batch.group, [a + 1])
        state.codes.put(batch.group, [a], [a])
        state.codes.clear(np.arange(count) == 0)
        state.codes.put([0], [[4]], [[5]])


class Reading(Writing):
    def process(self, batch: Any, state: Any) -> Any:
        before = state.totals.exists()
        assert state.totals.get().column("n").null_count == (~before).sum()
        super().process(batch, state)
        assert state.totals.get().column("n").to_pylist() == [
            size * 10 if size > 1 else size for size in batch.sizes
        ]
        state.totals.clear([0])
        assert state.totals.exists().tolist() == [False, *[True] * (len(batch) - 1)]
        owners, rows = state.recent.read()
        assert owners.tolist() == batch.group.tolist()
        assert rows.column("a").to_pylist() == (batch.column("a") + 1).tolist()
        found, rows = state.codes.get([0, 0], [[4, 3]])
        assert found.tolist() == [True, False]
        assert rows.column("times").to_pylist() == [5, None]
        assert state.totals.schema.names == ["n"]
        with pytest.raises(AttributeError, match="there is no state 'total'"):
            state.total.get()


class Recording(PlainGroups):
    """Notes which synopses are read and how many rows are written."""

    def __init__(self, synopses: Any) -> None:
        super().__init__(synopses)
        self.reads: list[int] = []

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        del synopses
        if len(slots):
            yield slots

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        self.reads.append(synopsis)
        return super().read(synopsis, slots)

    def rows(self, synopsis: int) -> int:
        return len(PlainGroups.read(self, synopsis, np.array([0])).owners)


def steps(*rows: tuple[int, int]) -> pa.RecordBatch:
    return changes_of_steps([InputRow(user, time, "", 3) for time, (user, _) in enumerate(rows)])


def test_vectorised_writes_never_read() -> None:
    one = UserDefined(Writing(), "user long", PAYLOAD)
    groups = Recording(one.synopses)
    for _ in range(2):
        accepted(one.on_changes(0, steps((1, 0), (2, 0), (1, 0)), groups, 0))
    assert groups.reads == []


def test_columns_show_what_was_just_set() -> None:
    one = UserDefined(Reading(), "user long", PAYLOAD)
    groups = PlainGroups(one.synopses)
    for _ in range(2):
        accepted(one.on_changes(0, steps((1, 0), (2, 0), (1, 0)), groups, 0))


class Emitting(VectorisedProcessor):
    output = "n long"

    def __init__(self, make: Any, emits: str) -> None:
        self.make = make
        self.emits = emits  # type: ignore[misc]

    def process(self, batch: Any, state: Any) -> Any:
        return self.make(batch)


def emit(make: Any, emits: str = "group") -> list[tuple[Any, ...]]:
    one = UserDefined(Emitting(make, emits), "user long", PAYLOAD, name="sums")
    changes = changes_of_steps(
        [InputRow(1, 5, "", 3), InputRow(2, 6, "", 4), InputRow(1, 7, "", 5)]
    )
    return sorted(counted(one.on_changes(0, changes, Recording(one.synopses), 0)))


def test_output_belongs_to_its_group() -> None:
    per_group = [(6, 7, 1, 2, 2, 1), (7, 8, 1, 1, 1, 2)]
    per_event = [(5, 6, 1, 1, 1, 3), (6, 7, 1, 2, 2, 4), (7, 8, 1, 1, 1, 5)]
    assert emit(lambda batch: [batch.sizes]) == per_group
    assert emit(lambda batch: [batch.column("a")], "event") == per_event
    assert emit(lambda batch: {"n": [8], "__group": [1]}) == [(6, 7, 1, 2, 2, 8)]
    given_times = {"n": [8], "__group": [1], "__le": [2], "__re": [9], "__diff": [-1]}
    assert emit(lambda batch: given_times) == [(2, 9, -1, 2, 2, 8)]
    assert emit(lambda batch: None) == []


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda batch: [batch.column("a")], "output has 3 rows for 2, one for each group"),
        (lambda batch: {"m": [1, 2]}, r"columns \(m int64\), but \(n int64\) are declared"),
        (lambda batch: [["a", "b"]], r"but \(n int64\) are declared"),
        (lambda batch: [[1, 2], [3, 4]], r"2 without names\), but \(n int64\) are declared"),
        (lambda batch: {"n": [1], "__group": [2]}, "numbers below 2"),
        (lambda batch: {"n": [1, 2], "__le": [None, 1]}, "__le is null"),
        (lambda batch: batch.timers.set([0], 7), "nothing handles it: define"),
        (lambda batch: batch.column("b"), "user code failed with KeyError.*first of key"),
    ],
)
def test_wrong_vectorised_output_is_refused(make: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=f"sums: .*{why}"):
        emit(make)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda s: s.totals.set([[1]]), "1 rows for 2 groups"),
        (lambda s: s.totals.set({"m": [1, 2]}), r"has the columns \(n int64\); it was given \(m\)"),
        (lambda s: s.totals.set([["a", "b"]]), r"has the columns \(n int64\)"),
        (lambda s: s.totals.set(pa.record_batch({"m": [1, 2]})), r"given \(m int64\)"),
        (lambda s: s.totals.set([[1, 2]], mask=[True]), "mask of 2 values"),
        (lambda s: s.recent.append([0], [[1, 2]]), "2 rows with 1 group numbers"),
        (lambda s: s.recent.append([2], [[1]]), "numbers below 2"),
        (lambda s: s.recent.delete([True]), "has 0 rows, the mask 1"),
        (lambda s: s.codes.put([0], [[1]], [[1, 2]]), "1 group numbers, 1 keys, 2 rows"),
    ],
)
def test_wrong_use_of_columns_is_refused(use: Any, why: str) -> None:
    class Using(Writing):
        def process(self, batch: Any, state: Any) -> Any:
            use(state)

    one = UserDefined(Using(), "user long", PAYLOAD)
    with pytest.raises(DefinitionError, match=f"Using: .*{why}"):
        accepted(one.on_changes(0, steps((1, 0), (2, 0)), Recording(one.synopses), 0))


def test_objects_and_unknown_outputs_are_refused() -> None:
    class Objects(VectorisedProcessor):
        state: ClassVar[dict[str, Declared]] = {"a": ObjectState(bytes, bytes)}
        output = "n long"

    with pytest.raises(DefinitionError, match="'a' is not a value, list, table or map"):
        UserDefined(Objects(), "user long", PAYLOAD)
    with pytest.raises(DefinitionError, match="'group' or 'event'"):
        UserDefined(Emitting(None, "row"), "user long", PAYLOAD)


class Updating(VectorisedProcessor):
    state: ClassVar[dict[str, Declared]] = {"codes": MapState("code double", "times long")}
    output = "n long"

    def process(self, batch: Any, state: Any) -> Any:
        keys = np.where(batch.column("a") > 0, np.nan, -0.0)
        found, _ = state.codes.get(batch.group, [keys])
        state.codes.put(batch.group, [keys], [batch.times])
        return {"n": found.astype(np.int64), "__group": batch.group}
