"""New lifetimes for the same events: a pure function of changes, without state.

Invariant: changes that do not touch the instants before a watermark still do not
(`test_altered_changes_leave_the_past_alone`).

Cost: O(changes).

Limits: lifetimes belong to events, not to instants: if an aggregate, a difference or a top-k has
cut an event into pieces, the result depends on the cuts.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.operators.lifetimes.changes import LE, RE, column_of
from icestream.plan.windows.lifetimes import Lifetime


@dataclass(frozen=True)
class AlterLifetimes:
    """Replaces the lifetimes of events."""

    lifetime: Lifetime

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes with their new lifetimes, without empty ones."""
        starts, ends = self.lifetime.bounds(column_of(changes, LE), column_of(changes, RE))
        for name, edges in ((LE, starts), (RE, ends)):
            place = changes.schema.get_field_index(name)
            changes = changes.set_column(place, changes.schema.field(place), pa.array(edges))
        lasting = starts < ends
        return changes if lasting.all() else changes.filter(pa.array(lasting))
