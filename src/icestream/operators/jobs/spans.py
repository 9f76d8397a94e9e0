"""Which windows a tuple with a time span belongs to.

Idea: windows have one or more lengths, each on a grid of its own. A tuple [ts1, ts2) may reach over
the border of a window; the operator's rule then defines which windows it belongs to.

    windows   [0         )[10        )        tuple [7, 12)
    begin     x                               where it begins
    end                    x                  where its last instant is
    overlap   x            x                  wherever it has an instant
    inside                                    only where it lies completely: nowhere
    whole                                     the same, but a tuple over a border is rejected

Invariants:
1. The windows are those found by looking at every one (`test_oracle_windows_of_spans`).
2. Once the watermark is `lag` after the end of a window, no tuple of it can arrive any more
   (`test_oracle_no_tuple_comes_after_its_window_was_reported`).

References: Madsen, Zhou, Su (2016), section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError, InputError
from icestream.core.times import Micros
from icestream.core.units import format_interval
from icestream.plan.windows.grid import Windows

Spanning = Literal["begin", "end", "overlap", "inside", "whole"]
SPANNING: tuple[Spanning, ...] = ("begin", "end", "overlap", "inside", "whole")


@dataclass(frozen=True)
class Lag:
    """How far behind the watermark tuples of a stream may be."""

    #: ts1 of every tuple to come is at least the watermark minus this
    begin: Micros = 0
    #: ts2 of every tuple to come is later than the watermark minus this
    end: Micros = 0


@dataclass(frozen=True)
class WindowSpans:
    """Windows of different lengths, and the rule for tuples over a border."""

    windows: tuple[Windows, ...]
    spanning: Spanning = "begin"

    def __post_init__(self) -> None:
        """Reject windows of equal length, and unknown rules."""
        if self.spanning not in SPANNING:
            msg = f"spanning must be one of {', '.join(SPANNING)}; got {self.spanning!r}"
            raise DefinitionError(msg)
        lengths = [each.range for each in self.windows]
        if not lengths or len(set(lengths)) < len(lengths):
            names = [format_interval(length) for length in lengths]
            msg = f"the windows of an operator must have different lengths; got {names}"
            raise DefinitionError(msg)

    @property
    def longest(self) -> Micros:
        return max(each.range for each in self.windows)

    @property
    def overlaps(self) -> bool:
        """Return whether an instant may be in more than one window."""
        return len(self.windows) > 1 or not self.windows[0].tumbles

    def lag(self, given: Lag) -> Micros:
        """Return how far the watermark must be after a window's end for it to be complete."""
        return given.begin if self.spanning in {"begin", "overlap"} else given.end

    def assign(self, ts1: Ints, ts2: Ints) -> tuple[Ints, Ints, Ints]:
        """Return row, kind and start of every window that tuples belong to, kind by kind."""
        if len(self.windows) == 1:
            rows, starts = assign(self.windows[0], ts1, ts2, self.spanning)
            return rows, np.zeros(len(rows), dtype=np.int64), starts
        found = [assign(each, ts1, ts2, self.spanning) for each in self.windows]
        kinds = [np.full(len(rows), kind) for kind, (rows, _) in enumerate(found)]
        rows, starts = (np.concatenate(part) for part in zip(*found, strict=True))
        return rows, np.concatenate(kinds), starts

    def __str__(self) -> str:
        names = ", ".join(named(each) for each in self.windows)
        return names if self.spanning == "begin" else f"{names} by {self.spanning}"


def assign(windows: Windows, ts1: Ints, ts2: Ints, spanning: Spanning) -> tuple[Ints, Ints]:
    """Return row and start of every window of one kind that the spans of tuples belong to."""
    last = ts2 - 1
    if windows.tumbles and spanning in {"begin", "end"}:
        return np.arange(len(ts1)), _last(windows, ts1 if spanning == "begin" else last)
    match spanning:
        case "begin":
            first, final = _first(windows, ts1), _last(windows, ts1)
        case "end":
            first, final = _first(windows, last), _last(windows, last)
        case "overlap":
            first, final = _first(windows, ts1), _last(windows, last)
        case _:
            first, final = _first(windows, last), _last(windows, ts1)
            if spanning == "whole":
                _refuse_borders(windows, ts1, last, first, final)
    counts = np.maximum((final - first) // windows.slide + 1, 0)
    rows = np.repeat(np.arange(len(ts1)), counts)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, first[rows] + nth * windows.slide


def named(windows: Windows) -> str:
    """Return windows of one kind, to which spans are assigned, as readable text."""
    text = format_interval(windows.range)
    if not windows.tumbles:
        text += f" every {format_interval(windows.slide)}"
    return text + (f" from {format_interval(windows.offset)}" if windows.offset else "")


def _last(windows: Windows, instants: Ints) -> Ints:
    """Return the start of the latest window that holds each instant."""
    found: Ints = (instants - windows.offset) // windows.slide * windows.slide + windows.offset
    return found


def _first(windows: Windows, instants: Ints) -> Ints:
    """Return the start of the earliest window that holds each instant."""
    return _last(windows, instants - windows.range) + windows.slide


def _refuse_borders(windows: Windows, ts1: Ints, last: Ints, first: Ints, final: Ints) -> None:
    over = (_first(windows, ts1) != first) | (_last(windows, last) != final)
    if over.any():
        at = int(np.argmax(over))
        msg = (
            f"the tuple [{ts1[at]}, {last[at] + 1}) reaches over the border of a window of "
            f"{named(windows)}: set spanning= to choose its windows, or cut it with map"
        )
        raise InputError(msg)
