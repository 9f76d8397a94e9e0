"""The rows that an operator emits, as rows of the query's views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from icestream.operators.bad_rows import BadRows
from icestream.operators.protocol import Emitted


@dataclass(frozen=True)
class ViewRows:
    """Assigns emitted rows to views and selects the columns of each view."""

    #: number and columns of each view
    views: tuple[tuple[int, pa.Schema], ...]
    #: for each view, which rows it shows and which of their columns; empty if the operator emits
    #: rows in the shape of its views
    shown: tuple[tuple[int, tuple[int, ...]], ...]
    #: whether the operator emits pairs of (number, rows)
    numbered: bool

    def __call__(self, rows: Iterator[Any]) -> Iterator[Emitted]:
        """Yield rows of views."""
        if not self.shown:
            yield from ((self.views[view][0], batch) for view, batch in rows)
            return
        for emitted in rows:
            own, batch = emitted if self.numbered else (0, emitted)
            if isinstance(batch, BadRows):
                yield 0, batch
                continue
            for (number, schema), (whose, shown) in zip(self.views, self.shown, strict=True):
                if whose == own:
                    columns = [batch.column(place) for place in shown]
                    yield number, pa.RecordBatch.from_arrays(columns, schema=schema)
