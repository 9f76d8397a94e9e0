"""Events without duplicates: the first of a group, and those that come long enough after it.

Idea: events wait until the watermark has passed them. Then those of a group are final and go
through in the order of time: an event is kept if none was kept in the time before it.

Invariants:
1. What is kept is a function of the events alone (`test_oracle_first_events_of_any_batches`).
2. A group stores the events after the watermark, and until when it drops others
   (`test_bounded_groups_without_duplicates_are_forgotten`).

Cost: O(events), in one sort for each version; a group is read when its events are final.

Limits: of events with equal times one is kept, always the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.lifetimes.first import keep_first
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import (
    DIFF,
    HEAD,
    LE,
    RE,
    LifetimeOperator,
    changes_of,
    column_of,
    identities,
)
from icestream.operators.lifetimes.rows_by_group import earliest, located, woken
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

_WAITING, _KEPT = 0, 1
#: the instant from which events of a group are kept again
_UNTIL = pa.field("__until", pa.int64(), nullable=False)


class FirstEvents(LifetimeOperator):
    """Keeps an event if no event of its group was kept in the time before it."""

    def __init__(self, payload: pa.Schema, within: Micros | None) -> None:
        """Drop events up to `within` after one that was kept; all later ones if it is None."""
        self.result = payload
        self._within = within
        head = [field for field in HEAD if field.name in {LE, RE}]
        self.synopses = (
            Synopsis("waiting", pa.schema([*head, *payload])),
            Synopsis("kept", pa.schema([_UNTIL]), expiry=_UNTIL.name),
        )

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, _watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        if changes.num_rows:
            slots = located(changes, groups)
            groups.append(
                _WAITING, slots, changes.drop_columns([DIFF, ID_HIGH_COLUMN, ID_LOW_COLUMN])
            )
            distinct, inverse = np.unique(slots, return_inverse=True)
            groups.hasten(distinct, earliest(inverse, column_of(changes, LE) + 1, len(distinct)))
        return iter(())

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the events before the watermark that are kept."""
        for portion in woken(groups, watermark):
            waiting, kept = groups.read(_WAITING, portion), groups.read(_KEPT, portion)
            until = np.full(len(portion), MINUS_INFINITY)
            until[kept.owners] = column_of(kept.rows, _UNTIL.name)
            starts = column_of(waiting.rows, LE)
            due = starts < watermark
            rest = waiting.where(~due)
            groups.rewrite(_WAITING, portion, rest)
            next_due = earliest(rest.owners, starts[~due] + 1, len(portion))
            groups.remind(portion, np.where(next_due > watermark, next_due, INFINITY))
            waited = waiting.where(due)
            rows, owners = waited.rows, waited.owners
            order = np.lexsort((*identities(rows), starts[due], owners))
            first = np.zeros(len(order), dtype=np.bool_)
            within = INFINITY if self._within is None else self._within
            before = until.copy()
            keep_first(owners[order], starts[due][order], within, until, first)
            self._remember(groups, portion[until != before], until[until != before])
            yield from self._kept(rows, owners, np.sort(order[first]), portion, groups)

    def _remember(self, groups: Groups, slots: Ints, until: Ints) -> None:
        """Store until when groups drop events."""
        if len(slots):
            rows = pa.RecordBatch.from_arrays([pa.array(until)], schema=pa.schema([_UNTIL]))
            groups.rewrite(_KEPT, slots, GroupRows(np.arange(len(slots)), rows))

    def _kept(
        self, rows: pa.RecordBatch, owners: Ints, chosen: Ints, portion: Ints, groups: Groups
    ) -> Iterator[pa.RecordBatch]:
        if len(chosen):
            found = rows.take(pa.array(chosen))
            yield changes_of(
                found.select(self.result.names),
                column_of(found, LE),
                column_of(found, RE),
                1,
                *groups.identities(portion[owners[chosen]]),
            )
