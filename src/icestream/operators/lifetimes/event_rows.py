"""Events as rows of words that are only added, and marks of what was told of a group.

Idea: a row has the two edges of an event, or of all events of a chunk with one lifetime, and what
they add. It is garbage once the watermark has reached its end, and until then nobody has to change
it. A *mark* is a row that counts nothing: up to which instant a group's answers were told, and
since when the one after that lasts. It is garbage at the instant at which the group wakes next.

Invariants:
1. Rows that are merged are, from an instant on, worth what they were
   (`test_oracle_merged_rows_are_worth_the_same`).
2. Rows of which some were taken out add up to those that are left, floats to the bit
   (`test_what_was_taken_out_leaves_no_trace`).

Cost: O(rows); rows of which some were taken out are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints, Slots, Table
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels import words as operations
from icestream.kernels.lifetimes.sweep import fold_equal, scale_rows
from icestream.operators.lifetimes.changes import DIFF, LE, RE, column_of
from icestream.operators.lifetimes.consolidate import identities, numbered
from icestream.operators.lifetimes.counted_intervals import CountedIntervals
from icestream.operators.lifetimes.lift import Lifting, table_of
from icestream.operators.lifetimes.rows_by_group import END, first_rows
from icestream.state.groups.spec import GroupRows, Synopsis

_COUNT = "__count"
_BEGAN = "__began"
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EventWords:
    """Events of groups: lifetimes, how often they are there, and their words."""

    owner: Ints
    le: Ints
    re: Ints
    count: Ints
    words: Table
    #: the row with what else is kept of each: keys, and columns for objects
    row: Ints

    def where(self, chosen: Flags) -> EventWords:
        """Return the chosen ones."""
        return EventWords(*(column[chosen] for column in self._columns()))

    def and_(self, other: EventWords) -> EventWords:
        """Return both, in the order of groups."""
        order = np.argsort(np.concatenate([self.owner, other.owner]), kind="stable")
        pairs = zip(self._columns(), other._columns(), strict=True)
        return EventWords(*(np.concatenate(pair)[order] for pair in pairs))

    def _columns(self) -> tuple[Ints, ...]:
        return self.owner, self.le, self.re, self.count, self.words, self.row


@dataclass(frozen=True, slots=True)
class StoredEvents:
    """What is kept of some groups."""

    events: EventWords
    #: instant before which all was told of each group, and since when what comes next lasts
    told: Ints
    start: Ints
    #: marks of each group that stay until they expire
    marks: Ints
    #: what else is kept, and the first row of each group
    beside: pa.RecordBatch
    first: Ints


class EventRows:
    """How events are kept for some aggregates."""

    def __init__(
        self,
        payload: pa.Schema,
        lifting: Lifting,
        keys: tuple[str, ...],
        *,
        grows: bool,
        inputs: pa.Schema | None = None,
    ) -> None:
        """Keep events that are never taken out if the input `grows`.

        `inputs` are columns to keep as they are, with the begin of the event, for whoever needs
        more than words.
        """
        self._lifting = lifting
        self.keys = pa.schema([payload.field(name) for name in keys])
        #: columns that are kept as they are
        self.inputs = pa.schema([]) if inputs is None else inputs
        kept = [each.with_name(_input(each.name)) for each in self.inputs]
        if kept:
            kept.append(pa.field(_BEGAN, pa.int64(), nullable=False))
        numbers = range(lifting.width)
        head = [pa.field(name, pa.int64(), nullable=False) for name in (LE, RE, _COUNT)]
        words = [pa.field(f"__w{n}", pa.int64(), nullable=False) for n in numbers]
        self._schema = pa.schema([*head, *words, *self.keys, *kept])
        self._beside = pa.schema([*self.keys, *kept])
        self._grows = grows
        self.synopsis = Synopsis("events", self._schema, expiry=RE)
        added = np.isin(lifting.ops, [*operations.INVERTIBLE, operations.ADD_DD])
        self._sums = lifting.ops[added], lifting.places[added]
        self._chosen = np.ones(lifting.width, dtype=np.bool_)
        for op, place in zip(*(each.tolist() for each in self._sums), strict=True):
            self._chosen[place : place + operations.WORDS[op]] = False
        #: whether events of one lifetime may be one row: nothing is taken out, or exactly
        exact = bool(np.isin(lifting.ops, list(operations.INVERTIBLE)).all())
        self._folds = (grows or exact) and not kept

    def taken(
        self, changes: pa.RecordBatch, slots: Slots, le: Ints, re: Ints
    ) -> tuple[Slots, Ints, pa.RecordBatch]:
        """Return rows for changes: the slot and the first instant of each, and what to keep."""
        words, count = self._lifting.lifted(changes), column_of(changes, DIFF)
        heads = np.arange(len(slots))
        if self._folds:
            heads, words = self._folded(slots, le, re, self._scaled(words, count))
            count = np.ones(len(heads), dtype=np.int64)
        slots, le, re = slots[heads], le[heads], re[heads]
        columns = [changes.column(name) for name in (*self.keys.names, *self.inputs.names)]
        if len(self.inputs):
            columns.append(changes.column(LE))
        beside = pa.RecordBatch.from_arrays(columns, schema=self._beside)
        return slots, le, self._batch(EventWords(slots, le, re, count, words, heads), beside)

    def found(self, kept: GroupRows, groups: int, watermark: Micros) -> StoredEvents:
        """Return what the rows of groups say at a watermark."""
        rows = kept.rows
        le, re, count = (column_of(rows, name) for name in (LE, RE, _COUNT))
        words = table_of(rows.columns[3 : 3 + self._lifting.width])
        told, start = np.full((2, groups), MINUS_INFINITY)
        marks = np.flatnonzero(count == 0)
        owner, instant = kept.owners[marks], words[marks, 0]
        np.maximum.at(told, owner, instant)
        latest = instant == told[owner]
        np.maximum.at(start, owner[latest], le[marks[latest]])
        lasting = np.bincount(owner[re[marks] > watermark], minlength=groups)
        events = EventWords(kept.owners, le, re, count, words, np.arange(len(le)))
        if len(marks):
            events = events.where(count != 0)
        first = first_rows(kept.owners, groups)
        return StoredEvents(events, told, start, lasting, rows.select(self._beside.names), first)

    def alive(self, found: StoredEvents) -> EventWords:
        """Return events that are there, each with the words of all its copies.

        How long before the last instant told they began is not to be known any more.
        """
        events = found.events
        if (events.count < 0).any():
            left, heads = self._by_kind(found, events)
            past = np.maximum(found.told, MINUS_INFINITY + 1) - 1
            le = np.maximum(left.le, past[left.owner])
            left = CountedIntervals(left.owner, left.kind, le, left.re, left.count).levelled()
            left = left.where(left.count > 0)
            events = _of_kinds(left, events, heads)
        return replace(events, words=self._scaled(events.words, events.count))

    def merged(self, found: StoredEvents, chosen: Flags, instant: Micros) -> EventWords:
        """Return fewer rows that are worth what the chosen ones are from an instant on."""
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
        told: Micros,
        found: StoredEvents,
    ) -> GroupRows:
        """Return events and marks of groups as rows to keep."""
        none = np.zeros(len(marks), dtype=np.int64)
        words = np.zeros((len(marks), self._lifting.width), dtype=np.int64)
        words[:, 0] = told
        # what waits for the end of time belongs to what never expires
        until = np.where(due[marks] == END, INFINITY, due[marks])
        rows = EventWords(marks, start[marks], until, none, words, found.first[marks])
        both = events.and_(rows)
        return GroupRows(both.owner, self._batch(both, found.beside))

    def keys_of(self, found: StoredEvents, owners: Ints) -> list[pa.Array]:
        """Return the columns of keys of groups that have rows."""
        rows = pa.array(found.first[owners])
        return [found.beside.column(name).take(rows) for name in self.keys.names]

    def inputs_of(self, found: StoredEvents, events: EventWords) -> tuple[Ints, pa.RecordBatch]:
        """Return when events began, and the columns that are kept as they are."""
        rows = found.beside.take(pa.array(events.row))
        columns = [rows.column(_input(name)) for name in self.inputs.names]
        inputs = pa.RecordBatch.from_arrays(columns, schema=self.inputs)
        return column_of(rows, _BEGAN) if columns else events.le, inputs

    @property
    def nothing(self) -> GroupRows:
        """No rows at all."""
        return GroupRows(
            np.empty(0, dtype=np.int64), pa.RecordBatch.from_pylist([], schema=self._schema)
        )

    def _by_kind(self, found: StoredEvents, events: EventWords) -> tuple[CountedIntervals, Ints]:
        """Return events by the number of what they are, and the first of each number.

        Where functions go by order nothing is taken out, and what began apart is not the same.
        """
        columns = [pa.array(np.ascontiguousarray(column)) for column in events.words.T]
        if len(self.inputs):
            began, inputs = self.inputs_of(found, events)
            columns += [*inputs.columns, *([pa.array(began)] if self._grows else [])]
        names = [str(place) for place in range(len(columns))]
        kinds, heads = numbered(*identities(pa.RecordBatch.from_arrays(columns, names=names)))
        return CountedIntervals(events.owner, kinds, events.le, events.re, events.count), heads

    def _folded(self, slots: Slots, le: Ints, re: Ints, words: Table) -> tuple[Ints, Table]:
        """Merge rows with the same group and lifetime: the first row of each, and their words."""
        words = words.copy()
        heads = np.empty(len(slots), dtype=np.int64)
        index = np.zeros(1 << max(4, (2 * len(slots)).bit_length()), dtype=np.int64)
        ops, places = self._lifting.ops, self._lifting.places
        count = fold_equal(slots, le, re, words, ops, places, index, heads)
        return heads[:count], words[:count]

    def _scaled(self, words: Table, count: Ints) -> Table:
        """Return the words of so many copies of events."""
        if (count == 1).all():
            return words
        scaled = words.copy()
        scale_rows(scaled, count, *self._sums)
        scaled[:, self._chosen] = words[:, self._chosen]
        return scaled

    def _batch(self, events: EventWords, beside: pa.RecordBatch) -> pa.RecordBatch:
        head = [pa.array(each) for each in (events.le, events.re, events.count)]
        words = [pa.array(np.ascontiguousarray(column)) for column in events.words.T]
        others = beside.take(pa.array(events.row)).columns
        return pa.RecordBatch.from_arrays([*head, *words, *others], schema=self._schema)


def _of_kinds(stretches: CountedIntervals, events: EventWords, heads: Ints) -> EventWords:
    """Return stretches with what the first event of their kind has."""
    first = heads[stretches.kind]
    lifetimes = stretches.owner, stretches.le, stretches.re, stretches.count
    return EventWords(*lifetimes, events.words[first], events.row[first])


def _input(name: str) -> str:
    return f"__input.{name}"
