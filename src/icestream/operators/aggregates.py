"""Aggregate functions over windows: what they keep, what they return, which inputs they take.

Idea: `lift` is the choice of fields (folded by `operators.fold`), `combine` is the merging of
fields (`kernels.words`), `lower` reads answers off merged fields. Whether a field has an inverse
belongs to its operation, not to the function.

Invariants:
1. Results have Spark's types and Spark's nulls (`test_oracle_every_aggregate_equals_duckdb`, and
   the Spark comparison in `tests/runtime/test_spark_oracle.py`).
2. Sums of integers and decimals are exact; an overflow of the result type is an error, never a
   wrapped number (`test_sum_that_overflows_bigint_is_an_error`).
3. Float sums are kept as double-doubles and never subtracted, so nothing drifts
   (`test_float_sums_do_not_remember_values_that_left`).

Limits: `sum`/`avg` of decimals take up to 28 digits; `min`/`max` take types of fixed width
(decimals up to 18 digits). Variances of values beyond 1e150 are NaN: their squares overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.errors import DefinitionError, InputError
from icestream.kernels.words import Table
from icestream.operators.fields import Field, Layout

_MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
FUNCTIONS = ("count", "sum", "avg", "min", "max", *_MOMENTS)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output column: a function over an input column (`None`: over whole events)."""

    function: str
    column: str | None
    alias: str

    def fields(self, types: dict[str, pa.DataType]) -> tuple[Field, ...]:
        """Return the fields to keep for an input of the given type."""
        if self.column is None:
            return ()
        valid = Field("valid", self.column)
        if self.function == "count":
            return (valid,)
        self.check(types[self.column])
        if self.function in ("min", "max"):
            return (valid, Field(self.function, self.column))
        if self.function in _MOMENTS:
            return (valid, Field("sum_f64", self.column), Field("squares_f64", self.column))
        return (valid, Field(_sum_kind(types[self.column]), self.column))

    def check(self, kind: pa.DataType) -> None:
        """Refuse an input type the function has no meaning or no room for."""
        if self.function == "count":
            return
        if self.function in ("min", "max"):
            if not _is_ordered_word(kind):
                msg = (
                    f"{self.function} of a {kind} is not supported (column behind {self.alias!r}): "
                    "use a number, date, timestamp or boolean, decimals up to 18 digits"
                )
                raise DefinitionError(msg)
            return
        if not _is_number(kind):
            msg = (
                f"{self.function} needs a number, got {kind} (column behind {self.alias!r}): "
                "cast the column to a numeric type first"
            )
            raise DefinitionError(msg)
        if pa.types.is_decimal(kind) and kind.precision > 28 and self.function in ("sum", "avg"):
            msg = (
                f"{self.function} of {kind} could exceed 38 digits (column behind "
                f"{self.alias!r}): cast the column to at most 28 digits first"
            )
            raise DefinitionError(msg)

    def result_type(self, types: dict[str, pa.DataType]) -> pa.DataType:
        """Return the type Spark gives this function over this input."""
        if self.function == "count" or self.column is None:
            return pa.int64()
        kind = types[self.column]
        self.check(kind)
        if self.function in ("min", "max"):
            return kind
        if self.function in _MOMENTS:
            return pa.float64()
        if pa.types.is_decimal(kind):
            return _decimal_result(self.function, kind)
        if self.function == "sum" and pa.types.is_integer(kind):
            return pa.int64()
        return pa.float64()

    def lower(self, table: Table, layout: Layout, types: dict[str, pa.DataType]) -> pa.Array:
        """Read the answers off a table of merged fields (without hi and lo)."""
        if self.column is None:
            return pa.array(table[:, 0])
        valid = table[:, layout.place("valid", self.column)]
        if self.function == "count":
            return pa.array(valid)
        kind = types[self.column]
        if self.function in ("min", "max"):
            values = table[:, layout.place(self.function, self.column)]
            return _decode_ordered(values, kind, valid == 0)
        if self.function in _MOMENTS:
            return self._moment(table, layout, valid)
        sums = table[:, layout.place(_sum_kind(kind), self.column) :]
        if pa.types.is_decimal(kind):
            return _lower_decimal(self.function, sums[:, :2], valid, kind)
        return self._lower_number(sums, valid, kind)

    def _lower_number(
        self, sums: Table, valid: npt.NDArray[np.int64], kind: pa.DataType
    ) -> pa.Array:
        empty = valid == 0
        count = np.maximum(valid, 1)
        sum_kind = _sum_kind(kind)
        if sum_kind == "sum_f64":
            total = _as_floats(sums).sum(axis=1)
            return pa.array(total if self.function == "sum" else total / count, mask=empty)
        if sum_kind == "sum_i64":
            if self.function == "sum":
                return pa.array(sums[:, 0], mask=empty)
            return pa.array(sums[:, 0] / count, mask=empty)
        low, high = sums[:, 0], sums[:, 1]
        fits = high == low >> 63
        if self.function == "avg":
            long = high * 2.0**64 + low.astype(np.uint64)
            return pa.array(np.where(fits, low, long) / count, mask=empty)
        if not fits[~empty].all():
            msg = (
                f"the sum behind {self.alias!r} does not fit a bigint; cast the column to "
                "decimal(28, 0) before summing"
            )
            raise InputError(msg)
        return pa.array(low, mask=empty)

    def _moment(self, table: Table, layout: Layout, valid: npt.NDArray[np.int64]) -> pa.Array:
        sums = _as_floats(table[:, layout.place("sum_f64", self.column) :])
        squares = _as_floats(table[:, layout.place("squares_f64", self.column) :])
        sample = self.function.endswith("samp")
        empty = valid < (2 if sample else 1)
        count = np.maximum(valid, 1).astype(np.float64)
        with np.errstate(all="ignore"):
            spread = _squared_spread(sums, squares, count)
            result = spread / np.maximum(count - 1 if sample else count, 1)
            if self.function.startswith("stddev"):
                result = np.sqrt(result)
        return pa.array(result, mask=empty)


