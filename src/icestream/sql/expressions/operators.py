"""Operators bound to kernels, with their argument and result types.

Idea: the types of its two arguments decide how an operator is computed: with whole numbers of the
wider type, with doubles, with decimals and their own result type, or with times and intervals: a
time plus an interval is a time, the difference of two times is an interval. Adding whole days to a
date gives a date; adding other intervals converts it to a timestamp first.

Invariants:
1. Result types are those of Spark (`test_oracle_results_have_the_types_of_spark`).
2. So are times and their types (`test_oracle_times`, `test_oracle_zones_with_summer_time`).

Limits: intervals are multiplied by whole numbers only, and not divided.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.times import DAY
from icestream.sql.expressions import arithmetic, time_arrays, tree, types
from icestream.sql.expressions import decimal_arithmetic as decimals
from icestream.sql.expressions.arithmetic import COMPARISONS, among
from icestream.sql.expressions.context import OVERFLOW, Context, Fails, on_arrays
from icestream.sql.expressions.evaluation import Constant, Kernel, Logic, Value
from icestream.sql.expressions.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    INTERVAL,
    NULL,
    TIMESTAMP,
    type_name,
)

Builder = Callable[[Context, tree.Call, list[Value]], Value]

_NAMES = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "mod", "div": "div"}
_BY_ZERO = "divides by zero"


def _failure(sign: str, node: tree.Call, kind: pa.DataType) -> Fails:
    """Return what goes wrong with an operator, and what to write instead."""
    a, b = (tree.text_of(arg, as_written=True) for arg in node.args)
    if sign == "div":
        return _BY_ZERO, f"write {a} div nullif({b}, 0) to get NULL there"
    gentle = f"try_{_NAMES[sign]}({a}, {b})"
    if sign in ("/", "%"):
        what = f"{_BY_ZERO} or {OVERFLOW}" if types.is_decimal(kind) else _BY_ZERO
        return what, f"write {gentle} or {a} {sign} nullif({b}, 0) to get NULL there"
    return OVERFLOW, f"write {gentle} to get NULL there, or cast to a wider type"


def arithmetic_operator(sign: str, *, gently: bool = False) -> Builder:
    """Return the builder of an arithmetic operator; `gently` for its try_ function."""

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        a, b = args
        timely = time_operator(ctx, node, sign, a, b)
        if timely is not None:
            return timely
        a, b = _numbers(ctx, node, sign, a, b, read_text=not gently)
        kind, kernel, a, b = _numeric(ctx, node, sign, a, b)
        if gently:
            return ctx.call(node, kind, kernel, [a, b], nullable=True)
        if types.is_float(kind) and sign in ("+", "-", "*"):
            return ctx.call(node, kind, kernel, [a, b])
        return ctx.call(node, kind, kernel, [a, b], fails=_failure(sign, node, kind))

    return build


def _numbers(
    ctx: Context, node: tree.Call, sign: str, a: Value, b: Value, *, read_text: bool
) -> tuple[Value, Value]:
    """Return both arguments as numbers: text is read as the type of the other argument."""
    values = [a, b]
    for at, (value, other) in enumerate(((a, b), (b, a))):
        if types.is_text(value.type) and types.is_number(other.type) and read_text:
            kind = BIGINT if types.is_whole(other.type) else DOUBLE
            values[at] = ctx.cast(node.args[at], value, kind)
        elif value.type == NULL:
            kind = other.type if types.is_number(other.type) else DOUBLE
            values[at] = ctx.cast(node.args[at], value, kind)
        elif not types.is_number(value.type):
            message = f"{type_name(a.type)} {sign} {type_name(b.type)}"
            raise ctx.error(node, f"there is no {message}; cast to numbers first")
    return values[0], values[1]


def _as_decimal(ctx: Context, node: tree.ExpressionNode, value: Value) -> Value:
    """Return a value as a decimal; a literal whole number has exactly its digits."""
    if isinstance(value, Constant) and types.is_whole(value.type) and value.scalar.is_valid:
        digits = len(str(abs(value.scalar.as_py())))
        return ctx.cast(node, value, pa.decimal128(digits, 0))
    return ctx.cast(node, value, types.decimal_type_of(value.type))


def _numeric(
    ctx: Context, node: tree.Call, sign: str, a: Value, b: Value
) -> tuple[pa.DataType, Kernel, Value, Value]:
    """Return type, kernel and arguments of an operator over numbers."""
    left, right = node.args
    some_float = types.is_float(a.type) or types.is_float(b.type)
    if sign == "div" and some_float:
        raise ctx.error(node, "div takes whole numbers and decimals; write floor(a / b)")
    if not some_float and (types.is_decimal(a.type) or types.is_decimal(b.type)):
        a, b = _as_decimal(ctx, left, a), _as_decimal(ctx, right, b)
        if sign == "div":
            return BIGINT, on_arrays(decimals.whole_quotient), a, b
        kind = types.result_decimal_type(sign, a.type, b.type)
        return kind, on_arrays(partial(_DECIMAL[sign], kind=kind)), a, b
    if sign == "div":
        return (
            BIGINT,
            arithmetic.whole_quotient,
            ctx.cast(left, a, BIGINT),
            ctx.cast(right, b, BIGINT),
        )
    kind = DOUBLE if sign == "/" else types.common_type(a.type, b.type) or DOUBLE
    a, b = ctx.cast(left, a, kind), ctx.cast(right, b, kind)
    return kind, _FLOAT[sign] if types.is_float(kind) else _WHOLE[sign], a, b


_DECIMAL: dict[str, Callable[..., pa.Array]] = {
    "+": decimals.add,
    "-": partial(decimals.add, sign=-1),
    "*": decimals.multiply,
    "/": decimals.divide,
    "%": decimals.remainder,
}
_WHOLE: dict[str, Kernel] = {
    "+": arithmetic.whole("add_checked"),
    "-": arithmetic.whole("subtract_checked"),
    "*": arithmetic.whole("multiply_checked"),
    "%": arithmetic.remainder,
}
_FLOAT: dict[str, Kernel] = {
    "+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": arithmetic.divide,
    "%": arithmetic.remainder,
}  # fmt: skip


def comparison(sign: str) -> Builder:
    """Return the builder of an operator that compares."""

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        kind, values = ctx.alike(node, node.args, args, text=True)
        _check_comparable(ctx, node, kind)
        nullable = False if sign == "<=>" else None
        if kind == NULL:
            return Constant(pa.scalar(True if sign == "<=>" else None, BOOLEAN))
        return ctx.call(node, BOOLEAN, COMPARISONS[sign], values, nullable=nullable)

    return build


def _check_comparable(ctx: Context, node: tree.Call, kind: pa.DataType) -> None:
    if not types.is_known(kind):
        raise ctx.error(
            node, f"values of {type_name(kind)} cannot be compared; compare their fields"
        )


def membership(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    """Bind the operator IN."""
    kind, values = ctx.alike(node, node.args, args, text=True)
    _check_comparable(ctx, node, kind)
    if kind == NULL:
        return Constant(pa.scalar(None, BOOLEAN))
    return ctx.call(node, BOOLEAN, among, values)


def logic(name: str) -> Builder:
    """Return the builder of the operators AND and OR."""

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        first, second = (
            ctx.to(part, arg, BOOLEAN) for part, arg in zip(node.args, args, strict=True)
        )
        return Logic(first, second, decides=name == "or")

    return build


def bitwise(name: str) -> Builder:
    """Return the builder of an operator on the bits of whole numbers."""

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        kind, values = ctx.alike(node, node.args, args, text=True)
        if not types.is_whole(kind):
            raise ctx.error(node, f"bit operators need whole numbers, not {type_name(kind)}")
        return ctx.call(node, kind, getattr(pc, name), values)

    return build


def minus(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    """Bind the operator minus: a change of sign or a subtraction."""
    if len(args) == 2:
        return arithmetic_operator("-")(ctx, node, args)
    return signed(ctx, node, args, arithmetic.negate, pc.negate, turn=True)


def signed(
    ctx: Context, node: tree.Call, args: list[Value], exact: Kernel, floats: Kernel, *, turn: bool
) -> Value:
    """Bind an operator on numbers and intervals that can change the sign."""
    (value,) = args
    if types.is_text(value.type) or value.type == NULL:
        value = ctx.cast(node.args[0], value, DOUBLE)
    if types.is_float(value.type):
        return ctx.call(node, value.type, floats, [value])
    if types.is_decimal(value.type):
        return ctx.call(node, value.type, partial(_decimal_sign, turn=turn), [value])
    if not types.is_whole(value.type) and value.type != INTERVAL:
        raise ctx.error(node, f"this is {type_name(value.type)}; a number is needed here")
    fails = (OVERFLOW, "cast to a wider type first")
    return ctx.call(node, value.type, exact, [value], fails=fails)


def _decimal_sign(array: pa.Array, *, turn: bool) -> pa.Array:
    values = decimals.unscaled(array)
    return decimals.packed(-values if turn else abs(values), decimals.valid(array), array.type)


_FAR = (OVERFLOW, "filter out times this far away")


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
