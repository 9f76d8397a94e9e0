"""Variances, covariances and correlation, from sums, sums of squares and sums of products.

Idea: sum of squares minus square of sum over count loses nearly all its digits in doubles. Exact
sums keep them all (`kernels.double_sums`). Merging is then plain addition, which Welford's and
Chan's formulas are not.

Invariants:
1. Values far from zero keep their digits (`test_moments_far_from_zero_keep_their_digits`,
   `test_covariances_far_from_zero_keep_their_digits`).
2. Equal values have no variance and no correlation (`test_equal_values_have_no_spread`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.operators.aggregates.checks import check_numbers
from icestream.operators.aggregates.protocol import MergedFields, TypedCall, WordFunction
from icestream.operators.folding.fields import Field


@dataclass(frozen=True)
class _OfNumbers(WordFunction):
    """A moment of a population or a sample."""

    sample: bool = False

    def check(self, call: TypedCall) -> None:
        check_numbers(call)

    def result_type(self, _call: TypedCall) -> pa.DataType:
        return pa.float64()


@dataclass(frozen=True)
class Moment(_OfNumbers):
    """Variances and standard deviations."""

    root: bool = False

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep count, sum and sum of squares."""
        column = call.columns[0]
        return Field("valid", column), Field("sum_f64", column), Field("squares_f64", column)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the moment; null without values, for a sample also with a single one."""
        count, sums, squares = self.lift(call)
        valid = merged.word(count)
        with np.errstate(all="ignore"):
            divisor = _divisor(valid, sample=self.sample)
            spread = merged.spreads(squares, sums, sums, np.maximum(valid, 1), divisor)
            result = np.maximum(spread, 0.0)
            if self.root:
                result = np.sqrt(result)
        return pa.array(result, mask=valid < (2 if self.sample else 1))


@dataclass(frozen=True)
class Comoment(_OfNumbers):
    """Covariances and correlation; pairs with a null are ignored."""

    arity = 2

    #: whether the result is divided by the standard deviations of both columns
    relative: bool = False

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the count of pairs, both sums and the sum of products; of squares if needed."""
        x, y = call.columns
        fields = (
            Field.of_all("valid", x, y),
            Field("sum_f64", x, (y,)),
            Field("sum_f64", y, (x,)),
            Field.of_all("products_f64", x, y),
        )
        if not self.relative:
            return fields
        return (*fields, Field("squares_f64", x, (y,)), Field("squares_f64", y, (x,)))

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the covariance, or the correlation: null if a column has one value only."""
        count, x, y, products, *squares = self.lift(call)
        valid = merged.word(count)
        with np.errstate(all="ignore"):
            counts = np.maximum(valid, 1)
            if not self.relative:
                divisor = _divisor(valid, sample=self.sample)
                result = merged.spreads(products, x, y, counts, divisor)
                return pa.array(result, mask=valid < (2 if self.sample else 1))
            ones = np.ones_like(counts)
            together = merged.spreads(products, x, y, counts, ones)
            apart = np.sqrt(np.maximum(merged.spreads(squares[0], x, x, counts, ones), 0.0))
            apart *= np.sqrt(np.maximum(merged.spreads(squares[1], y, y, counts, ones), 0.0))
            result = np.clip(together / apart, -1.0, 1.0)
        return pa.array(result, mask=(valid < 2) | (apart == 0))


def _divisor(valid: Ints, *, sample: bool) -> Ints:
    return np.maximum(valid - 1 if sample else valid, 1)
