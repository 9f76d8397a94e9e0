"""Fronts without a pause, over the rows of one group; whole queries are in `test_rolling`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.arrays import Table
from icestream.operators.folding.fields import Field, SlidingLayout
from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.grid.partitions import Partition, Partitions
from icestream.operators.grid.slice_log import SliceLog, SlicePortion
from icestream.operators.grid.slices import SLICE, SliceDirectory, Slices
from icestream.operators.grid.two_stacks import TwoStacks
from icestream.plan.windows.grid import Grid, Sliding
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.keys import KeyCodec

LAYOUT = SlidingLayout.of((Field("max", "x"), Field("first", "x")))


class Log:
    """Slices of one entry each, in memory, in place of those on the log."""

    def __init__(self) -> None:
        self.entries: list[Table] = []

    def write(self, pane: int, value: int) -> Slices:
        """Keep the entry of an event, chosen by itself."""
        row = [1, 1, 1, value, pane, len(self.entries), value]
        self.entries.append(np.array([row], dtype=np.int64))
        return np.array([(pane, len(self.entries) - 1, 1, 1, 1)], dtype=SLICE)

    def portions(self, slices: Slices, _: Partition) -> Iterator[SlicePortion]:
        """Yield slices, two at a time."""
        for at in range(0, len(slices), 2):
            part = slices[at : at + 2]
            entries = np.concatenate([self.entries[marker] for marker in part["marker"].tolist()])
            yield SlicePortion(part["pane"].copy(), np.arange(len(part) + 1), entries)


class Windows:
    """Windows over one group, brought forward slide by slide."""

    def __init__(self, folder: Path, reach: int, slide: int) -> None:
        self.course = Sliding(Grid(1), reach, slide)
        arena = Arena.create(str(folder), Budget(1 << 26).account("groups"))
        self.arena = arena
        codec = KeyCodec(pa.schema([]))
        self.groups = ResidentGroups(LAYOUT, codec, arena)
        ids = np.ones(1, dtype=np.uint64)
        self.groups.admit(ids, ids, np.array([2**62]), pa.table({"none": [0]}))
        self.directory = SliceDirectory(arena)
        self.log = Log()
        self.events: dict[int, list[int]] = {}
        self.start, self.added = 0, reach - slide
        self.partitions = Partitions(arena, self.groups, LAYOUT.suffix_words, Budget(1 << 26))
        self.open()

    def open(self) -> None:
        """Go on with what the header of the arena says."""
        (self.partition,) = self.partitions.visit()
        slices = cast("SliceLog", self.log)
        self.two_stacks = TwoStacks(
            self.course, self.groups, self.partition, self.directory, slices
        )

    def reopen(self, *, stale: bool) -> None:
        """Go on as the next version does, perhaps after the stacks were lost."""
        self.partition.note()
        self.partition.stale = stale
        self.open()
        self.two_stacks.mend(np.empty(0, dtype=SLICE), self.start, self.added)

    def write(self, pane: int, value: int) -> Slices:
        slices = self.log.write(pane, value)
        self.directory.append(slices)
        self.events.setdefault(pane, []).append(value)
        return slices

    def join(self, pane: int, value: int) -> int:
        """Let an event come behind the watermark; return the panes read for it."""
        two_stacks = self.two_stacks
        late, before = self.write(pane, value), two_stacks.panes
        self.groups.add(self.log.entries[-1], behind=pane >= two_stacks.turning)
        two_stacks.mend(late, self.start, self.added)
        return two_stacks.panes - before

    def slide(self) -> int:
        """Bring the window forward, check its values, and return the panes read."""
        two_stacks = self.two_stacks
        before, end = two_stacks.panes, self.start + self.course.range
        entering, leaving = (self.added, end), (self.start, self.start + self.course.slide)
        for pane, entries in self.between(*entering):
            self.groups.add(entries, behind=pane >= two_stacks.turning)
        self.check(end)
        two_stacks.ready(self.start)
        for pane, entries in self.between(*leaving):
            self.groups.expire(entries, pane, two_stacks.pop(len(entries)))
        two_stacks.build(self.start)
        self.added, self.start = end, self.start + self.course.slide
        panes = sum(pane in self.events for each in (entering, leaving) for pane in range(*each))
        return panes + two_stacks.panes - before

    def between(self, first: int, last: int) -> Iterator[tuple[int, Table]]:
        for each in self.directory.between(first, last):
            yield int(each["pane"]), self.log.entries[int(each["marker"])]

    def check(self, end: int) -> None:
        inside = [
            (pane, value) for pane in range(self.start, end) for value in self.events.get(pane, ())
        ]
        out = np.empty((1, LAYOUT.field_words), dtype=np.int64)
        _, rows = self.groups.emit(0, out, np.empty(1, dtype=np.int64), 0)
        assert rows == bool(inside)
        if inside:
            assert out[0, :2].tolist() == [len(inside), max(value for _, value in inside)]
            assert out[0, 2] == inside[0][0]


EVERY_SLIDE = [(reach, slide) for reach in range(2, 14) for slide in range(1, reach)]
OTHERS = [(59, 1), (59, 2), (60, 7), (100, 1), (100, 99), (100, 51), (240, 96), (600, 1), (601, 3)]


@pytest.mark.sample(24)
@pytest.mark.parametrize(("reach", "slide"), EVERY_SLIDE + OTHERS)
def test_bounded_every_slide_reads_a_few_panes_whatever_the_window(
    tmp_path: Path, reach: int, slide: int
) -> None:
    # one pane enters, one leaves and one is built for each that the window moves; two are built
    # where slides do not divide the window
    windows, dice = Windows(tmp_path, reach, slide), np.random.default_rng(reach)
    most = 0
    for _ in range(3 * (reach // slide) + 3):
        for pane in range(windows.start + reach - slide, windows.start + reach):
            windows.write(pane, int(dice.integers(0, 1000)))
        most = max(most, windows.slide())
    assert most <= (3 if reach % slide == 0 else 4) * slide


@given(
    reach=st.integers(2, 12),
    slide=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    gaps=st.sampled_from((0.0, 0.3, 0.9)),
    mishaps=st.sampled_from((0.0, 0.3)),
)
@settings(max_examples=80, deadline=None)
def test_oracle_suffixes_hold_with_late_events_gaps_and_lost_stacks(
    reach: int, slide: int, seed: int, gaps: float, mishaps: float
) -> None:
    slide, dice = min(slide, reach - 1), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        windows = Windows(Path(folder), reach, slide)
        for _ in range(40):
            for pane in range(windows.added, windows.start + reach):
                for _ in range(0 if dice.random() < gaps else int(dice.integers(1, 3))):
                    windows.write(pane, int(dice.integers(0, 1000)))
            if dice.random() < mishaps and windows.start < windows.added:
                pane = int(dice.integers(windows.start, windows.added))
                windows.join(pane, int(dice.integers(0, 1200)))
            windows.slide()
            if dice.random() < mishaps:
                windows.reopen(stale=dice.random() < 0.5)


def test_a_late_event_costs_what_has_suffixes_already(tmp_path: Path) -> None:
    #  panes      start       flipped     turned    turning    added
    #               [  in use   )[ to build  )[ built  )[ back  )
    #  to read       a window       nothing    nothing   nothing
    windows, dice = Windows(tmp_path, 100, 1), np.random.default_rng(1)
    partition = windows.partition
    while windows.start < 100 or partition.turning - partition.turned != 25:
        windows.write(windows.added, 5)
        assert windows.slide() <= 3
    start, added = windows.start, windows.added
    assert start < partition.flipped < partition.turned < partition.turning < added
    for first, last in (
        (partition.turning, added),
        (partition.flipped, partition.turned),
        (partition.turned, partition.turning),
    ):
        assert windows.join(int(dice.integers(first, last)), 7) == 0
    assert partition.turned == partition.turning, "it begins anew"
    for _ in range(partition.flipped - start + 1):
        windows.write(windows.added, 3)
        assert windows.slide() <= 4, "50 panes in 26 slides"
    assert windows.join(windows.start, 9) == 99
    windows.write(windows.added, 3)
    assert windows.slide() <= 3
