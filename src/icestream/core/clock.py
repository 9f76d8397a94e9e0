"""Time that is asked for, so that tests can answer."""

from __future__ import annotations

import time
from typing import Protocol

from icestream.core.times import Micros


class Clock(Protocol):
    """Where a component learns what time it is."""

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        ...

    def now(self) -> Micros:
        """Return the time of day, comparable with what producers of events write."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        return time.monotonic()

    def now(self) -> Micros:
        """Return the time of day, comparable with what producers of events write."""
        return time.time_ns() // 1000