def _sum_kind(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind):
        return "sum_f64"
    if pa.types.is_decimal(kind) or kind in (pa.int64(), pa.uint64()):
        return "sum_i128"
    return "sum_i64"


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)
    )


def _is_ordered_word(kind: pa.DataType) -> bool:
    if pa.types.is_decimal128(kind):
        return bool(kind.precision <= 18)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )


def _decimal_result(function: str, kind: pa.DataType) -> pa.DataType:
    if function == "sum":
        return pa.decimal128(min(38, kind.precision + 10), kind.scale)
    return pa.decimal128(min(38, kind.precision + 4), min(38, kind.scale + 4))


def _lower_decimal(
    function: str, sums: Table, valid: npt.NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    result = _decimal_result(function, kind)
    if function == "sum":
        packed = np.ascontiguousarray(sums)
        present = pa.array(valid > 0).buffers()[1]
        return pa.Array.from_buffers(result, len(valid), [present, pa.py_buffer(packed)])
    shift = 10 ** (result.scale - kind.scale)
    quotients = [
        _halves_up(((int(high) << 64) + int(low) % 2**64) * shift, int(count)) if count else None
        for low, high, count in zip(sums[:, 0], sums[:, 1], valid, strict=True)
    ]
    flat = np.array(
        [((q or 0) & (2**64 - 1), ((q or 0) >> 64) & (2**64 - 1)) for q in quotients],
        dtype=np.uint64,
    )
    present = pa.array([q is not None for q in quotients], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(result, len(valid), [present, pa.py_buffer(flat)])


def _halves_up(numerator: int, count: int) -> int:
    magnitude = (2 * abs(numerator) + count) // (2 * count)
    return magnitude if numerator >= 0 else -magnitude


def _as_floats(table: Table) -> npt.NDArray[np.float64]:
    return np.ascontiguousarray(table[:, :2]).view(np.float64)


def _two_product(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    product = a * b
    ca, cb = 134217729.0 * a, 134217729.0 * b
    a1, b1 = ca - (ca - a), cb - (cb - b)
    a2, b2 = a - a1, b - b1
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def square_over(
    sums: npt.NDArray[np.float64], count: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return sum squared over count as a double-double."""
    with np.errstate(all="ignore"):
        return _square_over(sums, np.zeros_like(sums), count)


def _square_over(
    high: npt.NDArray[np.float64], low: npt.NDArray[np.float64], count: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    square, error = _two_product(high, high)
    error = error + 2.0 * high * low
    quotient = square / count
    back, back_error = _two_product(quotient, count)
    return quotient, ((square - back) - back_error + error) / count


def _squared_spread(
    sums: npt.NDArray[np.float64], squares: npt.NDArray[np.float64], count: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return sum of squares minus square of sum over count, to about 100 bits."""
    quotient, rest = _square_over(sums[:, 0], sums[:, 1], count)
    spread = (squares[:, 0] - quotient) + (squares[:, 1] - rest)
    finite = np.isfinite(sums[:, 0]) & np.isfinite(squares[:, 0])
    return np.where(finite, np.maximum(spread, 0.0), np.nan)


def _decode_ordered(
    values: npt.NDArray[np.int64], kind: pa.DataType, empty: npt.NDArray[np.bool_]
) -> pa.Array:
    if pa.types.is_floating(kind):
        bits = np.where(values < 0, values ^ np.int64(0x7FFFFFFFFFFFFFFF), values)
        return pa.array(bits.view(np.float64), mask=empty).cast(kind, safe=False)
    settled = np.where(empty, 0, values)
    if pa.types.is_decimal(kind):
        flat = np.stack([settled, settled >> 63], axis=1)
        present = pa.array(~empty).buffers()[1]
        return pa.Array.from_buffers(kind, len(values), [present, pa.py_buffer(flat)])
    integers = pa.array(settled, mask=empty)
    if pa.types.is_boolean(kind):
        return integers.cast(pa.bool_())
    if pa.types.is_date32(kind):
        return integers.cast(pa.int32()).cast(kind)
    return integers.cast(kind)
