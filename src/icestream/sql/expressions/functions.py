"""The functions of expressions by name: mathematics, choices, and the table of all of them.

Idea: one table from names to builders. Most functions of doubles are one line in it; operators,
functions of text and functions of time come from modules of their own.

Invariants:
1. Each function gives the values and types of Spark's (`test_oracle_numbers`,
   `test_oracle_choices`, `test_oracle_results_have_the_types_of_spark`).
2. The error for an unknown name suggests the closest one (`test_unknown_functions_are_reported`).

Limits: functions that are random, count rows or read the current time are missing, because their
results would differ between attempts.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.sql.expressions import arithmetic, tree, types
from icestream.sql.expressions import decimal_arithmetic as decimals
from icestream.sql.expressions.context import OVERFLOW, Context, on_arrays
from icestream.sql.expressions.evaluation import CaseValue, Coalesce, Constant, Kernel, Value
from icestream.sql.expressions.operators import (
    Builder,
    arithmetic_operator,
    bitwise,
    logic,
    membership,
    minus,
    signed,
)
from icestream.sql.expressions.operators import comparison as compare
from icestream.sql.expressions.text_functions import TEXT_FUNCTIONS
from icestream.sql.expressions.time_functions import TIME_FUNCTIONS
from icestream.sql.expressions.types import BIGINT, BOOLEAN, DOUBLE, NULL, type_name


def _of_doubles(kernel: Kernel, *, nullable: bool | None = None) -> Builder:
    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        values = [
            ctx.to(part, arg, DOUBLE, "a number") for part, arg in zip(node.args, args, strict=True)
        ]
        return ctx.call(node, DOUBLE, kernel, values, nullable=nullable)

    return build


def _logarithm(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    natural = len(args) == 1
    kernel = arithmetic.of_floats(np.log if natural else arithmetic.logarithm, above=0.0)
    return _of_doubles(kernel, nullable=True)(ctx, node, args)


def _cut(mode: str) -> Builder:
    """Return the builder of floor or ceil."""
    doubles = arithmetic.to_whole_number(np.floor if mode == "floor" else np.ceil)

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        (value,) = args
        if types.is_whole(value.type):
            return ctx.cast(node, value, BIGINT)
        if types.is_decimal(value.type):
            kind = types.decimal_type(value.type.precision - value.type.scale + 1, 0)
            return ctx.call(
                node,
                kind,
                partial(decimals.rounded, places=0, mode=mode, kind=kind),
                args,
            )
        value = ctx.to(node.args[0], value, DOUBLE, "a number")
        fails = (OVERFLOW, "a BIGINT ends at 2**63; do not round larger numbers")
        return ctx.call(node, BIGINT, doubles, [value], fails=fails)

    return build


def _round(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    value = args[0]
    places = 0
    if len(args) == 2:
        places = ctx.constant(node.args[1], args[1], "the number of places")
        if not isinstance(places, int) or isinstance(places, bool):
            raise ctx.error(node.args[1], "the number of places must be a whole number")
    if types.is_text(value.type) or value.type == NULL:
        value = ctx.cast(node.args[0], value, DOUBLE)
    kind = value.type
    fails = (OVERFLOW, "cast to a wider type first")
    if types.is_whole(kind):
        kernel = partial(arithmetic.round_whole, places=places)
        return ctx.call(node, kind, kernel, [value], fails=fails)
    if types.is_float(kind):
        return ctx.call(node, kind, partial(arithmetic.round_floats, places=places), [value])
    if not types.is_decimal(kind):
        raise ctx.error(node, f"this is {type_name(kind)}; a number is needed here")
    ahead = kind.precision - kind.scale + 1
    kept = min(kind.scale, max(places, 0))
    wide = max(ahead, 1 - places) if places < 0 else ahead + kept
    result = pa.decimal128(min(wide, types.DIGITS), kept)
    rounding = partial(decimals.rounded, places=places, mode="round", kind=result)
    return ctx.call(node, result, rounding, [value], fails=fails)


def _positive_remainder(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    kind, values = ctx.alike(node, node.args, args, text=True)
    if not types.is_whole(kind) and not types.is_float(kind):
        raise ctx.error(node, "pmod takes whole numbers and doubles here; cast to one of them")
    a, b = (tree.text_of(part, as_written=True) for part in node.args)
    fails = ("divides by zero", f"write pmod({a}, nullif({b}, 0)) to get NULL there")
    return ctx.call(node, kind, arithmetic.positive_remainder, values, fails=fails)


def _whether(kernel: Kernel, kind: pa.DataType | None = None) -> Builder:
    """Return the builder of a condition on one value, of any type or of one, that is never NULL."""

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        value = args[0] if kind is None else ctx.to(node.args[0], args[0], kind)

        def holds(array: pa.Array) -> pa.Array:
            return pc.fill_null(kernel(array), False)

        return ctx.call(node, BOOLEAN, holds, [value], nullable=False)

    return build


def _not(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    return ctx.call(node, BOOLEAN, pc.invert, [ctx.to(node.args[0], args[0], BOOLEAN)])


def _coalesce(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    kind, values = ctx.alike(node, node.args, args, text=True)
    return Coalesce(kind, tuple(values))


def _null_if(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    equal = compare("=")(ctx, node, args)
    return CaseValue(args[0].type, (equal,), (Constant(pa.scalar(None, args[0].type)),), args[0])


def _if_there(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    """Bind nvl2: one value if the first is not NULL, another if it is."""
    kind, values = ctx.alike(node, node.args[1:], args[1:], text=True)
    there = _whether(pc.is_valid)(ctx, node, args[:1])
    return CaseValue(kind, (there,), (values[0],), values[1])


def _extreme(*, highest: bool) -> Builder:
    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        kind, values = ctx.alike(node, node.args, args, text=False)
        if not types.is_known(kind):
            raise ctx.error(node, f"values of {type_name(kind)} have no order")
        nullable = all(value.nullable for value in values)
        kernel = on_arrays(partial(arithmetic.extreme, highest=highest))
        return ctx.call(node, kind, kernel, values, nullable=nullable)

    return build


def _struct(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    names = [
        part.written[-1] if isinstance(part, tree.Name) else f"col{at}"
        for at, part in enumerate(node.args, 1)
    ]
    return _make_struct(ctx, node, names, args)


def _named_struct(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    if len(args) % 2:
        raise ctx.error(node, "named_struct takes names and values in turn")
    pairs = zip(node.args[::2], args[::2], strict=True)
    names = [str(ctx.constant(part, arg, "a field's name")) for part, arg in pairs]
    return _make_struct(ctx, node, names, args[1::2])


def _make_struct(ctx: Context, node: tree.Call, names: list[str], args: list[Value]) -> Value:
    fields = [
        pa.field(name, arg.type, nullable=arg.nullable)
        for name, arg in zip(names, args, strict=True)
    ]

    def kernel(*values: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays(values, fields=fields)

    return ctx.call(node, pa.struct(fields), on_arrays(kernel), args, nullable=False)


_ONE, _TWO, _MANY = (1, 1), (2, 2), (1, 255)

#: builder, and the minimum and maximum number of arguments, by name
FUNCTIONS: dict[str, tuple[Builder, tuple[int, int]]] = {
    **{sign: (arithmetic_operator(sign), _TWO) for sign in ("+", "*", "/", "%", "div")},
    **{sign: (compare(sign), _TWO) for sign in arithmetic.COMPARISONS},
    **{
        f"try_{name}": (arithmetic_operator(sign, gently=True), _TWO)
        for name, sign in (
            ("add", "+"), ("subtract", "-"), ("multiply", "*"), ("divide", "/"), ("mod", "%"),
        )
    },
    **{
        name: (_of_doubles(arithmetic.of_floats(function)), _ONE)
        for name, function in {
            "sqrt": np.sqrt, "exp": np.exp, "cbrt": np.cbrt, "expm1": np.expm1, "sin": np.sin,
            "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
            "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "degrees": np.degrees,
            "radians": np.radians, "sign": np.sign, "signum": np.sign, "rint": np.rint,
        }.items()
    },
    **{
        name: (_of_doubles(arithmetic.of_floats(function, above=above), nullable=True), _ONE)
        for name, function, above in (
            ("ln", np.log, 0.0), ("log2", np.log2, 0.0), ("log10", np.log10, 0.0),
            ("log1p", np.log1p, -1.0),
        )
    },
    "-": (minus, (1, 2)),
    "negative": (minus, _ONE),
    "mod": (arithmetic_operator("%"), _TWO),
    "pmod": (_positive_remainder, _TWO),
    "&": (bitwise("bit_wise_and"), _TWO),
    "|": (bitwise("bit_wise_or"), _TWO),
    "^": (bitwise("bit_wise_xor"), _TWO),
    "~": (bitwise("bit_wise_not"), _ONE),
    "and": (logic("and"), _TWO),
    "or": (logic("or"), _TWO),
    "not": (_not, _ONE),
    "in": (membership, (2, 100_000)),
    "is null": (_whether(pc.is_null), _ONE),
    "isnull": (_whether(pc.is_null), _ONE),
    "isnotnull": (_whether(pc.is_valid), _ONE),
    "is true": (_whether(lambda array: array, BOOLEAN), _ONE),
    "is false": (_whether(pc.invert, BOOLEAN), _ONE),
    "isnan": (_whether(pc.is_nan, DOUBLE), _ONE),
    "abs": (partial(signed, exact=arithmetic.absolute, floats=pc.abs, turn=False), _ONE),
    "pow": (_of_doubles(arithmetic.of_floats(arithmetic.power)), _TWO),
    "power": (_of_doubles(arithmetic.of_floats(arithmetic.power)), _TWO),
    "atan2": (_of_doubles(arithmetic.of_floats(np.arctan2)), _TWO),
    "hypot": (_of_doubles(arithmetic.of_floats(np.hypot)), _TWO),
    "log": (_logarithm, (1, 2)),
    "floor": (_cut("floor"), _ONE),
    "ceil": (_cut("ceil"), _ONE),
    "ceiling": (_cut("ceil"), _ONE),
    "round": (_round, (1, 2)),
    "coalesce": (_coalesce, _MANY),
    "nvl": (_coalesce, _TWO),
    "ifnull": (_coalesce, _TWO),
    "nvl2": (_if_there, (3, 3)),
    "nullif": (_null_if, _TWO),
    "greatest": (_extreme(highest=True), (2, 255)),
    "least": (_extreme(highest=False), (2, 255)),
    "struct": (_struct, _MANY),
    "named_struct": (_named_struct, _MANY),
    **TEXT_FUNCTIONS,
    **TIME_FUNCTIONS,
}  # fmt: skip
