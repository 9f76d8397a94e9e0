"""The clock, as an object, so that tests can replace it."""

from __future__ import annotations

import time
from typing import Protocol

from icestream.core.times import Micros


class Clock(Protocol):
    """The source of time of a component."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def now(self) -> Micros:
        """Return the time of day, comparable with the event times that producers write."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> Micros:
        return time.time_ns() // 1000
