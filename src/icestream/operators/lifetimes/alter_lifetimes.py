"""Other lifetimes for the same events: a pure function of changes, without state.

Invariant: changes that leave the instants before a watermark alone still do
(`test_altered_changes_leave_the_past_alone`).

Cost: O(changes).

Limits: lifetimes are those of events, not of instants: altering what an aggregate, a difference or
a top-k has cut in pieces depends on the cuts.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.operators.lifetimes.changes import LE, RE, column_of
from icestream.plan.windows.lifetimes import Lifetime


@dataclass(frozen=True)
class AlterLifetimes:
    """Gives events lifetimes of a kind."""

    lifetime: Lifetime

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes with other lifetimes, without those that are empty."""
        starts, ends = self.lifetime.bounds(column_of(changes, LE), column_of(changes, RE))
        for name, edges in ((LE, starts), (RE, ends)):
            place = changes.schema.get_field_index(name)
            changes = changes.set_column(place, changes.schema.field(place), pa.array(edges))
        lasting = starts < ends
        return changes if lasting.all() else changes.filter(pa.array(lasting))
