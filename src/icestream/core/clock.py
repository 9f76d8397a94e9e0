"""Time that is asked for, so that tests can answer."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a component learns what time it is."""

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        return time.monotonic()
