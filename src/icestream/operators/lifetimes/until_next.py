"""Frames and versions: each event of a group lives until later ones push it out.

Idea: an event of a frame of n rows lives until the n-th event after it, one of a frame of a range
until the first event that is later by the range or more, one of both until the first of these.
With one row, each event lives until the next one: the versions of a table. What is stored is what
was shown: the events alive at the watermark and all later ones, each with its lifetime; a new event
ends the lifetimes of others.

Invariants:
1. At every instant a group shows its latest event, whatever the order in which they arrive
   (`test_oracle_every_instant_sees_the_latest_version`).
2. Events that ended before the watermark are not stored (`test_bounded_old_versions_are_gone`).
3. At the time of an event its frame is alive
   (`test_oracle_every_kind_of_window_is_in_the_table_while_it_is_open`).

Cost: O(events + stored events of the touched groups), in one sort.

Limits: of events with equal times, those that a frame of rows has no room for are always the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    PromptOperator,
    column_of,
    identities,
    payload_of,
)
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.revisable_output import (
    RevisableOutput,
    events_synopsis,
    stretches_of,
)
from icestream.operators.lifetimes.rows_by_group import RowsByGroup, located
from icestream.plan.windows.frame import Frame
from icestream.state.groups.spec import Groups
from icestream.state.identities import numbered

#: the frame in which an event is alone
_ALONE = Frame(rows=1)


class UntilNext(PromptOperator):
    """Lets each event live until the next ones of its group push it out of a frame."""

    emits_at_once = True

    def __init__(self, payload: pa.Schema, frame: Frame = _ALONE) -> None:
        """Take events that are never retracted; only their starts count."""
        self.result = payload
        self._frame = frame
        self._shown = RevisableOutput(0, events_synopsis("versions", payload))
        self.synopses = (self._shown.synopsis,)

    def on_last_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros, over: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Put events between those that are there; yield what is shown otherwise."""
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
            counts = np.ones(len(owner), dtype=np.int64)
            counts[: len(kept.owners)] = column_of(kept.rows, DIFF)
            order = np.repeat(order, counts[order])
            owner, start, kind = owner[order], start[order], numbers[order]
            end = _ends(owner, start, self._frame)
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


def _ends(owner: Ints, start: Ints, frame: Frame) -> Ints:
    """Return when each event leaves the frame of its group; all are in order."""
    count = len(owner)
    pushing = np.arange(count) + (count if frame.rows is None else frame.rows)
    if frame.range is not None:
        limits = np.where(start > INFINITY - frame.reach, INFINITY, start + frame.reach)
        late = np.repeat([False, True], count)
        order = np.lexsort((late, np.append(limits, start), np.append(owner, owner)))
        later = np.empty(2 * count, dtype=np.int64)
        later[order] = np.cumsum(late[order])
        pushing = np.minimum(pushing, later[:count])
    inside = np.minimum(pushing, count - 1)
    there = (pushing < count) & (owner[inside] == owner)
    return np.where(there, start[inside], INFINITY)


def _timed(payload: pa.RecordBatch, starts: pa.Array) -> pa.RecordBatch:
    """Return payloads with the start of each, so that equal versions at other times differ."""
    return payload.append_column(pa.field(LE, pa.int64(), nullable=False), starts)
