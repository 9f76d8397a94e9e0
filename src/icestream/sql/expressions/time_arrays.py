"""Dates and timestamps over Arrow arrays: text, parts, truncation, and the session's time zone.

Idea: a timestamp is microseconds since 1970 in UTC. Its date, hour or text depends on the time zone
of the session; so it is converted to a local timestamp, which has no zone, processed, and converted
back. Text is parsed by one regular expression for all rows.

Invariants:
1. A local time that occurs twice means the earlier one, or behind sums of days the one with the
   offset of before, and one that does not exist is moved forward by the gap, as in Spark
   (`test_oracle_zones_with_summer_time`, `test_oracle_days_of_a_zone`).
2. Text that is not a time is NULL (`test_oracle_casts`).

3. Daylight saving time goes on where the tables of zones end, in 2037
   (`test_oracle_zones_have_their_rules_after_2037`).

Limits: years 0001 to 9999 in text. Zones in text: Z, UTC, GMT, +hh:mm and -hh:mm only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.core.times import DAY
from icestream.sql.expressions.decimal_arithmetic import valid
from icestream.sql.expressions.types import DATE, INT, NTZ, is_zoned

_SECOND = 1_000_000
_QUARTER = 900 * _SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: from 2037 on, until dates end, Python knows the rules of zones
_KNOWN_UNTIL, _LAST_YEAR = (
    int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * _SECOND for year in (2037, 9999)
)
BLANKS = "".join(map(chr, range(33))) + "\x7f"

_DATE_TIME = (
    r"^(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[ T](?P<rest>(?:(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})"
    r"(?:\.(?P<fraction>\d*))?)?)?)?"
    r" ?(?P<zone>Z|UTC|GMT|[+-]\d{1,2}:\d{1,2})?))?)?)?$"
)
_DATE = r"^(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[ T].*)?)?)?$"
_UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month",
    "mon": "month", "mm": "month", "week": "week", "day": "day", "dd": "day", "hour": "hour",
    "minute": "minute", "second": "second", "millisecond": "millisecond",
    "microsecond": "microsecond",
}  # fmt: skip

#: within these units the offset of a zone does not change
_CLOCK_UNITS = ("hour", "minute", "second", "millisecond")


def to_local(array: pa.Array, zone: str) -> pa.Array:
    """Return an array of timestamps in the local time of a zone; others unchanged."""
    if is_zoned(array.type):
        local = pc.local_timestamp(array.cast(pa.timestamp("us", zone)))
        late = _late(array, zone)
        if len(late):
            moved, instants = micros_of(local).copy(), micros_of(array)[late]
            moved[late] = instants + _offsets(instants, zone, local=False)
            local = from_micros(moved, valid(array), NTZ)
        return local
    if array.type == DATE:
        return from_micros(days_of(array) * DAY, valid(array), NTZ)
    return array


def to_instant(local: pa.Array, zone: str) -> pa.Array:
    """Return an array of instants for local times in a zone: the earlier, or that after a gap."""
    if zone in ("UTC", "Etc/UTC"):
        return local.cast(pa.timestamp("us", zone))
    near = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    ahead = micros_of(pc.local_timestamp(near)) - micros_of(near)
    late = _late(local, zone)
    if len(late):
        ahead[late] = _offsets(micros_of(local)[late], zone, local=True)
    return from_micros(micros_of(local) - ahead, valid(local), pa.timestamp("us", zone))


def _late(array: pa.Array, zone: str) -> Ints:
    """Return the places of times whose daylight saving time Arrow does not know."""
    if zone in ("UTC", "Etc/UTC") or zone.startswith(("+", "-")):
        return np.empty(0, dtype=np.int64)
    micros = micros_of(array)
    return np.flatnonzero((micros >= _KNOWN_UNTIL) & (micros < _LAST_YEAR))


def _offsets(micros: Ints, zone: str, *, local: bool) -> Ints:
    """Return by how much a zone is ahead at late instants, or at local times.

    Clocks change at quarters of an hour, so each is asked for once.
    """
    quarters, places = np.unique(micros // _QUARTER, return_inverse=True)
    own, kept = ZoneInfo(zone), _EPOCH.replace(tzinfo=None)
    found = []
    for quarter in quarters.tolist():
        length = timedelta(microseconds=quarter * _QUARTER)
        time = (kept + length).replace(tzinfo=own) if local else (_EPOCH + length).astimezone(own)
        found.append(time.utcoffset() or timedelta())
    return np.array([each // timedelta(microseconds=1) for each in found])[places]


def micros_of(array: pa.Array) -> Ints:
    """Return an array of timestamps or intervals as microseconds; arbitrary where NULL."""
    numbers: Ints = array.view(pa.int64()).fill_null(0).to_numpy()
    return numbers


def days_of(array: pa.Array) -> Ints:
    """Return an array of dates as days since 1970; arbitrary where they are NULL."""
    numbers: Ints = array.view(INT).fill_null(0).to_numpy().astype(np.int64)
    return numbers


def from_micros(values: Ints, ok: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Return microseconds as an array of timestamps or intervals."""
    return pa.array(values, pa.int64(), mask=None if ok.all() else ~ok).view(kind)


