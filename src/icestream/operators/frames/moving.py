"""Frames whose tuples leave in the order they entered: ranges of time, and rows of the stream.

Idea: two cursors run over the sequence of settled tuples. A tuple that enters first expires those
that its window does not reach, then joins the running row of its group. The output is either the
group of every event, or all groups at *stops*: every n events, or at multiples of a time slide.
Fields without an inverse use suffixes from a stack that a flip fills by reading the window
backwards. Frames that share tuples receive entering tuples together; each has its own cursor for
tuples that leave.

Invariants:
1. Rows equal folding each window from scratch
   (`test_oracle_every_frame_equals_the_obvious_computation`).
2. All partitions stop at the same places of the sequence, whether they own a tuple there or not
   (`test_bounded_rows_do_not_depend_on_the_budget`).
3. A window is flipped only when its suffixes are used up, so a tuple takes part in one flip
   (`test_a_tuple_takes_part_in_one_flip`).
4. A partition that was split or loaded from a snapshot has no suffixes of any frame
   (`test_suffixes_of_all_frames_are_lost_with_a_partition`).

Cost: a settled tuple is read once to enter all frames, and for each frame once to leave it (twice
for fields without an inverse, not at all if its window is within one chunk); each partition reads
all of them. A stop costs O(groups in memory). Memory: a chunk of leaving tuples, and suffixes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Table
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.frames import moving as kernels
from icestream.operators.frames.layout import FrameLayout
from icestream.operators.frames.output import FrameOutput
from icestream.operators.frames.tuples import TupleLog, TupleRun
from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.grid.partitions import Partition
from icestream.operators.grid.suffix_stack import SuffixStack
from icestream.plan.windows.frame import UNBOUNDED, Frame, RowsSlide
from icestream.state.arena import Arena


@dataclass(frozen=True, slots=True)
class Stop:
    """A point at which all groups are shown: some tuples have entered, and others have left."""

    place: int
    instant: Micros
    #: tuples whose key is at most this have left
    bound: int


@dataclass
class _Hand:
    """Tuples at hand, to enter or to leave."""

    tuples: Table
    slots: Ints
    #: the key that decides when a tuple leaves: its time, or its place
    keys: Ints
    suffixes: Table


class MovingPass:
    """One pass of a frame over the tuples of a version, for the groups of one partition."""

    def __init__(
        self,
        frame: Frame,
        layout: FrameLayout,
        groups: ResidentGroups,
        tuples: TupleLog,
        partition: Partition,
        suffixes: FrameSuffixStack,
        position: dict[str, Any],
        output: FrameOutput,
    ) -> None:
        self._frame = frame
        self._layout = layout
        self._groups = groups
        self._tuples = tuples
        self._partition = partition
        self._suffixes = suffixes
        self._output = output
        self._position = position
        self._by_time = frame.range is not None
        self._is_unbounded = frame.range == UNBOUNDED
        self._fixed = (
            layout.ops,
            layout.in_tuples,
            layout.in_rows,
            layout.group_identity,
            layout.suffixes_at,
        )
        slide = frame.slide
        #: a group is shown at every n-th of its events; 0 if all groups are shown at stops
        self._every = 1 if slide is None else kernels.SILENT
        if frame.peers:
            self._every = kernels.WITH_PEERS
        if isinstance(slide, RowsSlide) and frame.partition == "key":
            self._every = slide.rows
        #: instant at which all groups are due, for a time slide
        self.due: Micros | None = position["due"]
        self._progress = np.zeros(kernels.PROGRESS, dtype=np.int64)
        self._progress[kernels.FLIPS] = position["flips"]
        self._leaving = self._nothing = self._at_hand(tuples.nothing(0), _EMPTY)
        self._source: Iterator[TupleRun] = iter(())
        #: place of the first tuple after those at hand to leave
        self._next: int = position["left"]
        #: whether the tuples at hand to leave are those that just entered
        self._same = False
        #: whether to collect rows of groups from which tuples left; other frames may do it
        self.watches = True
        #: those rows, and how many tuples at hand are counted there
        self._emptied: list[Ints] = []
        self._watched = 0

    def begin(self, place: int) -> None:
        """Rebuild lost suffixes, given the place of the first tuple that will enter."""
        if self._layout.suffix_words and self._suffixes.stale:
            self._flip(self._next, place)

    def take(self, stretch: TupleRun, slots: Ints) -> Iterator[pa.RecordBatch]:
        """Let the tuples of a run enter the groups in the given rows; yield what is shown."""
        yield from self._take(stretch, slots, self._stops(stretch), int(stretch.times[-1]))

    def enter(self, stretch: TupleRun, slots: Ints) -> None:
        """Let tuples of one instant enter, of which more follow before they are shown."""
        every, self._every = self._every, kernels.SILENT
        for _ in self._take(stretch, slots, [], int(stretch.times[-1])):
            pass
        self._every = every

    def show(self, stretch: TupleRun, slots: Ints) -> Iterator[pa.RecordBatch]:
        """Show the windows of tuples that have entered."""
        output, first = self._output, 0
        while first < len(slots):
            last = min(len(slots), first + len(output.fields))
            output.rows = last - first
            output.slots[: output.rows] = slots[first:last]
            output.times[: output.rows] = stretch.tuples[first:last, -1]
            kernels.show_slots(
                self._groups.rows,
                output.slots,
                output.rows,
                self._layout.ops,
                self._layout.in_rows,
                self._layout.suffixes_at,
                output.fields,
            )
            first = last
            yield output.take()

    def finish(self, place: int, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Let tuples leave up to the watermark, once those before a place have entered."""
        stops = self._last_stops(place, watermark)
        yield from self._take(self._tuples.nothing(place), _EMPTY, stops, watermark)
        if self._layout.suffix_words:
            self._keep_suffixes(int(self._progress[kernels.LEFT]), len(self._leaving.slots))
        self._position["flips"] = int(self._progress[kernels.FLIPS])
        self._suffixes.note()

    @property
    def emptied(self) -> Ints:
        """Return rows of groups whose last tuple left in this pass."""
        return self._emptied[0] if self._emptied else _EMPTY

    def done_with(self, slots: Ints) -> Mask:
        """Return for which rows the frame needs no state of the group any more."""
        rows = self._groups.rows
        done: Mask = rows[slots, self._layout.row_at] == 0
        if self._every > 1:
            done &= rows[slots, self._layout.extras_at + kernels.COUNT] % self._every == 0
        return done

    # -- where all groups are shown --------------------------------------------------------

    def _stops(self, stretch: TupleRun) -> list[Stop]:
        slide = self._frame.slide
        if self._every:
            return []
        if isinstance(slide, RowsSlide):
            first = stretch.first + slide.rows - 1 - stretch.first % slide.rows
            return [
                self._stop(place + 1, int(stretch.times[place - stretch.first]))
                for place in range(first, stretch.last, slide.rows)
            ]
        assert isinstance(slide, int)
        stops = []
        dues = (stretch.times // slide + 1) * slide
        for at in np.flatnonzero(np.diff(dues, prepend=dues[0] - 1)).tolist():
            if self.due is not None and self.due != dues[at]:
                stops.append(self._stop(stretch.first + at, self.due))
            self.due = int(dues[at])
        return stops

    def _last_stops(self, end: int, watermark: Micros) -> list[Stop]:
        """Return the stop after all tuples, if one is due."""
        if self.due is None or self.due > watermark:
            return []
        due, self.due = self.due, None
        return [self._stop(end, due)]

    def _stop(self, place: int, instant: Micros) -> Stop:
        last = instant if self._by_time else place - 1
        return Stop(place, instant, max(MINUS_INFINITY, last - self._frame.reach))

    # -- tuples enter and leave ------------------------------------------------------------

    def _take(
        self, stretch: TupleRun, slots: Ints, stops: list[Stop], reached: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Let the tuples of a run enter; expire those that no later window reaches."""
        entering = self._at_hand(stretch, slots)
        self._progress[kernels.ENTERED] = self._progress[kernels.SHOWN] = 0
        if self._is_unbounded:
            never = np.full(len(slots), INFINITY)
            self._leaving, self._same = replace(entering, keys=never), True
        for stop in stops:
            last = int(np.searchsorted(stretch.places, stop.place))
            yield from self._move(stretch, entering, last, stop.bound)
            yield from self._show_all(stop.instant)
        last = len(stretch.places)
        yield from self._move(stretch, entering, last, self._bound_after(stretch, reached))
        self._put_down(stretch)
        if self._output.rows:
            yield self._output.take()

    def _bound_after(self, stretch: TupleRun, reached: Micros) -> int:
        """Return the key up to which tuples leave after a run."""
        if reached == MINUS_INFINITY:
            return MINUS_INFINITY
        last = stretch.last - 1
        if self._by_time:
            last = reached
        return max(MINUS_INFINITY, last - self._frame.reach)

    def _move(
        self, stretch: TupleRun, entering: _Hand, last: int, bound: int
    ) -> Iterator[pa.RecordBatch]:
        output, progress = self._output, self._progress
        while True:
            progress[kernels.FILLED] = output.rows
            reason = kernels.advance(
                self._groups.rows,
                entering.tuples,
                entering.slots,
                entering.keys,
                last,
                self._leaving.tuples,
                self._leaving.slots,
                self._leaving.keys,
                self._leaving.suffixes,
                self._same,
                0 if self._is_unbounded else self._frame.reach,
                bound,
                self._every,
                *self._fixed,
                output.fields,
                output.slots,
                output.times,
                progress,
            )
            output.rows = int(progress[kernels.FILLED])
            if reason == kernels.DONE:
                return
            if reason == kernels.FULL:
                yield output.take()
            else:
                self._bring(stretch, entering)

    def _bring(self, stretch: TupleRun, entering: _Hand) -> None:
        """Fetch more tuples to leave: from the log, or from those that are entering."""
        self._watch()
        flipped = self._suffixes.flipped if self._layout.suffix_words else MINUS_INFINITY
        if self._next >= max(flipped, stretch.first):
            self._suffixes.stack.clear()
            self._leaving, self._same = entering, True
            left = int(np.searchsorted(stretch.places, self._next))
            self._progress[kernels.LEFT] = self._progress[kernels.FLIPPED] = self._watched = left
            return
        if self._layout.suffix_words and self._next >= flipped:
            entered = int(self._progress[kernels.ENTERED])
            self._flip(self._next, _place(stretch, entered))
        following = next(self._source, None)
        if following is None:
            end = self._suffixes.flipped if self._layout.suffix_words else self._tuples.size
            self._source = self._tuples.read(self._next, end, self._partition)
            following = next(self._source)
        self._next = following.last
        self._leaving = self._at_hand(following, self._groups.locate(following.tuples))
        if self._layout.suffix_words and len(following.places):
            top = self._suffixes.stack.pop(len(following.places))
            self._leaving.suffixes = top[::-1].copy()
        self._progress[kernels.LEFT] = self._watched = 0

    def _put_down(self, stretch: TupleRun) -> None:
        """Release tuples that entered; those still in the window are on the log."""
        self._watch()
        if self._emptied:
            slots = np.concatenate(self._emptied)
            empty = slots[self._groups.rows[slots, self._layout.row_at] == 0]
            self._emptied = [distinct(empty)]
        if not self._same:
            return
        left, flipped = (int(self._progress[i]) for i in (kernels.LEFT, kernels.FLIPPED))
        self._next = _place(stretch, left)
        if self._layout.suffix_words:
            self._suffixes.flipped = _place(stretch, max(left, flipped))
            self._keep_suffixes(left, flipped)
        self._leaving, self._same = self._nothing, False
        self._source = iter(())
        self._progress[kernels.LEFT] = self._watched = 0

    def _watch(self) -> None:
        """Record the groups of tuples that left, each tuple once."""
        left = int(self._progress[kernels.LEFT])
        if self.watches and left > self._watched:
            self._emptied.append(self._leaving.slots[self._watched : left])
            self._watched = left

    def _keep_suffixes(self, first: int, last: int) -> None:
        """Push the suffixes of tuples at hand back on the stack, the oldest on top."""
        if first < last:
            self._suffixes.stack.push(self._leaving.suffixes[first:last][::-1])

    def _flip(self, first: int, last: int) -> None:
        """Compute suffixes for the window, the tuples from `first` up to `last`."""
        stack = self._suffixes.stack
        stack.clear()
        self._progress[kernels.FLIPS] += 1
        for stretch in self._tuples.read_back(first, last, self._partition):
            hand = self._at_hand(stretch, self._groups.locate(stretch.tuples))
            kernels.push_suffixes(
                self._groups.rows,
                hand.slots,
                hand.tuples,
                0,
                len(hand.slots),
                *self._fixed,
                self._progress[kernels.FLIPS],
                hand.suffixes,
            )
            if len(hand.slots):
                stack.push(hand.suffixes[::-1])
        self._suffixes.flipped = last
        self._suffixes.stale = False
        self._source = iter(())

    def _at_hand(self, stretch: TupleRun, slots: Ints) -> _Hand:
        tuples = stretch.tuples
        return _Hand(
            tuples,
            slots,
            np.ascontiguousarray(tuples[:, -1]) if self._by_time else stretch.places,
            np.empty((len(tuples), self._layout.suffix_words), dtype=np.int64),
        )

    def _show_all(self, instant: Micros) -> Iterator[pa.RecordBatch]:
        """Show every group that has tuples in the window."""
        output, first = self._output, 0
        while True:
            before = output.rows
            first = output.standing(first)
            output.times[before : output.rows] = instant
            if first == len(self._groups.rows):
                return
            yield output.take()


def distinct(slots: Ints) -> Ints:
    """Return each row of a group that frames move once, in order; few at a time are sorted."""
    ordered = np.sort(slots)
    fresh = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    once: Ints = ordered[fresh]
    return once


_EMPTY: Ints = np.empty(0, dtype=np.int64)


def _place(stretch: TupleRun, number: int) -> int:
    """Return the place of the n-th tuple of a run, or its end."""
    return int(stretch.places[number]) if number < len(stretch.places) else stretch.last


#: key of the frames' facts among those of a partition
FRAMES = "frames"


class FrameSuffixStack:
    """Suffixes of the tuples of one frame, for the groups of one partition."""

    def __init__(self, facts: dict[str, Any], path: str, words: int) -> None:
        """Wrap the facts of one frame; the stack is in the file `path`."""
        self._facts = facts
        self.stack = SuffixStack(path, words, facts["fronts"])
        #: all tuples before this place have suffixes on the stack
        self.flipped: int = facts["flipped"]
        #: whether the suffixes must be rebuilt before they are used
        self.stale: bool = facts["stale"]

    def note(self) -> None:
        """Record what the next version needs."""
        self._facts.update(fronts=self.stack.size, flipped=self.flipped, stale=self.stale)


def suffix_stacks_of(
    partition: Partition, arena: Arena, frames: tuple[FrameLayout, ...]
) -> list[FrameSuffixStack]:
    """Return the suffix stack of each frame in a partition, empty if it was lost."""
    lost, partition.stale = partition.stale, False
    if lost or FRAMES not in partition.facts:
        partition.facts[FRAMES] = [
            {"fronts": 0, "flipped": MINUS_INFINITY, "stale": lost} for _ in frames
        ]
    found = [
        FrameSuffixStack(
            facts, arena.path(f"fronts-{number}-{partition.low:x}"), layout.suffix_words
        )
        for number, (facts, layout) in enumerate(zip(partition.facts[FRAMES], frames, strict=True))
    ]
    if lost:
        for suffixes in found:
            suffixes.stack.clear()
    return found
