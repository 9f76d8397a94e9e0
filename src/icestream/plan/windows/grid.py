"""Windows divided into panes: the pane of an instant, the windows of a pane.

Idea: a pane is the greatest common divisor of all ranges and slides that share it, so every window
is a whole number of panes and every instant is in one. Windows start at multiples of their slide
plus their offset, like those of Spark's `window()`. A `WindowSequence` defines in which order the
windows of one kind are emitted, and which panes enter and leave between two of them.

    offset 0, range 3 panes, slide 2 panes        cumulative, size 3 panes, step 1 pane
    panes     0 1 2 3 4 5 6                       panes     0 1 2 3 4 5
    windows   [0 . .)                             windows   [0)
                  [2 . .)                                   [0 .)
                      [4 . .)                               [0 . .)
                                                                  [3)
Invariants:
1. The first and last window of a pane, and the first open window, equal those of an exhaustive
   search (`test_oracle_windows_of_an_instant`, `test_oracle_first_window_that_is_open`).
2. A sequence emits every window that has a pane with events once, in the order of their ends
   (`test_oracle_a_course_emits_every_window_with_events`).

Cost: the number of panes in a window affects only the size of the directory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval


class _OnGrid:
    """What windows on a grid have in common."""

    def late_before(self, watermark: Micros) -> Micros:
        """Return the instant before which no event is in an open window."""
        if watermark == MINUS_INFINITY:
            return MINUS_INFINITY
        course = self._alone()
        return course.grid.instant(course.first_open(watermark))

    def settled_by(self, latest: Micros) -> Micros:
        """Return the watermark that closes all windows of an event."""
        course = self._alone()
        return course.grid.instant(course.last_end(course.grid.passed(latest)))

    def heading(self, time: pa.DataType) -> pa.Field:
        """Return the first column of the result rows: start and end of the window."""
        return window_column("window", time)

    def later(self, by: Micros) -> Windows | Cumulative:
        """Return the windows of events that live later."""
        assert isinstance(self, Windows | Cumulative)
        whole = self.slide if isinstance(self, Windows) else self.size
        return replace(self, offset=(self.offset + by) % whole) if by else self

    def _alone(self) -> WindowSequence:
        """Return the sequence of these windows over their own panes."""
        assert isinstance(self, Windows | Cumulative)
        return self.on(Grid.of([self]))


@dataclass(frozen=True)
class Windows(_OnGrid):
    """Sliding, hopping or tumbling windows: range, slide and offset in microseconds."""

    range: Micros
    slide: Micros
    offset: Micros = 0

    def __post_init__(self) -> None:
        """Refuse windows that leave gaps or never move."""
        if self.range <= 0:
            msg = f"a window's range must be positive; got {format_interval(self.range)}"
            raise DefinitionError(msg)
        if self.slide <= 0:
            msg = f"a window's slide must be positive; got {format_interval(self.slide)}"
            raise DefinitionError(msg)
        if self.slide > self.range:
            msg = (
                f"a window must not slide further than its range: slide "
                f"{format_interval(self.slide)} > range {format_interval(self.range)}; events "
                "between windows would be lost. Use a longer range or a shorter slide"
            )
            raise DefinitionError(msg)
        _check_offset(self.offset, self.slide, "slide")

    @property
    def tumbles(self) -> bool:
        return self.slide == self.range

    def on(self, grid: Grid) -> WindowSequence:
        """Return the sequence of these windows over the panes of a grid."""
        return Sliding(
            grid,
            self.range // grid.pane,
            self.slide // grid.pane,
            (self.offset - grid.origin) // grid.pane,
        )

    def describe(self) -> dict[str, str]:
        """Return the windows for people and for checkpoints."""
        return {
            "kind": "window",
            "range": format_interval(self.range),
            "slide": format_interval(self.slide),
            "offset": format_interval(self.offset),
        }


@dataclass(frozen=True)
class Cumulative(_OnGrid):
    """Windows that grow by a step up to their full size, then start again."""

    size: Micros
    step: Micros
    offset: Micros = 0

    def __post_init__(self) -> None:
        """Refuse steps that do not divide the size."""
        if self.step <= 0:
            msg = f"a cumulative window's step must be positive; got {format_interval(self.step)}"
            raise DefinitionError(msg)
        if self.size <= 0 or self.size % self.step:
            msg = (
                f"a cumulative window's size must be a multiple of its step "
                f"{format_interval(self.step)}; got {format_interval(self.size)}"
            )
            raise DefinitionError(msg)
        _check_offset(self.offset, self.size, "size")

    @property
    def range(self) -> Micros:
        """Return the length of the longest window."""
        return self.size

    @property
    def slide(self) -> Micros:
        """Return the time between two results."""
        return self.step

    def on(self, grid: Grid) -> WindowSequence:
        """Return the sequence of these windows over the panes of a grid."""
        return Cumulating(
            grid,
            self.size // grid.pane,
            self.step // grid.pane,
            (self.offset - grid.origin) // grid.pane,
        )

    def describe(self) -> dict[str, str]:
        """Return the windows for people and for checkpoints."""
        return {
            "kind": "cumulative window",
            "size": format_interval(self.size),
            "step": format_interval(self.step),
            "offset": format_interval(self.offset),
        }


def window_column(name: str, time: pa.DataType) -> pa.Field:
    """Return a column with the start and end of each window on a grid."""
    return pa.field(name, pa.struct([pa.field("start", time), pa.field("end", time)]))


def _check_offset(offset: Micros, length: Micros, what: str) -> None:
    if not -length < offset < length:
        msg = (
            f"a window's offset must be shorter than its {what} {format_interval(length)}; "
            f"got {format_interval(offset)}"
        )
        raise DefinitionError(msg)


@dataclass(frozen=True, slots=True)
class Grid:
    """Panes of one length from an origin, in both directions."""

    pane: Micros
    origin: Micros = 0

    @classmethod
    def of(cls, windows: Iterable[Windows | Cumulative]) -> Grid:
        """Return the longest panes that all the given windows consist of."""
        kinds = list(windows)
        origin = kinds[0].offset
        lengths = [(each.range, each.slide, each.offset - origin) for each in kinds]
        return cls(math.gcd(*(length for three in lengths for length in three)), origin)

    def panes_of(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        panes: npt.NDArray[np.int64] = (times - self.origin) // self.pane
        return panes

    def instant(self, pane: int) -> Micros:
        return pane * self.pane + self.origin

    def passed(self, watermark: Micros) -> int:
        """Return the first pane that a watermark has not passed."""
        return (watermark - self.origin) // self.pane


@dataclass(frozen=True, slots=True)
class WindowStep:
    """One window: panes before `end` enter, it is emitted, then panes before `leave` go."""

    start: int
    end: int
    leave: int


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of equal length, `slide` panes apart."""

    grid: Grid
    range: int
    slide: int
    phase: int = 0

    @property
    def tumbles(self) -> bool:
        """Return whether no two windows share a pane."""
        return self.slide == self.range

    def next(self, start: int, done: int, first: int) -> WindowStep:
        """Return the first window from `start` on that reaches pane `first`."""
        chosen = max(start, self.first_start(first))
        return WindowStep(chosen, chosen + self.range, chosen + self.slide)

    def first_start(self, pane: int) -> int:
        """Return the first pane of the earliest window that contains `pane`."""
        return self._start_before(pane - self.range) + self.slide

    def last_end(self, pane: int) -> int:
        """Return the end of the latest window that contains `pane`."""
        return self._start_before(pane) + self.range

    def first_end(self, pane: int) -> int:
        """Return the end of the earliest window that contains `pane`."""
        return self.first_start(pane) + self.range

    def first_open(self, watermark: Micros) -> int:
        """Return the start of the earliest window that ends after the watermark."""
        return self._start_before(self.grid.passed(watermark) - self.range) + self.slide

    def _start_before(self, pane: int) -> int:
        return (pane - self.phase) // self.slide * self.slide + self.phase


