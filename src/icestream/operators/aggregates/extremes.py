"""The least and the greatest value; of booleans, whether all or any are true."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.operators.aggregates.checks import check_booleans, check_words
from icestream.operators.aggregates.protocol import MergedFields, TypedCall
from icestream.operators.aggregates.word_values import decode_ordered
from icestream.operators.folding.fields import Field


@dataclass(frozen=True)
class Extreme:
    """`min`, `max`, and over booleans only `bool_and`, `bool_or`."""

    kind: str
    booleans: bool = False
    arity: int = 1

    def check(self, call: TypedCall) -> None:
        """Take types whose values fit a word."""
        if self.booleans:
            check_booleans(call)
        check_words(call)

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return the type of the column."""
        return call.types[0]

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the extreme and whether there is any value."""
        column = call.columns[0]
        return (Field("valid", column), Field(self.kind, column))

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the extreme, null where every value is."""
        valid, extreme = self.lift(call)
        return decode_ordered(merged.word(extreme), call.types[0], merged.word(valid) == 0)
