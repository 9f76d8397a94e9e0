"""Append mode: events of any sub-query are held back until no change can revise them.

Idea: changes concern instants from the watermark on, so an event that ended at or before the
watermark is final. Changes are appended to the held rows, and a group wakes when the first of its
events ends. Lifetimes are emitted as they arrived; if part of an event was retracted, the intervals
of its kind are merged first.

Invariants:
1. The output adds up to the events that ended by the watermark; each is emitted once and never
   retracted (`test_oracle_settled_events_are_those_that_ended`).
2. Emitted events are not stored any more (`test_bounded_settled_events_leave_the_state`).

Cost: changes are appended without a read; a group is read at the watermark after a change to it,
and when one of its events ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Slots
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import LifetimeOperator, changes_of
from icestream.operators.lifetimes.consolidate import identities
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.revisable_output import (
    LIFETIME,
    hold,
    payload_of,
    rows_of,
    stretches_of,
)
from icestream.operators.lifetimes.rows_by_group import earliest, woken
from icestream.state.groups.spec import Groups, Synopsis
from icestream.state.identities import numbered


class AppendOutput(LifetimeOperator):
    """Holds events until they are final."""

    def __init__(self, payload: pa.Schema) -> None:
        self.result = payload
        self.synopses = (Synopsis("held", pa.schema([*LIFETIME, *payload])),)

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Hold changes, also to ended events: a change may just have shortened one."""
        hold(changes, groups, self.synopses[0].schema, watermark)
        return iter(())

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        for portion in woken(groups, watermark):
            held = groups.read(0, portion)
            payload = payload_of(held.rows, self.result)
            kinds, heads = numbered(*identities(payload))
            events = _split(stretches_of(held.rows, held.owners, kinds).consolidated())
            ended = events.re <= watermark
            done, left = events.where(ended), events.where(~ended)
            one_each = payload.take(pa.array(heads))
            self._keep(groups, portion, left, one_each, watermark)
            done = done.where(done.count > 0)
            if len(done):
                id_high, id_low = groups.identities(portion[done.owner])
                final = one_each.take(pa.array(done.kind))
                yield changes_of(final, done.le, done.re, done.count, id_high, id_low)

    def _keep(
        self,
        groups: Groups,
        portion: Slots,
        left: CountedIntervals,
        kinds: pa.RecordBatch,
        watermark: Micros,
    ) -> None:
        payload = kinds.take(pa.array(left.kind))
        groups.rewrite(0, portion, rows_of(left, payload, schema=self.synopses[0].schema))
        due = earliest(left.owner, left.re, len(portion))
        groups.remind(portion, np.where(due > watermark, due, INFINITY))


def _split(events: CountedIntervals) -> CountedIntervals:
    """Merge the intervals of each group and kind of which an event was retracted in part."""
    below = events.where(events.count < 0)
    if len(below) == 0:
        return events
    width = int(events.kind.max()) + 1
    mixed = np.isin(events.owner * width + events.kind, below.owner * width + below.kind)
    both = events.where(~mixed).and_(events.where(mixed).levelled(cut=True))
    return both.at(np.argsort(both.owner, kind="stable"))
