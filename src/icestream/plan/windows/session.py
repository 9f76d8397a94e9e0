"""Session windows as pure data."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_interval


@dataclass(frozen=True)
class Session:
    """Session windows with a gap in microseconds."""

    gap: Micros

    def __post_init__(self) -> None:
        """Refuse a gap that is not positive."""
        if self.gap <= 0:
            msg = f"a session's gap must be positive; got {format_interval(self.gap)}"
            raise DefinitionError(msg)

    def describe(self) -> dict[str, str]:
        """Return the windows for people and for checkpoints."""
        return {"kind": "session", "gap": format_interval(self.gap)}

    def late_before(self, watermark: Micros) -> Micros:
        """Return the instant before which the session of an event has ended at the watermark."""
        return MINUS_INFINITY if watermark == MINUS_INFINITY else watermark - self.gap + 1

    def settled_by(self, latest: Micros) -> Micros:
        """Return the end of the session of an event at `latest`, if no event follows."""
        return latest + self.gap

    def heading(self, time: pa.DataType) -> pa.Field:
        """Return the first column of the result rows, given the type of the time column."""
        bounds = [pa.field("start", time), pa.field("end", time)]
        return pa.field("session_window", pa.struct(bounds))
