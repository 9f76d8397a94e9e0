from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.arrays import Table
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.folding.fields import Layout
from icestream.operators.frames import tuples as module
from icestream.operators.frames.layout import TupleLayout
from icestream.operators.frames.tuples import ARRIVALS, BLOCK, SETTLED, Blocks, TupleLog
from icestream.operators.grid.groups import ID_HIGH_END
from icestream.operators.grid.partitions import Partition
from icestream.operators.protocol import PastVersion
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.files import LocalFiles
from icestream.state.log.format import SegmentInfo, ordinal_of
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter

LAYOUT = TupleLayout(Layout.of(()).fields)
HALF = ID_HIGH_END // 2


@dataclass
class Space:
    """A shard with a log in a folder; segments are read as soon as they are sealed."""

    folder: Path
    past: list[PastVersion] = field(default_factory=list)

    def __post_init__(self) -> None:
        budget = Budget(1 << 22)
        self.account = budget.account("buffers")
        self.arena = Arena.create(str(self.folder / "arenas"), budget.account("groups"))
        self.files = LocalFiles()
        self.log = Log(self.files, str(self.folder), {})
        self.sealed: list[tuple[str, SegmentInfo]] = []
        self._open: dict[str, SegmentWriter] = {}
        self._ordinal = 0

    def segment(self, lifetime: str) -> SegmentWriter:
        if lifetime not in self._open:
            path = str(self.folder / f"{self._ordinal}.seg")
            self._open[lifetime] = SegmentWriter(self.files, path, self._ordinal)
            self._ordinal += 1
        return self._open[lifetime]

    def seal(self, lifetime: str) -> SegmentInfo | None:
        if lifetime not in self._open:
            return None
        info = self._open.pop(lifetime).finish(sync=False)
        self.sealed.append((lifetime, info))
        self.log.add(info)
        return info

    def reader(self, info: SegmentInfo) -> SegmentReader:
        return SegmentReader(self.files, str(self.folder / info.name), info=info)

    def version(self, watermark: int) -> PastVersion:
        past = PastVersion(len(self.past) + 1, watermark, self.sealed)
        self.sealed = []
        self.past.append(past)
        return past

    def partition(self, low: int = 0, high: int = ID_HIGH_END) -> Partition:
        facts: dict[str, Any] = {"low": low, "high": high, "fronts": 0, "next": 0}
        return Partition(facts, self.arena, 1)


def log_of(space: Space, rows: int = 8, lives: int | None = None) -> TupleLog:
    return TupleLog(
        space, LAYOUT, rows * LAYOUT.tuple_bytes, lives, lambda action: (action(), None)[1]
    )


def small(rows: int) -> Any:
    return mock.patch.object(module, "BLOCK_BYTES", rows * LAYOUT.tuple_bytes)


def numbered(times: list[int], first: int) -> Table:
    """Make tuples that carry the number of their arrival, id_high in either half."""
    table = np.zeros((len(times), LAYOUT.tuple_width), dtype=np.int64)
    table[:, 1] = np.arange(first, first + len(times))
    table[:, 0] = np.where(table[:, 1] % 3 == 0, -1, 1)
    table[:, -1] = times
    return table


def bounded(tables: Iterable[Table], *, known: bool = True) -> Iterator[tuple[Table, int]]:
    """Yield tables, each with the earliest time after it, or without knowing it."""
    listed = list(tables)
    for number, table in enumerate(listed):
        rest = [int(each[:, -1].min()) for each in listed[number + 1 :] if len(each)]
        if len(table):
            yield table, min(rest, default=INFINITY) if known else MINUS_INFINITY


def sequence(log: TupleLog, space: Space, first: int = 0) -> list[tuple[int, int]]:
    """Return (time, arrival) of the settled tuples."""
    found = [s.tuples for s in log.read(first, log.size, space.partition())]
    return [(row[-1], row[1]) for table in found for row in table.tolist()]


BATCHES = st.lists(
    st.tuples(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 12)), min_size=1, max_size=6
)


