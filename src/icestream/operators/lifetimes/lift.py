"""Events as rows of words, and answers computed from merged rows: aggregates over lifetimes.

Idea: every event is folded alone, into the fields of `operators.folding.fields`. A row can be
scaled by the diff of its change, so a retraction is the negative of what was added. Unlike in
windows, sums of floats are subtracted as well: they keep 106 bits and are exactly zero over no
values. Infinities and NaN are counted apart from the sum, three counts in one word, so that they
leave no trace.

Invariants:
1. A row and its negative add up to zero (`test_a_row_and_its_negative_add_up_to_nothing`).
2. Infinities and NaN show exactly while they are alive
   (`test_infinities_and_nan_show_while_they_are_alive`).

Limits: a float sum is exact within 106 bits of the greatest value it ever held; one that overflowed
is right again when its group has no values. A group may have up to two million each of infinities
and NaN alive. Among events that begin together, `first` and `last` take the one with the least
value, because changes have no order of arrival. For these functions, a lifetime that is cut begins
anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.kernels import field_words as words
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.columns import ARRIVAL, TIME, InputColumn
from icestream.operators.folding.fields import ENTRY_FIELDS, Field, Layout
from icestream.operators.folding.fold import fold_field
from icestream.operators.lifetimes.changes import LE

#: bits of each count in the word next to a sum of floats: NaN, infinity, minus infinity
_APART = 21
_ONE_APART = (1 << _APART) - 1


class Lifting:
    """The words that events of a payload are folded into for some aggregates."""

    def __init__(self, payload: pa.Schema, aggregates: Sequence[Aggregate]) -> None:
        """Lay out the words; DefinitionError for functions or types without words."""
        # inputs get names of their own: a column may have the name of the stream's time
        self._types = {_inner(field.name): field.type for field in payload}
        self._aggregates = tuple(_renamed(each) for each in aggregates)
        self._layout = Layout.of(
            field for each in self._aggregates for field in each.fields(self._types)
        )
        self._apart = tuple(field for field in self._layout.fields if self._may_be_infinite(field))
        size, extra = self._layout.field_words, len(self._apart)
        #: words of a row
        self.width = size + extra
        counters = np.arange(size, self.width)
        self.ops: Ints = np.concatenate([self._layout.ops, np.full(extra, words.ADD_I64)])
        self.places: Ints = np.concatenate([self._layout.places - ENTRY_FIELDS, counters])
        guards = [self._guard(field) for field in self._layout.fields]
        #: for each field, the word that counts its values (without any, the field is zero), or -1
        self.guards: Ints = np.array([*guards, *[-1] * extra], dtype=np.int64)
        #: input columns of the fold
        self.inputs = tuple(
            field.name
            for field in payload
            if any(_inner(field.name) in each.columns for each in self._layout.fields)
        )
        #: whether all fields have an inverse
        self.inverts = all(op in (*words.INVERTIBLE, words.ADD_DD) for op in self.ops.tolist())
        #: columns of the answers
        self.result = pa.schema(
            [pa.field(each.alias, each.result_type(self._types)) for each in self._aggregates]
        )

    def lifted(self, changes: pa.RecordBatch) -> Table:
        """Return a row of words for each event, whatever its diff."""
        rows, layout = changes.num_rows, self._layout
        columns = {_inner(name): InputColumn(changes.column(name)) for name in self.inputs}
        if layout.needs_order:
            columns[TIME] = InputColumn(changes.column(LE))
            columns[ARRIVAL] = InputColumn(pa.array(np.zeros(rows, dtype=np.int64)))
        table = np.tile(layout.entry_identity, (rows, 1))
        slots = np.arange(rows)
        for field, place in zip(layout.fields, layout.places.tolist(), strict=True):
            fold_field(field, place, table, slots, columns, 0, rows)
        lifted = np.zeros((rows, self.width), dtype=np.int64)
        lifted[:, : layout.field_words] = table[:, ENTRY_FIELDS:]
        for number, field in enumerate(self._apart):
            place = layout.place(field)
            value = lifted.view(np.float64)[:, place]
            odd = np.flatnonzero(~np.isfinite(value))
            kinds = np.where(np.isnan(value[odd]), 0, np.where(value[odd] > 0, 1, 2))
            lifted[odd, layout.field_words + number] = 1 << (_APART * kinds)
            lifted[odd, place : place + 2] = 0
        return lifted

    def lower(self, table: Table) -> list[pa.Array]:
        """Return the answers of merged rows, a column for each aggregate."""
        layout = self._layout
        merged = np.ascontiguousarray(table[:, : layout.field_words])
        floats = merged.view(np.float64)
        for number, field in enumerate(self._apart):
            place, counts = layout.place(field), table[:, layout.field_words + number]
            odd = np.flatnonzero(counts)
            undefined, above, below = (
                (counts[odd] >> (_APART * each)) & _ONE_APART > 0 for each in range(3)
            )
            floats[odd, place + 1] = 0.0
            floats[odd, place] = np.where(above, np.inf, -np.inf)
            floats[odd[undefined | (above & below)], place] = np.nan
        answers = [each.lower(merged, layout, self._types) for each in self._aggregates]
        return [
            answer.cast(field.type) if answer.type != field.type else answer
            for answer, field in zip(answers, self.result, strict=True)
        ]

    def _may_be_infinite(self, field: Field) -> bool:
        kinds = [self._types[column] for column in field.columns]
        return field.op == words.ADD_DD and any(pa.types.is_floating(kind) for kind in kinds)

    def _guard(self, field: Field) -> int:
        """Return the word that counts the values of a sum of floats."""
        if field.op != words.ADD_DD:
            return -1
        counter = Field.of_all("valid", *field.columns)
        return self._layout.place(counter) if counter in self._layout.fields else 0


def table_of(columns: Sequence[pa.Array]) -> Table:
    """Return events with lifetimes, lifted to columns of words, as a table."""
    table = np.empty((len(columns[0]), len(columns)), dtype=np.int64)
    for place, column in enumerate(columns):
        table[:, place] = column.to_numpy()
    return table


def _inner(name: str) -> str:
    return f"input.{name}"


def _renamed(aggregate: Aggregate) -> Aggregate:
    if aggregate.column is None:
        return aggregate
    others = tuple(map(_inner, aggregate.others))
    return replace(aggregate, column=_inner(aggregate.column), others=others)
