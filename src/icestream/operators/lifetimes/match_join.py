"""Joins of events by match: pairs at once, and each event without a partner once it is certain.

Idea: a left and a right event match if the right one is later by at least `low` and at most `high`.
Changes are paired with the stored rows of the other side, as in a join over lifetimes; a pair can
never be taken back. An event is alone if the watermark has passed the time of its last possible
partner and no stored row of the other side matches it. So rows of the other side stay until all
events that they may match are decided; matches are neither counted nor marked.

    left     x |.............|              decided when the partner at x + high has arrived
    right       y |---------------------|   kept until the left event at y - low is decided

Rows begin at the time of their left event, or of the right one if there is no left one. Events are
moved in time by `early`, so that this is never before the watermark.

Invariants:
1. The output adds up to SQL's rows of the events that the watermark has decided, and the pairs of
   all events, whatever the chunks; nothing is retracted
   (`test_oracle_match_joins_in_any_chunks`).
2. Rows are stored only while they may match or are undecided
   (`test_bounded_decided_rows_are_gone`).
3. A pair is emitted in the batch of its second event (`test_pairs_come_with_their_second_event`).

Cost: that of a join, and for each group one read at the watermark that decides an event which had
no partner when it arrived. If all partners have arrived with an event, it is decided at once.

A group too large for memory is read in pieces, the other side once for each piece of one side.

Limits: inputs only grow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    RE,
    LifetimeOperator,
    changes_of,
    changes_schema,
    column_of,
    identities_of,
    with_column,
    with_nulls,
)
from icestream.operators.lifetimes.join import LEFT, RIGHT, StreamJoin
from icestream.operators.lifetimes.pairs import Lifetimes, bounds_of, having_pairs, pairs_of
from icestream.operators.lifetimes.rows_by_group import (
    RowsByGroup,
    earliest,
    live_events_synopsis,
    located,
    woken,
)
from icestream.state.groups.spec import Groups

_NOTHING = pa.schema([])
#: a port, rows of it by group, and where those of each group begin
_Side = tuple[int, pa.RecordBatch, Ints]


class MatchJoin(LifetimeOperator):
    """Pairs of two streams, and the events without a partner of the left one or of both."""

    #: left events whose partners have all arrived need not be stored
    first_port = RIGHT

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        pairs: StreamJoin | None,
        kind: str,
        bounds: tuple[Micros, Micros],
        early: tuple[Micros, Micros] = (0, 0),
    ) -> None:
        """Pair events within bounds on their times; `kind` is left, full or anti.

        An anti join without a condition needs no columns of pairs.

        `early` is how much later than their time left and right events live, so that they arrive
        while the watermark is at most at that much before them.
        """
        self._pairs = pairs
        #: what makes rows of pairs, if they are shown
        self._shown = None if kind == "anti" else pairs
        self.result = left
        if self._shown is not None:
            self.result = pa.schema([each.with_nullable(True) for each in self._shown.result])
        #: sides whose events are shown without a partner
        self._kept = (LEFT, RIGHT) if kind == "full" else (LEFT,)
        self._low, self._high = low, high = bounds
        #: when events of each side are decided, and how long they stay, from their time on
        waits = max(high - early[RIGHT], -early[LEFT]), max(-low - early[LEFT], -early[RIGHT])
        self._waits = waits
        partners = (high + waits[RIGHT] if kind == "full" else waits[LEFT]), waits[LEFT] - low
        self._stays = tuple(1 + max(pair) for pair in zip(waits, partners, strict=True))
        self.synopses = (
            live_events_synopsis("left", left),
            live_events_synopsis("right", _NOTHING if pairs is None else right),
        )

    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Store changes of one side; yield their pairs with the other."""
        return self.on_last_changes(port, changes, groups, watermark, watermark)

    def on_last_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros, over: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Yield also events without a partner, if none can arrive any more."""
        if not changes.num_rows:
            return
        touched = RowsByGroup(located(changes, groups))
        times = column_of(changes, LE)
        decided = times + self._waits[port]
        stored = decided >= (over if self._kept == (port,) else watermark)
        self._store(port, changes, stored, touched.slots, groups)
        alone = np.ones(len(times), dtype=np.bool_)
        if self._shown is not None or port == LEFT:
            for portion in groups.portions(touched.distinct, (1 - port,)):
                mine, bounds = touched.of(portion)
                probes = changes.take(pa.array(mine))
                for other in groups.pieces(1 - port, portion):
                    others = bounds_of(other.owners, len(portion))
                    sides = (port, probes, bounds), (1 - port, other.rows, others)
                    if self._shown is None:
                        alone[mine[self._partnered(*sides)]] = False
                        continue
                    for pairs in pairs_of(*(self._lifetimes(*side) for side in sides)):
                        made, partners = self._shown.answer(port, probes, other.rows, pairs)
                        alone[mine[partners.probes]] = False
                        if made.num_rows:
                            yield pa.RecordBatch.from_arrays(
                                made.columns, schema=changes_schema(self.result)
                            )
        if port in self._kept:
            waiting = np.flatnonzero(alone & stored)
            distinct, place = np.unique(touched.slots[waiting], return_inverse=True)
            groups.hasten(distinct, earliest(place, decided[waiting] + 1, len(distinct)))
            yield from self._unpaired(changes, alone & ~stored, *identities_of(changes))

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the events without a partner that the watermark decides."""
        since = groups.watermark()
        for portion in woken(groups, watermark):
            due = np.full(len(portion), INFINITY)
            pieces = [groups.pieces(port, portion) for port in (LEFT, RIGHT)]
            sides = [list(each) if each.count == 1 else each for each in pieces]
            for port in self._kept:
                for mine in sides[port]:
                    decided = column_of(mine.rows, LE) + self._waits[port]
                    later = decided >= watermark
                    next_due = earliest(mine.owners[later], decided[later] + 1, len(portion))
                    due = np.minimum(due, next_due)
                    asked = mine.where((decided >= since) & ~later)
                    bounds = bounds_of(asked.owners, len(portion))
                    alone = np.ones(len(asked.owners), dtype=np.bool_)
                    for other in sides[1 - port]:
                        theirs = 1 - port, other.rows, bounds_of(other.owners, len(portion))
                        alone &= ~self._partnered((port, asked.rows, bounds), theirs)
                    ids = groups.identities(portion[asked.owners])
                    yield from self._unpaired(asked.rows, alone, *ids)
            groups.remind(portion, due)

    def _store(
        self, port: int, changes: pa.RecordBatch, stored: Mask, slots: Slots, groups: Groups
    ) -> None:
        """Store some changes of one side while they may match or are undecided."""
        names = self.synopses[port].schema.names
        rows = with_column(changes, RE, column_of(changes, LE) + self._stays[port]).select(names)
        if not stored.all():
            slots, rows = slots[stored], rows.filter(pa.array(stored))
        if rows.num_rows:
            groups.append(port, slots, rows)

    def _lifetimes(self, port: int, rows: pa.RecordBatch, bounds: Ints) -> Lifetimes:
        """Return lifetimes that share an instant, the time of the left row, if rows match."""
        times = column_of(rows, LE)
        if port == LEFT:
            return Lifetimes(times, times + 1, bounds)
        return Lifetimes(times - self._high, times - self._low + 1, bounds)

    def _partnered(self, mine: _Side, theirs: _Side) -> Mask:
        """Return which rows of one side match one of the other side."""
        lifetimes = self._lifetimes(*mine), self._lifetimes(*theirs)
        if self._pairs is None or self._pairs.residual is None:
            return having_pairs(*lifetimes)
        (port, rows, _), (_, stored, _) = mine, theirs
        found = np.zeros(rows.num_rows, dtype=np.bool_)
        for pairs in pairs_of(*lifetimes):
            found[self._pairs.joined(port, rows, stored, pairs)[1].probes] = True
        return found

    def _unpaired(
        self, rows: pa.RecordBatch, alone: Mask, id_high: Ids, id_low: Ids
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of one side without a partner, with nulls for the columns of the other."""
        if not alone.any():
            return
        chosen = rows.filter(pa.array(alone))
        times = column_of(chosen, LE)
        yield changes_of(
            with_nulls(chosen, self.result),
            times,
            times + 1,
            column_of(chosen, DIFF),
            id_high[alone],
            id_low[alone],
        )
