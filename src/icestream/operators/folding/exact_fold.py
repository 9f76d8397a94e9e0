"""Single events as rows of exact fields, stored as columns: what aggregates over lifetimes keep.

Idea: every event is folded alone. Stored rows have a column for each word of the fields of fixed
size, and one column with the significant bytes of all sums of doubles.

    stored  __w0 __w1 ... | __sums: bytes

Invariant: stored rows are loaded as they were (`test_oracle_rows_keep_their_sums_in_any_layout`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from icestream.operators.folding.columns import InputColumn
from icestream.operators.folding.exact_rows import ExactRows, rows_with_sums, sums_column
from icestream.operators.folding.fields import Layout
from icestream.operators.folding.fold import fold_fields, measured


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
        """Return no rows."""
        return self.zeros(0)

    def zeros(self, rows: int) -> ExactRows:
        """Return rows of zeros."""
        return ExactRows(self.layout, np.zeros((rows, self.layout.field_words), dtype=np.int64))

    def folded(self, columns: Mapping[str, InputColumn], rows: int, copies: int) -> ExactRows:
        """Return a row for each event, with room to add up so many of them."""
        layout = measured(self.layout, columns, 0, rows, copies)
        table = np.tile(layout.at.identity, (rows, 1))
        fold_fields(layout, table, 0, np.arange(rows), columns)
        return ExactRows(layout, table)

    def stored(self, rows: ExactRows) -> list[pa.Array]:
        """Return rows as columns to store."""
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
