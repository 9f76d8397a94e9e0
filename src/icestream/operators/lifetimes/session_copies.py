"""Events as members of their sessions: one change for each event, revised when its session grows.

Idea: the events of open sessions are stored by group. New ones may begin, extend or join sessions;
events whose session has other bounds than before are retracted from the old one and added to the
new one. As for windows on a grid, a change concerns the last instant of the session only, so a
session has one answer, whatever the order of events, and any aggregate can follow.

Invariants:
1. An event is in the session of its group that contains its time, whatever the order of arrival
   (`test_oracle_every_kind_of_window_is_in_the_table_while_it_is_open`).
2. Sessions that the watermark has reached are neither stored nor revised
   (`test_bounded_ended_sessions_leave_the_state`).

Cost: O(n log n) for the n events of open sessions of a group, for each chunk that touches it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.times import Micros
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    LifetimeOperator,
    changes_of,
    column_of,
    consolidated,
)
from icestream.operators.lifetimes.revisable_output import LIFETIME, payload_of
from icestream.operators.lifetimes.rows_by_group import (
    SUMMED,
    RowsByGroup,
    earliest,
    located,
    summed,
    woken,
)
from icestream.operators.lifetimes.window_copies import in_windows, window_columns
from icestream.plan.windows.session import Session
from icestream.state.groups.spec import GroupRows, Groups, Synopsis


class SessionCopies(LifetimeOperator):
    """Copies the events of a group into their sessions."""

    def __init__(
        self, payload: pa.Schema, windows: Session, time: pa.DataType, delay: Micros = 0
    ) -> None:
        """Take events at instants, which are later than meant by `delay`."""
        self.windows = windows
        self._payload, self._delay = payload, delay
        self.result = window_columns(windows, time, payload)
        schema = pa.schema([*LIFETIME, *payload])
        self.synopses = (Synopsis("open", schema, wear=SUMMED),)

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Store events; yield how sessions and their members change."""
        if changes.num_rows == 0:
            return
        by_slot = RowsByGroup(located(changes, groups))
        rows = changes.drop_columns([ID_HIGH_COLUMN, ID_LOW_COLUMN])
        for portion in groups.portions(by_slot.distinct):
            chosen, owners = by_slot.within(portion)
            new = rows.take(pa.array(chosen))
            kept = groups.read(0, portion)
            there = np.concatenate([kept.owners, owners])
            both = GroupRows(there, pa.concat_batches([kept.rows, new]))
            before, after = self._in_order(kept), self._in_order(both)
            groups.append(0, portion[owners], new)
            self._remind(groups, portion, after)
            ids = groups.identities(portion)
            made = [self._copies(before, ids, -1), self._copies(after, ids, 1)]
            yield consolidated(pa.concat_batches(made))

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Forget the sessions that the watermark has reached."""
        for portion in woken(groups, watermark):
            found = self._in_order(groups.read(0, portion))
            open_ = self._bounds(found)[1] > watermark
            left = found.where(open_)
            groups.rewrite(0, portion, left)
            self._remind(groups, portion, left)
        return iter(())

    def _in_order(self, rows: GroupRows) -> GroupRows:
        """Return the events of groups that are there, by group and time."""
        found = summed(rows)
        order = np.lexsort((column_of(found.rows, LE), found.owners))
        return GroupRows(found.owners[order], found.rows.take(pa.array(order)))

    def _bounds(self, found: GroupRows) -> tuple[Ints, Ints]:
        """Return the start and the end of the session of each event."""
        times = column_of(found.rows, LE)
        first = np.ones(len(times), dtype=np.bool_)
        first[1:] = (np.diff(found.owners) != 0) | (np.diff(times) > self.windows.gap)
        heads = np.flatnonzero(first)
        session = np.cumsum(first) - 1
        last = np.append(heads, len(times))[1:] - 1
        return times[heads][session], times[last][session] + self.windows.gap

    def _remind(self, groups: Groups, portion: Ints, found: GroupRows) -> None:
        """Wake groups when the first of their sessions ends."""
        groups.remind(portion, earliest(found.owners, self._bounds(found)[1], len(portion)))

    def _copies(self, found: GroupRows, ids: tuple[Ids, Ids], sign: int) -> pa.RecordBatch:
        start, end = self._bounds(found)
        payload = payload_of(found.rows, self._payload)
        times = column_of(found.rows, LE)
        first, last, own_times = (each - self._delay for each in (start, end, times))
        copies = in_windows(payload, first, last, own_times, self.result)
        counts = sign * column_of(found.rows, DIFF)
        own = [each[found.owners] for each in ids]
        return changes_of(copies, end - 1, end, counts, *own)
