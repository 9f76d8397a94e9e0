"""The session operator on a shard of its own; `test_queries.py` has whole queries."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.times import MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.protocol import PastVersion
from icestream.operators.session import fragments
from icestream.operators.session.operator import SessionOperator
from icestream.operators.session.spec import SessionSpec
from icestream.plan.windows.session import Session
from icestream.state import snapshot_schedule
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.files import LocalFiles
from icestream.state.keys import KeyCodec
from icestream.state.log.format import SegmentInfo
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.state.versions.commits import BASE

Event = tuple[str | None, int, int | None]
Row = tuple[Any, ...]

KEYS = pa.schema([("k0", pa.string())])
INPUTS = pa.schema([("x0", pa.int64())])
AGGREGATES = (
    Aggregate("count", None, "n"),
    Aggregate("sum", "x0", "s"),
    Aggregate("max", "x0", "m"),
    Aggregate("first", "x0", "f"),
    Aggregate("last", "x0", "l"),
)
GAP = 10


def spec_of(aggregates: Sequence[Aggregate] = AGGREGATES) -> SessionSpec:
    return SessionSpec(tuple(aggregates), KEYS, INPUTS, Session(GAP))


def results_of(spec: SessionSpec) -> pa.Schema:
    answers = [pa.field(a.alias, a.result_type(spec.types)) for a in spec.aggregates]
    return pa.schema([spec.session.heading(pa.timestamp("us")), *KEYS, *answers])


@dataclass
class Events:
    """The events of a batch as the exchange brings them."""

    events: Sequence[Event]
    rows: int = 1000

    def tuples(self) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(self.events), self.rows):
            names, times, values = zip(*self.events[first : first + self.rows], strict=True)
            keys = pa.record_batch([pa.array(names, pa.string())], KEYS)
            id_high, id_low = KeyCodec(KEYS).identify(keys)
            columns = [pa.array(times, pa.int64()), pa.array(id_high), pa.array(id_low)]
            columns += [*keys.columns, pa.array(values, pa.int64())]
            yield pa.record_batch(
                columns, names=["time", ID_HIGH_COLUMN, ID_LOW_COLUMN, "k0", "x0"]
            )

    def entries(self) -> Iterator[ExactRows]:
        yield from ()

    def leaving(self, family: int) -> Iterator[ExactRows]:
        yield from ()

    def groups(self) -> Iterator[pa.Table]:
        yield from ()


@dataclass
class Space:
    """A shard that keeps its versions in a folder."""

    folder: Path
    quota: int = 1 << 20
    spec: SessionSpec = field(default_factory=spec_of)
    history: list[PastVersion] = field(default_factory=list)
    #: versions with a snapshot
    bases: set[int] = field(default_factory=set)
    arena_name: str | None = None
    peak: int = 0

    def __post_init__(self) -> None:
        self.files = LocalFiles()
        self.log = Log(self.files, str(self.folder), {})
        self._open: dict[str, SegmentWriter] = {}
        self._sealed: list[tuple[str, SegmentInfo]] = []

    def segment(self, lifetime: str) -> SegmentWriter:
        if lifetime not in self._open:
            path = str(self.folder / f"{len(self.history)}.seg")
            self._open[lifetime] = SegmentWriter(self.files, path, len(self.history))
        return self._open[lifetime]

    def seal(self, lifetime: str) -> SegmentInfo | None:
        if lifetime not in self._open:
            return None
        self._sealed.append((lifetime, self._open.pop(lifetime).finish(sync=False)))
        return self._sealed[-1][1]

    def reader(self, info: SegmentInfo) -> SegmentReader:
        return SegmentReader(self.files, str(self.folder / info.name), info=info)

    def version(self, inputs: Events, watermark: int) -> list[Row]:
        """Run one version and return its rows as (start, end, key, answers)."""
        budget = Budget(self.quota)
        self.account = budget.account("buffers")
        account, parent = budget.account("groups"), str(self.folder / "arenas")
        claimed = self.arena_name and Arena.claim(parent, self.arena_name, account)
        self.arena = claimed or Arena.create(parent, account)
        made = SessionOperator(self.spec, self, results_of(self.spec))
        if not claimed:
            bases = [n for n, past in enumerate(self.history) if past.version in self.bases]
            made.restore(self.history[bases[-1] if bases else 0 :])
        made.on_batch(inputs)
        batches = list(made.on_watermark(watermark))
        self.statistics = made.statistics
        self.peak = max(self.peak, budget.peak)
        number = len(self.history)
        if made.took_snapshot:
            self.bases.add(number)
        self.history.append(PastVersion(number, watermark, self._sealed))
        self._sealed = []
        self.arena_name = f"v{number}"
        self.arena.release(self.arena_name)
        return [
            (*(bound.cast(pa.int64()).to_pylist()[i] for bound in batch.column(0).flatten()),
             *(column[i].as_py() for column in batch.columns[1:]))
            for batch in batches
            for i in range(batch.num_rows)
        ]  # fmt: skip

    def lose_arena(self) -> None:
        shutil.rmtree(self.folder / "arenas", ignore_errors=True)


class Slow:
    """Sessions as lists of events."""

    def __init__(self) -> None:
        self.open: list[list[tuple[str | None, int, int, int | None]]] = []
        self.arrived = 0

    def version(self, events: Sequence[Event], watermark: int) -> list[Row]:
        for key, time, value in events:
            self.arrived += 1
            mine = [(key, time, self.arrived, value)]
            apart = []
            for other in self.open:
                times = [each[1] for each in other]
                if other[0][0] == key and min(times) - GAP <= time <= max(times) + GAP:
                    mine += other
                else:
                    apart.append(other)
            self.open = [*apart, mine]
        closed = [s for s in self.open if max(e[1] for e in s) + GAP <= watermark]
        self.open = [s for s in self.open if max(e[1] for e in s) + GAP > watermark]
        return [self._row(sorted(each, key=lambda e: e[1:3])) for each in closed]

    def _row(self, events: list[tuple[str | None, int, int, int | None]]) -> Row:
        values = [e[3] for e in events if e[3] is not None]
        answers = (sum(values), max(values)) if values else (None, None)
        bounds = (events[0][1], events[-1][1] + GAP)
        return (*bounds, events[0][0], len(events), *answers, events[0][3], events[-1][3])


def by_text(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=repr)


versions = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.sampled_from((None, "", "a", "b", "c" * 50)),
                st.integers(-15, 40),
                st.none() | st.integers(-5, 5),
            ),
            max_size=40,
        ),
        st.sampled_from((0, 0, 1, 7, 20, 60)),
        st.booleans(),
    ),
    max_size=10,
)


@given(
    versions=versions,
    quota=st.sampled_from((1 << 20, 12_000)),
    every=st.sampled_from((2, 4, 100)),
    runs=st.sampled_from((2, 32)),
)
@settings(max_examples=80)
def test_oracle_sessions_equal_the_obvious_computation(
    versions: list[tuple[list[Event], int, bool]], quota: int, every: int, runs: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_schedule, "AFTER", every)
        patch.setattr(snapshot_schedule, "AT_LATEST", every)
        patch.setattr(fragments, "MOST_RUNS", runs)
        space, slow = Space(Path(folder), quota), Slow()
        watermark = 0
        for events, step, lost in versions:
            moved = [(key, watermark + time, value) for key, time, value in events]
            taken = [event for event in moved if event[1] + GAP > watermark]
            watermark += step
            if lost:
                space.lose_arena()
            found = space.version(Events(taken, rows=7), watermark)
            assert by_text(found) == by_text(slow.version(taken, watermark))
        assert space.peak <= quota
        groups = {session[0][0] for session in slow.open}
        assert not versions or space.statistics["groups"] == len(groups)
        assert not versions or space.statistics["sessions"] == len(slow.open)


def test_an_event_behind_the_watermark_joins_sessions_still_open(tmp_path: Path) -> None:
    # gap 10                0         10        20        30        40
    #   version 1           e                   e                          watermark 11
    #     closed            [---------)
    #   version 2                  e                                       watermark 11
    #     open                     [--------------------)      joined at 10 behind the watermark
    #   version 3      late events were left out by ingest                 watermark 31
    space = Space(tmp_path)
    assert [row[:4] for row in space.version(Events([("a", 0, 1), ("a", 20, 2)]), 11)] == [
        (0, 10, "a", 1)
    ]
    assert space.version(Events([("a", 10, 4)]), 11) == []
    assert space.version(Events([]), 31) == [(10, 30, "a", 2, 6, 4, 4, 2)]


def test_an_event_bridges_two_sessions(tmp_path: Path) -> None:
    space = Space(tmp_path)
    assert space.version(Events([("a", 0, 1), ("a", 20, 2), ("b", 5, 9)]), MINUS_INFINITY) == []
    assert space.statistics == {"groups": 2, "partitions": 1, "sessions": 3}
    assert space.version(Events([("a", 10, None)]), 0) == []
    assert space.statistics["sessions"] == 2
    assert by_text(space.version(Events([]), 100)) == [
        (0, 30, "a", 3, 3, 2, 1, 2),
        (5, 15, "b", 1, 9, 9, 9, 9),
    ]


def test_an_event_at_the_end_belongs_to_the_session_and_one_after_it_does_not(
    tmp_path: Path,
) -> None:
    space = Space(tmp_path)
    space.version(Events([("a", 0, 1), ("b", 0, 1)]), MINUS_INFINITY)
    space.version(Events([("a", 10, 1), ("b", 11, 1)]), MINUS_INFINITY)
    found = by_text(space.version(Events([]), 100))
    assert [row[:4] for row in found] == [(0, 10, "b", 1), (0, 20, "a", 2), (11, 21, "b", 1)]


def test_a_session_is_emitted_when_the_watermark_reaches_its_end(tmp_path: Path) -> None:
    space = Space(tmp_path)
    assert space.version(Events([("a", 0, 1)]), 9) == []
    assert len(space.version(Events([]), 10)) == 1
    assert space.version(Events([]), 11) == []


def test_crash_restored_sessions_emit_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_schedule, "AFTER", 3)
    monkeypatch.setattr(snapshot_schedule, "AT_LATEST", 3)
    dice = np.random.default_rng(4)
    (tmp_path / "kept").mkdir()
    (tmp_path / "lost").mkdir()
    kept, lost = Space(tmp_path / "kept", 40_000), Space(tmp_path / "lost", 40_000)
    for number in range(12):
        draws = dice.integers(0, 300, size=(400, 2)).tolist()
        events = [(f"key {k}", 20 * number + t % 40, t) for k, t in draws]
        lost.lose_arena()
        watermark = 20 * number
        expected = kept.version(Events(events), watermark)
        assert lost.version(Events(events), watermark) == expected
    assert len(kept.bases) == 4
    assert kept.bases == lost.bases
    assert max(kept.peak, lost.peak) <= 40_000


def test_bounded_state_of_ten_times_the_budget(tmp_path: Path) -> None:
    quota, groups = 256 << 10, 12_000
    spec = spec_of([Aggregate("sum", "x0", "s"), Aggregate("max", "x0", "m")])
    space = Space(tmp_path, quota, spec)
    names = [f"{'a key of many bytes ' * 12}{number}" for number in range(groups)]
    for number in range(4):
        chosen = range(number * groups // 4, (number + 1) * groups // 4)
        events: list[Event] = [(names[i], 0, i) for i in chosen]
        assert space.version(Events(events), 0) == []
    size = sum(path.stat().st_size for path in (tmp_path / "arenas").rglob("sessions-*"))
    assert size >= 10 * quota
    assert space.statistics["groups"] == groups
    again: list[Event] = [(names[5], 8, 1), (names[7], 11, 1)]
    assert space.version(Events(again), 1) == []
    rows = {row[2:]: row[:2] for row in space.version(Events([]), 100)}
    assert len(rows) == groups + 1
    assert rows.pop((names[5], 6, 5)) == (0, 18)
    assert rows.pop((names[7], 1, 1)) == (11, 21)
    assert set(rows.values()) == {(0, GAP)}
    assert space.peak <= quota
    assert space.statistics == {"groups": 0, "partitions": 1, "sessions": 0}


def test_fragments_of_hot_groups_are_joined_before_they_are_logged(tmp_path: Path) -> None:
    space = Space(tmp_path, 60_000)
    events: list[Event] = [(f"{n % 3}", n % 50, n) for n in range(6000)]
    space.version(Events(events, rows=50), 0)
    ((lifetime, info),) = space.history[0].segments
    assert lifetime == BASE
    assert info.records == 1
    assert sum(row[3] for row in space.version(Events([]), 100)) == 6000
