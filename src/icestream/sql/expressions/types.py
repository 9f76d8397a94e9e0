"""The types of expressions: Spark's, represented as Arrow types, and their common types.

Idea: Arrow has every type of Spark except one: intervals do not know their fields. Values of
different types are cast to a common type as in Spark's ANSI mode: numbers widen, whole numbers with
floats become doubles, text is read as the other type. Decimals grow with each operation up to 38
digits and then lose fractional digits, but keep at least six.

Invariants:
1. Every pair of types has the common type, and every operator the result type, that Spark gives
   (`test_oracle_results_have_the_types_of_spark`).

References: Spark's `AnsiTypeCoercion` and `DecimalPrecision` for the rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import pyarrow as pa
from pyarrow import types as of

DIGITS = 38
_LEAST_PLACES = 6

TINYINT, SMALLINT, INT, BIGINT = pa.int8(), pa.int16(), pa.int32(), pa.int64()
FLOAT, DOUBLE, BOOLEAN, STRING = pa.float32(), pa.float64(), pa.bool_(), pa.string()
BINARY, DATE, INTERVAL, NULL = pa.binary(), pa.date32(), pa.duration("us"), pa.null()
NTZ = pa.timestamp("us")
#: instants: the zone in which they are read belongs to expressions, not to the type
TIMESTAMP = pa.timestamp("us", "UTC")

_ORDER = (TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE)
#: digits of the decimals that hold whole numbers
_WHOLE = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 20}
_NAMES = {
    TINYINT: "TINYINT", SMALLINT: "SMALLINT", INT: "INT", BIGINT: "BIGINT", FLOAT: "FLOAT",
    DOUBLE: "DOUBLE", BOOLEAN: "BOOLEAN", DATE: "DATE", INTERVAL: "INTERVAL", NULL: "VOID",
    NTZ: "TIMESTAMP_NTZ",
}  # fmt: skip


def is_whole(kind: pa.DataType) -> bool:
    """Return whether a type is a whole number of Spark."""
    return kind in _WHOLE


def is_decimal(kind: pa.DataType) -> bool:
    """Return whether a type is a decimal of Spark."""
    return bool(of.is_decimal128(kind))


def is_float(kind: pa.DataType) -> bool:
    """Return whether a type is a float or a double."""
    return kind in (FLOAT, DOUBLE)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is a number."""
    return is_whole(kind) or is_float(kind) or is_decimal(kind)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text, in any of Arrow's layouts."""
    return bool(of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is binary, in any of Arrow's layouts."""
    return bool(of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind))


def is_zoned(kind: pa.DataType) -> bool:
    """Return whether a type is Spark's TIMESTAMP."""
    return bool(of.is_timestamp(kind) and kind.tz is not None and kind.unit == "us")


def is_time(kind: pa.DataType) -> bool:
    """Return whether a type is a date or one of the two timestamps."""
    return is_zoned(kind) or kind in (NTZ, DATE)


def is_known(kind: pa.DataType) -> bool:
    """Return whether a type is one that expressions can use, not only pass on."""
    return is_number(kind) or is_text(kind) or is_bytes(kind) or is_zoned(kind) or kind in _NAMES


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type in SQL."""
    if kind in _NAMES:
        return _NAMES[kind]
    if is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if is_text(kind):
        return "STRING"
    if is_bytes(kind):
        return "BINARY"
    if is_zoned(kind):
        return "TIMESTAMP"
    return str(kind)


def decimal_type(precision: int, scale: int) -> pa.Decimal128Type:
    """Return the type of decimals of a precision and scale, cut to 38 digits by Spark's rule."""
    if precision > DIGITS:
        ahead = precision - scale
        precision, scale = DIGITS, max(DIGITS - ahead, min(scale, _LEAST_PLACES))
    return pa.decimal128(precision, scale)


def decimal_type_of(kind: pa.DataType) -> pa.Decimal128Type:
    """Return, of the types of SQL, the decimal that holds whole numbers of a type."""
    return kind if is_decimal(kind) else pa.decimal128(_WHOLE[kind], 0)


def result_decimal_type(sign: str, a: pa.DataType, b: pa.DataType) -> pa.Decimal128Type:
    """Return the type of an operator's result over two types of decimals."""
    ahead_a, ahead_b = a.precision - a.scale, b.precision - b.scale
    places = max(a.scale, b.scale)
    if sign in ("+", "-"):
        return decimal_type(max(ahead_a, ahead_b) + places + 1, places)
    if sign == "*":
        return decimal_type(a.precision + b.precision + 1, a.scale + b.scale)
    if sign == "/":
        places = max(_LEAST_PLACES, a.scale + b.precision + 1)
        return decimal_type(ahead_a + b.scale + places, places)
    return decimal_type(min(ahead_a, ahead_b) + places, places)


def _wider_decimal(a: pa.DataType, b: pa.DataType) -> pa.Decimal128Type:
    places = max(a.scale, b.scale)
    ahead = max(a.precision - a.scale, b.precision - b.scale)
    excess = max(0, ahead + places - DIGITS)
    return pa.decimal128(min(ahead + places, DIGITS), max(0, places - excess))


def _wider_number(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if is_decimal(a) or is_decimal(b):
        if is_float(a) or is_float(b):
            return DOUBLE
        return _wider_decimal(decimal_type_of(a), decimal_type_of(b))
    wider = _ORDER[max(_ORDER.index(a), _ORDER.index(b))]
    return DOUBLE if wider == FLOAT and a != b else wider


def _beside_text(other: pa.DataType) -> pa.DataType | None:
    if is_whole(other):
        return BIGINT
    if is_number(other):
        return DOUBLE
    return None if other == INTERVAL or not is_known(other) else other


def common_type(a: pa.DataType, b: pa.DataType, *, text: bool = True) -> pa.DataType | None:
    """Return the common type of two types of values, if there is one.

    Args:
        a: one type.
        b: the other.
        text: whether text is read as the other type.
    """
    if b in (a, NULL):
        return a
    if a == NULL:
        return b
    if is_number(a) and is_number(b):
        return _wider_number(a, b)
    if is_time(a) and is_time(b):
        zoned = a if is_zoned(a) else b
        return zoned if is_zoned(zoned) else NTZ
    if is_text(a) or is_text(b):
        if is_text(a) and is_text(b):
            return STRING
        return _beside_text(b if is_text(a) else a) if text else None
    return BINARY if is_bytes(a) and is_bytes(b) else None


def common_of(kinds: Iterable[pa.DataType], *, text: bool = True) -> pa.DataType | None:
    """Return the common type of many types, combined one after the other, if there is one."""

    def meet(a: pa.DataType | None, b: pa.DataType) -> pa.DataType | None:
        return None if a is None else common_type(a, b, text=text)

    return reduce(meet, kinds, NULL)
