"""Time as Icestream represents it: int64 microseconds since the epoch, UTC."""

from __future__ import annotations

#: microseconds since the epoch, or a length of time in microseconds
Micros = int

#: later than every event; the right end of a lifetime that has not ended
INFINITY: Micros = 2**63 - 1
#: earlier than every event; the watermark before any event was seen
MINUS_INFINITY: Micros = -(2**63)
