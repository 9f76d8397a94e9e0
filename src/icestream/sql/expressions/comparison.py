"""Comparisons over Arrow arrays: NaN equals NaN and is greater than every other number.

Idea: Arrow compares floats as processors do: NaN is unordered. For floats each comparison is one of
Arrow's, corrected where NaN occurs; all other types use Arrow's own.

Invariants:
1. NaN = NaN, NaN > infinity, and -0.0 = 0.0 (`test_oracle_comparisons`).
2. Comparing with NULL gives NULL, except by <=> (`test_oracle_comparisons`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from icestream.sql.expressions.evaluation import Datum, Kernel
from icestream.sql.expressions.types import BOOLEAN, is_float


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
