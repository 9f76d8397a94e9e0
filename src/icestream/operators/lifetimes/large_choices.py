"""Minima and maxima of a group too large for memory, revised a range of time after the other.

Idea: events that are alive together are merged into one row. Of an input that retracts some, the
rows of one kind are read together, and those left of them are merged. So the answers of a range of
time follow from few rows: the events that begin or end in it, and one for all that span it. An
answer that reaches the end of a range is carried into the next one. Rows that were shown are
compared with the answers that begin where they do, and are written again.

Invariants:
1. The changes add up to the aggregate at each instant
   (`test_oracle_choices_of_large_groups_are_revised_in_ranges`).
2. A group of many times the budget is revised (`test_bounded_choices_of_one_large_group`).

Cost: one reading of the group, and one of the pieces with edges for each range; what is shown is
written again. An input that retracts events is copied by kind for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.lifetimes.changes import LE, RE, column_of, identities
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.event_rows import EventRows, EventWords
from icestream.operators.lifetimes.pieces import PieceBounds, middle_edge, rows_at_once
from icestream.operators.lifetimes.revisable_output import payload_of, stretches_of
from icestream.state.groups.spec import GroupPieces, GroupRows
from icestream.state.identities import numbered


@dataclass(frozen=True)
class AnswerRows:
    """Answers of one group, or rows that were shown for it; a kind is a row of the payload."""

    stretches: CountedIntervals
    payload: pa.RecordBatch

    def and_(self, other: AnswerRows) -> AnswerRows:
        """Return both, with equal payloads as one kind."""
        payload = pa.concat_batches([self.payload, other.payload])
        kinds, heads = numbered(*identities(payload))
        mine, theirs = self.stretches, other.stretches
        both = mine.and_(
            CountedIntervals(
                theirs.owner,
                theirs.kind + self.payload.num_rows,
                theirs.le,
                theirs.re,
                theirs.count,
            )
        )
        both = CountedIntervals(both.owner, kinds[both.kind], both.le, both.re, both.count)
        return AnswerRows(both, payload.take(pa.array(heads)))

    def with_(self, stretches: CountedIntervals) -> AnswerRows:
        return AnswerRows(stretches, self.payload)


@dataclass
class EventRanges:
    """The events of one group, merged for ranges of time from the watermark on."""

    rows: EventRows
    stored: GroupPieces
    #: the events of stored rows, whatever their lifetime
    loaded: Callable[[GroupRows], EventWords]
    watermark: Micros

    def __post_init__(self) -> None:
        self._most, self._bounds = 1, list[PieceBounds]()
        for piece in self.stored:
            events = self.loaded(piece)
            begin, end = (
                (int(each.min(initial=INFINITY)), int(each.max(initial=MINUS_INFINITY)))
                for each in (np.maximum(events.le, self.watermark), events.re)
            )
            is_alive = begin[1] <= self.watermark < end[0]
            spanning = self.rows.between(events, begin[1] + 1, end[0]) if is_alive else None
            self._bounds.append(PieceBounds(begin, end, spanning))
            self._most = max(self._most, len(events.le))
            self._nothing = events.where(np.zeros(len(events.le), dtype=np.bool_))

    def ranges(self) -> Iterator[tuple[Micros, EventWords]]:
        """Yield ends of ranges in order, and rows with the answers of each."""
        begin = self.watermark
        while begin < INFINITY:
            begin, events = self._next(begin)
            yield begin, events

    def _next(self, begin: Micros) -> tuple[Micros, EventWords]:
        end, most = INFINITY, rows_at_once(self._most)
        events, waiting, size = self._nothing, list[EventWords](), 0
        for number, bounds in enumerate(self._bounds):
            if bounds.begin[0] < end and bounds.end[1] > begin:
                some = bounds.spanning if bounds.spans(begin + 1, end) else None
                if some is None:
                    read = self.loaded(self.stored.read(number))
                    some = bounds.merged(self.rows, read, begin + 1, end)
                waiting.append(some)
                size += len(waiting[-1].le)
            if size > most or number == len(self._bounds) - 1:
                events = self.rows.between(events.and_(*waiting), begin + 1, end)
                while len(events.le) > most and (cut := middle_edge(events, begin, end)):
                    end = cut
                    events = self.rows.between(events, begin + 1, end)
                waiting, size = [], len(events.le)
        return end, events


class ShownRanges:
    """The rows that were shown for one group, by where they begin."""

    def __init__(self, shown: GroupPieces, schema: pa.Schema, payload: pa.Schema) -> None:
        """Read rows of a schema, which has other columns beside the payload."""
        if shown.count == 1:
            # these are about to be replaced
            only = shown.read(0)
            shown = GroupPieces(1, lambda _: only)
        self._shown, self._payload = shown, payload
        self._bounds = [_bounds(column_of(each.rows, LE)) for each in shown]
        self.nothing = self._of(pa.RecordBatch.from_pylist([], schema=schema))

    def between(self, begin: Micros, end: Micros) -> AnswerRows:
        """Return the rows that begin in a range."""
        found = self.nothing
        for number, (low, high) in enumerate(self._bounds):
            if low < end and high >= begin:
                rows = self._shown.read(number).rows
                le = column_of(rows, LE)
                found = found.and_(self._of(rows.filter(pa.array((le >= begin) & (le < end)))))
        return found.with_(found.stretches.consolidated())

    def alive(self, instant: Micros) -> AnswerRows:
        """Return the rows that began before an instant and are not over then, up to it."""
        found = self.nothing
        for number, (low, _) in enumerate(self._bounds):
            if low < instant:
                rows = self._shown.read(number).rows
                le, re = column_of(rows, LE), column_of(rows, RE)
                found = found.and_(self._of(rows.filter(pa.array((le < instant) & (re > instant)))))
        return found.with_(found.stretches.consolidated().before(instant))

    def _of(self, rows: pa.RecordBatch) -> AnswerRows:
        kinds = np.arange(rows.num_rows)
        return AnswerRows(stretches_of(rows, 0 * kinds, kinds), payload_of(rows, self._payload))


def _bounds(times: Ints) -> tuple[Micros, Micros]:
    return int(times.min(initial=INFINITY)), int(times.max(initial=MINUS_INFINITY))