@dataclass(frozen=True, slots=True)
class Cumulating:
    """Windows with one start whose ends are `step` panes apart, up to `size` panes."""

    grid: Grid
    size: int
    step: int
    phase: int = 0

    @property
    def tumbles(self) -> bool:
        """Return True: all panes leave with the window of full size."""
        return True

    def next(self, start: int, done: int, first: int) -> WindowStep:
        """Return the first window that ends after `done` and contains a pane with events."""
        chosen = max(start, self._start(first))
        end = max(self.first_end(first), self.first_end(done))
        return WindowStep(chosen, end, end if end == chosen + self.size else chosen)

    def last_end(self, pane: int) -> int:
        """Return the end of the window of full size that contains `pane`."""
        return self._start(pane) + self.size

    def first_end(self, pane: int) -> int:
        """Return the end of the shortest window that contains `pane`."""
        return (pane - self.phase) // self.step * self.step + self.step + self.phase

    def first_open(self, watermark: Micros) -> int:
        """Return the start of the windows that contain the watermark."""
        return self._start(self.grid.passed(watermark))

    def _start(self, pane: int) -> int:
        return (pane - self.phase) // self.size * self.size + self.phase


#: the windows of one kind over the panes of a grid, in the order they are emitted
WindowSequence = Sliding | Cumulating
