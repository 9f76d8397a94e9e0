"""Aggregates over lifetimes that emit each answer once, when no change can revise it any more.

Idea: events are stored as they arrive, each with its start and end; nothing is computed for the
future. A group wakes when the watermark has passed its next start or end. The answers since the
last one emitted are then computed from the events alive, for all segments at once; equal
consecutive answers become one, wherever the watermark stood. Nothing is subtracted: each segment
merges the events that span it. A group whose events cannot have an answer, such as those of one
side of a join, sleeps until another event arrives.

Invariants:
1. The output adds up to the aggregate at each instant before the watermark, each interval once
   (`test_oracle_final_segments_come_once`).
2. Adjacent intervals differ, so rows are a function of the events, not of the batches
   (`test_equal_answers_in_a_row_are_one`, `test_rows_are_a_function_of_the_events`).
3. A change is logged as one row without reading the group, whatever the group holds
   (`test_bounded_a_change_is_added_without_a_read`).
4. Nothing is stored for a group whose events have ended
   (`test_bounded_groups_that_are_over_are_gone`); events that have ended, or that have begun and
   end together, take few rows (`test_bounded_events_that_end_together_become_one_row`).
5. Events without a partner are read once, when they begin
   (`test_bounded_events_without_a_partner_are_read_once`).
6. A group too large for memory is read in pieces (`test_oracle_large_groups_are_read_in_pieces`).

Cost: O(1) rows logged for each change; O(n log s) for the n events alive in a group and the s
segments emitted, whenever one of them ends.

References: add-only access without a read (ICE).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.lifetimes.answers import EventSpans, LifetimeAggregate, SpanAnswers
from icestream.operators.lifetimes.changes import changes_of, identities
from icestream.operators.lifetimes.event_rows import EventRows, EventWords, StoredEvents
from icestream.operators.lifetimes.pieces import EventsInPieces
from icestream.operators.lifetimes.rows_by_group import (
    END,
    clipped,
    earliest,
    located,
    rewrite_some,
    woken,
)
from icestream.state.groups.spec import Groups
from icestream.state.identities import numbered

#: groups with at most this many rows are not worth merging
_FEW = 4
#: odd multipliers that spread groups and instants over all bits, so that pairs stay distinct
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_STIR = np.uint64(0xD1B54A32D192ED03)


@dataclass(frozen=True, slots=True)
class _Cuts:
    """The time of each group up to the watermark, cut wherever an event begins or ends."""

    #: group and lifetime of each segment, and whether it is still open
    owner: Ints
    le: Ints
    re: Ints
    is_open: Mask
    #: first and last segment of each event that has begun
    first: Ints
    last: Ints


@dataclass(frozen=True, slots=True)
class _Answers:
    """Maximal times in which the answer of a group does not change."""

    owner: Ints
    le: Ints
    re: Ints
    is_open: Mask
    answers: pa.RecordBatch


class FinalAggregate(LifetimeAggregate):
    """An aggregate that never retracts an answer."""

    def __init__(self, answers: SpanAnswers, *, grows: bool) -> None:
        """Store events as rows; with `grows`, none is ever retracted."""
        super().__init__(answers)
        self._rows = EventRows(
            answers.lifting, answers.keys, grows=grows, inputs=answers.objects.inputs
        )
        self.synopses = (self._rows.synopsis,)
        self._is_comparable = not any(map(_is_nested, answers.schema.types))

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Store changes until the watermark reaches them."""
        changes, le, re = clipped(changes, watermark)
        if changes.num_rows:
            slots, le, rows = self._rows.taken(changes, located(changes, groups), le, re)
            groups.append(0, slots, rows)
            distinct, place = np.unique(slots, return_inverse=True)
            groups.hasten(distinct, earliest(place, np.minimum(le, END - 1) + 1, len(distinct)))
        return iter(())

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield answers whose end the watermark has passed."""
        for portion in woken(groups, watermark):
            large = None
            if not self.answers.objects.results and not groups.fits(0, portion):
                large = EventsInPieces.of(self._rows, groups, portion, watermark)
            if large is not None:
                yield from self._of_large(groups, portion, large, watermark)
                continue
            rows = groups.read(0, portion)
            found = self._rows.found(rows, len(portion), watermark)
            swept = self._answers(found, watermark)
            yield from self.answers.take_bad()
            self._keep(groups, portion, found, swept, watermark)
            yield from self._finished(groups, portion, swept, found)

    def _answers(self, found: StoredEvents, watermark: Micros) -> _Answers:
        """Return the answers of groups up to the watermark; none where no event can have one."""
        some = np.flatnonzero(self._can_answer(found.events, len(found.first)))
        found = found.of(some)
        events = self._rows.alive(found)
        cuts = _cuts(found, events, watermark)
        swept = self._swept(cuts, events.where(events.le < watermark), found)
        return replace(swept, owner=some[swept.owner])

    def _can_answer(self, events: EventWords, groups: int) -> Mask:
        return self.answers.lifting.can_answer(events.words, events.owner, groups)

    def _of_large(
        self, groups: Groups, portion: Slots, large: EventsInPieces, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Yield the answers of a group that is read in pieces, a range of time after the other."""
        while (reach := large.advance(watermark)) is not None:
            found = large.found
            cuts = _cuts(found, found.events, reach)
            begun = found.events.where(found.events.le < reach)
            swept = self._swept(cuts, begun, found)
            yield from self._finished(groups, portion, swept, found)
            open_at = swept.le[swept.is_open]
            large.emitted(reach, int(open_at[0]) if len(open_at) else reach)
        groups.remind(portion, np.array([large.due]))
        if large.due == INFINITY:
            groups.rewrite(0, portion, self._rows.nothing)
        elif large.found.emitted_until[0] > MINUS_INFINITY:
            nothing = large.found.events.where(np.zeros(len(large.found.events.le), np.bool_))
            start, due = large.found.start, np.array([large.due])
            rows = self._rows.rows(nothing, np.array([0]), start, due, watermark, large.found)
            groups.append(0, portion[rows.owners], rows.rows)

    def _swept(self, cuts: _Cuts, begun: EventWords, found: StoredEvents) -> _Answers:
        began, inputs = self._rows.inputs_of(found, begun)
        spans = EventSpans(cuts.first, cuts.last, begun.count, began, inputs)
        lasting = cuts.le < cuts.re
        there, _, answers = self.answers.over(begun.words, spans, len(lasting), lasting)
        return self._stretches(cuts, there, answers)

    def _finished(
        self, groups: Groups, portion: Slots, swept: _Answers, found: StoredEvents
    ) -> Iterator[pa.RecordBatch]:
        done = np.flatnonzero(~swept.is_open)
        if len(done):
            owner = swept.owner[done]
            columns = swept.answers.take(pa.array(done)).columns
            stored = self._rows.keys_of(found, owner)
            keys = self.answers.keys_of(pa.record_batch(stored, schema=self.answers.keys))
            told = pa.RecordBatch.from_arrays([*keys.columns, *columns], schema=self.result)
            id_high, id_low = groups.identities(portion[owner])
            yield changes_of(told, swept.le[done], swept.re[done], 1, id_high, id_low)

    def _stretches(self, cuts: _Cuts, there: Ints, answers: pa.RecordBatch) -> _Answers:
        """Return the answers of segments, with equal adjacent ones merged."""
        fresh = np.ones(len(there), dtype=np.bool_)
        touch = (np.diff(there) == 1) & (np.diff(cuts.owner[there]) == 0)
        if touch.any() and self._is_comparable:
            id_high, id_low = identities(answers)
            fresh[1:] = ~touch | (id_high[1:] != id_high[:-1]) | (id_low[1:] != id_low[:-1])
        first, last = there[fresh], there[np.roll(fresh, -1)]
        return _Answers(
            cuts.owner[first],
            cuts.le[first],
            cuts.re[last],
            cuts.is_open[last],
            answers.filter(pa.array(fresh)),
        )

    def _keep(
        self,
        groups: Groups,
        portion: Slots,
        found: StoredEvents,
        swept: _Answers,
        watermark: Micros,
    ) -> None:
        """Mark what was emitted, merge rows if at most half remain, and set the next wake-up."""
        count, events = len(portion), found.events
        lasts = events.re >= watermark
        due = _next_edges(events, count, watermark)
        answers = self._can_answer(events.where(lasts), count)
        due[~answers] = INFINITY
        groups.remind(portion, due)
        if watermark == INFINITY:
            groups.rewrite(0, portion, self._rows.nothing)
            return
        start = np.full(count, watermark)
        start[swept.owner[swept.is_open]] = swept.le[swept.is_open]
        begun = lasts & (events.le < watermark)
        # a group needs no mark if nothing was emitted and nothing ended, or if what is left of it
        # has no answers
        marked = found.emitted_until > MINUS_INFINITY
        marked[swept.owner[~swept.is_open]] = True
        marked[events.owner[~lasts]] = True
        worn, merged = self._merged(found, lasts, begun, watermark)
        marked = (marked | worn) & answers & (np.bincount(events.owner[begun], minlength=count) > 0)
        rows = self._rows.rows(merged, np.flatnonzero(marked), start, due, watermark, found)
        added = rows.where(~worn[rows.owners])
        groups.append(0, portion[added.owners], added.rows)
        if worn.any():
            rewrite_some(0, portion, worn, rows, groups)

    def _merged(
        self, found: StoredEvents, lasts: Mask, begun: Mask, watermark: Micros
    ) -> tuple[Mask, EventWords]:
        """Return which groups can do with half of their rows, and those rows."""
        events, count = found.events, len(found.emitted_until)
        rows = np.bincount(events.owner[lasts], minlength=count) + found.marks
        mine, end = events.owner[begun], events.re[begun].view(np.uint64)
        _, heads = numbered(end, mine.view(np.uint64) * _SPREAD + end * _STIR)
        least = np.bincount(mine[heads], minlength=count) + 1
        least += np.bincount(events.owner[lasts & ~begun], minlength=count)
        worn = (rows >= _FEW) & (2 * least <= rows)
        merged = self._rows.merged(found, worn[events.owner] & lasts, watermark)
        worn &= 2 * np.bincount(merged.owner, minlength=count) <= rows
        return worn, merged.where(worn[merged.owner])


