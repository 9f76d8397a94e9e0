"""Windows cut into panes: which pane an instant is in, which windows a pane is in.

Idea: a pane is the greatest common divisor of range and slide, so every window is a whole number of
panes and every instant is in one. Windows start at multiples of the slide plus the offset, as those
of Spark's `window()` do.

    offset 0, range 3 panes, slide 2 panes
    panes     0 1 2 3 4 5 6
    windows   [0 . .)
                  [2 . .)
                      [4 . .)

Invariant: first and last window of a pane, and the first open one, are those found by looking at
every start (`test_oracle_windows_of_an_instant`, `test_oracle_first_window_that_is_open`).

Cost: the number of panes in a window matters to nothing but the size of the directory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_interval


@dataclass(frozen=True)
class Windows:
    """A family of windows: range, slide and offset in microseconds."""

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
                f"a window must not slide further than it reaches: slide "
                f"{format_interval(self.slide)} > range {format_interval(self.range)}; events "
                "between windows would be in none. Use a longer range or a shorter slide"
            )
            raise DefinitionError(msg)
        if not -self.slide < self.offset < self.slide:
            msg = (
                f"a window's offset must be shorter than its slide {format_interval(self.slide)}; "
                f"got {format_interval(self.offset)}"
            )
            raise DefinitionError(msg)

    @cached_property
    def pane(self) -> Micros:
        """Return the length of a pane in microseconds."""
        return math.gcd(self.range, self.slide)

    @property
    def range_panes(self) -> int:
        """Return the panes of one window."""
        return self.range // self.pane

    @property
    def slide_panes(self) -> int:
        """Return the panes between the starts of neighbouring windows."""
        return self.slide // self.pane

    def panes_of(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the pane of each instant."""
        panes: npt.NDArray[np.int64] = (times - self.offset) // self.pane
        return panes

    def instant(self, pane: int) -> Micros:
        """Return when a pane begins."""
        return pane * self.pane + self.offset

    def first_start(self, pane: int) -> int:
        """Return the first pane of the earliest window that holds `pane`."""
        return (pane - self.range_panes) // self.slide_panes * self.slide_panes + self.slide_panes

    def last_end(self, pane: int) -> int:
        """Return the pane at which the latest window that holds `pane` ends."""
        return pane // self.slide_panes * self.slide_panes + self.range_panes

    def first_open(self, watermark: Micros) -> int:
        """Return the first pane of the earliest window that ends after the watermark."""
        reached = (watermark - self.offset) // self.pane
        return (
            reached - self.range_panes
        ) // self.slide_panes * self.slide_panes + self.slide_panes
