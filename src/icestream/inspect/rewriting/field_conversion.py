"""Moves the words of fields to their places in the rows of a query that has other fields.

Invariant: carried fields keep every bit, and new ones are those of no events
(`test_oracle_windows_go_on_with_other_aggregates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Table
from icestream.kernels import double_sums, field_words
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import Field, Layout, SumExtent


@dataclass(frozen=True)
class FieldConversion:
    """Which words of rows become which, where a query has other fields than before."""

    layout: Layout
    #: fields of the new layout, with the old ones that they go on with
    carried: Mapping[Field, Field | None]

    def of(self, rows: ExactRows) -> ExactRows:
        """Return rows with the new fields; words in front of them stay."""
        old, head = rows.layout, rows.fields_at
        extents: dict[Field | None, SumExtent] = dict(zip(old.sums, old.bounds, strict=True))
        layout = self.layout.widened(
            extents.get(self.carried[field], SumExtent()) for field in self.layout.sums
        )
        out = np.empty((len(rows), head + layout.field_words), dtype=np.int64)
        out[:, :head] = rows.table[:, :head]
        out[:, head:] = layout.at.identity
        for field, source in self.carried.items():
            if source is not None:
                words = _words(rows.table[:, head:], old, source)
                target = _place(layout, field)
                if words.shape[1] < target.stop - target.start:
                    words = np.column_stack([words, words >> 63])
                out[:, head:][:, target] = words
        return ExactRows(layout, out)


def _words(fields: Table, layout: Layout, field: Field) -> Table:
    return fields[:, _place(layout, field)]


def _place(layout: Layout, field: Field) -> slice:
    """Return the words of a field."""
    if not field.adds_doubles:
        first = layout.place(field)
        return slice(first, first + field_words.WORDS[field.op])
    first, _, count, specials = layout.at.sums_at[layout.sums.index(field)].tolist()
    return slice(first, first + count + double_sums.SPECIALS * (specials >= 0))
