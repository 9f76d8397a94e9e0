"""One value among many: the least, the greatest, the first, the last, or that of an extreme event.

Idea: the state of an extreme is one word of the same order as the values. That of a choice is a few
words compared one after the other, of which the least stays: what is chosen by, the event's time,
its batch, its arrival there with a bit for "the value is null", and the value. To choose the last
or the greatest, words are complemented when events are folded. Words of nothing have the null bit
set, so an empty choice is null.

Invariants:
1. Ties go to the first event in the order of the stream, (time, arrival)
   (`test_ties_go_to_the_first_event_of_the_stream`).
2. An ordered word is converted back to its value; -0.0 is kept, and every NaN is the same
   (`test_ordered_words_turn_back_into_their_values`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask
from icestream.operators.aggregates.decimals import decimals_of_words
from icestream.operators.aggregates.protocol import (
    MergedFields,
    TypedCall,
    WordFunction,
    check_booleans,
    check_words,
)
from icestream.operators.folding.fields import Field


@dataclass(frozen=True)
class Extreme(WordFunction):
    """`min`, `max`, and over booleans only `bool_and`, `bool_or`."""

    kind: str
    booleans: bool = False

    def check(self, call: TypedCall) -> None:
        """Take types whose values fit a word."""
        if self.booleans:
            check_booleans(call)
        check_words(call)

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the extreme and whether there is any value."""
        column = call.columns[0]
        return (Field("valid", column), Field(self.kind, column))

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the extreme, null where every value is."""
        valid, extreme = self.lift(call)
        return decode_ordered(merged.word(extreme), call.types[0], merged.word(valid) == 0)


@dataclass(frozen=True)
class ByTime(WordFunction):
    """`first` and `last` by (time, arrival); a parameter `True` skips nulls."""

    kind: str

    def check(self, call: TypedCall) -> None:
        """Take types whose values fit a word, for all columns."""
        check_words(call)

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        passes_over_nulls = bool(call.parameters and call.parameters[0])
        return (Field(f"{self.kind}_valid" if passes_over_nulls else self.kind, call.columns[0]),)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        words = merged.words(self.lift(call)[0])
        return decode_ordered(words[:, -1], call.types[0], (words[:, -2] & 1) == 1)


class ByOrdering(ByTime):
    """`min_by(value, ordering)` and `max_by`; events whose ordering is null are skipped."""

    arity = 2

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        return (Field(self.kind, call.columns[0], call.columns[1:]),)


def decode_ordered(values: Ints, kind: pa.DataType, empty: Mask) -> pa.Array:
    """Convert the ordered words of a choice back to values of a type, null where `empty`."""
    if pa.types.is_floating(kind):
        bits = np.where(values < 0, values ^ np.int64(0x7FFFFFFFFFFFFFFF), values)
        return pa.array(bits.view(np.float64), mask=empty).cast(kind, safe=False)
    settled = np.where(empty, 0, values)
    if pa.types.is_decimal(kind):
        return decimals_of_words(np.stack([settled, settled >> 63], axis=1), ~empty, kind)
    integers = pa.array(settled, mask=empty)
    if pa.types.is_boolean(kind):
        return integers.cast(pa.bool_())
    if pa.types.is_date32(kind):
        return integers.cast(pa.int32()).cast(kind)
    return integers.cast(kind)
