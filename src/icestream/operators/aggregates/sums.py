"""Sums and averages: integers and decimals exactly, floats as double-doubles."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.errors import InputError
from icestream.operators.aggregates.checks import check_numbers
from icestream.operators.aggregates.decimals import (
    average_type,
    decimals_of_integers,
    decimals_of_words,
    floats_of_words,
    integers_of_words,
    quotient,
)
from icestream.operators.aggregates.protocol import MergedFields, TypedCall
from icestream.operators.aggregates.word_values import sum_kind
from icestream.operators.folding.fields import Field


def _check(call: TypedCall) -> None:
    check_numbers(call)
    kind = call.types[0]
    if pa.types.is_decimal(kind) and kind.precision > 28:
        complaint = f"{call.function} of {kind} could exceed 38 digits"
        raise call.refusal(complaint, "cast the column to at most 28 digits first")


def _lift(call: TypedCall) -> tuple[Field, Field]:
    column = call.columns[0]
    return Field("valid", column), Field(sum_kind(call.types[0]), column)


class Sum:
    """`sum(x)`."""

    arity = 1

    def check(self, call: TypedCall) -> None:
        """Take numbers whose sums fit 38 digits."""
        _check(call)

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return bigint, double, or a decimal with ten more digits."""
        kind = call.types[0]
        if pa.types.is_decimal(kind):
            return pa.decimal128(min(38, kind.precision + 10), kind.scale)
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the sum and whether there is any value."""
        return _lift(call)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the sum, null if every value is."""
        count, total = _lift(call)
        there = merged.word(count) > 0
        if total.kind == "sum_f64":
            return pa.array(merged.floats(total).sum(axis=1), mask=~there)
        if pa.types.is_decimal(call.types[0]):
            return decimals_of_words(merged.words(total), there, self.result_type(call))
        words = merged.words(total)
        if total.kind == "sum_i128" and not (words[:, 1] == words[:, 0] >> 63)[there].all():
            msg = (
                f"the sum of {call.alias!r} does not fit into a bigint; cast the column to "
                "decimal(28, 0) before summing"
            )
            raise InputError(msg)
        return pa.array(words[:, 0], mask=~there)


class Average:
    """`avg(x)`."""

    arity = 1

    def check(self, call: TypedCall) -> None:
        """Take numbers whose sums fit 38 digits."""
        _check(call)

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return double, or a decimal with four more digits."""
        kind = call.types[0]
        return average_type(kind) if pa.types.is_decimal(kind) else pa.float64()

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the sum and the number of values."""
        return _lift(call)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the average, null if every value is."""
        count, total = _lift(call)
        valid = merged.word(count)
        if pa.types.is_decimal(call.types[0]):
            result = self.result_type(call)
            shift = 10 ** (result.scale - call.types[0].scale)
            totals = integers_of_words(merged.words(total))
            means = [
                quotient(each * shift, number) if number else None
                for each, number in zip(totals, valid.tolist(), strict=True)
            ]
            return decimals_of_integers(means, result)
        count_or_one = np.maximum(valid, 1)
        if total.kind == "sum_f64":
            average = merged.floats(total).sum(axis=1) / count_or_one
        elif total.kind == "sum_i128":
            average = floats_of_words(merged.words(total)) / count_or_one
        else:
            average = merged.word(total) / count_or_one
        return pa.array(average, mask=valid == 0)
