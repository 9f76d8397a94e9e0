"""Aggregates of fixed size as object functions, for windows that only these can slide over.

Idea: a state is a row of words as windows on a grid store it (`states`), in a struct.

Invariant: answers are those of the words (`test_oracle_every_aggregate_of_rows_within_a_range`).

Cost: as `states`; sums of doubles are exact, and take as many bytes as their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import function_of, is_object
from icestream.operators.object_aggregates.protocol import ObjectFunction, Types
from icestream.operators.object_aggregates.ragged import owners
from icestream.operators.object_aggregates.states import ObjectSpec, States
from icestream.plan.windows.grid import Windows

_ANY_WINDOWS = Windows(1, 1)


def any_function_of(aggregate: Aggregate, types: Types) -> ObjectFunction:
    """Return an object function for any aggregate; DefinitionError if the types do not fit."""
    if is_object(aggregate, types):
        return function_of(aggregate, types)
    return WordStates(aggregate, pa.schema([(each, types[each]) for each in aggregate.columns]))


@dataclass(frozen=True)
class WordStates(ObjectFunction):
    """An aggregate whose state has a fixed number of words."""

    aggregate: Aggregate
    inputs: pa.Schema

    @cached_property
    def _states(self) -> States:
        return States(ObjectSpec((self.aggregate,), pa.schema([]), self.inputs, _ANY_WINDOWS))

    @property
    def state(self) -> pa.DataType:
        return pa.struct(list(self._states.schema))

    @property
    def result(self) -> pa.DataType:
        types = {each.name: each.type for each in self.inputs}
        return self.aggregate.result_type(types)

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        events = pa.RecordBatch.from_arrays(list(columns), schema=self.inputs)
        return self._structs(self._states.folded(events, owners(bounds), len(bounds) - 1))

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        return self._structs(self._states.combine(owners(bounds), self._rows(states))[1])

    def lower(self, states: pa.Array) -> pa.Array:
        (answers,) = self._states.lower(self._rows(states))
        return answers

    def _rows(self, states: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(states.flatten(), schema=self._states.schema)

    def _structs(self, rows: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays(rows.columns, fields=list(self._states.schema))
