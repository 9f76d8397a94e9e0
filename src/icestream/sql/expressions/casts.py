"""Casts between types over Arrow arrays, as Spark's CAST does in ANSI mode.

Idea: a table maps the families of the two types to a function of the array and the target type. A
value without a counterpart in the target type becomes NULL; whether that is an error depends on the
caller: CAST or TRY_CAST.

Invariants:
1. Each cast gives the values of Spark's, and NULL where Spark fails
   (`test_oracle_casts`, `test_oracle_decimals_are_exact`).

Limits: text of doubles is the shortest that reads back; Java before version 19 writes some doubles
with one more digit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.sql.expressions import decimal_arithmetic as decimals
from icestream.sql.expressions import time_arrays
from icestream.sql.expressions.decimal_arithmetic import valid
from icestream.sql.expressions.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    NTZ,
    NULL,
    STRING,
    decimal_type_of,
    is_bytes,
    is_decimal,
    is_float,
    is_text,
    is_whole,
    is_zoned,
)

#: arguments: array, target type, time zone of the session
Caster = Callable[[pa.Array, pa.DataType, str], pa.Array]

_SECOND = 1_000_000
_NUMBER = (
    r"^(?P<sign>[+-]?)0*(?P<whole>\d*)(?:\.(?P<fraction>\d*))?(?:[eE](?P<exponent>[+-]?\d{1,9}))?$"
)
_FLOAT = r"(?i)^[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[df]?|inf|infinity|nan)$"
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")


def _family(kind: pa.DataType) -> str:
    if is_whole(kind):
        return "whole"
    if is_float(kind):
        return "float"
    if is_decimal(kind):
        return "decimal"
    if is_text(kind):
        return "text"
    if is_bytes(kind):
        return "bytes"
    if is_zoned(kind):
        return "zoned"
    return {BOOLEAN: "boolean", DATE: "date", NTZ: "local", NULL: "null"}.get(kind, str(kind))


def _plain(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    return array.cast(kind, safe=False)


def _whole_to_whole(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    if kind.bit_width >= array.type.bit_width:
        return array.cast(kind)
    return decimals.to_whole(decimals.unscaled(array), valid(array), kind)


def _float_to_whole(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    values = array.cast(DOUBLE).fill_null(0.0).to_numpy()
    bound = 2.0 ** (kind.bit_width - 1)
    # the bounds are exact doubles: the largest BIGINT is not, and Spark uses 2**63 instead
    with np.errstate(invalid="ignore"):
        top = values <= bound if kind.bit_width == 64 else np.floor(values) < bound
        ok = valid(array) & top & (np.ceil(values) >= -bound)
        kept = np.where(ok, values, 0.0)
        whole = np.where(
            kept >= bound, 2**63 - 1, np.where(kept >= bound, 0, kept).astype(np.int64)
        )
    return decimals.to_whole(whole, ok, kind)


def _to_boolean(array: pa.Array, _kind: pa.DataType, _zone: str) -> pa.Array:
    zero = Decimal(0) if is_decimal(array.type) else 0
    return pc.not_equal(array, pa.scalar(zero, array.type))


def _text_to_decimal(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    parts = pc.extract_regex(pc.utf8_trim(array, characters=time_arrays.BLANKS), _NUMBER)
    whole, fraction, exponent = (
        pc.fill_null(pc.struct_field(parts, name), "") for name in ("whole", "fraction", "exponent")
    )
    raw = pc.binary_join_element_wise(whole, fraction, "")
    some = pc.match_substring_regex(pc.fill_null(array, ""), r"^[^eE]*\d")
    ok = valid(parts) & some.to_numpy(zero_copy_only=False)
    lead = pc.utf8_ltrim(raw, characters="0")
    kept = pc.utf8_slice_codeunits(lead, 0, 76)
    dropped = pc.subtract(pc.utf8_length(lead), pc.utf8_length(kept)).to_numpy()
    exponent = pc.utf8_ltrim(exponent, characters="+")
    power = pc.if_else(pc.equal(exponent, ""), "0", exponent).cast(pa.int64()).to_numpy()
    shift = power - pc.utf8_length(fraction).to_numpy() + dropped
    digits = pc.if_else(pc.equal(kept, ""), "0", kept)
    negative = pc.equal(pc.struct_field(parts, "sign"), "-")
    digits = pc.binary_join_element_wise(
        pc.if_else(pc.fill_null(negative, False), "-", ""), digits, ""
    )
    return decimals.from_digits(digits, shift, ok, kind)


def _text_to_whole(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    if not pc.any(pc.match_substring(array, "x", ignore_case=True)).as_py():
        # Arrow reads 0x10 as sixteen, and rejects blanks, signs and numbers out of range
        with suppress(pa.ArrowInvalid):
            return array.cast(kind)
    text = pc.utf8_trim(array, characters=time_arrays.BLANKS)
    fits = pc.fill_null(pc.match_substring_regex(text, r"^[+-]?0*\d{1,19}$"), False)
    clean = pc.replace_substring_regex(pc.if_else(fits, text, "0"), r"^([+-]?)0*(\d)", r"\1\2")
    values = decimals.unscaled(clean.cast(pa.decimal128(38, 0)))
    return decimals.to_whole(values, fits.to_numpy(zero_copy_only=False), kind)


def _text_to_float(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    text = pc.utf8_trim(array, characters=time_arrays.BLANKS)
    fits = pc.fill_null(pc.match_substring_regex(text, _FLOAT), False)
    kept = pc.replace_substring_regex(
        pc.if_else(fits, text, pa.scalar(None, STRING)), r"(?i)([\d.])[df]$", r"\1"
    )
    return kept.cast(kind)


def _text_to_boolean(array: pa.Array, _kind: pa.DataType, _zone: str) -> pa.Array:
    text = pc.utf8_lower(pc.utf8_trim(array, characters=time_arrays.BLANKS))
    true = pc.is_in(text, value_set=pa.array(_TRUE))
    false = pc.is_in(text, value_set=pa.array(_FALSE))
    return pc.if_else(true, True, pc.if_else(false, False, pa.scalar(None, BOOLEAN)))


def _float_to_text(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    """Write doubles as Java does: 1.0, 1.5E10, 1.0E-5, NaN, Infinity."""
    text = array.cast(STRING)
    values = array.cast(DOUBLE).fill_null(0.0).to_numpy()
    size = np.abs(values)
    plain = ((size >= 1e-3) & (size < 1e7)) | (size == 0)
    short = pc.if_else(
        pc.match_substring(text, "."), text, pc.binary_join_element_wise(text, "0", ".")
    )
    names = pc.if_else(np.isnan(values), "NaN", pc.if_else(values > 0, "Infinity", "-Infinity"))
    finite = np.isfinite(values)
    rest = pc.if_else(finite & ~plain, text, "1e+0")
    return pc.if_else(plain, short, pc.if_else(finite, _scientific(rest), names)).cast(kind)


def _scientific(text: pa.Array) -> pa.Array:
    """Rewrite numbers that Arrow wrote in any notation with one digit before the point."""
    parts = pc.extract_regex(
        pc.fill_null(text, "1e+0"),
        r"^(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<fraction>\d+))?(?:e\+?(?P<exponent>-?\d+))?$",
    )
    sign, whole, fraction, exponent = (pc.struct_field(parts, i) for i in range(4))
    digits = pc.binary_join_element_wise(whole, fraction, "")
    lead = pc.utf8_ltrim(digits, characters="0")
    zeros = pc.subtract(pc.utf8_length(digits), pc.utf8_length(lead))
    power = pc.add(
        pc.if_else(pc.equal(exponent, ""), "0", exponent).cast(pa.int32()),
        pc.subtract(pc.subtract(pc.utf8_length(whole), 1), zeros),
    )
    tail = pc.utf8_rtrim(pc.utf8_slice_codeunits(lead, 1), characters="0")
    tail = pc.if_else(pc.equal(tail, ""), "0", tail)
    first = pc.binary_join_element_wise(sign, pc.utf8_slice_codeunits(lead, 0, 1), "")
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(first, tail, "."), power.cast(STRING), "E"
    )


def _decimal_to_text(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    """Write decimals with all their places and without an exponent."""
    scale = array.type.scale
    whole = decimals.packed(decimals.unscaled(array), valid(array), pa.decimal128(38, 0))
    digits = whole.cast(STRING)
    if scale == 0:
        return digits.cast(kind)
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, characters="-"), scale + 1, "0")
    ahead = pc.utf8_slice_codeunits(padded, 0, -scale)
    behind = pc.utf8_slice_codeunits(padded, -scale)
    point = pc.binary_join_element_wise(ahead, behind, ".")
    return pc.binary_join_element_wise(sign, point, "").cast(kind)


def _whole_to_zoned(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    seconds = decimals.unscaled(array)
    bound = (2**63 - 1) // _SECOND
    micros = np.where(seconds > bound, 2**63 - 1, np.clip(seconds, -bound, bound) * _SECOND)
    micros = np.where(seconds < -bound, -(2**63), micros)
    return time_arrays.from_micros(micros, valid(array), kind)


def _decimal_to_zoned(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    scale = array.type.scale
    values = decimals.unscaled(array, 38) * _SECOND
    cut = np.abs(values) // 10**scale
    return decimals.to_whole(np.where(values < 0, -cut, cut), valid(array), pa.int64()).view(kind)


def _zoned_to_decimal(array: pa.Array, kind: pa.DataType, _zone: str) -> pa.Array:
    micros = decimals.packed(time_arrays.micros_of(array), valid(array), pa.decimal128(20, 6))
    return decimals.cast(micros, kind)


_CASTS: dict[tuple[str, str], Caster] = {
    ("whole", "whole"): _whole_to_whole,
    ("whole", "float"): _plain,
    ("whole", "decimal"): lambda array, kind, zone: decimals.cast(array, kind),
    ("whole", "boolean"): _to_boolean,
    ("whole", "text"): _plain,
    ("whole", "zoned"): _whole_to_zoned,
    ("float", "whole"): _float_to_whole,
    ("float", "float"): _plain,
    ("float", "decimal"): lambda array, kind, zone: _text_to_decimal(
        array.cast(STRING), kind, zone
    ),
    ("float", "boolean"): _to_boolean,
    ("float", "text"): _float_to_text,
    ("float", "zoned"): lambda array, kind, zone: _float_to_whole(
        pc.multiply(array.cast(DOUBLE), 1e6), pa.int64(), zone
    ).view(kind),
    ("decimal", "whole"): lambda array, kind, zone: decimals.truncated(array, kind),
    ("decimal", "float"): lambda array, kind, zone: decimals.to_floats(array).cast(
        kind, safe=False
    ),
    ("decimal", "decimal"): lambda array, kind, zone: decimals.cast(array, kind),
    ("decimal", "boolean"): _to_boolean,
    ("decimal", "text"): _decimal_to_text,
    ("decimal", "zoned"): _decimal_to_zoned,
    ("boolean", "whole"): _plain,
    ("boolean", "float"): lambda array, kind, zone: array.cast(pa.int8()).cast(kind),
    ("boolean", "decimal"): lambda array, kind, zone: decimals.cast(array.cast(pa.int8()), kind),
    ("boolean", "text"): _plain,
    ("text", "whole"): _text_to_whole,
    ("text", "float"): _text_to_float,
    ("text", "decimal"): _text_to_decimal,
    ("text", "boolean"): _text_to_boolean,
    ("text", "text"): _plain,
    ("text", "bytes"): _plain,
    ("text", "date"): lambda array, kind, zone: time_arrays.date_from_text(array),
    ("text", "zoned"): time_arrays.timestamp_from_text,
    ("text", "local"): time_arrays.timestamp_from_text,
    ("bytes", "text"): _plain,
    ("bytes", "bytes"): _plain,
    ("date", "text"): lambda array, kind, zone: time_arrays.to_text(array, zone).cast(kind),
    ("date", "zoned"): lambda array, kind, zone: time_arrays.to_instant(
        time_arrays.to_local(array, zone), zone
    ).cast(kind),
    ("date", "local"): lambda array, kind, zone: time_arrays.to_local(array, zone),
    ("zoned", "text"): lambda array, kind, zone: time_arrays.to_text(array, zone).cast(kind),
    ("zoned", "date"): lambda array, kind, zone: time_arrays.to_date(array, zone),
    ("zoned", "local"): lambda array, kind, zone: time_arrays.to_local(array, zone),
    ("zoned", "zoned"): _plain,
    ("zoned", "whole"): lambda array, kind, zone: decimals.to_whole(
        time_arrays.micros_of(array) // _SECOND, valid(array), kind
    ),
    ("zoned", "float"): lambda array, kind, zone: pa.array(
        time_arrays.micros_of(array) / 1e6, mask=~valid(array)
    ).cast(kind, safe=False),
    ("zoned", "decimal"): _zoned_to_decimal,
    ("local", "text"): lambda array, kind, zone: time_arrays.to_text(array, zone).cast(kind),
    ("local", "date"): lambda array, kind, zone: time_arrays.to_date(array, zone),
    ("local", "zoned"): lambda array, kind, zone: time_arrays.to_instant(array, zone).cast(kind),
}
#: casts that never fail
_SAFE = {
    ("whole", "float"), ("whole", "boolean"), ("whole", "text"), ("whole", "zoned"),
    ("float", "float"), ("float", "boolean"), ("float", "text"), ("decimal", "float"),
    ("decimal", "boolean"), ("decimal", "text"), ("boolean", "whole"), ("boolean", "float"),
    ("boolean", "text"), ("text", "text"), ("text", "bytes"), ("bytes", "text"),
    ("bytes", "bytes"), ("date", "text"), ("date", "zoned"), ("date", "local"), ("zoned", "text"),
    ("zoned", "date"), ("zoned", "local"), ("zoned", "zoned"), ("zoned", "float"),
    ("local", "text"), ("local", "date"), ("local", "zoned"),
}  # fmt: skip


def caster(source: pa.DataType, target: pa.DataType) -> Caster | None:
    """Return the function that casts one type to another, if there is one."""
    if source in (target, NULL):
        return _plain
    return _CASTS.get((_family(source), _family(target)))


def read_locally(source: pa.DataType, target: pa.DataType) -> tuple[pa.DataType, ...]:
    """Return the types of a cast if it reads or makes local times; none otherwise."""
    local = any(is_text(each) or each in (DATE, NTZ) for each in (source, target))
    return (source, target) if local else ()


def always_works(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast always works: every value has a counterpart in the target type."""
    if source in (target, NULL):
        return True
    pair = (_family(source), _family(target))
    if pair == ("whole", "whole"):
        return bool(target.bit_width >= source.bit_width)
    if pair in (("decimal", "decimal"), ("whole", "decimal")):
        held = decimal_type_of(source)
        ahead = target.precision - target.scale
        return bool(ahead >= held.precision - held.scale and target.scale >= held.scale)
    return pair in _SAFE
