"""Other lifetimes for the same events: windows, points, for ever, later, and on a grid.

Idea: how long an event counts is a property of its lifetime, so a window is an operator that alters
lifetimes and nothing else. Each is a pure function of changes, without state.

Invariants:
1. Events get the lifetimes that the slow version gives them (`test_oracle_altered_lifetimes`).
2. Changes that leave the instants before a watermark alone still do
   (`test_altered_changes_leave_the_past_alone`).
3. Nothing runs past INFINITY (`test_lifetimes_end_at_infinity_at_the_latest`).

Cost: O(changes).

Limits: lifetimes are those of events, not of instants: altering what an aggregate, a difference or
a top-k has cut in pieces depends on the cuts.

References: AlterLifetime of temporal stream algebras; hopping windows as quantised lifetimes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import LE, RE, column_of


class Lifetime(Protocol):
    """A way to alter lifetimes."""

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes with other lifetimes, without those that are empty."""
        ...


@dataclass(frozen=True)
class WindowLifetime(Lifetime):
    """Events live for a duration from their start."""

    duration: Micros

    def __post_init__(self) -> None:
        """Refuse durations that are none."""
        _check_length("duration", self.duration)

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """End events a duration after their start."""
        le = column_of(changes, LE)
        return _with(changes, le, _plus(le, self.duration))


@dataclass(frozen=True)
class Forever(Lifetime):
    """Events live on."""

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """End no event."""
        return _with(changes, column_of(changes, LE), np.full(changes.num_rows, INFINITY))


@dataclass(frozen=True)
class Point(Lifetime):
    """Events live for the instant of their start."""

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """End events one instant after their start."""
        return WindowLifetime(1)(changes)


@dataclass(frozen=True)
class Shifted(Lifetime):
    """Events live as long as before, but later."""

    by: Micros

    def __post_init__(self) -> None:
        """Refuse to shift into the past."""
        if self.by < 0:
            msg = f"lifetimes cannot be shifted by {self.by}, into the past; shift the others"
            raise DefinitionError(msg)

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Begin and end events later."""
        le, re = (_plus(column_of(changes, name), self.by) for name in (LE, RE))
        return _with(changes, le, re)


@dataclass(frozen=True)
class Hopping(Lifetime):
    """Events live from the first instant on a grid at which a window holds them to the last.

    The window at an instant t of the grid holds what was alive past t - range, up to t.
    """

    range: Micros
    slide: Micros

    def __post_init__(self) -> None:
        """Refuse lengths that are none."""
        _check_length("range", self.range)
        _check_length("slide", self.slide)

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Begin and end events on the grid."""
        le, re = (column_of(changes, name) for name in (LE, RE))
        end = _up(_plus(re - 1, self.range), self.slide)
        return _with(changes, _up(le, self.slide), np.where(re == INFINITY, INFINITY, end))


def _plus(instants: Ints, length: Micros) -> Ints:
    """Add a length, stopping at INFINITY."""
    latest = INFINITY - length
    return np.where(instants > latest, INFINITY, np.minimum(instants, latest) + length)


def _up(instants: Ints, slide: Micros) -> Ints:
    """Round up to a multiple, stopping at INFINITY."""
    missing = (slide - instants % slide) % slide
    over = instants > INFINITY - missing
    return np.where(over, INFINITY, instants + np.where(over, 0, missing))


def _with(changes: pa.RecordBatch, le: Ints, re: Ints) -> pa.RecordBatch:
    for name, edges in ((LE, le), (RE, re)):
        place = changes.schema.get_field_index(name)
        changes = changes.set_column(place, changes.schema.field(place), pa.array(edges))
    lasting = le < re
    return changes if lasting.all() else changes.filter(pa.array(lasting))


def _check_length(name: str, length: Micros) -> None:
    if length <= 0:
        msg = f"the {name} of a lifetime must be longer than nothing; got {length} microseconds"
        raise DefinitionError(msg)
