"""Time as Icestream represents it: int64 microseconds since the epoch, UTC."""

from __future__ import annotations

#: microseconds since the epoch, or a length of time in microseconds
Micros = int

#: 24 hours, whatever days a zone has
DAY: Micros = 86_400_000_000
#: a Gregorian year, on average
YEAR: Micros = 31_556_952_000_000
#: event times are at most so far from the epoch, either way: about 146,000 years
FURTHEST: Micros = 2**62
#: the longest interval: a time and three of them, for range, slide and delay, fit 64 bits
LONGEST: Micros = 2**60
#: names of time zones without an offset
UTC_ZONES = ("UTC", "Etc/UTC", "Z", "GMT", "+00:00", "Etc/GMT", "UCT", "Zulu")
#: later than every event; the right end of a lifetime that has not ended
INFINITY: Micros = 2**63 - 1
#: earlier than every event; the watermark before any event was seen
MINUS_INFINITY: Micros = -(2**63)
