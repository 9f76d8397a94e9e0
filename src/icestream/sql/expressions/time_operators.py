"""Operators over dates, timestamps and intervals.

Idea: a time plus an interval is a time, the difference of two times is an interval, and intervals
are added like whole numbers. Adding whole days to a date gives a date; adding other intervals
converts it to a timestamp first.

Invariants:
1. Results and their types are those of Spark (`test_oracle_times`,
   `test_oracle_zones_with_summer_time`).

Limits: intervals are multiplied by whole numbers only, and not divided.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from icestream.core.times import DAY
from icestream.sql.expressions import arithmetic, time_arrays, tree, types
from icestream.sql.expressions import decimal_arithmetic as decimals
from icestream.sql.expressions.context import OVERFLOW, Context, on_arrays
from icestream.sql.expressions.evaluation import Kernel, Value
from icestream.sql.expressions.types import BIGINT, DATE, INT, INTERVAL, TIMESTAMP

_FAR = (OVERFLOW, "filter out times this far away")
_WHOLE: dict[str, Kernel] = {
    "+": arithmetic.whole("add_checked"),
    "-": arithmetic.whole("subtract_checked"),
    "*": arithmetic.whole("multiply_checked"),
}


def time_operator(ctx: Context, node: tree.Call, sign: str, a: Value, b: Value) -> Value | None:
    """Return an operator over times and intervals; None for numbers."""
    if sign == "+" and types.is_time(b.type) and not types.is_time(a.type):
        swapped = tree.Call(node.place, "+", (node.args[1], node.args[0]))
        return time_operator(ctx, swapped, sign, b, a)
    times_apart = {types.is_time(a.type), types.is_time(b.type)}
    if sign == "-" and types.is_time(b.type) and (types.is_text(a.type) or times_apart == {True}):
        return _apart(ctx, node, a, b)
    if sign in ("+", "-") and types.is_time(a.type):
        return _from_time(ctx, node, sign, a, b)
    if a.type == b.type == INTERVAL and sign in ("+", "-"):
        return ctx.call(node, INTERVAL, partial(_as_whole, _WHOLE[sign]), [a, b], fails=_FAR)
    if b.type == INTERVAL:
        a, b = b, a
    if sign == "*" and a.type == INTERVAL and types.is_whole(b.type):
        values = [a, ctx.cast(node, b, BIGINT)]
        return ctx.call(node, INTERVAL, partial(_as_whole, _WHOLE["*"]), values, fails=_FAR)
    return None


def _from_time(ctx: Context, node: tree.Call, sign: str, a: Value, b: Value) -> Value | None:
    turn = -1 if sign == "-" else 1
    if a.type == DATE and types.is_whole(b.type) and b.type != BIGINT:
        days = ctx.cast(node.args[1], b, INT)
        return ctx.call(
            node, DATE, on_arrays(partial(_move_date, sign=turn)), [a, days], fails=_FAR
        )
    if b.type == INTERVAL:
        return _moved(ctx, node, a, b, turn)
    return _apart(ctx, node, a, b) if sign == "-" and types.is_text(b.type) else None


def _as_whole(kernel: Kernel, a: pa.Array, b: pa.Array) -> pa.Array:
    left, right = arithmetic.arrays(a, b)
    return kernel(left.view(BIGINT), right.view(BIGINT)).view(INTERVAL)


def _move_date(date: pa.Array, days: pa.Array, sign: int) -> pa.Array:
    ok = decimals.valid(date) & decimals.valid(days)
    return time_arrays.from_days(time_arrays.days_of(date) + sign * decimals.unscaled(days), ok)


def _moved(ctx: Context, node: tree.Call, a: Value, b: Value, sign: int) -> Value:
    """Return a time plus or minus an interval; a date plus whole days is a date."""
    interval = node.args[1]
    back_to_date = a.type == DATE and isinstance(interval, tree.Interval) and interval.in_days
    kind = TIMESTAMP if a.type == DATE and not back_to_date else a.type
    if back_to_date:
        kind = types.NTZ
    start = ctx.cast(node.args[0], a, kind)
    within_a_day = isinstance(interval, tree.Interval) and abs(interval.length) < DAY
    zone = "UTC" if within_a_day else ctx.zone_for(kind)
    moved = ctx.call(
        node, kind, on_arrays(partial(time_arrays.add, zone=zone, sign=sign)), [start, b],
        fails=_FAR,
    )  # fmt: skip
    return ctx.cast(node, moved, DATE) if back_to_date else moved


def _apart(ctx: Context, node: tree.Call, a: Value, b: Value) -> Value:
    """Return the interval between two times, in local time."""
    own = next(value.type for value in (a, b) if types.is_time(value.type))
    values = []
    for part, value in zip(node.args, (a, b), strict=True):
        read = ctx.cast(part, value, own) if types.is_text(value.type) else value
        values.append(ctx.cast(part, read, types.NTZ) if read.type == DATE else read)
    zone = ctx.zone_for(*(value.type for value in values))
    if any(types.is_zoned(value.type) for value in values):
        values = [
            ctx.cast(part, each, TIMESTAMP) for part, each in zip(node.args, values, strict=True)
        ]

    def between(left: pa.Array, right: pa.Array) -> pa.Array:
        local = [time_arrays.to_local(each, zone).view(BIGINT) for each in (left, right)]
        return _WHOLE["-"](*local).view(INTERVAL)

    return ctx.call(node, INTERVAL, on_arrays(between), values)
