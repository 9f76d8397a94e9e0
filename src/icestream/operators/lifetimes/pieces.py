"""Groups too large for memory, read in pieces that are reduced to what counts in a range of time.

Idea: answers between two instants need single events only where they begin or end in between. All
others span the whole time, or nothing of it, and merge into one row. So the group is read piece by
piece, and what remains of it is small: the edges of one batch. Where more are left, the time is cut
before half of them, and the rest follows in the next round. Of each piece it is known between which
instants its events begin and end, and, if they are all alive, their merged words. So a round reads
few pieces.

Answers of minima and maxima are revised one range after the other: rows that were shown are
compared with the answers that begin where they do, and are written again. An answer that reaches
the end of a range is carried into the next one. Of an input that retracts events, the rows of one
kind are read together.

Invariants:
1. Answers are those of the whole group (`test_oracle_large_groups_are_read_in_pieces`).
2. The changes add up to the aggregate at each instant
   (`test_oracle_choices_of_large_groups_are_revised_in_ranges`).
3. A group of many times the budget is revised (`test_bounded_choices_of_one_large_group`).

Cost: one reading of the group, and one of the pieces with edges for each round; in memory the
bounds and one row for each piece.

Limits: no object aggregates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.lifetimes.changes import LE, RE, column_of, identities
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.event_rows import EventRows, EventWords, StoredEvents
from icestream.operators.lifetimes.revisable_output import payload_of, stretches_of
from icestream.operators.lifetimes.rows_by_group import END
from icestream.state.groups.spec import GroupPieces, GroupRows, Groups
from icestream.state.identities import numbered

#: rows of one round, in those of the largest piece, unless they are many
AT_ONCE = 8
MANY = 1 << 15


@dataclass
class PieceBounds:
    """Between which instants the events of a piece begin and end, and all of them as one."""

    begin: tuple[Micros, Micros]
    end: tuple[Micros, Micros]
    #: all events as one, once it is known
    spanning: EventWords | None = None

    @classmethod
    def of(
        cls, rows: EventRows, events: EventWords, since: Micros, least: Micros = MINUS_INFINITY
    ) -> PieceBounds:
        """Return the bounds of events; of all of them as one, if they are alive at an instant.

        Events that begin before `least` begin then.
        """
        made = cls(_ends(np.maximum(events.le, least)), _ends(events.re))
        if made.spans(since, since):
            made.spanning = rows.between(events, made.begin[1] + 1, made.end[0])
        return made

    def spans(self, since: Micros, until: Micros) -> bool:
        """Return whether all events are alive from one instant to another."""
        return self.begin[1] < since and self.end[0] >= until

    def merged(
        self, rows: EventRows, events: EventWords, since: Micros, until: Micros
    ) -> EventWords:
        """Return fewer rows for a range; if there is only one of all, it is known from now on."""
        some = rows.between(events, since, until)
        if self.spans(since, until):
            self.spanning = replace(some, re=np.full_like(some.re, self.end[0]))
        return some


@dataclass
class EventsInPieces:
    """The events of one group; `found` are those that count up to the last `advance`."""

    rows: EventRows
    stored: GroupPieces
    found: StoredEvents
    #: when the watermark has passed the next begin or end of an event
    due: Micros
    pieces: list[PieceBounds]
    #: rows of the largest piece
    most: int

    @classmethod
    def of(
        cls, rows: EventRows, groups: Groups, slots: Slots, watermark: Micros
    ) -> EventsInPieces | None:
        """Read a group once; None if it has no rows left."""
        due, most = INFINITY, 1
        pieces: list[PieceBounds] = []
        known: StoredEvents | None = None
        stored = rows.pieces(groups, slots)
        for piece in stored:
            found = rows.found(piece, 1, watermark)
            events = rows.left(found)
            ahead = np.concatenate([events.le, events.re])
            ahead = np.minimum(ahead[ahead >= watermark], END - 1) + 1
            due = int(ahead.min(initial=due))
            pieces.append(PieceBounds.of(rows, events, watermark))
            most = max(most, len(events.le))
            if piece.rows.num_rows == 0:
                continue
            key = (found.emitted_until[0], found.start[0])
            if known is None or key > (known.emitted_until[0], known.start[0]):
                first = found if known is None else known
                known = StoredEvents(
                    events.where(np.zeros(len(events.le), dtype=np.bool_)),
                    found.emitted_until,
                    found.start,
                    found.marks,
                    first.beside.slice(int(first.first[0]), 1) if known is None else first.beside,
                    np.zeros(1, dtype=np.int64),
                )
        # nothing is ahead of the end of time
        due = due if watermark < INFINITY else INFINITY
        return None if known is None else cls(rows, stored, known, due, pieces, most)

    def emitted(self, reach: Micros, start: Micros) -> None:
        """Note that all answers up to an instant were emitted; the next one began at `start`."""
        instants = (np.array([each]) for each in (reach, start))
        emitted_until, starts = instants
        self.found = replace(self.found, emitted_until=emitted_until, start=starts)

    def advance(self, watermark: Micros) -> Micros | None:
        """Find the events that count up to an instant, which is returned; None at the watermark."""
        since, reach = int(self.found.emitted_until[0]), watermark
        if since >= watermark:
            return None
        nothing = self.found.events.where(np.zeros(len(self.found.events.le), dtype=np.bool_))

        def read(number: int) -> EventWords:
            return self.rows.left(self.rows.found(self.stored.read(number), 1, since))

        most = rows_at_once(self.most)
        events, reach = _merged(self.rows, self.pieces, read, nothing, since, reach, most)
        self.found = replace(self.found, events=events)
        return reach


def _merged(
    rows: EventRows,
    pieces: Sequence[PieceBounds],
    read: Callable[[int], EventWords],
    nothing: EventWords,
    since: Micros,
    until: Micros,
    most: int,
) -> tuple[EventWords, Micros]:
    """Return rows with the answers of a range of time, and its end.

    It ends earlier than asked for where more than `most` rows would be left.
    """
    events, waiting, size = nothing, list[EventWords](), 0
    for number, piece in enumerate(pieces):
        if piece.begin[0] < until and piece.end[1] >= since:
            some = piece.spanning if piece.spans(since, until) else None
            if some is None:
                some = piece.merged(rows, read(number), since, until)
            waiting.append(some)
            size += len(some.le)
        if size > most or number == len(pieces) - 1:
            events = rows.between(events.and_(*waiting), since, until)
            while len(events.le) > most and (cut := middle_edge(events, since, until)):
                until = cut
                events = rows.between(events, since, until)
            waiting, size = [], len(events.le)
    return events, until


def rows_at_once(piece: int) -> int:
    """Return the rows of one round, given those of the largest piece."""
    return max(piece, min(AT_ONCE * piece, MANY))


def middle_edge(events: EventWords, since: Micros, reach: Micros) -> Micros | None:
    """Return an instant with about half of the edges before it; None if there is none between."""
    edges = np.unique(np.concatenate([events.le, events.re]))
    inside = edges[(edges > since) & (edges < reach)]
    return int(inside[len(inside) // 2]) if len(inside) else None


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
            bounds = PieceBounds.of(self.rows, events, self.watermark + 1, self.watermark)
            self._bounds.append(bounds)
            self._most = max(self._most, len(events.le))
            self._nothing = events.where(np.zeros(len(events.le), dtype=np.bool_))

    def ranges(self) -> Iterator[tuple[Micros, EventWords]]:
        """Yield ends of ranges in order, and rows with the answers of each."""
        begin, most = self.watermark, rows_at_once(self._most)

        def read(number: int) -> EventWords:
            return self.loaded(self.stored.read(number))

        while begin < INFINITY:
            events, begin = _merged(
                self.rows, self._bounds, read, self._nothing, begin + 1, INFINITY, most
            )
            yield begin, events


class ShownRanges:
    """The rows that were shown for one group, by where they begin."""

    def __init__(self, shown: GroupPieces, schema: pa.Schema, payload: pa.Schema) -> None:
        """Read rows of a schema, which has other columns beside the payload."""
        if shown.count == 1:
            # these are about to be replaced
            only = shown.read(0)
            shown = GroupPieces(1, lambda _: only)
        self._shown, self._payload = shown, payload
        self._bounds = [_ends(column_of(each.rows, LE)) for each in shown]
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


def _ends(times: Ints) -> tuple[Micros, Micros]:
    """Return the first and the last of some times."""
    return int(times.min(initial=INFINITY)), int(times.max(initial=MINUS_INFINITY))
