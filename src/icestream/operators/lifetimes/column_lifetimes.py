"""Lifetimes that columns give: a pure function of changes, without state.

Invariant: an event lives from the time in one column to that in another, both included
(`test_columns_give_lifetimes`).

Limits: a lifetime must not begin before the event's own time, because the watermark may have
passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import LE, RE, column_of


@dataclass(frozen=True)
class ColumnLifetimes:
    """Replaces the lifetimes of events by times in their columns."""

    #: column of the first instant; None for the start as it is
    start: str | None
    #: column of the last instant; None for lifetimes without an end
    end: str | None
    #: how much later than these times events live
    delay: Micros = 0

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes with their new lifetimes, without empty ones."""
        starts = column_of(changes, LE) if self.start is None else self._times(changes, self.start)
        ends = np.full(len(starts), INFINITY)
        if self.end is not None:
            last = self._times(changes, self.end)
            ends = np.where(last >= INFINITY - 1, INFINITY, last + 1)
        for name, edges in ((LE, starts), (RE, ends)):
            place = changes.schema.get_field_index(name)
            changes = changes.set_column(place, changes.schema.field(place), pa.array(edges))
        lasting = starts < ends
        return changes if lasting.all() else changes.filter(pa.array(lasting))

    def _times(self, changes: pa.RecordBatch, name: str) -> Ints:
        """Return the times in a column; NULL is before all times, so that a lifetime is empty."""
        times = changes.column(name).cast(pa.timestamp("us", changes.column(name).type.tz))
        return np.asarray(pc.fill_null(times.cast(pa.int64()), -(2**62)).to_numpy()) + self.delay
