"""One value among many, chosen by the order of the stream or by another column.

Idea: a state is a few words compared one after the other, of which the least stays: what is chosen
by, the event's time, its batch, its arrival there with a bit for "the value is null", and the
value. To choose the last or the greatest, words are complemented when events are folded. Words of
nothing have the null bit set, so an empty choice is null.

Invariant: ties go to the first event in the order of the stream, (time, arrival)
(`test_ties_go_to_the_first_event_of_the_stream`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.operators.aggregates.checks import check_words
from icestream.operators.aggregates.protocol import MergedFields, TypedCall
from icestream.operators.aggregates.word_values import decode_ordered
from icestream.operators.folding.fields import Field


@dataclass(frozen=True)
class ByTime:
    """`first` and `last` by (time, arrival); a parameter `True` skips nulls."""

    kind: str
    arity: int = 1

    def check(self, call: TypedCall) -> None:
        """Take types whose values fit a word."""
        check_words(call)

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return the type of the column."""
        return call.types[0]

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the first or last event."""
        passes_over_nulls = bool(call.parameters and call.parameters[0])
        return (Field(f"{self.kind}_valid" if passes_over_nulls else self.kind, call.columns[0]),)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the value of that event."""
        return _chosen(merged, self.lift(call)[0], call.types[0])


@dataclass(frozen=True)
class ByOrdering:
    """`min_by(value, ordering)` and `max_by`; events whose ordering is null are skipped."""

    kind: str
    arity: int = 2

    def check(self, call: TypedCall) -> None:
        """Take types whose values fit a word, for both columns."""
        check_words(call)

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return the type of the value."""
        return call.types[0]

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Keep the event with the extreme ordering."""
        return (Field(self.kind, call.columns[0], call.columns[1:]),)

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the value of that event."""
        return _chosen(merged, self.lift(call)[0], call.types[0])


def _chosen(merged: MergedFields, field: Field, kind: pa.DataType) -> pa.Array:
    words = merged.words(field)
    return decode_ordered(words[:, -1], kind, (words[:, -2] & 1) == 1)
