"""Arithmetic and comparisons over Arrow arrays: NULL where Spark's ANSI mode would fail.

Idea: Arrow's checked functions are tried first. If one finds an overflow, the batch is computed
again with integers that cannot overflow, and values out of range become NULL; so only batches with
an overflow pay for it. Doubles never overflow; division by zero gives NULL.

For floats, which Arrow compares as processors do, each comparison is one of Arrow's, corrected
where NaN occurs.

Invariants:
1. No result wraps around (`test_overflow_is_null_before_it_is_an_error`).
2. Doubles are rounded as their shortest text would be (`test_oracle_numbers`).
3. NaN = NaN, NaN > infinity, and -0.0 = 0.0 (`test_oracle_comparisons`).
4. Comparing with NULL gives NULL, except by <=> (`test_oracle_comparisons`).

Cost: one Arrow call per operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Floats
from icestream.sql.expressions import decimal_arithmetic as decimals
from icestream.sql.expressions.decimal_arithmetic import valid
from icestream.sql.expressions.evaluation import Datum, Kernel, as_array
from icestream.sql.expressions.types import BIGINT, BOOLEAN, DOUBLE, is_float

_EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "add_checked": operator.add,
    "subtract_checked": operator.sub,
    "multiply_checked": operator.mul,
}
#: a double above this has no fractional digits
_WHOLE_DOUBLE = 2.0**52


def arrays(*values: Datum) -> list[pa.Array]:
    """Return arrays of one length for arithmetic; one of the values is an array."""
    size = next(len(value) for value in values if not isinstance(value, pa.Scalar))
    return [as_array(value, size) for value in values]


def whole(name: str) -> Kernel:
    """Return the arithmetic +, - or * of whole numbers; NULL where the result is out of range."""
    fast, exact = getattr(pc, name), _EXACT[name]

    def kernel(a: Datum, b: Datum) -> pa.Array:
        try:
            return fast(a, b)
        except pa.ArrowInvalid:
            left, right = arrays(a, b)
            values = exact(decimals.unscaled(left, 38), decimals.unscaled(right, 38))
            return decimals.to_whole(values, valid(left) & valid(right), left.type)

    return kernel


def negate(a: pa.Array) -> pa.Array:
    """Arithmetic: change the sign of whole numbers or intervals; NULL if out of range."""
    if pa.types.is_duration(a.type):
        return negate(a.view(BIGINT)).view(a.type)
    return whole("subtract_checked")(pa.scalar(0, a.type), a)


def absolute(a: pa.Array) -> pa.Array:
    """Arithmetic: return absolute values of whole numbers or intervals; NULL if out of range."""
    if pa.types.is_duration(a.type):
        return absolute(a.view(BIGINT)).view(a.type)
    return pc.if_else(pc.less(a, pa.scalar(0, a.type)), negate(a), a)


def _where_not_zero(result: pa.Array, divisor: Datum) -> pa.Array:
    zero = pc.equal(divisor, pa.scalar(0, divisor.type))
    if not pc.any(zero).as_py() if isinstance(zero, pa.Array) else not zero.as_py():
        return result
    return pc.if_else(zero, pa.scalar(None, result.type), result)


def divide(a: Datum, b: Datum) -> pa.Array:
    """Arithmetic: divide doubles; NULL where the divisor is zero."""
    return _where_not_zero(pc.divide(a, b), b)


def _never_zero(array: pa.Array) -> npt.NDArray[Any]:
    values = array.fill_null(1).to_numpy()
    never: npt.NDArray[Any] = np.where(values == 0, values.dtype.type(1), values)
    return never


def whole_quotient(a: Datum, b: Datum) -> pa.Array:
    """Arithmetic: divide whole numbers and truncate; NULL by 0 or if out of range."""
    left, right = arrays(a, b)
    x, y = left.fill_null(0).to_numpy(), _never_zero(right)
    overflow = (x == np.iinfo(np.int64).min) & (y == -1)
    y = np.where(overflow, 1, y)
    quotient = x // y
    quotient += (quotient < 0) & (quotient * y != x)
    ok = valid(left) & valid(right) & ~overflow
    return _where_not_zero(pa.array(quotient, mask=~ok), right)


def remainder(a: Datum, b: Datum) -> pa.Array:
    """Arithmetic: return the remainder, with the sign of the dividend; NULL by 0."""
    left, right = arrays(a, b)
    by = _never_zero(right)
    if pa.types.is_integer(right.type):
        by = np.where(by == -1, by.dtype.type(1), by)
    with np.errstate(invalid="ignore"):
        rest = np.fmod(left.fill_null(0).to_numpy(), by)
    return _where_not_zero(pa.array(rest, left.type, mask=~(valid(left) & valid(right))), right)


def positive_remainder(a: Datum, b: Datum) -> pa.Array:
    """Arithmetic: return the remainder, moved into the range of the divisor."""
    rest = remainder(a, b)
    below = pc.less(rest, pa.scalar(0, rest.type))
    moved = remainder(pc.add(rest, b), b)
    return pc.if_else(below, moved, rest)


def of_floats(function: Callable[..., Any], *, above: float | None = None) -> Kernel:
    """Return arithmetic on doubles as a kernel; NULL for arguments at or below a bound."""

    def kernel(*values: Datum) -> pa.Array:
        given = arrays(*values)
        ok = np.logical_and.reduce([valid(each) for each in given])
        numbers = [each.fill_null(1.0).to_numpy() for each in given]
        if above is not None:
            for number in numbers:
                ok &= ~(number <= above)
        with np.errstate(all="ignore"):
            return pa.array(function(*numbers), DOUBLE, mask=None if ok.all() else ~ok)

    return kernel


def power(a: Floats, b: Floats) -> Floats:
    """Arithmetic: raise doubles to a power; 1 to the power NaN is NaN, as in Java."""
    odd = (np.abs(a) == 1) & ~np.isfinite(b)
    result: Floats = np.where(odd, np.nan, np.power(a, b))
    return result


def logarithm(base: Floats, a: Floats) -> Floats:
    """Arithmetic: return logarithms to any base."""
    result: Floats = np.log(a) / np.log(base)
    return result


def round_floats(array: pa.Array, places: int) -> pa.Array:
    """Arithmetic: round doubles half up to a number of places.

    The tie above `k` is `(k + 1/2) / 10**places`. The double nearest to it is the one whose
    shortest text is the tie, so comparing doubles equals comparing texts.
    """
    values = array.cast(DOUBLE).fill_null(0.0).to_numpy()
    size = np.abs(values)
    up, down = 10.0 ** max(places, 0), 10.0 ** max(-places, 0)
    with np.errstate(all="ignore"):
        below = np.floor(size * up / down)
        tie = (below + 0.5) / up * down
        near = (below + (size >= tie)) / up * down
        kept = ~np.isfinite(values) | (size * up / down >= _WHOLE_DOUBLE)
    result = np.copysign(np.where(kept, size, near), values)
    # Java's decimals have no negative zero
    result = np.where(~kept & (result == 0), 0.0, result)
    return pa.array(result, mask=~valid(array)).cast(array.type, safe=False)


def round_whole(array: pa.Array, places: int) -> pa.Array:
    """Arithmetic: round whole numbers half up to places before the point; NULL if too large."""
    if places >= 0:
        return array
    values = decimals.half_up(decimals.unscaled(array, 38), 10**-places) * 10**-places
    return decimals.to_whole(values, valid(array), array.type)


def to_whole_number(function: Callable[[Floats], Floats]) -> Kernel:
    """Arithmetic: return floor or ceil of doubles as BIGINT: 0 for NaN, or NULL."""

    def kernel(array: pa.Array) -> pa.Array:
        values = array.fill_null(0.0).to_numpy()
        cut = function(np.where(np.isnan(values), 0.0, values))
        ok = valid(array) & (cut >= -(2.0**63)) & (cut < 2.0**63)
        return pa.array(np.where(ok, cut, 0.0).astype(np.int64), mask=~ok)

    return kernel


def equal(a: Datum, b: Datum) -> pa.Array:
    """Compare values: return a = b."""
    same = pc.equal(a, b)
    return pc.or_(same, pc.and_(pc.is_nan(a), pc.is_nan(b))) if is_float(a.type) else same


def greater(a: Datum, b: Datum) -> pa.Array:
    """Compare values: return a > b."""
    if not is_float(a.type):
        return pc.greater(a, b)
    return pc.and_(pc.invert(pc.less_equal(a, b)), pc.invert(pc.is_nan(b)))


def same(a: Datum, b: Datum) -> pa.Array:
    """Compare values: return a <=> b, in which NULL equals only NULL."""
    both = pc.and_(pc.is_null(a), pc.is_null(b))
    return pc.or_(both, pc.fill_null(equal(a, b), False))


COMPARISONS: dict[str, Kernel] = {
    "=": equal,
    "<>": lambda a, b: pc.invert(equal(a, b)),
    ">": greater,
    "<": lambda a, b: greater(b, a),
    ">=": lambda a, b: pc.invert(greater(b, a)),
    "<=": lambda a, b: pc.invert(greater(a, b)),
    "<=>": same,
}


def extreme(*values: Datum, highest: bool) -> pa.Array:
    """Compare values: return the greatest or least, ignoring NULLs."""
    best = values[0]
    for value in values[1:]:
        beats = greater(value, best) if highest else greater(best, value)
        beats = pc.and_(pc.fill_null(beats, True), pc.is_valid(value))
        best = pc.if_else(beats, value, best)
    return best


def among(value: Datum, *others: Datum) -> pa.Array:
    """Compare values: return value IN (...), TRUE, or NULL if there is a NULL, or FALSE."""
    constants = [other for other in others if isinstance(other, pa.Scalar)]
    if len(constants) == len(others) and not is_float(value.type):
        known = [each for each in constants if each.is_valid]
        found = pc.is_in(value, value_set=_array(known, value.type))
        open_still = len(known) < len(constants)
        nothing = pa.scalar(None if open_still else False, BOOLEAN)
        found = pc.if_else(found, True, nothing)
        return pc.if_else(pc.is_valid(value), found, pa.scalar(None, BOOLEAN))
    found = equal(value, others[0])
    for other in others[1:]:
        found = pc.or_kleene(found, equal(value, other))
    return found


def _array(scalars: list[pa.Scalar], kind: pa.DataType) -> pa.Array:
    if not scalars:
        return pa.nulls(0, kind)
    return pa.concat_arrays([pa.repeat(each, 1) for each in scalars])