@given(BATCHES, st.integers(2, 12), st.sampled_from((1, 4)), st.booleans(), st.booleans())
@settings(max_examples=100)
def test_oracle_settled_tuples_are_sorted_by_time_and_arrival(
    batches: list[tuple[list[int], int]], chunk: int, block: int, many_ties: bool, known: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, small(block):
        space = Space(Path(folder))
        log = log_of(space, chunk)
        events: list[tuple[int, int]] = []
        watermark, arrived, before = 0, 0, MINUS_INFINITY
        for offsets, more in batches:
            times = [max(0, watermark) + (o // 20 if many_ties else o) for o in offsets]
            cuts = [*range(0, len(times), 7), len(times)]
            tables = [numbered(times[a:b], arrived + a) for a, b in pairwise(cuts)]
            events += [(time, arrived + n) for n, time in enumerate(times)]
            arrived += len(times)
            watermark += more
            log.settle(before, watermark, bounded(tables, known=known))
            before = watermark
            settled = sorted(each for each in events if each[0] < watermark)
            assert sequence(log, space) == settled
            assert log.size == len(settled)
            for time in range(watermark):
                assert log.place_after(time) == sum(at <= time for at, _ in settled)


def test_bounded_more_ties_than_a_chunk_holds(tmp_path: Path) -> None:
    with small(4):
        space = Space(tmp_path)
        log = log_of(space, 8)
        times = [3, 1, 3, 3, 2] * 40
        tables = (numbered(times[at : at + 5], at) for at in range(0, 200, 5))
        log.settle(MINUS_INFINITY, 4, bounded(tables))
        expected = sorted((time, number) for number, time in enumerate(times))
        assert sequence(log, space) == expected
        held = [s.last - s.first for s in log.read(0, 200, space.partition())]
        assert max(held) <= 8 + 4


def test_bounded_a_large_batch_is_settled_in_few_reads(tmp_path: Path) -> None:
    calls = 0
    read = TupleLog._read

    def counted(self: TupleLog, blocks: Blocks, width: int) -> Iterator[Table]:
        nonlocal calls
        calls += 1
        return read(self, blocks, width)

    with small(4), mock.patch.object(TupleLog, "_read", counted):
        space = Space(tmp_path)
        log = log_of(space, 8)
        tables = (numbered(list(range(at, at + 8)), at) for at in range(0, 2000, 8))
        log.settle(MINUS_INFINITY, 2000, bounded(tables, known=False))
        # there are 500 blocks; half of what is read for a step belongs to the next one
        assert calls <= 4 * 500
        assert sequence(log, space) == [(at, at) for at in range(2000)]


def test_tuples_that_need_not_wait_are_written_once(tmp_path: Path) -> None:
    with small(4):
        space = Space(tmp_path)
        log = log_of(space, 8)
        dice = np.random.default_rng(4)
        times = (np.arange(400) + dice.integers(0, 6, 400)).tolist()
        tables = [numbered(times[at : at + 8], at) for at in range(0, 400, 8)]
        written = log.settle(MINUS_INFINITY, 390, bounded(tables))
        rows = {life: sum(r.rows for r in space.reader(i).scan()) for life, i in space.sealed}
        assert rows == {
            ARRIVALS: sum(t >= 390 for t in times),
            SETTLED: sum(t < 390 for t in times),
        }
        assert written == 400 * LAYOUT.tuple_bytes
        assert sequence(log, space) == sorted((t, n) for n, t in enumerate(times) if t < 390)


def test_tuples_that_just_settled_are_not_read(tmp_path: Path) -> None:
    with small(4):
        space = Space(tmp_path)
        log = log_of(space, 8)
        tables = [numbered(list(range(at, at + 8)), at) for at in range(0, 40, 8)]
        log.settle(MINUS_INFINITY, 40, bounded(tables))
        whole = space.partition(0, ID_HIGH_END)
        held = log.sorted_rows
        assert [run.first for run in log.read(0, held, whole)] == [0, log.chunk_rows]
        assert log.reads["blocks"] == 0
        # a part of them, and what follows from the log
        found = np.concatenate([run.tuples[:, 1] for run in log.read(3, 40, whole)])
        assert found.tolist() == list(range(3, 40))
        assert 0 < log.reads["blocks"] <= -(-(40 - held) // 4)
        # later versions read all of what is left
        log.drop(8)
        log.reads["blocks"] = 0
        found = np.concatenate([run.tuples[:, 1] for run in log.read(8, 40, whole)])
        assert found.tolist() == list(range(8, 40))
        assert log.reads["blocks"] >= 8


def test_stretches_hold_the_tuples_of_a_partition_and_the_times_of_all(tmp_path: Path) -> None:
    with small(4):
        space = Space(tmp_path)
        log = log_of(space, 8)
        log.settle(MINUS_INFINITY, 50, bounded([numbered(list(range(50)), 0)]))
        parts = [space.partition(0, HALF), space.partition(HALF, ID_HIGH_END)]
        for part in parts:
            places: list[int] = []
            for stretch in log.read(7, 41, part):
                assert stretch.times.tolist() == list(range(stretch.first, stretch.last))
                assert stretch.tuples[:, 1].tolist() == stretch.places.tolist()
                places += stretch.places.tolist()
            upper = part.low > 0
            assert places == [n for n in range(7, 41) if (n % 3 == 0) == upper]
            back = [s.places.tolist() for s in log.read_back(7, 41, part)]
            assert [n for stretch in reversed(back) for n in stretch] == places


def test_blocks_that_were_dropped_are_released_with_the_next_snapshot(tmp_path: Path) -> None:
    with small(4):
        space = Space(tmp_path)
        log = log_of(space, 8)
        ordinals = []
        for version in range(3):
            table = numbered([10 * version + n for n in range(10)], 10 * version)
            log.settle(10 * version, 10 * version + 10, bounded([table]))
            ordinals += [i.ordinal for life, i in space.version(0).segments if life == SETTLED]
        log.drop(13)
        assert log.release() == (ordinals[0],)
        assert log.release() == ()
        assert sequence(log, space, 13) == [(n, n) for n in range(13, 30)]
        log.drop(30)
        assert log.release() == tuple(ordinals[1:])


def test_blocks_live_as_long_as_they_may_be_read(tmp_path: Path) -> None:
    space = Space(tmp_path)
    for lives in (100, None):
        log = log_of(space, lives=lives)
        log.settle(MINUS_INFINITY, 8, bounded([numbered([3, 9, 5], 0)]))
        found = {life: info.expiry for life, info in space.version(8).segments}
        assert found == {ARRIVALS: 10, SETTLED: INFINITY if lives is None else 105}


def test_crash_replayed_versions_lead_to_the_same_sequence(tmp_path: Path) -> None:
    with small(4):
        space = Space(tmp_path)
        log = log_of(space, 8)
        watermarks = [MINUS_INFINITY, 5, 5, 31]
        for version, (before, watermark) in enumerate(pairwise(watermarks)):
            table = numbered([5 * version + 7 * n % 20 for n in range(20)], 20 * version)
            log.settle(before, watermark, bounded([table]))
            space.version(watermark)
        expected = sequence(log, space)
        space.arena = Arena.create(str(tmp_path / "other"), Budget(1 << 22).account("groups"))
        again = log_of(space, 8)
        for past in space.past:
            again.replay(past)
        assert sequence(again, space) == expected
        assert len(again._settled) == len(log._settled)
        assert len(again._arrivals) == len(log._arrivals)
        markers = [int(m) for m in again._settled.records["marker"]]
        assert {ordinal_of(m) for m in markers} <= set(space.log.segments)


@pytest.mark.parametrize("rows", [-1, 0, 2**31, 2**40])
def test_blocks_that_claim_what_they_cannot_have_are_refused(tmp_path: Path, rows: int) -> None:
    log = log_of(Space(tmp_path))
    sound = np.array([(7, 1, 0, 9), (8, 1000, 9, 9)], dtype=BLOCK)
    assert log.known(sound) is sound
    with pytest.raises(ValueError, match="must have 1 to"):
        log.known(np.array([(7, 1, 0, 9), (7, rows, 0, 9)], dtype=BLOCK))
    if 0 <= rows < 2**32:
        other = Space(tmp_path / "other")
        other.segment(ARRIVALS).append(np.zeros(LAYOUT.tuple_width, np.int64), rows=rows)
        other.seal(ARRIVALS)
        with pytest.raises(ValueError, match="must have 1 to"):
            log_of(other).replay(other.version(9))
