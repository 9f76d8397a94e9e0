"""Byte sizes and intervals as people write them, and back.

Idea: a number and a unit are read as an exact fraction, so a size or interval is exact to the last
byte and microsecond; text that has no exact meaning is refused with an example.

Invariants:
1. `parse_interval(format_interval(n)) == n` (`test_every_interval_survives_writing_and_reading`).
2. A number without a unit is used as it is (`test_plain_numbers_are_bytes_to_the_last_one`).

Limits: months and years have no fixed length and are refused, as Spark's `window()` refuses them.
"""

from __future__ import annotations

import re
from fractions import Fraction

from icestream.core.errors import DefinitionError
from icestream.core.times import LONGEST, Micros

_NUMBER = r"\d{1,20}(?:\.\d{1,12})?"

#: power of two of each unit
_BYTE_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_BYTES = re.compile(rf"({_NUMBER})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE | re.ASCII)

_INTERVAL_UNITS: dict[str, Micros] = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT_UNITS = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "min": "minute",
    "mins": "minute",
    "h": "hour",
    "d": "day",
}
_UNIT_OF = {name + end: size for name, size in _INTERVAL_UNITS.items() for end in ("", "s")} | {
    short: _INTERVAL_UNITS[name] for short, name in _SHORT_UNITS.items()
}
_INTERVAL_PREFIX = re.compile(r"\Ainterval\s+", re.IGNORECASE | re.ASCII)
_INTERVAL_PART = re.compile(
    rf"([+-]?{_NUMBER})\s*([a-z]+)\s*(?:,\s*(?=\S)|)", re.IGNORECASE | re.ASCII
)


def parse_bytes(text: str | int) -> int:
    """Read a size with its unit, `"512 MB"` or `"64k"`, or a plain number, as bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = _BYTES.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            msg = f"cannot read {text!r} as a size; write bytes or for example '512 MB' or '2 GB'"
            raise DefinitionError(msg)
        size = int(Fraction(match[1]) * 2 ** _BYTE_UNITS[(match[2] or "").lower()])
    if size <= 0:
        msg = f"a size must be at least one byte; got {text!r}; write for example '512 MB'"
        raise DefinitionError(msg)
    return size


def format_bytes(size: int) -> str:
    """Format a number of bytes with the largest unit that keeps it readable."""
    if abs(size) < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KB", "MB", "GB"):
        value /= 1024
        if abs(value) < 1023.95:  # from here on one decimal would show 1024.0
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TB"


def parse_interval(text: str | int) -> Micros:
    """Read an interval with its units, `"1 hour 30 minutes"`, as microseconds."""
    if isinstance(text, int) and not isinstance(text, bool):
        total = Fraction(text)
    else:
        total = _sum_of_parts(text)
    if total.denominator != 1:
        msg = f"an interval is a whole number of microseconds; {text!r} is not: round it"
        raise DefinitionError(msg)
    if abs(total) > LONGEST:
        msg = f"the interval {text!r} is too long: it must not exceed {LONGEST} microseconds"
        raise DefinitionError(msg)
    return int(total)


def _sum_of_parts(text: object) -> Fraction:
    """Add up the parts of a written interval."""
    msg = (
        f"cannot read {text!r} as an interval; write for example '10 seconds', '1 hour 30 minutes' "
        "or '24 hours' (units: microseconds to weeks; months and years have no fixed length)"
    )
    if not isinstance(text, str):
        raise DefinitionError(msg)
    rest = _INTERVAL_PREFIX.sub("", text.strip())
    if not rest:
        raise DefinitionError(msg)
    total = Fraction(0)
    position = 0
    while position < len(rest):
        match = _INTERVAL_PART.match(rest, position)
        if match is None or match[2].lower() not in _UNIT_OF:
            raise DefinitionError(msg)
        total += Fraction(match[1]) * _UNIT_OF[match[2].lower()]
        position = match.end()
    return total


def format_interval(length: Micros) -> str:
    """Format an interval with the largest units that divide it, as `parse_interval` reads it."""
    if length == 0:
        return "0 seconds"
    parts = []
    sign, rest = ("-", -length) if length < 0 else ("", length)
    for name in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, rest = divmod(rest, _INTERVAL_UNITS[name])
        if count:
            parts.append(f"{sign}{count} {name}{'s' if count != 1 else ''}")
    return " ".join(parts)
