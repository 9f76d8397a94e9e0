"""Events as rows of words, and answers computed from merged rows: aggregates over lifetimes.

Idea: every event is folded alone, into the fields of `operators.folding.fields`. A row can be
scaled by the diff of its change, so a retraction is the negative of what was added. Sums of floats
are exact (`operators.folding.exact_rows`), so they are subtracted like those of integers. Stored
rows have a column for each word of the fields of fixed size, and one with the significant bytes of
all sums of doubles.

    stored  __w0 __w1 ... | __sums: bytes

Of a join, answers are those over its pairs, though no pair is ever made (PairLifting): a sum over a
column of the left side adds each of its values once for every event on the right, so it is the sum
over the left side times the number of events on the right; minima and maxima are those of their own
side. A group with n and m events costs n + m, not n * m.

Invariants:
1. A row and its negative add up to zero (`test_a_row_and_its_negative_add_up_to_nothing`).
2. Infinities and NaN show exactly while they are alive
   (`test_infinities_and_nan_show_while_they_are_alive`).
3. Sums and averages of floats are the nearest doubles to the exact results, whatever was alive
   before (`test_oracle_float_aggregates_are_those_of_fractions`).
4. Stored rows are loaded as they were (`test_oracle_rows_keep_their_sums_in_any_layout`).
5. Answers are those of the aggregate over all pairs (`test_oracle_aggregates_of_pairs`).
6. There is an answer exactly while both sides have events (the same test, and
   `test_oracle_final_answers_over_pairs`).

Limits: among events that begin together, `first` and `last` take the one with the least value,
because changes have no order of arrival. For these functions, a lifetime that is cut begins anew. A
field reads columns of one side; functions that depend on the order of pairs, or keep objects, have
no such form.

References: aggregates pushed below joins (eager aggregation), here over lifetimes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Slots
from icestream.kernels import double_sums, field_words
from icestream.kernels.lifetimes.sweep import fold_equal, scale_rows
from icestream.operators.aggregates.aggregate import Aggregate, input_name
from icestream.operators.aggregates.protocol import MergedFields
from icestream.operators.folding.columns import ARRIVAL, TIME, InputColumn
from icestream.operators.folding.exact_rows import ExactRows, rows_with_sums, sums_column
from icestream.operators.folding.fields import ROWS, Field, Layout
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
        self._types = {input_name(field.name): field.type for field in payload}
        self._aggregates = tuple(each.of_inputs() for each in aggregates)
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
            if any(input_name(field.name) in each.columns for each in layout.fields)
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
        columns = {input_name(name): InputColumn(changes.column(name)) for name in self.inputs}
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


#: column that is null in the events of the right side
OF_LEFT = "__of_left"


class PairLifting(Lifting):
    """The words of events of both sides of a join, and answers over their pairs."""

    def __init__(
        self, payload: pa.Schema, aggregates: Sequence[Aggregate], left: Collection[str]
    ) -> None:
        """Fold a payload with the columns of both sides, those of `left`, and the mark."""
        mark = Aggregate("count", OF_LEFT, OF_LEFT)
        super().__init__(payload, [*aggregates, mark])
        self._aggregates = self._aggregates[:-1]
        self.result = pa.schema(list(self.result)[:-1])
        self.fields, (self._mark,) = self.fields[:-1], self.fields[-1]
        self._left = frozenset(
            each
            for each in self.fold.layout.fields
            if {*each.columns} <= {input_name(name) for name in left} and each != ROWS
        )
        self._right = frozenset(self.fold.layout.fields) - self._left - {ROWS, self._mark}

    def can_answer(self, rows: ExactRows, owners: Ints, groups: int) -> Mask:
        """Return which groups have events of both sides.

        Retracted events count: while they are stored, answers over them may have been emitted.
        """
        left = self._lefts(rows)
        of_left, of_right = np.zeros((2, groups), dtype=np.bool_)
        of_left[owners[left != 0]] = True
        of_right[owners[rows.counts != left]] = True
        both: Mask = of_left & of_right
        return both

    def shows(self, rows: ExactRows) -> Mask:
        left = self._lefts(rows)
        there: Mask = (left > 0) & (rows.counts > left)
        return there

    def lower(self, rows: ExactRows) -> list[pa.Array]:
        """Return the answers of the pairs of merged events; there are some of both sides."""
        left = self._lefts(rows)
        right = rows.counts - left
        copies = int(max(left.max(initial=1), right.max(initial=1)))
        made = rows.reshaped(rows.layout.with_room(copies)).copied()
        for counts, fields in ((right, self._left), (left, self._right)):
            scale_rows(made.table, counts, *_sums(made.layout, fields))
        made.counts[:] = left * right
        return super().lower(made)

    def _lefts(self, rows: ExactRows) -> Ints:
        """Return the number of events of the left side."""
        return np.ascontiguousarray(rows.table[:, rows.layout.place(self._mark)])


@lru_cache(maxsize=256)
def _sums(layout: Layout, fields: frozenset[Field]) -> tuple[Ints, Ints]:
    """Return the operations of some fields that add up, and their places."""
    of: list[Field] = list(layout.fixed)
    for field, extent in zip(layout.sums, layout.bounds, strict=True):
        of += [field] * (1 + double_sums.SPECIALS * extent.has_specials)
    adds = [
        field in fields and field_words.is_invertible(op)
        for field, op in zip(of, layout.ops.tolist(), strict=True)
    ]
    chosen = np.array(adds, dtype=np.bool_)
    return layout.at.ops[chosen], layout.at.places[chosen]
