"""Weighted averages: sum(value * weight) / sum(weight), for example a volume-weighted price.

Idea: exact products are added up: of integers and decimals in 128 bits if 2**33 of them fit, of
floats as the fields add floats. Integers that do not fit are converted to floats.

Invariant: pairs with a null are ignored, and weights that add up to zero give null
(`test_weighted_averages_without_weight_are_null`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.errors import InputError
from icestream.operators.aggregates.checks import check_numbers
from icestream.operators.aggregates.decimals import (
    decimals_of_integers,
    floats_of_words,
    integers_of_words,
    quotient,
)
from icestream.operators.aggregates.protocol import MergedFields, TypedCall, WordFunction
from icestream.operators.folding.fields import Field

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
