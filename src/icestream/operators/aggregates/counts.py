"""Counts of events, of non-null values and of conditions that hold."""

from __future__ import annotations

import pyarrow as pa

from icestream.operators.aggregates.checks import check_booleans
from icestream.operators.aggregates.protocol import MergedFields, TypedCall
from icestream.operators.folding.fields import ROWS, Field


class Count:
    """`count(*)` and `count(x)`: events, or those in which x is not null."""

    arity = 1

    def check(self, call: TypedCall) -> None:
        """Take any type."""

    def result_type(self, _call: TypedCall) -> pa.DataType:
        """Return bigint."""
        return pa.int64()

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep one count; that of all events is in every layout."""
        return (Field("valid", call.columns[0]),) if call.columns else (ROWS,)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the count."""
        return pa.array(merged.word(self.lift(call)[0]))


class CountIf:
    """`count_if(x)`: events in which x is true."""

    arity = 1

    def check(self, call: TypedCall) -> None:
        """Take booleans."""
        check_booleans(call)

    def result_type(self, _call: TypedCall) -> pa.DataType:
        """Return bigint."""
        return pa.int64()

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Add trues up as ones."""
        return (Field("sum_i64", call.columns[0]),)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the count, 0 if there are only nulls."""
        return pa.array(merged.word(self.lift(call)[0]))