def from_days(values: Ints, ok: npt.NDArray[np.bool_]) -> pa.Array:
    """Return days since 1970 as an array of dates; NULL if out of range."""
    ok = ok & (values >= -(2**31)) & (values < 2**31)
    kept = np.where(ok, values, 0).astype(np.int32)
    return pa.array(kept, mask=None if ok.all() else ~ok).view(DATE)


def to_date(array: pa.Array, zone: str) -> pa.Array:
    """Return an array of timestamps as dates."""
    local = to_local(array, zone)
    return from_days(micros_of(local) // DAY, valid(array))


def to_text(array: pa.Array, zone: str) -> pa.Array:
    """Return an array of timestamps or dates as text, without trailing zeros in fractions."""
    if array.type == DATE:
        return pc.strftime(to_local(array, zone), "%Y-%m-%d")
    text = pc.strftime(to_local(array, zone), "%Y-%m-%d %H:%M:%S")
    return pc.replace_substring_regex(text, r"\.?0*$", "") if len(text) else text


def _parts(text: pa.Array, pattern: str) -> tuple[pa.StructArray, npt.NDArray[np.bool_]]:
    trimmed = pc.utf8_trim(text, characters=BLANKS)
    found = pc.extract_regex(trimmed, pattern)
    return found, valid(found)


def _number(parts: pa.StructArray, name: str, default: int) -> Ints:
    text = pc.struct_field(parts, name)
    text = pc.if_else(pc.equal(pc.fill_null(text, ""), ""), str(default), text)
    numbers: Ints = text.cast(pa.int64()).to_numpy()
    return numbers


def _days(parts: pa.StructArray, ok: npt.NDArray[np.bool_]) -> tuple[Ints, Any]:
    """Return days since 1970 of year, month and day, and which of them exist."""
    year, month = _number(parts, "year", 1970), _number(parts, "month", 1)
    day = _number(parts, "day", 1)
    ok = ok & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(ok, (year - 1970) * 12 + month - 1, 0)
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    after = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return first + day - 1, ok & (first + day - 1 < after)


def date_from_text(text: pa.Array) -> pa.Array:
    """Read an array of dates; NULL where the text is none."""
    days, ok = _days(*_parts(text, _DATE))
    return from_days(days, ok)


def timestamp_from_text(text: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Read an array of timestamps; NULL where the text is none."""
    parts, ok = _parts(text, _DATE_TIME)
    days, ok = _days(parts, ok)
    hour, minute = _number(parts, "hour", 0), _number(parts, "minute", 0)
    second = _number(parts, "second", 0)
    fraction = pc.utf8_rpad(
        pc.utf8_slice_codeunits(pc.fill_null(pc.struct_field(parts, "fraction"), ""), 0, 6), 6, "0"
    )
    ok = ok & (hour < 24) & (minute < 60) & (second < 60)
    written = pc.fill_null(pc.struct_field(parts, "zone"), "")
    seconds = (hour * 60 + minute) * 60 + second
    micros = days * DAY + seconds * _SECOND + fraction.cast(pa.int64()).to_numpy()
    local = from_micros(np.where(ok, micros, 0), ok, NTZ)
    if not is_zoned(kind):
        return local
    own = pc.equal(written, "")
    sign = np.where(pc.starts_with(written, "-").to_numpy(zero_copy_only=False), -1, 1)
    offset = pc.extract_regex(written, r"^[+-](?P<hours>\d+):(?P<minutes>\d+)$")
    ahead = sign * (_number(offset, "hours", 0) * 60 + _number(offset, "minutes", 0)) * 60
    shifted = from_micros(np.where(ok, micros - ahead * _SECOND, 0), ok, kind)
    return pc.if_else(own, to_instant(local, zone).cast(kind), shifted)


def add(array: pa.Array, interval: pa.Array, zone: str, sign: int = 1) -> pa.Array:
    """Add intervals to an array of timestamps: days by the zone's calendar, others by the clock."""
    length = sign * micros_of(interval)
    days = np.where(length < 0, -(-length // DAY), length // DAY) * DAY
    ok = valid(array) & valid(interval)
    if not is_zoned(array.type) or zone in ("UTC", "Etc/UTC") or not days.any():
        start = micros_of(array)
        return _checked_sum(start, length, ok, array.type)
    local = to_local(array, zone)
    target = _checked_sum(micros_of(local), days, ok, NTZ)
    moved = to_instant(target, zone)
    # of an hour that occurs twice, it is the one with the offset of before
    apart = micros_of(array) + days
    again = to_local(from_micros(apart, valid(target), array.type), zone)
    kept = np.where(micros_of(again) == micros_of(target), apart, micros_of(moved))
    return _checked_sum(kept, length - days, ok & valid(moved), array.type)


def _checked_sum(a: Ints, b: Ints, ok: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    total = a + b
    fits = ((a ^ total) & (b ^ total)) >= 0
    return from_micros(total, ok & fits, kind)


def truncation(unit: str) -> str | None:
    """Return the unit that a keyword means for truncating an array of timestamps."""
    return _UNITS.get(unit.lower())


def truncate(array: pa.Array, unit: str, zone: str) -> pa.Array:
    """Return the starts of the units that an array of timestamps is in."""
    if unit == "microsecond":
        return array
    local = to_local(array, zone)
    start = pc.floor_temporal(local, unit=unit)
    if unit in _CLOCK_UNITS or not is_zoned(array.type):
        into = micros_of(local) - micros_of(start)
        return from_micros(micros_of(array) - into, valid(array), array.type)
    return to_instant(start, zone).cast(array.type)


def formatted(array: pa.Array, pattern: str, unit: str, zone: str) -> pa.Array:
    """Return an array of timestamps as text; the pattern has no part that is finer than the unit.

    Times of a batch are in few units, and the text of each is written once.
    """
    starts = pc.floor_temporal(to_local(array, zone), unit=unit).dictionary_encode()
    # fractions are written with seconds of types that have them
    seconds = starts.dictionary.cast(pa.timestamp("s"))
    return pc.strftime(seconds, pattern).take(starts.indices)


def part(array: pa.Array, name: str, zone: str) -> pa.Array:
    """Return a part of an array of timestamps or dates as whole numbers."""
    local = to_local(array, zone)
    if name == "dayofweek":
        return pc.day_of_week(local, count_from_zero=False, week_start=7).cast(INT)
    if name == "weekofyear":
        return pc.iso_week(local).cast(INT)
    names = {"dayofmonth": "day", "dayofyear": "day_of_year", "weekday": "day_of_week"}
    return getattr(pc, names.get(name, name))(local).cast(INT)
