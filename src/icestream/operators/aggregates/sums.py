"""Counts, sums and averages: of events, integers, decimals and floats."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.errors import InputError
from icestream.operators.aggregates.decimals import (
    average_type,
    decimals_of_integers,
    decimals_of_words,
    floats_of_words,
    integers_of_words,
    quotient,
)
from icestream.operators.aggregates.protocol import (
    MergedFields,
    TypedCall,
    WordFunction,
    answers_where,
    check_booleans,
    check_numbers,
)
from icestream.operators.folding.fields import ROWS, Field


class Count(WordFunction):
    """`count(*)` and `count(x)`: events, or those in which x is not null."""

    def result_type(self, _call: TypedCall) -> pa.DataType:
        return pa.int64()

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep one count; that of all events is in every layout."""
        return (Field("valid", call.columns[0]),) if call.columns else (ROWS,)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the count, 0 if there is nothing to count."""
        return pa.array(merged.word(self.lift(call)[0]))


class CountIf(Count):
    """`count_if(x)`: events in which x is true."""

    def check(self, call: TypedCall) -> None:
        check_booleans(call)

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Add trues up as ones."""
        return (Field("sum_i64", call.columns[0]),)


class Sum(WordFunction):
    """`sum(x)`."""

    def check(self, call: TypedCall) -> None:
        """Take numbers whose sums fit 38 digits."""
        check_numbers(call)
        kind = call.types[0]
        if pa.types.is_decimal(kind) and kind.precision > 28:
            complaint = f"{call.function} of {kind} could exceed 38 digits"
            raise call.refusal(complaint, "cast the column to at most 28 digits first")

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return bigint, double, or a decimal with ten more digits."""
        kind = call.types[0]
        if pa.types.is_decimal(kind):
            return pa.decimal128(min(38, kind.precision + 10), kind.scale)
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the number of values and their sum, without loss."""
        kind, column = call.types[0], call.columns[0]
        added = "sum_i64"
        if pa.types.is_floating(kind):
            added = "sum_f64"
        elif pa.types.is_decimal(kind) or kind in (pa.int64(), pa.uint64()):
            added = "sum_i128"
        return Field("valid", column), Field(added, column)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the sum, null if every value is."""
        count, total = self.lift(call)
        there = merged.word(count) > 0
        if total.kind == "sum_f64":
            return answers_where(there, merged.sums(total))
        if pa.types.is_decimal(call.types[0]):
            return decimals_of_words(merged.words(total), there, self.result_type(call))
        if total.kind == "sum_i64":
            return answers_where(there, merged.word(total))
        words = merged.words(total)
        if not (words[:, 1] == words[:, 0] >> 63)[there].all():
            msg = (
                f"the sum of {call.alias!r} does not fit into a bigint; cast the column to "
                "decimal(28, 0) before summing"
            )
            raise InputError(msg)
        return answers_where(there, words[:, 0])


class Average(Sum):
    """`avg(x)`."""

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return double, or a decimal with four more digits."""
        kind = call.types[0]
        return average_type(kind) if pa.types.is_decimal(kind) else pa.float64()

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the average, null if every value is."""
        count, total = self.lift(call)
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
            average = merged.means(total, count_or_one)
        elif total.kind == "sum_i128":
            average = floats_of_words(merged.words(total)) / count_or_one
        else:
            average = merged.word(total) / count_or_one
        return answers_where(valid != 0, average)
