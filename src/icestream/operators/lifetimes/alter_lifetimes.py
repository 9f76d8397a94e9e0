"""New lifetimes for the same events: pure functions of changes, without state.

Invariants:
1. Changes that do not touch the instants before a watermark still do not
   (`test_altered_changes_leave_the_past_alone`).
2. An event lives from the time in one column to that in another, both included
   (`test_columns_give_lifetimes`).

Cost: O(changes).

Limits: lifetimes belong to events, not to instants: if an aggregate, a difference or a top-k has
cut an event into pieces, the result depends on the cuts. A lifetime that a column gives must not
begin before the event's own time, because the watermark may have passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import LE, RE, column_of, with_column
from icestream.plan.windows.lifetimes import Lifetime


@dataclass(frozen=True)
class AlterLifetimes:
    """Replaces the lifetimes of events."""

    lifetime: Lifetime

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes with their new lifetimes, without empty ones."""
        return _living(
            changes, *self.lifetime.bounds(column_of(changes, LE), column_of(changes, RE))
        )


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
        return _living(changes, starts, ends)

    def _times(self, changes: pa.RecordBatch, name: str) -> Ints:
        """Return the times in a column; NULL is before all times, so that a lifetime is empty."""
        times = changes.column(name).cast(pa.timestamp("us", changes.column(name).type.tz))
        return np.asarray(pc.fill_null(times.cast(pa.int64()), -(2**62)).to_numpy()) + self.delay


def _living(changes: pa.RecordBatch, starts: Ints, ends: Ints) -> pa.RecordBatch:
    """Return the changes with other lifetimes, without empty ones."""
    changes = with_column(with_column(changes, LE, starts), RE, ends)
    lasting = starts < ends
    return changes if lasting.all() else changes.filter(pa.array(lasting))
