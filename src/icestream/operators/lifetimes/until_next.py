"""Versions: each event of a group lives until the next one, so that every instant sees one.

Idea: what is stored is what was shown: the last event before the watermark and all later ones, each
with its lifetime. A new event is put between two of them: the lifetime of the one before ends at
its start, and its own ends at the start of the one after.

Invariants:
1. At every instant a group shows its latest event, whatever the order in which they arrive
   (`test_oracle_every_instant_sees_the_latest_version`).
2. Events that have a successor before the watermark are not stored
   (`test_bounded_old_versions_are_gone`).

Cost: O(events + stored events of the touched groups), in one sort.

Limits: of events with equal times one is shown, always the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import LE, LifetimeOperator, payload_of
from icestream.operators.lifetimes.consolidate import identities, numbered
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.revisable_output import (
    RevisableOutput,
    events_synopsis,
    stretches_of,
)
from icestream.operators.lifetimes.rows_by_group import RowsByGroup, located
from icestream.state.groups.spec import Groups


class UntilNext(LifetimeOperator):
    """Lets each event live until the next one of its group."""

    is_prompt = True
    emits_at_once = True
    forgets = False

    def __init__(self, payload: pa.Schema) -> None:
        """Take events that are never retracted; only their starts count."""
        self.result = payload
        self._shown = RevisableOutput(0, events_synopsis("versions", payload))
        self.synopses = (self._shown.synopsis,)

    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Put events between those that are there; yield what is shown otherwise."""
        return self.on_last_changes(port, changes, groups, watermark, watermark)

    def on_last_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros, over: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Do the same, but store nothing that ends by the instant `over`."""
        if changes.num_rows == 0:
            return
        by_slot = RowsByGroup(located(changes, groups))
        timed = _timed(payload_of(changes), changes.column(LE))
        for portion in groups.portions(by_slot.distinct):
            chosen, owners = by_slot.within(portion)
            kept = groups.read(0, portion)
            stored = _timed(kept.rows.select(self.result.names), kept.rows.column(LE))
            rows = pa.concat_batches([stored, timed.take(pa.array(chosen))])
            ids = identities(rows)
            numbers, heads = numbered(*ids)
            before = stretches_of(kept.rows, kept.owners, numbers[: len(kept.owners)])
            owner = np.concatenate([kept.owners, owners])
            start = np.asarray(rows.column(LE).to_numpy())
            order = np.lexsort((*ids, start, owner))
            owner, start, kind = owner[order], start[order], numbers[order]
            after = np.append(owner[1:], -1) == owner
            end = np.where(after, np.append(start[1:], 0), INFINITY)
            lasting = start < end
            answer = CountedIntervals(owner, kind, start, end, np.ones_like(start)).where(lasting)
            yield from self._shown.revise(
                groups,
                portion,
                before,
                answer.since(watermark),
                rows.drop_columns([LE]).take(pa.array(heads)),
                watermark,
                max(watermark, over),
            )

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield nothing: the past does not change."""
        del groups, watermark
        return iter(())


def _timed(payload: pa.RecordBatch, starts: pa.Array) -> pa.RecordBatch:
    """Return payloads with the start of each, so that equal versions at other times differ."""
    return payload.append_column(pa.field(LE, pa.int64(), nullable=False), starts)
