"""Functions of dates and timestamps.

Idea: parts of a time are read on the clock of the session's time zone; whole numbers are seconds,
milliseconds or microseconds since 1970 in UTC.

Invariants:
1. Each function gives the values of Spark's (`test_oracle_times`,
   `test_oracle_zones_with_summer_time`).

Limits: date_format knows yyyy, MM, dd, HH, mm, ss and signs between them; to_date and to_timestamp
read what CAST reads.
"""

from __future__ import annotations

import re
from functools import partial

import pyarrow as pa

from icestream.sql.expressions import decimal_arithmetic as decimals
from icestream.sql.expressions import time_arrays as times
from icestream.sql.expressions import tree, types
from icestream.sql.expressions.arithmetic import whole
from icestream.sql.expressions.context import OVERFLOW, Context, on_arrays
from icestream.sql.expressions.evaluation import Value
from icestream.sql.expressions.operators import Builder, arithmetic_operator
from icestream.sql.expressions.types import BIGINT, DATE, INT, TIMESTAMP, type_name

_DATE_PARTS = (
    "year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday",
    "weekofyear",
)  # fmt: skip
_CLOCK_PARTS = ("hour", "minute", "second")


def _to_number(divisor: int) -> Builder:
    """Return the builder of unix_seconds, unix_millis or unix_micros."""

    def kernel(array: pa.Array) -> pa.Array:
        return decimals.to_whole(times.micros_of(array) // divisor, decimals.valid(array), BIGINT)

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        if not types.is_zoned(args[0].type) and args[0].type not in (types.NTZ, types.NULL):
            message = f"this is {type_name(args[0].type)}; TIMESTAMP is needed here"
            raise ctx.error(node.args[0], message)
        return ctx.call(node, BIGINT, kernel, [ctx.cast(node.args[0], args[0], TIMESTAMP)])

    return build


def _from_number(factor: int) -> Builder:
    """Return the builder of timestamp_seconds, timestamp_millis or timestamp_micros."""
    multiply = whole("multiply_checked")

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        if not types.is_whole(args[0].type) and args[0].type != types.NULL:
            message = f"this is {type_name(args[0].type)}; a whole number is needed here"
            raise ctx.error(node.args[0], message)

        def kernel(array: pa.Array) -> pa.Array:
            return multiply(array, pa.scalar(factor, BIGINT)).view(TIMESTAMP)

        fails = (OVERFLOW, "times end about 292,000 years from now; check the unit")
        value = ctx.cast(node.args[0], args[0], BIGINT)
        return ctx.call(node, TIMESTAMP, kernel, [value], fails=fails)

    return build


def _truncate(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    word = ctx.constant(node.args[0], args[0], "the unit")
    unit = times.truncation(word) if isinstance(word, str) else None
    if unit is None:
        known = "year, quarter, month, week, day, hour, minute, second, millisecond"
        raise ctx.error(node.args[0], f"this is not a unit of time; write one of {known}")
    value = ctx.to(node.args[1], args[1], TIMESTAMP)
    kernel = partial(times.truncate, unit=unit, zone=ctx.zone_for(TIMESTAMP))
    return ctx.call(node, TIMESTAMP, kernel, [value])


def _truncate_date(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    word = ctx.constant(node.args[1], args[1], "the unit")
    unit = times.truncation(word) if isinstance(word, str) else None
    if unit not in ("year", "quarter", "month", "week"):
        raise ctx.error(node.args[1], "dates can be truncated to a year, quarter, month or week")
    local = ctx.cast(node.args[0], ctx.to(node.args[0], args[0], DATE), types.NTZ)
    cut = ctx.call(node, types.NTZ, partial(times.truncate, unit=unit, zone="UTC"), [local])
    return ctx.cast(node, cut, DATE)


#: parts of a pattern of date_format: what Arrow calls them, and the unit of time, finest last
_PATTERNS = {
    "yyyy": ("%Y", "year"), "MM": ("%m", "month"), "dd": ("%d", "day"), "HH": ("%H", "hour"),
    "mm": ("%M", "minute"), "ss": ("%S", "second"),
}  # fmt: skip


def is_pattern(text: str) -> bool:
    """Return whether date_format knows a pattern; letters that touch are one part of it."""
    words = re.findall("[A-Za-z]+|[^-/:., _A-Za-z]", text)
    return words != [] and set(words) <= set(_PATTERNS)


def _format(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    pattern = ctx.constant(node.args[1], args[1], "the pattern")
    if not isinstance(pattern, str) or not is_pattern(pattern):
        known = ", ".join(_PATTERNS)
        raise ctx.error(node.args[1], f"write a pattern of {known} and signs between them")
    value = args[0] if args[0].type == types.NTZ else ctx.to(node.args[0], args[0], TIMESTAMP)
    unit = [unit for word, (_, unit) in _PATTERNS.items() if word in pattern][-1]
    written = re.sub("[A-Za-z]+", lambda word: _PATTERNS[word[0]][0], pattern)
    kernel = partial(times.formatted, pattern=written, unit=unit, zone=ctx.zone_for(value.type))
    return ctx.call(node, types.STRING, on_arrays(kernel), [value])


def _part(name: str) -> Builder:
    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        value = args[0]
        kind = DATE if name in _DATE_PARTS else TIMESTAMP
        if value.type != types.NTZ:
            value = ctx.to(node.args[0], value, kind)
        zone = ctx.zone_for(value.type)
        return ctx.call(node, INT, partial(times.part, name=name, zone=zone), [value])

    return build


def _to_date(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    return ctx.cast(node, ctx.to(node.args[0], args[0], DATE), DATE)


def _to_timestamp(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    return ctx.cast(node, args[0], TIMESTAMP)


def _date_move(sign: str) -> Builder:
    move = arithmetic_operator(sign)

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        date = ctx.to(node.args[0], args[0], DATE)
        days = ctx.to(node.args[1], args[1], INT)
        if types.is_whole(args[1].type) and args[1].type == BIGINT:
            raise ctx.error(node.args[1], "the number of days must be an INT; cast it to one")
        return move(ctx, node, [date, days])

    return build


def _days_apart(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    values = [ctx.to(part, arg, DATE) for part, arg in zip(node.args, args, strict=True)]

    def kernel(end: pa.Array, start: pa.Array) -> pa.Array:
        ok = decimals.valid(end) & decimals.valid(start)
        return decimals.to_whole(times.days_of(end) - times.days_of(start), ok, INT)

    return ctx.call(node, INT, on_arrays(kernel), values)


_ONE, _TWO = (1, 1), (2, 2)

TIME_FUNCTIONS: dict[str, tuple[Builder, tuple[int, int]]] = {
    "unix_micros": (_to_number(1), _ONE),
    "unix_millis": (_to_number(1_000), _ONE),
    "unix_seconds": (_to_number(1_000_000), _ONE),
    "timestamp_micros": (_from_number(1), _ONE),
    "timestamp_millis": (_from_number(1_000), _ONE),
    "timestamp_seconds": (_from_number(1_000_000), _ONE),
    "date_trunc": (_truncate, _TWO),
    "trunc": (_truncate_date, _TWO),
    "date_format": (_format, _TWO),
    **{name: (_part(name), _ONE) for name in (*_DATE_PARTS, *_CLOCK_PARTS)},
    "to_date": (_to_date, _ONE),
    "to_timestamp": (_to_timestamp, _ONE),
    "date_add": (_date_move("+"), _TWO),
    "dateadd": (_date_move("+"), _TWO),
    "date_sub": (_date_move("-"), _TWO),
    "datediff": (_days_apart, _TWO),
    "date_diff": (_days_apart, _TWO),
}
