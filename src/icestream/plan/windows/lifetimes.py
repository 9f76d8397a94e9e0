"""Lifetimes as pure data: how long an event counts, given its start and end.

Idea: how long an event counts is a property of its lifetime, so a window over events only gives the
same events other lifetimes. Each kind maps starts and ends to others.

Invariants:
1. Events get the lifetimes of the reference version (`test_oracle_altered_lifetimes`).
2. No lifetime exceeds INFINITY (`test_lifetimes_end_at_infinity_at_the_latest`).

References: AlterLifetime of temporal stream algebras; hopping windows as quantised lifetimes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, Micros
from icestream.core.units import format_interval


class Lifetime(ABC):
    """A kind of lifetime."""

    @abstractmethod
    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Return the new starts and ends of events; a lifetime that ends at its start is empty."""


@dataclass(frozen=True)
class WindowLifetime(Lifetime):
    """Events live for a duration from their start."""

    duration: Micros

    def __post_init__(self) -> None:
        """Refuse a duration that is not positive."""
        _check_length("duration", self.duration)

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """End events the duration after their start."""
        return starts, _plus(starts, self.duration)


@dataclass(frozen=True)
class Forever(Lifetime):
    """Events live forever."""

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        return starts, np.full(len(starts), INFINITY)


@dataclass(frozen=True)
class Always(Lifetime):
    """Events are rows of a table, without a time: all live at the last instant there is."""

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Move all events to the last instant."""
        return np.full(len(starts), INFINITY - 1), np.full(len(starts), INFINITY)


@dataclass(frozen=True)
class Point(Lifetime):
    """Events live for the instant of their start."""

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """End events one instant after their start."""
        return starts, _plus(starts, 1)


@dataclass(frozen=True)
class Shifted(Lifetime):
    """Events live as long as before, but later."""

    by: Micros

    def __post_init__(self) -> None:
        """Refuse to shift into the past."""
        if self.by < 0:
            by = format_interval(self.by)
            msg = f"lifetimes cannot be shifted into the past, by {by}; shift the other stream"
            raise DefinitionError(msg)

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Move starts and ends to later instants."""
        return _plus(starts, self.by), _plus(ends, self.by)


@dataclass(frozen=True)
class Hopping(Lifetime):
    """Events live from the end of the first window of a grid that contains them to the last.

    The window that ends at t contains what was alive in [t - range, t); it is seen from t on.
    """

    range: Micros
    slide: Micros
    #: how far the grid is moved, as all events are
    offset: Micros = field(default=0, repr=False)

    def __post_init__(self) -> None:
        """Refuse lengths that are not positive."""
        _check_length("range", self.range)
        _check_length("slide", self.slide)

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        first = _up(_plus(starts, 1), self.slide, self.offset)
        return first, _up(_plus(ends, self.range), self.slide, self.offset)


def _plus(instants: Ints, length: Micros) -> Ints:
    """Add a length, limited to INFINITY."""
    latest = INFINITY - length
    return np.where(instants > latest, INFINITY, np.minimum(instants, latest) + length)


def _up(instants: Ints, slide: Micros, offset: Micros) -> Ints:
    """Round up to a multiple plus an offset, limited to INFINITY."""
    missing = (offset - instants) % slide
    over = instants > INFINITY - missing
    return np.where(over, INFINITY, instants + np.where(over, 0, missing))


def _check_length(name: str, length: Micros) -> None:
    if length <= 0:
        msg = f"the {name} of a lifetime must be positive; got {length} microseconds"
        raise DefinitionError(msg)
