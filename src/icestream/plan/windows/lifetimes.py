"""Lifetimes as pure data: how long an event counts, given when it began and ended.

Idea: how long an event counts is a property of its lifetime, so a window over events is another
lifetime for the same events and nothing else. Each kind maps starts and ends to others.

Invariants:
1. Events get the lifetimes that the slow version gives them (`test_oracle_altered_lifetimes`).
2. Nothing runs past INFINITY (`test_lifetimes_end_at_infinity_at_the_latest`).

References: AlterLifetime of temporal stream algebras; hopping windows as quantised lifetimes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, Micros


class Lifetime(ABC):
    """A kind of lifetime."""

    @abstractmethod
    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Return other starts and ends for events; a lifetime that ends at its start is empty."""


@dataclass(frozen=True)
class WindowLifetime(Lifetime):
    """Events live for a duration from their start."""

    duration: Micros

    def __post_init__(self) -> None:
        """Refuse a duration that is not positive."""
        _check_length("duration", self.duration)

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """End events a duration after their start."""
        return starts, _plus(starts, self.duration)


@dataclass(frozen=True)
class Forever(Lifetime):
    """Events live on."""

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """End no event."""
        return starts, np.full(len(starts), INFINITY)


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
            msg = f"lifetimes cannot be shifted by {self.by}, into the past; shift the others"
            raise DefinitionError(msg)

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Begin and end events later."""
        return _plus(starts, self.by), _plus(ends, self.by)


@dataclass(frozen=True)
class Hopping(Lifetime):
    """Events live from the first instant on a grid at which a window holds them to the last.

    The window at an instant t of the grid holds what was alive past t - range, up to t.
    """

    range: Micros
    slide: Micros

    def __post_init__(self) -> None:
        """Refuse lengths that are not positive."""
        _check_length("range", self.range)
        _check_length("slide", self.slide)

    def bounds(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Begin and end events on the grid."""
        last = _up(_plus(ends - 1, self.range), self.slide)
        return _up(starts, self.slide), np.where(ends == INFINITY, INFINITY, last)


def _plus(instants: Ints, length: Micros) -> Ints:
    """Add a length, stopping at INFINITY."""
    latest = INFINITY - length
    return np.where(instants > latest, INFINITY, np.minimum(instants, latest) + length)


def _up(instants: Ints, slide: Micros) -> Ints:
    """Round up to a multiple, stopping at INFINITY."""
    missing = (slide - instants % slide) % slide
    over = instants > INFINITY - missing
    return np.where(over, INFINITY, instants + np.where(over, 0, missing))


def _check_length(name: str, length: Micros) -> None:
    if length <= 0:
        msg = f"the {name} of a lifetime must be positive; got {length} microseconds"
        raise DefinitionError(msg)
