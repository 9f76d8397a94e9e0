"""Variances, covariances, correlation and weighted averages, from sums of values and products.

Idea: sum of squares minus square of sum over count loses nearly all its digits in doubles. Exact
sums keep them all (`kernels.double_sums`). Merging is then plain addition, which Welford's and
Chan's formulas are not.

Invariants:
1. Values far from zero keep their digits (`test_moments_far_from_zero_keep_their_digits`,
   `test_covariances_far_from_zero_keep_their_digits`).
2. Equal values have no variance and no correlation (`test_equal_values_have_no_spread`).
3. Pairs with a null are ignored, and weights that add up to zero give null
   (`test_weighted_averages_without_weight_are_null`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import InputError
from icestream.operators.aggregates.decimals import (
    decimals_of_integers,
    floats_of_words,
    integers_of_words,
    quotient,
)
from icestream.operators.aggregates.protocol import (
    MergedFields,
    TypedCall,
    WordFunction,
    check_numbers,
)
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


#: bits of a product of which 2**33 can be added up in 128 bits
_PRODUCT_BITS = 94


class WeightedAverage(WordFunction):
    """`weighted_avg(value, weight)`."""

    arity = 2

    def check(self, call: TypedCall) -> None:
        """Take numbers; decimals only if their products fit."""
        check_numbers(call)
        value, weight = call.types
        decimals = pa.types.is_decimal(value) or pa.types.is_decimal(weight)
        if decimals and not _has_floats(call) and not _is_exact(call):
            complaint = f"{call.function} of {value} by {weight} could exceed 38 digits"
            raise call.refusal(complaint, "cast the columns to at most 28 digits together first")

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return double, or a decimal with four more places unless a column is a float."""
        value = call.types[0]
        if pa.types.is_decimal(value) and _is_exact(call):
            # weights of both signs may move the average far from the values
            return pa.decimal128(38, min(38, value.scale + 4))
        return pa.float64()

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the sums of products and of weights, and the number of pairs."""
        value, weight = call.columns
        kind = "i128" if _is_exact(call) else "f64"
        return (
            Field.of_all("valid", value, weight),
            Field.of_all(f"products_{kind}", value, weight),
            Field(f"sum_{kind}", weight, (value,)),
        )

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the quotient of the sums, null if the weights add up to zero."""
        pairs, products, weights = self.lift(call)
        result = self.result_type(call)
        if not pa.types.is_decimal(result):
            with np.errstate(all="ignore"):
                if _is_exact(call):
                    weight = floats_of_words(merged.words(weights))
                    average, nothing = floats_of_words(merged.words(products)) / weight, weight == 0
                else:
                    average, nothing = merged.ratios(products, weights), merged.zeros(weights)
            return pa.array(average, mask=(merged.word(pairs) == 0) | nothing)
        totals, by = (integers_of_words(merged.words(each)) for each in (products, weights))
        shift = 10 ** (result.scale - call.types[0].scale)
        digits = [
            quotient(shift * total, weight) if weight else None
            for total, weight in zip(totals, by, strict=True)
        ]
        if any(each is not None and abs(each) >= 10**result.precision for each in digits):
            msg = (
                f"the weighted average {call.alias!r} does not fit into a {result}: weights of "
                "both signs nearly cancel; filter them, or cast the value to double"
            )
            raise InputError(msg)
        return decimals_of_integers(digits, result)


def _has_floats(call: TypedCall) -> bool:
    return any(pa.types.is_floating(kind) for kind in call.types)


def _is_exact(call: TypedCall) -> bool:
    """Return whether products are added up as integers."""
    return not _has_floats(call) and sum(map(_bits, call.types)) <= _PRODUCT_BITS


def _bits(kind: pa.DataType) -> int:
    """Return the bits of the greatest magnitude of a type."""
    if pa.types.is_decimal(kind):
        return int((10**kind.precision - 1).bit_length())
    return int(kind.bit_width) - 1
