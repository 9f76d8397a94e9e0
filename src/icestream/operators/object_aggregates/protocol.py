"""The protocol of functions whose state is an object, and checks of their input types.

Idea: a function has a type of state and three steps, each for many groups at once. `lift` computes
a state for each run of events, `combine` merges each run of states into one, `lower` computes the
answer of a state. States are Arrow values, with the same form on the log as in memory. `over`
answers windows that slide over states: what a function can take back need not be combined again.

Invariants (of every function, by `tests/operators/object_aggregates/test_functions.py`):
1. Lowering the combined states of any cut of the events equals lowering all of them lifted at once,
   within the function's own error (`test_parity_combining_any_cut_of_the_events`).
2. A group without values has Spark's answer for it: null, zero or an empty list
   (`test_a_group_of_nulls_has_sparks_answer`).
3. States come back from the log as they were (`test_states_survive_the_log`).
4. Answers over windows that slide are those of each window alone
   (`test_oracle_sliding_equals_combining_each_window`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.sliding import Slides

Types = Mapping[str, pa.DataType]


class ObjectFunction(ABC):
    """An aggregate function whose state is an Arrow value."""

    #: whether a state grows with the values of its window
    accumulates: ClassVar[bool] = True

    @property
    @abstractmethod
    def state(self) -> pa.DataType:
        """Return the type of its states."""

    @property
    @abstractmethod
    def result(self) -> pa.DataType:
        """Return the type of its answers."""

    @abstractmethod
    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        """Return the state of each run of events, which are ordered by time and arrival."""

    @abstractmethod
    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        """Return the state of each run of states; among equal times, earlier states come first."""

    @abstractmethod
    def lower(self, states: pa.Array) -> pa.Array:
        """Return the answer of each state."""

    def over(self, states: pa.Array, slides: Slides) -> pa.Array:
        """Return the answer of each window that slides over states, in order of time."""
        return self.lower(slides.combined(states, self.combine))


@dataclass(frozen=True)
class ValueFunction(ObjectFunction):
    """A function over values of one type; by default, its answer is one of them."""

    input: pa.DataType

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> Self:
        """Take one column, or several as a struct, of types with an order."""
        kind = input_of(aggregate, types)
        check_ranked(aggregate, kind)
        return cls(kind)

    @property
    def result(self) -> pa.DataType:
        return self.input


def input_of(aggregate: Aggregate, types: Types) -> pa.DataType:
    """Return the type of the values of an object function: its input, or a struct of several."""
    if len(aggregate.columns) == 1:
        return types[aggregate.columns[0]]
    return pa.struct([pa.field(name, types[name]) for name in aggregate.columns])


def check_ranked(aggregate: Aggregate, kind: pa.DataType) -> None:
    """Reject types of an object function that have no order here."""
    inner = [field.type for field in kind] if pa.types.is_struct(kind) else [kind]
    for each in inner:
        if pa.types.is_nested(each) and not pa.types.is_struct(each):
            msg = (
                f"{aggregate.function} of a {each} is not supported (as {aggregate.alias!r}): use "
                "a number, text, date, timestamp or boolean"
            )
            raise DefinitionError(msg)


def check_number(aggregate: Aggregate, kind: pa.DataType) -> None:
    """Reject types of an object function other than numbers."""
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not number:
        msg = (
            f"{aggregate.function} needs a number, got {kind} (as {aggregate.alias!r}): cast the "
            "column to a numeric type first"
        )
        raise DefinitionError(msg)
