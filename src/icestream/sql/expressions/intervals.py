"""The text of intervals: days, hours, minutes and parts of seconds.

Idea: three spellings: a number followed by its unit, a clock as in `1 02:03:04`, or a list of
numbers with units. Each is converted to parts, a number and a unit; years and months are not
supported.

Invariants:
1. Intervals have the length that Spark gives them (`test_oracle_times`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

#: a number and its unit
Part = tuple[Decimal, str]

#: microseconds
_UNITS = {
    "week": 604_800_000_000, "day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000,
    "second": 1_000_000, "millisecond": 1_000, "microsecond": 1,
}  # fmt: skip
_CLOCK = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<day>\d+)\s+)?(?P<hour>\d+):(?P<minute>\d+)(?::(?P<second>\d+(?:\.\d*)?))?"
)
_AMOUNT = re.compile(r"\s*([+-]?\s*\d+(?:\.\d*)?)\s*([a-z]+)", re.IGNORECASE)
_SINGLE = re.compile(r"\s*[+-]?\s*\d+(?:\.\d*)?\s*")


def parts_of(written: str, unit: str) -> list[Part]:
    """Return the parts of the text of an interval; none if it cannot be read.

    Args:
        written: the text between the quotes.
        unit: the word after it, or nothing.
    """
    return list(_parts(written, unit))


def micros_in(parts: Sequence[Part]) -> int:
    """Return the microseconds of the text of an interval in an SQL expression."""
    return int(sum(number * _UNITS[unit] for number, unit in parts))


def _parts(written: str, unit: str) -> Iterator[Part]:
    if unit and _SINGLE.fullmatch(written):
        yield from _one(re.sub(r"\s", "", written), unit)
        return
    clock = _CLOCK.fullmatch(written.strip())
    if clock:
        sign = -1 if clock["sign"] == "-" else 1
        for name in ("day", "hour", "minute", "second"):
            yield sign * Decimal(clock[name] or 0), name
        return
    if not _AMOUNT.sub("", written).strip():
        for number, name in _AMOUNT.findall(written):
            yield from _one(re.sub(r"\s", "", number), name)


def _one(number: str, unit: str) -> Iterator[Part]:
    name = unit.lower().removesuffix("s")
    if name in _UNITS:
        yield Decimal(number), name
