"""Events as append-only rows of words, and marks of what was emitted for a group.

Idea: a row holds the start and end of an event, or of all events of a chunk with one lifetime, and
their words. It is garbage once the watermark has passed its end, and never changes until then: an
answer that ends with it is compared with the next one only then. A
*mark* is a row with count 0: up to which instant the answers of a group were emitted, and since
when the next one lasts. It is garbage at the instant at which the group wakes next.

Invariants:
1. Merged rows give the same answers from an instant on
   (`test_oracle_merged_rows_are_worth_the_same`).
2. Rows of which some were retracted add up to the remaining ones, floats to the bit
   (`test_what_was_taken_out_leaves_no_trace`).

Cost: O(rows); rows are sorted only if some were retracted.

Limits: an end at the instant before the end of time counts as no end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.lifetimes.sweep import scale_rows
from icestream.operators.folding.exact_rows import ExactRows, concatenated, copies_of
from icestream.operators.lifetimes.changes import DIFF, LE, began_of, column_of, identities
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.lift import Lifting, added_up
from icestream.operators.lifetimes.rows_by_group import END, UNTIL, first_rows
from icestream.state.groups.spec import GroupPieces, GroupRows, Groups, Synopsis
from icestream.state.identities import numbered

_COUNT = "__count"
_BEGAN = "__began"


@dataclass(frozen=True, slots=True)
class EventWords:
    """Events of groups: lifetimes, how many there are, and their words."""

    owner: Ints
    le: Ints
    re: Ints
    count: Ints
    words: ExactRows
    #: the row with the other columns of each: keys, and inputs of object aggregates
    row: Ints

    def where(self, chosen: Mask) -> EventWords:
        owner, le, re, count, row = (column[chosen] for column in self._columns())
        return EventWords(owner, le, re, count, self.words[chosen], row)

    def and_(self, *others: EventWords) -> EventWords:
        """Return all of them, in the order of groups."""
        parts = (self, *others)
        order = np.argsort(np.concatenate([each.owner for each in parts]), kind="stable")
        columns = zip(*(each._columns() for each in parts), strict=True)
        owner, le, re, count, row = (np.concatenate(each)[order] for each in columns)
        words = concatenated(*(each.words for each in parts))[order]
        return EventWords(owner, le, re, count, words, row)

    def _columns(self) -> tuple[Ints, ...]:
        return self.owner, self.le, self.re, self.count, self.row


@dataclass(frozen=True, slots=True)
class StoredEvents:
    """What is stored for some groups."""

    events: EventWords
    #: instant up to which the answers of each group were emitted, and when the next one began
    emitted_until: Ints
    start: Ints
    #: number of marks of each group that stay until they expire
    marks: Ints
    #: the other stored columns, and the first row of each group
    beside: pa.RecordBatch
    first: Ints

    def of(self, groups: Ints) -> StoredEvents:
        """Return what is stored for some of the groups, ascending."""
        if len(groups) == len(self.first):
            return self
        number = np.full(len(self.first), -1)
        number[groups] = np.arange(len(groups))
        owner = number[self.events.owner]
        events = replace(self.events, owner=owner).where(owner >= 0)
        emitted_until, start, marks, first = (
            each[groups] for each in (self.emitted_until, self.start, self.marks, self.first)
        )
        return StoredEvents(events, emitted_until, start, marks, self.beside, first)


class EventRows:
    """How events are stored for some aggregates."""

    def __init__(
        self,
        lifting: Lifting,
        keys: pa.Schema,
        *,
        grows: bool,
        inputs: pa.Schema | None = None,
    ) -> None:
        """Store events; an input that `grows` never retracts any.

        `inputs` are columns to store as they are, together with the start of the event, for
        functions that need more than words.
        """
        self._lifting = lifting
        self.keys = keys
        #: columns that are stored as they are
        self.inputs = pa.schema([]) if inputs is None else inputs
        kept = [each.with_name(_input(each.name)) for each in self.inputs]
        if kept:
            kept.append(pa.field(_BEGAN, pa.int64(), nullable=False))
        head = [pa.field(name, pa.int64(), nullable=False) for name in (LE, UNTIL, _COUNT)]
        self._schema = pa.schema([*head, *lifting.fold.schema, *self.keys, *kept])
        self._beside = pa.schema([*self.keys, *kept])
        self._grows = grows
        self.synopsis = Synopsis("events", self._schema, expiry=UNTIL)
        #: whether events of one lifetime may share a row: nothing is retracted, or all is undone
        self._folds = (grows or lifting.inverts) and not kept

    def taken(
        self, changes: pa.RecordBatch, slots: Slots, le: Ints, re: Ints
    ) -> tuple[Slots, Ints, pa.RecordBatch]:
        """Return rows for changes: the slot and the first instant of each, and the row to store."""
        count = column_of(changes, DIFF)
        words = self._lifting.lifted(changes, copies_of(count))
        heads = np.arange(len(slots))
        if self._folds:
            heads, words = self._folded(slots, le, re, self._scaled(words, count))
            count = np.ones(len(heads), dtype=np.int64)
        slots, le, re = slots[heads], le[heads], re[heads]
        columns = [changes.column(name) for name in (*self.keys.names, *self.inputs.names)]
        if len(self.inputs):
            columns.append(began_of(changes))
        beside = pa.RecordBatch.from_arrays(columns, schema=self._beside)
        return slots, le, self._batch(EventWords(slots, le, re, count, words, heads), beside)

    def found(self, kept: GroupRows, groups: int, watermark: Micros) -> StoredEvents:
        rows = kept.rows
        le, until, count = (column_of(rows, name) for name in (LE, UNTIL, _COUNT))
        re = np.where((count == 0) | (until == INFINITY), until, until - 1)
        stored = rows.columns[3 : 3 + len(self._lifting.fold.schema)]
        words = self._lifting.fold.loaded(stored, copies_of(count))
        emitted_until, start = np.full((2, groups), MINUS_INFINITY)
        marks = np.flatnonzero(count == 0)
        owner, instant = kept.owners[marks], words.counts[marks]
        np.maximum.at(emitted_until, owner, instant)
        latest = instant == emitted_until[owner]
        np.maximum.at(start, owner[latest], le[marks[latest]])
        lasting = np.bincount(owner[re[marks] > watermark], minlength=groups)
        events = EventWords(kept.owners, le, re, count, words, np.arange(len(le)))
        if len(marks):
            events = events.where(count != 0)
        first = first_rows(kept.owners, groups)
        return StoredEvents(
            events, emitted_until, start, lasting, rows.select(self._beside.names), first
        )

    def alive(self, found: StoredEvents) -> EventWords:
        """Return events that are alive, each with the words of all its copies.

        Their starts before the last emitted instant are no longer known.
        """
        events = self.left(found)
        return replace(events, words=self._scaled(events.words, events.count))

    def left(self, found: StoredEvents) -> EventWords:
        """Return events without those retracted, each with the words of one of its copies."""
        events = found.events
        if not (events.count < 0).any():
            return events
        left, heads = self._by_kind(found, events)
        past = np.maximum(found.emitted_until, MINUS_INFINITY + 1) - 1
        le = np.maximum(left.le, past[left.owner])
        left = CountedIntervals(left.owner, left.kind, le, left.re, left.count).levelled()
        return _of_kinds(left.where(left.count > 0), events, heads)

    def between(self, events: EventWords, since: Micros, until: Micros) -> EventWords:
        """Return fewer rows that give the same answers between two instants; `row` is 0.

        None of the events may be retracted, unless all words can be taken back.
        """
        there = events.where((events.le < until) & (events.re >= since))
        since = max(since, MINUS_INFINITY + 1)
        le = np.where(there.le < since, since - 1, there.le)
        re = np.minimum(there.re, until)
        room = there.words.reshaped(there.words.layout.with_room(copies_of(there.count)))
        heads, words = self._folded(there.owner, le, re, self._scaled(room, there.count))
        # sums take the digits that they need, and room to add up all of them
        fold = self._lifting.fold
        words = fold.loaded(fold.stored(words), len(heads))
        ones = np.ones(len(heads), dtype=np.int64)
        return EventWords(there.owner[heads], le[heads], re[heads], ones, words, 0 * ones)

    def pieces(self, groups: Groups, slots: Slots) -> GroupPieces:
        """Return the rows of a large group; those that may cancel each other are read together."""
        return groups.pieces(0, slots, None if self._folds else self._kinds)

    def _kinds(self, rows: pa.RecordBatch) -> Ids:
        return identities(rows.select(self._lifting.fold.schema.names))[0]

    def merged(self, found: StoredEvents, chosen: Mask, instant: Micros) -> EventWords:
        """Return fewer rows that give the same answers as the chosen ones from an instant on."""
        events = found.events.where(chosen)
        le = np.where(events.le < instant, instant - 1, events.le)
        if self._folds:
            heads, words = self._folded(events.owner, le, events.re, events.words)
            ones = np.ones(len(heads), dtype=np.int64)
            owner, re, row = (each[heads] for each in (events.owner, events.re, events.row))
            return EventWords(owner, le[heads], re, ones, words, row)
        left, heads = self._by_kind(found, events)
        left = CountedIntervals(left.owner, left.kind, le, left.re, left.count).consolidated()
        return _of_kinds(left, events, heads)

    def rows(
        self,
        events: EventWords,
        marks: Ints,
        start: Ints,
        due: Ints,
        emitted_until: Micros,
        found: StoredEvents,
    ) -> GroupRows:
        none = np.zeros(len(marks), dtype=np.int64)
        words = self._lifting.fold.zeros(len(marks))
        words.counts[:] = emitted_until
        # a mark that waits for the end of time is stored with the rows that never expire
        until = np.where(due[marks] == END, INFINITY, due[marks])
        rows = EventWords(marks, start[marks], until, none, words, found.first[marks])
        both = events.and_(rows)
        return GroupRows(both.owner, self._batch(both, found.beside))

    def keys_of(self, found: StoredEvents, owners: Ints) -> list[pa.Array]:
        rows = pa.array(found.first[owners])
        return [found.beside.column(name).take(rows) for name in self.keys.names]

    def inputs_of(self, found: StoredEvents, events: EventWords) -> tuple[Ints, pa.RecordBatch]:
        """Return when events began, and the columns that are stored as they are."""
        rows = found.beside.take(pa.array(events.row))
        columns = [rows.column(_input(name)) for name in self.inputs.names]
        inputs = pa.RecordBatch.from_arrays(columns, schema=self.inputs)
        return column_of(rows, _BEGAN) if columns else events.le, inputs

    @property
    def nothing(self) -> GroupRows:
        return GroupRows(
            np.empty(0, dtype=np.int64), pa.RecordBatch.from_pylist([], schema=self._schema)
        )

    def _by_kind(self, found: StoredEvents, events: EventWords) -> tuple[CountedIntervals, Ints]:
        """Return events numbered by kind, and the first event of each kind.

        If a function depends on order, nothing is retracted, and events with different starts are
        different kinds.
        """
        columns = [pa.array(np.ascontiguousarray(column)) for column in events.words.table.T]
        if len(self.inputs):
            began, inputs = self.inputs_of(found, events)
            columns += [*inputs.columns, *([pa.array(began)] if self._grows else [])]
        names = [str(place) for place in range(len(columns))]
        kinds, heads = numbered(*identities(pa.RecordBatch.from_arrays(columns, names=names)))
        return CountedIntervals(events.owner, kinds, events.le, events.re, events.count), heads

    def _folded(self, slots: Slots, le: Ints, re: Ints, words: ExactRows) -> tuple[Ints, ExactRows]:
        """Merge rows with the same group and lifetime; return the first row and words of each."""
        return added_up(slots, le, re, words.copied())

    @staticmethod
    def _scaled(words: ExactRows, count: Ints) -> ExactRows:
        """Return the words of `count` copies of each event."""
        if (count == 1).all():
            return words
        scaled = words.copied()
        scale_rows(scaled.table, count, *words.layout.at.sums)
        return scaled

    def _batch(self, events: EventWords, beside: pa.RecordBatch) -> pa.RecordBatch:
        until = np.where((events.count == 0) | (events.re == INFINITY), events.re, events.re + 1)
        head = [pa.array(each) for each in (events.le, until, events.count)]
        words = self._lifting.fold.stored(events.words)
        others = beside.take(pa.array(events.row)).columns
        return pa.RecordBatch.from_arrays([*head, *words, *others], schema=self._schema)


def _of_kinds(stretches: CountedIntervals, events: EventWords, heads: Ints) -> EventWords:
    """Return intervals with the words of the first event of their kind."""
    first = heads[stretches.kind]
    lifetimes = stretches.owner, stretches.le, stretches.re, stretches.count
    return EventWords(*lifetimes, events.words[first], events.row[first])


def _input(name: str) -> str:
    return f"__input.{name}"
