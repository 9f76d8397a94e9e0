"""The events of a group too large for memory, reduced to what counts between two instants.

Idea: answers between two instants need single events only where they begin or end in between. All
others span the whole time, or nothing of it, and merge into one row. So the group is read piece by
piece, and what remains of it is small: the edges of one batch. Where more are left, the time is cut
before half of them, and the rest follows in the next round. Of each piece it is known between which
instants its events begin and end, and, if they are all alive, their merged words. So a round reads
few pieces.

Invariants:
1. Answers are those of the whole group (`test_oracle_large_groups_are_read_in_pieces`).

Cost: one reading of the group, and one of the pieces with edges for each round; in memory the
bounds and one row for each piece.

Limits: no object aggregates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from icestream.core.arrays import Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.lifetimes.event_rows import EventRows, EventWords, StoredEvents
from icestream.operators.lifetimes.rows_by_group import END
from icestream.state.groups.spec import GroupPieces, Groups

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
            begin, end = (
                (int(each.min(initial=INFINITY)), int(each.max(initial=MINUS_INFINITY)))
                for each in (events.le, events.re)
            )
            is_alive = begin[1] < watermark <= end[0]
            spanning = rows.between(events, begin[1] + 1, end[0]) if is_alive else None
            pieces.append(PieceBounds(begin, end, spanning))
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
        events = self.found.events.where(np.zeros(len(self.found.events.le), dtype=np.bool_))
        waiting: list[EventWords] = []
        size, most = 0, rows_at_once(self.most)
        for number, piece in enumerate(self.pieces):
            if piece.begin[0] < reach and piece.end[1] >= since:
                some = piece.spanning if piece.spans(since, reach) else None
                if some is None:
                    read = self.rows.left(self.rows.found(self.stored.read(number), 1, since))
                    some = piece.merged(self.rows, read, since, reach)
                waiting.append(some)
                size += len(some.le)
            if size > most or number == len(self.pieces) - 1:
                events = self.rows.between(events.and_(*waiting), since, reach)
                while len(events.le) > most and (cut := middle_edge(events, since, reach)):
                    reach = cut
                    events = self.rows.between(events, since, reach)
                waiting, size = [], len(events.le)
        self.found = replace(self.found, events=events)
        return reach


def rows_at_once(piece: int) -> int:
    """Return the rows of one round, given those of the largest piece."""
    return max(piece, min(AT_ONCE * piece, MANY))


def middle_edge(events: EventWords, since: Micros, reach: Micros) -> Micros | None:
    """Return an instant with about half of the edges before it; None if there is none between."""
    edges = np.unique(np.concatenate([events.le, events.re]))
    inside = edges[(edges > since) & (edges < reach)]
    return int(inside[len(inside) // 2]) if len(inside) else None
