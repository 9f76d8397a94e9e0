"""Complete mode: every version emits all events that are alive at its watermark.

Idea: changes are appended to the held rows. At the end of a version all groups are read: events
that are alive are emitted, retracted ones are dropped. Groups wake by version number, not by an
instant, because a version may pass without the watermark moving.

Invariants:
1. A version emits exactly the events alive at its watermark
   (`test_oracle_every_version_reports_what_is_alive`).
2. Events that have ended are not held (`test_bounded_events_that_are_over_are_not_held`).

Cost: every version reads all groups, in memory or not; meant for small answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.lifetimes.changes import changes_of
from icestream.operators.lifetimes.changes import payload_of as payload_of_changes
from icestream.operators.lifetimes.consolidate import identities, numbered
from icestream.operators.lifetimes.counted_intervals import CountedIntervals, Flags
from icestream.operators.lifetimes.revisable_output import (
    LIFETIME,
    payload_of,
    rows_of,
    stretches_of,
)
from icestream.operators.lifetimes.rows_by_group import RowsByGroup, located
from icestream.operators.lifetimes.stored_rows import rewrite_some
from icestream.state.groups.spec import Groups, Synopsis


class CompleteOutput:
    """Holds events and emits those that are alive."""

    def __init__(self, payload: pa.Schema) -> None:
        """Hold events of a payload."""
        self.result = payload
        held = Synopsis("current", pa.schema([*LIFETIME, *payload]))
        self.synopses: tuple[Synopsis, ...] = (held,)

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Hold changes."""
        del watermark
        if changes.num_rows:
            slots = located(changes, groups)
            head = [changes.column(field.name) for field in LIFETIME]
            payload = payload_of_changes(changes).columns
            rows = pa.RecordBatch.from_arrays([*head, *payload], schema=self.synopses[0].schema)
            groups.append(0, slots, rows)
            touched = RowsByGroup(slots).distinct
            groups.remind(touched, np.zeros(len(touched), dtype=np.int64))
        yield from ()

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield nothing: the caller, which knows the version, calls `on_version` instead."""
        del groups, watermark
        return iter(())

    def on_version(
        self, groups: Groups, watermark: Micros, version: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events that are alive; version numbers must increase."""
        while len(due := groups.due(version)):
            for portion in groups.portions(due):
                held = groups.read(0, portion)
                payload = payload_of(held.rows, self.result)
                kinds, heads = numbered(*identities(payload))
                events = stretches_of(held.rows, held.owners, kinds)
                left = events.levelled()
                left = left.where(_lasting(left, watermark))
                one_each = payload.take(pa.array(heads))
                rows = rows_of(
                    left, one_each.take(pa.array(left.kind)), schema=self.synopses[0].schema
                )
                sizes = [np.bincount(each.owners, minlength=len(portion)) for each in (held, rows)]
                rewrite_some(0, portion, sizes[0] != sizes[1], rows, groups)
                groups.remind(portion, np.where(sizes[1] > 0, version + 1, INFINITY))
                yield from _emitted(left, watermark, one_each, groups.identities(portion))
            # groups returned so far may leave the directory; rows are not expired by this call
            groups.begin(MINUS_INFINITY)


def _lasting(events: CountedIntervals, watermark: Micros) -> Flags:
    """Return which events end past the watermark; at the end of time, those without an end."""
    return np.asarray((events.re > watermark) | (events.re == INFINITY))


def _emitted(
    events: CountedIntervals, watermark: Micros, kinds: pa.RecordBatch, ids: tuple[Ids, Ids]
) -> Iterator[pa.RecordBatch]:
    """Yield the events that have begun."""
    alive = events.where((events.le <= watermark) & (events.count > 0))
    if len(alive):
        id_high, id_low = (each[alive.owner] for each in ids)
        payload = kinds.take(pa.array(alive.kind))
        yield changes_of(payload, alive.le, alive.re, alive.count, id_high, id_low)
