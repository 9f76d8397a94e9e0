"""Session windows as pure data.

Idea: an event alone is the session from its time to its end, which is one gap later. The gap is the
same for all events, or each event has its own; then its end is one of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval


@dataclass(frozen=True)
class Session:
    """Session windows with a gap in microseconds, or with a gap of each event's own."""

    gap: Micros | None
    #: without a gap: the input column with the instant at which the session of an event alone ends
    until: str | None = None

    def __post_init__(self) -> None:
        """Refuse a gap that is not positive."""
        assert (self.gap is None) != (self.until is None)
        if self.gap is not None and self.gap <= 0:
            msg = f"a session's gap must be positive; got {format_interval(self.gap)}"
            raise DefinitionError(msg)

    def describe(self) -> dict[str, str]:
        """Return the windows for people and for checkpoints."""
        return {"kind": "session", "gap": self.text}

    @property
    def text(self) -> str:
        """Return the gap for people."""
        return f"until {self.until}" if self.gap is None else format_interval(self.gap)

    def late_before(self, watermark: Micros) -> Micros:
        """Return the instant before which the session of an event has ended at the watermark.

        With a gap of its own, only the event's own end tells whether it has.
        """
        if self.gap is None or watermark == MINUS_INFINITY:
            return watermark
        return watermark - self.gap + 1

    def settled_by(self, latest: Micros) -> Micros:
        """Return the end of the session of an event at `latest`, if no event follows.

        With a gap of its own, that is the event's own end.
        """
        return latest + (self.gap or 0)

    def heading(self, time: pa.DataType) -> pa.Field:
        """Return the first column of the result rows, given the type of the time column."""
        bounds = [pa.field("start", time), pa.field("end", time)]
        return pa.field("session_window", pa.struct(bounds))
