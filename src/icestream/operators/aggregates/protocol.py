"""The protocol of functions over fields of words: lift, lower, input and result types.

Idea: a function never sees events. It names the fields that events are folded into (lift) and
computes answers from tables of merged fields (lower); in between, fields merge by their own
operations.

Invariant: a function reads only fields that it lifted
(`test_functions_look_only_at_fields_they_lifted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats, Ints, Table
from icestream.core.errors import DefinitionError
from icestream.kernels.field_words import WORDS
from icestream.operators.folding.fields import Field, Layout


@dataclass(frozen=True, slots=True)
class TypedCall:
    """A function applied to columns whose types are known."""

    function: str
    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    parameters: tuple[Any, ...]
    alias: str

    def refusal(self, complaint: str, advice: str) -> DefinitionError:
        """Return the error for columns that the function does not accept."""
        columns = "column" if len(self.columns) == 1 else "columns"
        return DefinitionError(f"{complaint} ({columns} of {self.alias!r}): {advice}")


@dataclass(frozen=True, slots=True)
class MergedFields:
    """A table of merged fields, one row for each answer, without the identity."""

    table: Table
    layout: Layout

    def words(self, field: Field) -> Table:
        """Return the words of a field."""
        place = self.layout.place(field)
        return self.table[:, place : place + WORDS[field.op]]

    def word(self, field: Field) -> Ints:
        """Return the first word of a field."""
        return self.table[:, self.layout.place(field)]

    def floats(self, field: Field) -> Floats:
        """Return a double-double field as pairs of floats."""
        return np.ascontiguousarray(self.words(field)).view(np.float64)


class WordFunction(Protocol):
    """An aggregate function whose state has a fixed number of words."""

    @property
    def arity(self) -> int:
        """Return the number of columns it takes."""
        ...

    def check(self, call: TypedCall) -> None:
        """Reject types that the function does not support."""
        ...

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return the type of the answers."""
        ...

    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Return the fields that the function needs."""
        ...

    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the answers."""
        ...
