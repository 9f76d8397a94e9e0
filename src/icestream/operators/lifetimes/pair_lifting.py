"""Answers over the pairs of a join, from the events of both sides: no pair is ever made.

Idea: at each instant, the pairs of a group are all events of one side with all of the other. A sum
over a column of the left side adds each of its values once for every event on the right, so it is
the sum over the left side times the number of events on the right. Minima and maxima are those of
their own side. Events of both sides are folded into rows with the fields of both; a mark counts
those of the left side, and rows are multiplied when answers are computed. A group with n and m
events costs n + m, not n * m, and is stored once, not as events for the join and pairs for the
aggregate.

Invariants:
1. Answers are those of the aggregate over all pairs (`test_oracle_aggregates_of_pairs`).
2. There is an answer exactly while both sides have events (the same test, and
   `test_oracle_final_answers_over_pairs`).

Limits: a field reads columns of one side; functions that depend on the order of pairs, or keep
objects, have no such form.

References: aggregates pushed below joins (eager aggregation), here over lifetimes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask
from icestream.kernels import double_sums, field_words
from icestream.kernels.lifetimes.sweep import scale_rows
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import ROWS, Field, Layout
from icestream.operators.lifetimes.lift import Lifting, inner_name

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
            if {*each.columns} <= {inner_name(name) for name in left} and each != ROWS
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
