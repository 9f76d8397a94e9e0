"""Sliding windows processed many slides at a time.

Idea: the panes that have slices determine which windows close, before any slice is read. So their
starts are listed, and one kernel goes through them (`kernels.grid.strides`), fed with portions of
the slices that enter and leave, until the rows it emits fill a batch.

Invariants:
1. The windows are those that contain a pane with a slice, each once, in order
   (`test_parity_windows_of_panes_beside_going_step_by_step`).
2. Rows are those of processing window by window
   (`test_oracle_windows_equal_the_obvious_computation`,
   `test_oracle_views_that_share_windows_equal_views_alone`).

Cost: see `kernels.grid.strides`; a few calls for each version.

Limits: sliding windows in append mode; others are processed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.grid import strides as kernels
from icestream.operators.grid.emission import Emission
from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.grid.slice_log import SlicePortion
from icestream.operators.grid.two_stacks import TwoStacks
from icestream.operators.protocol import Emitted
from icestream.plan.windows.grid import Sliding

#: windows listed at once
AT_ONCE = 4096


def starts_of(course: Sliding, panes: Ints, start: int, watermark: Micros) -> Iterator[Ints]:
    """Yield the starts, for a stride, of windows with one of the panes that have closed."""
    passed = course.grid.passed(watermark)
    panes = panes[np.searchsorted(panes, start) :] if start > MINUS_INFINITY else panes
    if watermark == MINUS_INFINITY or len(panes) == 0:
        return
    slide, phase = course.slide, course.phase
    last = (min(passed - course.range, int(panes[-1])) - phase) // slide * slide + phase
    firsts = (panes - course.range - phase) // slide * slide + phase + slide
    lasts = np.minimum((panes - phase) // slide * slide + phase, last)
    firsts = np.maximum(firsts, start)
    firsts[1:] = np.maximum(firsts[1:], lasts[:-1] + slide)
    counts = np.maximum((lasts - firsts) // slide + 1, 0)
    ends = np.cumsum(counts)
    for first in range(0, int(ends[-1]), AT_ONCE):
        numbers = np.arange(first, min(first + AT_ONCE, int(ends[-1])))
        pane = np.searchsorted(ends, numbers, side="right")
        yield firsts[pane] + slide * (numbers - (ends[pane] - counts[pane]))


class Stride:
    """One pass over the windows of a partition's groups."""

    def __init__(
        self,
        course: Sliding,
        groups: ResidentGroups,
        entering: Iterator[SlicePortion],
        leaving: Iterator[SlicePortion],
        output: Emission,
        two_stacks: TwoStacks | None,
    ) -> None:
        """Take slices as they are needed, in the order of panes.

        `two_stacks` has suffixes for slices that leave; None if none are needed.
        """
        self._course = course
        self._groups = groups
        self._entering = _Supply(entering)
        self._leaving = _Supply(leaving)
        self._output = output
        self._two_stacks = two_stacks
        #: suffixes at hand, for how many slices, and before which pane they exist
        self._suffixes = (np.empty((0, 0), dtype=np.int64), 0, INFINITY)
        #: slices from this pane on are also merged into the next back
        self._turning = INFINITY
        self._dead: list[Ints] = []
        self._take_suffixes()

    @property
    def added(self) -> int:
        """Return how many entries were added to running rows."""
        return self._entering.used

    def run(self, starts: Ints) -> Iterator[Emitted]:
        """Process windows; yield rows when they fill a batch."""
        entering, leaving, output = self._entering, self._leaving, self._output
        state = np.zeros(kernels.STATE, dtype=np.int64)
        while True:
            state[kernels.ENTERS], state[kernels.LEAVES] = entering.at, leaving.at
            state[kernels.ROWS], state[kernels.DEAD] = output.rows, 0
            dead = np.empty(len(leaving.portion.entries), dtype=np.int64)
            longest = max(len(entering.portion.entries), len(dead))
            why = self._groups.stride(
                (starts, self._course.range, self._course.slide),
                (*entering.portion.arrays, *leaving.portion.arrays),
                self._suffixes,
                self._turning,
                output.columns,
                dead,
                np.empty(longest, dtype=np.int64),
                state,
            )
            entering.at, leaving.at = int(state[kernels.ENTERS]), int(state[kernels.LEAVES])
            output.rows = int(state[kernels.ROWS])
            if state[kernels.DEAD]:
                self._dead.append(dead[: state[kernels.DEAD]].copy())
            if why == kernels.DONE:
                break
            if why == kernels.NEEDS_ENTERING:
                entering.advance()
            elif why == kernels.NEEDS_LEAVING:
                leaving.advance()
                self._take_suffixes()
            elif why == kernels.NEEDS_SUFFIXES:
                assert self._two_stacks is not None
                self._two_stacks.ready(int(starts[state[kernels.STEP]]))
                self._take_suffixes()
            else:
                yield from self.finish()
        if self._two_stacks is not None:
            self._two_stacks.build(int(starts[-1]))

    def _take_suffixes(self) -> None:
        """Take the suffixes of the slices at hand that have some."""
        if self._two_stacks is None:
            return
        portion, at = self._leaving.portion, self._leaving.at
        flipped = self._two_stacks.flipped
        ready = max(at, int(np.searchsorted(portion.panes, flipped)))
        rows = int(portion.bounds[ready] - portion.bounds[at])
        self._suffixes = (self._two_stacks.pop(rows), ready, flipped)
        self._turning = self._two_stacks.turning

    def finish(self) -> Iterator[Emitted]:
        """Yield the remaining rows, and release groups without entries."""
        if self._output.rows:
            yield from self._output.take(self._groups)
        if self._dead:
            self._groups.release(np.concatenate(self._dead))
            self._dead = []


_NO_ENTRIES = np.empty((0, 0), dtype=np.int64)
_NOTHING = SlicePortion(np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64), _NO_ENTRIES)
_NEVER_DUE = SlicePortion(np.array([INFINITY]), np.zeros(2, dtype=np.int64), _NO_ENTRIES)


class _Supply:
    """Portions of slices, one at a time; after the last, a slice that is never due."""

    def __init__(self, portions: Iterator[SlicePortion]) -> None:
        self._portions = portions
        self._before = 0
        self.portion = _NOTHING
        #: the next slice of the portion
        self.at = 0

    @property
    def used(self) -> int:
        return self._before + int(self.portion.bounds[self.at])

    def advance(self) -> None:
        """Go to the next portion, after the current one is used up."""
        self._before = self.used
        self.portion = next(self._portions, None) or _NEVER_DUE
        self.at = 0
