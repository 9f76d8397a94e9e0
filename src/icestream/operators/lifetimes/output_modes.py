"""Output modes: `append` emits events that are final, `now` and `update` rows as they hold now.

Idea: changes are appended to the held rows of their group or key. In mode `append`, an event that
ended at or before the watermark is final, because changes concern instants from it on; a group
wakes when the first of its events ends. Lifetimes are emitted as they arrived; if part of an event
was retracted, the intervals of its kind are merged first.

In modes `now` and `update` every version emits the rows of keys that changed. At its end the keys
that changed, or one of whose rows begins or ends by now, are read: their rows that are alive
replace those emitted before; a key without any is emitted once with a negative count, which deletes
it. Rows that stay for ever once they are there are not deleted when they end. Those of windows are
forgotten here when the watermark reaches their end, because their keys do not come again; of others
the number of equal rows is held.

In mode `update` rows are only replaced, so the changes of a version say what holds at its end, and
nothing is held beyond it.

Invariants:
1. Applied by key, the emitted rows are the events alive now
   (`test_oracle_a_table_is_the_query_over_what_is_alive`).
2. A version emits nothing for keys that did not change
   (`test_a_version_writes_at_most_the_keys_that_changed`).
3. Events that have ended are not held (`test_bounded_now_holds_no_events_that_are_over`).
4. Mode `update` emits the rows of `now`, and holds none between versions
   (`test_oracle_update_is_now_where_rows_are_only_replaced`).
5. Mode `append` adds up to the events that ended by the watermark; each is emitted once, never
   retracted (`test_oracle_settled_events_are_those_that_ended`), and not stored any more
   (`test_bounded_settled_events_leave_the_state`).

Cost: changes are appended without a read; a key that changed is read once a version.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.lifetimes.changes import (
    LE,
    RE,
    LifetimeOperator,
    changes_of,
    identities,
    with_column,
)
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.revisable_output import (
    LIFETIME,
    events_synopsis,
    hold,
    payload_of,
    rows_of,
    stretches_of,
)
from icestream.operators.lifetimes.rows_by_group import END, earliest, rewrite_some, woken
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


class NowOutput(LifetimeOperator):
    """Holds events by key and emits those of keys that changed.

    The caller, which knows what time it is, calls `on_instant` at the end of a version.
    """

    #: the output mode
    name = "now"

    def __init__(
        self,
        payload: pa.Schema,
        *,
        stays: bool = False,
        windows: bool = False,
        delay: Micros = 0,
    ) -> None:
        """Hold events of a payload, which live later than meant by `delay`.

        With `stays`, rows are not deleted when they end; rows of `windows` do not come again then.
        """
        self.result = payload
        self._timeless = stays and not windows
        self._delay = delay
        self._stays = stays
        self.synopses = (events_synopsis(self.name, payload),)

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        for name, at in ((LE, 0), (RE, INFINITY)) if self._timeless else ():
            changes = with_column(changes, name, np.full(changes.num_rows, at))
        hold(changes, groups, self.synopses[0].schema, MINUS_INFINITY + 1)
        return iter(())

    def on_instant(self, groups: Groups, now: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the rows of keys that changed, and keys that have none any more."""
        now = min(now + self._delay, END)
        for portion in woken(groups, now):
            held = groups.read(0, portion)
            payload = payload_of(held.rows, self.result)
            kinds, heads = numbered(*identities(payload))
            events = stretches_of(held.rows, held.owners, kinds).levelled()
            ended = events.re <= now if not self._stays else np.zeros(len(events), dtype=np.bool_)
            left = events.where(~ended)
            owners, edges = np.append(left.owner, left.owner), np.append(left.le, left.re)
            ahead = (edges > now) & (not self._stays)
            due = earliest(owners[ahead], edges[ahead], len(portion))
            alive = left.where(left.count > 0)
            if not self._stays:
                alive = alive.where(alive.le <= now)
            kind_rows = payload.take(pa.array(heads))
            rows = rows_of(
                left, kind_rows.take(pa.array(left.kind)), schema=self.synopses[0].schema
            )
            sizes = [np.bincount(each.owners, minlength=len(portion)) for each in (held, rows)]
            rewrite_some(0, portion, sizes[0] != sizes[1], rows, groups)
            groups.remind(portion, due)
            gone = np.flatnonzero(
                (np.bincount(alive.owner, minlength=len(portion)) == 0) & (sizes[0] > 0)
            )
            emitted = alive.and_(_deleted(gone, held.owners, kinds, now))
            if len(emitted):
                id_high, id_low = groups.identities(portion[emitted.owner])
                changed = kind_rows.take(pa.array(emitted.kind))
                yield changes_of(changed, emitted.le, emitted.re, emitted.count, id_high, id_low)


class UpdateOutput(NowOutput):
    """Emits the rows of keys that changed, of rows that are replaced and never deleted."""

    name = "update"

    def on_instant(self, groups: Groups, now: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the version added and that hold for good, or stay."""
        for portion in woken(groups, now):
            held = groups.read(0, portion)
            payload = payload_of(held.rows, self.result)
            kinds, heads = numbered(*identities(payload))
            changed = stretches_of(held.rows, held.owners, kinds).levelled()
            groups.rewrite(0, portion, held.where(np.zeros(len(kinds), dtype=np.bool_)))
            groups.remind(portion, np.full(len(portion), INFINITY))
            holds = changed.where((changed.count > 0) & (self._stays | (changed.re == INFINITY)))
            if len(holds):
                identity = groups.identities(portion[holds.owner])
                rows = payload.take(pa.array(heads[holds.kind]))
                yield changes_of(rows, holds.le, holds.re, holds.count, *identity)


def _deleted(gone: Ints, owners: Ints, kinds: Ints, now: Micros) -> CountedIntervals:
    """Return a negative interval for each key without rows, with columns of a row it had."""
    first = np.searchsorted(owners, gone)
    instants = np.full(len(gone), now)
    return CountedIntervals(gone, kinds[first], instants, instants + 1, np.full(len(gone), -1))