def _next_edges(events: EventWords, groups: int, watermark: Micros) -> Ints:
    """Return when the watermark has passed the next begin or end of an event of each group."""
    owners, edges = np.append(events.owner, events.owner), np.append(events.le, events.re)
    ahead = edges >= watermark
    return earliest(owners[ahead], np.minimum(edges[ahead], END - 1) + 1, groups)


def _cuts(found: StoredEvents, events: EventWords, watermark: Micros) -> _Cuts:
    """Cut the time of each group, from the last emitted instant up to the watermark."""
    groups = len(found.emitted_until)
    owners = np.concatenate([events.owner, events.owner])
    instants = np.concatenate([events.le, events.re])
    inside = np.flatnonzero((instants >= found.emitted_until[owners]) & (instants < watermark))
    order = inside[np.lexsort((instants[inside], owners[inside]))]
    owner, instant = owners[order], instants[order]
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (np.diff(owner) != 0) | (np.diff(instant) != 0)
    number = np.zeros(len(instants), dtype=np.int64)
    number[order] = np.cumsum(fresh) - 1
    owner, instant = owner[fresh], instant[fresh]
    # one segment for the time before the first cut, and one for each cut
    segment = np.append(np.arange(1, len(owner) + 1) + owner, 0)
    bounds = np.zeros(groups + 1, dtype=np.int64)
    np.cumsum(1 + np.bincount(owner, minlength=groups), out=bounds[1:])
    whose = np.repeat(np.arange(groups), np.diff(bounds))
    le = found.start[whose]
    le[segment[:-1]] = instant
    re = np.append(le[1:], watermark)
    is_open = np.zeros(len(re), dtype=np.bool_)
    re[bounds[1:] - 1] = watermark
    is_open[bounds[1:] - 1] = watermark < INFINITY
    begun = np.flatnonzero(events.le < watermark)
    mine = events.owner[begun]
    first, last = segment[number[begun]], segment[number[begun + len(events.le)]]
    first = np.where(events.le[begun] < found.emitted_until[mine], bounds[mine], first)
    last = np.where(events.re[begun] >= watermark, bounds[mine + 1], last)
    return _Cuts(whose, le, re, is_open, first, last)


def _is_nested(kind: pa.DataType) -> bool:
    """Return whether answers of a type cannot be compared with the previous ones."""
    inner = kind.value_type if pa.types.is_list(kind) else kind
    return bool(pa.types.is_nested(inner))
