"""The difference of two streams: left events, at the instants when no right event is alive.

Its counterpart, `present`, emits left events at the instants when some right event is alive.

Idea: the right events of a group cover some intervals of time. Left changes are clipped to the gaps
between them. Right changes newly cover some intervals, where left events are retracted, and uncover
others, where left events return. Both steps pair lifetimes, as a join does. Instants before the
watermark are ignored: what covered them is no longer known, and the changes of a batch cancel out
there.

Invariants:
1. At every instant the output adds up to the left events where the right count is zero or less
   (`test_oracle_difference_in_any_chunks`) or, for the counterpart, where it is positive
   (`test_oracle_difference_over_long_scenarios`).
2. A row is stored only while the watermark is before its end
   (`test_bounded_expired_rows_are_gone`).
3. Left changes do not read the left side; right changes that neither cover nor uncover anything
   read only the right side (`test_left_rows_are_read_only_when_the_cover_changes`).

Cost: O(changes + right rows of touched groups x log + left rows where the cover changes + output).

A group too large for memory is read in pieces (`test_bounded_one_group_of_many_times_the_budget`),
its right side once for each range of time with as many edges as a piece has rows.

Limits: only the affected instants are retracted and added, so a lifetime may be emitted in pieces
and retracted in other pieces.

References: streaming set difference over lifetimes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.lifetimes.pairs import stretches
from icestream.operators.lifetimes.changes import (
    DIFF,
    HEAD,
    LE,
    RE,
    PromptOperator,
    changes_of,
    column_of,
    payload_of,
)
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.pairs import (
    Lifetimes,
    bounds_of,
    lifetimes_of,
    pairs_of,
)
from icestream.operators.lifetimes.rows_by_group import (
    RowsByGroup,
    ids_of,
    live_events_synopsis,
    located,
    since,
    store_alive,
    stored_payload,
)
from icestream.state.groups.spec import Groups

#: sides of a difference: its ports and its synopses
LEFT, RIGHT = 0, 1

_NOTHING = pa.schema([])
_NO_EVENTS = CountedIntervals(*(np.empty(0, dtype=np.int64) for _ in range(5)))


class Counted(NamedTuple):
    """Lifetimes that add to a cover, each for the group at a position."""

    owners: Ints
    le: Ints
    re: Ints
    counts: Ints


class CoverDifference(NamedTuple):
    """Where two covers differ: 1 where only the first covers, -1 where only the second does."""

    lifetimes: Lifetimes
    signs: Ints


class StreamDifference(PromptOperator):
    """Left events at the instants when no right event of their group is alive, or some is."""

    forgets = True
    #: left events need not be stored for later changes if the right side arrives first
    first_port = RIGHT

    def __init__(self, left: pa.Schema, *, present: bool = False) -> None:
        """Take left events with a payload, and right events with any.

        By default left events appear where there is no right one; with `present`, where there is.
        """
        self.result = left
        self._present = present
        self.synopses = (
            live_events_synopsis("left", left),
            live_events_synopsis("right", _NOTHING),
        )

    def on_last_changes(
        self,
        port: int,
        changes: pa.RecordBatch,
        groups: Groups,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Clip left changes to the gaps; or apply what right changes cover and uncover."""
        changes = changes.filter(pa.array(column_of(changes, RE) > watermark))
        if not changes.num_rows:
            return
        if groups.are_transient:
            # the other side has no events
            if port == LEFT and not self._present:
                yield since(changes, watermark)
            return
        touched = RowsByGroup(located(changes, groups))
        if port == LEFT:
            store_alive(LEFT, changes, touched.slots, groups, max(watermark, over))
        for portion in groups.portions(touched.distinct):
            mine, bounds = touched.of(portion)
            rows = changes.take(pa.array(mine))
            if port == LEFT:
                yield from self._limited(rows, bounds, portion, groups, watermark)
            else:
                yield from self._covered(rows, bounds, portion, groups, watermark)
        if port == RIGHT:
            bare = changes.select([field.name for field in HEAD])
            store_alive(RIGHT, bare, touched.slots, groups, max(watermark, over))

    def _limited(
        self,
        changes: pa.RecordBatch,
        bounds: Ints,
        portion: Slots,
        groups: Groups,
        watermark: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Yield left changes clipped to where nothing covers them, or something does."""
        count = len(portion)
        always = Counted(
            np.arange(count),
            np.full(count, MINUS_INFINITY),
            np.full(count, INFINITY),
            np.ones(count, dtype=np.int64),
        )
        le, re, diffs = (column_of(changes, name) for name in (LE, RE, DIFF))
        le = np.maximum(le, watermark)
        for begin, end, right in _covers(portion, groups, int(le.min()), int(re.max())):
            sides = ([right], []) if self._present else ([always], [right])
            free = _where_they_differ(*sides, count).lifetimes
            there = np.flatnonzero((le < end) & (re > begin))
            times = np.maximum(le[there], begin), np.minimum(re[there], end)
            for pairs in pairs_of(Lifetimes(*times, np.searchsorted(there, bounds)), free):
                clipped = there[pairs.probes]
                yield changes_of(
                    payload_of(changes).take(pa.array(clipped)),
                    pairs.le,
                    pairs.re,
                    diffs[clipped],
                    *ids_of(changes, clipped),
                )

    def _covered(
        self,
        changes: pa.RecordBatch,
        bounds: Ints,
        portion: Slots,
        groups: Groups,
        watermark: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Yield left events retracted or added where right changes cover or uncover them."""
        owners = np.repeat(np.arange(len(portion)), np.diff(bounds))
        le, re, diffs = (column_of(changes, name) for name in (LE, RE, DIFF))
        le = np.maximum(le, watermark)
        for begin, end, before in _covers(portion, groups, int(le.min()), int(re.max())):
            there = (le < end) & (re > begin)
            times = np.maximum(le[there], begin), np.minimum(re[there], end)
            added = Counted(owners[there], *times, diffs[there])
            turned = _where_they_differ([before], [before, added], len(portion))
            yield from self._turned(turned, portion, groups)

    def _turned(
        self, turned: CoverDifference, portion: Slots, groups: Groups
    ) -> Iterator[pa.RecordBatch]:
        """Yield left events retracted or added where the cover of their group changed."""
        differ = np.diff(turned.lifetimes.bounds) > 0
        if not differ.any():
            return
        where = portion[differ]
        starts, ends = turned.lifetimes.bounds[:-1][differ], turned.lifetimes.bounds[1:][differ]
        probes = Lifetimes(
            turned.lifetimes.le, turned.lifetimes.re, np.concatenate([starts, ends[-1:]])
        )
        id_high, id_low = groups.identities(where)
        signs = turned.signs * (-1 if self._present else 1)
        for left in groups.pieces(LEFT, where):
            payload, counts = stored_payload(left.rows), column_of(left.rows, DIFF)
            stored = lifetimes_of(left.rows, bounds_of(left.owners, len(where)))
            for pairs in pairs_of(probes, stored):
                owners = left.owners[pairs.stored]
                yield changes_of(
                    payload.take(pa.array(pairs.stored)),
                    pairs.le,
                    pairs.re,
                    signs[pairs.probes] * counts[pairs.stored],
                    id_high[owners],
                    id_low[owners],
                )


def _covers(
    portion: Slots, groups: Groups, begin: Micros, end: Micros
) -> Iterator[tuple[Micros, Micros, Counted]]:
    """Yield the right events of groups between two instants, added up, a time range at a time.

    The range is cut where a group that is read in pieces has more edges in it than a piece has.
    """
    total, most = _NO_EVENTS, 0
    for found in groups.pieces(RIGHT, portion):
        le, re, counts = (column_of(found.rows, name) for name in (LE, RE, DIFF))
        some = CountedIntervals(found.owners, np.zeros_like(le), le, re, counts)
        some = some.since(begin).before(end)
        total = total.and_(some).levelled() if most else some
        most = max(most, len(le), 1)
        if len(total) > 2 * most and (cut := _middle(total, begin, end)) is not None:
            yield from _covers(portion, groups, begin, cut)
            yield from _covers(portion, groups, cut, end)
            return
    yield begin, end, Counted(total.owner, total.le, total.re, total.count)


def _middle(events: CountedIntervals, begin: Micros, end: Micros) -> Micros | None:
    """Return an instant with about half of the edges before it; None if there is none between."""
    edges = np.concatenate([events.le, events.re])
    inside = edges[(edges > begin) & (edges < end)]
    return int(np.partition(inside, len(inside) // 2)[len(inside) // 2]) if len(inside) else None


def _where_they_differ(before: list[Counted], after: list[Counted], groups: int) -> CoverDifference:
    """Compare two covers of groups, each the sum of some lifetimes."""
    parts = [*before, *after]
    rows_before = sum(len(part.owners) for part in before)
    le, re, owners, counts = (
        np.concatenate([part[place] for part in parts]) for place in (1, 2, 0, 3)
    )
    was, now = counts.copy(), counts
    was[rows_before:] = 0
    now[:rows_before] = 0
    owners, times = np.concatenate([owners, owners]), np.concatenate([le, re])
    was, now = np.concatenate([was, -was]), np.concatenate([now, -now])
    order = np.lexsort((times, owners))
    out = [np.empty(len(owners), dtype=np.int64) for _ in range(4)]
    edges = (part[order] for part in (owners, times, was, now))
    count = stretches(*edges, *out)
    owners, starts, ends, signs = (part[:count] for part in out)
    return CoverDifference(Lifetimes(starts, ends, bounds_of(owners, groups)), signs)
