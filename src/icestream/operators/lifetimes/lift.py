"""Events as rows of words, and answers computed from merged rows: aggregates over lifetimes.

Idea: every event is folded alone, into the fields of `operators.folding.fields`. A row can be
scaled by the diff of its change, so a retraction is the negative of what was added. Sums of floats
are exact (`operators.folding.exact_rows`), so they are subtracted like those of integers. Stored
rows have a column for each word of the fields of fixed size, and one with the significant bytes of
all sums of doubles.

    stored  __w0 __w1 ... | __sums: bytes

Invariants:
1. A row and its negative add up to zero (`test_a_row_and_its_negative_add_up_to_nothing`).
2. Infinities and NaN show exactly while they are alive
   (`test_infinities_and_nan_show_while_they_are_alive`).
3. Sums and averages of floats are the nearest doubles to the exact results, whatever was alive
   before (`test_oracle_float_aggregates_are_those_of_fractions`).
4. Stored rows are loaded as they were (`test_oracle_rows_keep_their_sums_in_any_layout`).

Limits: among events that begin together, `first` and `last` take the one with the least value,
because changes have no order of arrival. For these functions, a lifetime that is cut begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Slots
from icestream.kernels import field_words
from icestream.kernels.lifetimes.sweep import fold_equal
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.aggregates.protocol import MergedFields
from icestream.operators.folding.columns import ARRIVAL, TIME, InputColumn
from icestream.operators.folding.exact_rows import ExactRows, rows_with_sums, sums_column
from icestream.operators.folding.fields import Layout
from icestream.operators.folding.fold import fold_fields, measured
from icestream.operators.lifetimes.changes import began_of


class ExactFold:
    """Folds single events into rows, and stores rows as columns."""

    def __init__(self, layout: Layout) -> None:
        """Name the columns of stored rows; the layout has seen no values."""
        self.layout = layout
        names = [f"__w{n}" for n in range(layout.field_words)]
        stored = [pa.field(name, pa.int64(), nullable=False) for name in names]
        if layout.sums:
            stored.append(pa.field("__sums", pa.binary(), nullable=False))
        #: columns of stored rows
        self.schema = pa.schema(stored)

    @property
    def nothing(self) -> ExactRows:
        return self.zeros(0)

    def zeros(self, rows: int) -> ExactRows:
        return ExactRows(self.layout, np.zeros((rows, self.layout.field_words), dtype=np.int64))

    def folded(self, columns: Mapping[str, InputColumn], rows: int, copies: int) -> ExactRows:
        """Return a row for each event, with room to add up so many of them."""
        layout = measured(self.layout, columns, 0, rows, copies)
        table = np.tile(layout.at.identity, (rows, 1))
        fold_fields(layout, table, 0, np.arange(rows), columns)
        return ExactRows(layout, table)

    def stored(self, rows: ExactRows) -> list[pa.Array]:
        words = rows.table[:, : self.layout.field_words]
        columns = [pa.array(np.ascontiguousarray(each)) for each in words.T]
        return [*columns, sums_column(rows)] if self.layout.sums else columns

    def loaded(self, columns: Sequence[pa.Array], copies: int = 1) -> ExactRows:
        """Return the rows that columns store, with room to add up so many of each."""
        words = self.zeros(len(columns[0]))
        for place in range(self.layout.field_words):
            words.table[:, place] = columns[place].to_numpy()
        if not self.layout.sums:
            return words
        return rows_with_sums(words.table, columns[-1], self.layout, copies)


class Lifting:
    """The words that events of a payload are folded into for some aggregates."""

    def __init__(self, payload: pa.Schema, aggregates: Sequence[Aggregate]) -> None:
        """Lay out the words; DefinitionError for functions or types without words."""
        # inputs get names of their own: a column may have the name of the stream's time
        self._types = {inner_name(field.name): field.type for field in payload}
        self._aggregates = tuple(_renamed(each) for each in aggregates)
        #: the fields of each aggregate
        self.fields = tuple(each.fields(self._types) for each in self._aggregates)
        layout = Layout.of(field for fields in self.fields for field in fields)
        #: how rows are made and stored
        self.fold = ExactFold(layout)
        #: whether an answer depends on when events began
        self.needs_order = layout.needs_order
        #: input columns of the fold
        self.inputs = tuple(
            field.name
            for field in payload
            if any(inner_name(field.name) in each.columns for each in layout.fields)
        )
        #: whether all fields have an inverse
        self.inverts = all(map(field_words.is_invertible, self.fold.layout.ops.tolist()))
        #: columns of the answers
        self.result = pa.schema(
            [pa.field(each.alias, each.result_type(self._types)) for each in self._aggregates]
        )

    def lifted(self, changes: pa.RecordBatch, copies: int = 1) -> ExactRows:
        """Return a row for each event, whatever its diff, with room to add up so many of them."""
        rows = changes.num_rows
        columns = {inner_name(name): InputColumn(changes.column(name)) for name in self.inputs}
        if self.needs_order:
            columns[TIME] = InputColumn(began_of(changes))
            columns[ARRIVAL] = InputColumn(pa.array(np.zeros(rows, dtype=np.int64)))
        return self.fold.folded(columns, rows, copies)

    def can_answer(self, rows: ExactRows, owners: Ints, groups: int) -> Mask:
        """Return which groups may have an answer while these are their events: all of them."""
        return np.ones(groups, dtype=np.bool_)

    def shows(self, rows: ExactRows) -> Mask:
        """Return which merged rows have an answer: those with events."""
        there: Mask = rows.counts > 0
        return there

    def lower(self, rows: ExactRows) -> list[pa.Array]:
        """Return the answers of merged rows that have one, a column for each aggregate."""
        merged = MergedFields(rows.table, rows.layout)
        answers = [each.answers(merged, self._types) for each in self._aggregates]
        return [
            answer.cast(field.type) if answer.type != field.type else answer
            for answer, field in zip(answers, self.result, strict=True)
        ]


def added_up(slots: Slots, le: Ints, re: Ints, words: ExactRows) -> tuple[Ints, ExactRows]:
    """Merge the words of events with the same group and lifetime; return first rows and words.

    The rows of `words` are overwritten.
    """
    heads = np.empty(len(slots), dtype=np.int64)
    index = np.zeros(1 << max(4, (2 * len(slots)).bit_length()), dtype=np.int64)
    at = words.layout.at
    count = fold_equal(slots, le, re, words.table, at.ops, at.places, index, heads)
    return heads[:count], words[:count]


def inner_name(name: str) -> str:
    """Return the name of a column of the payload as an input of fields."""
    return f"input.{name}"


def _renamed(aggregate: Aggregate) -> Aggregate:
    if aggregate.column is None:
        return aggregate
    others = tuple(map(inner_name, aggregate.others))
    return replace(aggregate, column=inner_name(aggregate.column), others=others)
