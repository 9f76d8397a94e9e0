"""Since when a group has had an event that meets each of some conditions.

Idea: events live forever and none is retracted, so a condition that was met stays met: all that
counts is the earliest instant, one word for each condition. An event that arrives with an earlier
one adds the time before the instant known so far; nothing is ever retracted. The number of groups
that meet a condition is the number of different values, as COUNT(DISTINCT ...) counts them. Where
nobody asks for the past, a bit for each condition is enough.

Invariants:
1. At each instant a group has one event for each condition that one of its events up to then met,
   whatever the order in which they arrive (`test_oracle_conditions_are_met_from_the_first_event`).
2. A group stores one row (`test_bounded_conditions_are_one_row_of_words`).
3. Where nobody asks for the past, a group has one event for each condition that was ever met
   (`test_oracle_conditions_that_are_met_now`), and a word (`test_bounded_conditions_are_one_word`).

Cost: O(events + groups touched), without a sort by time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import PromptOperator, changes_of, column_of
from icestream.operators.lifetimes.rows_by_group import RowsByGroup, clipped, located
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

_SINCE = 0
#: column of the conditions that were met, as bits, and how many there may be
_MET, _MOST = "__met", 63
Times = npt.NDArray[np.int64]


class _Watching(PromptOperator):
    """Watches boolean columns of events that live forever."""

    def __init__(self, payload: pa.Schema, keys: Sequence[str], conditions: Sequence[str]) -> None:
        """Watch boolean columns; `keys` have one value per group and come before them."""
        self._payload, self._keys, self._conditions = payload, list(keys), list(conditions)
        flags = [pa.field(name, pa.bool_(), nullable=False) for name in conditions]
        self.result = pa.schema([*(payload.field(name) for name in keys), *flags])
        self.synopses = (self._stored(),)

    @abstractmethod
    def _stored(self) -> Synopsis:
        """Return what is stored of a group."""

    def _met(self, changes: pa.RecordBatch) -> list[Mask]:
        """Return which changes meet each condition."""
        return [
            np.asarray(changes.column(name).fill_null(False).to_numpy(zero_copy_only=False))
            for name in self._conditions
        ]


class CurrentConditions(_Watching):
    """Emits an event with the conditions that a group meets and did not meet before."""

    def _stored(self) -> Synopsis:
        return Synopsis("met", pa.schema([pa.field(_MET, pa.int64(), nullable=False)]))

    def on_last_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros, _over: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Yield what is met for the first time."""
        changes, le, _ = clipped(changes, watermark)
        if changes.num_rows == 0:
            return
        by_slot = RowsByGroup(located(changes, groups))
        met = np.zeros(changes.num_rows, dtype=np.int64)
        for place, each in enumerate(self._met(changes)):
            met |= each.astype(np.int64) << place
        keys = changes.select(self._keys)
        for portion in groups.portions(by_slot.distinct):
            rows, bounds = by_slot.of(portion)
            kept = groups.read(0, portion)
            before = np.zeros(len(portion), dtype=np.int64)
            before[kept.owners] = column_of(kept.rows, _MET)
            fresh = np.bitwise_or.reduceat(met[rows], bounds[:-1]) & ~before
            at = np.flatnonzero(fresh)
            if len(at):
                stored = pa.array(before[at] | fresh[at])
                bits = pa.RecordBatch.from_arrays([stored], schema=self.synopses[0].schema)
                groups.rewrite(0, portion[at], GroupRows(np.arange(len(at)), bits))
                first = rows[bounds[at]]
                flags = [pa.array(fresh[at] >> n & 1 == 1) for n in range(len(self._conditions))]
                columns = [*keys.take(pa.array(first)).columns, *flags]
                payload = pa.RecordBatch.from_arrays(columns, schema=self.result)
                forever, identity = np.full(len(at), INFINITY), groups.identities(portion[at])
                yield changes_of(payload, le[first], forever, 1, *identity)


class ConditionsMet(_Watching):
    """Emits an event with the conditions of a group that are met from an instant on."""

    def _stored(self) -> Synopsis:
        names = [f"__since.{name}" for name in self._conditions]
        return Synopsis(
            "since", pa.schema([pa.field(n, pa.int64(), nullable=False) for n in names])
        )

    def current(self) -> CurrentConditions | None:
        """Return the same where nobody asks for the past; None if there are too many conditions."""
        if len(self._conditions) > _MOST:
            return None
        return CurrentConditions(self._payload, self._keys, self._conditions)

    def on_last_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros, _over: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Yield what is met earlier than before."""
        changes, le, _ = clipped(changes, watermark)
        if changes.num_rows == 0:
            return
        by_slot = RowsByGroup(located(changes, groups))
        met = self._met(changes)
        keys = changes.select(self._keys)
        for portion in groups.portions(by_slot.distinct):
            rows, bounds = by_slot.of(portion)
            starts = le[rows]
            earliest = [
                np.minimum.reduceat(np.where(each[rows], starts, INFINITY), bounds[:-1])
                for each in met
            ]
            before = self._read(groups, portion)
            since = np.minimum(before, np.stack(earliest, axis=1))
            earlier = (since < before).any(axis=1)
            slots, before, since = portion[earlier], before[earlier], since[earlier]
            if len(slots):
                self._store(groups, slots, since)
                first = keys.take(pa.array(rows[bounds[:-1][earlier]]))
                yield self._emitted(groups, slots, before, since, first)

    def _read(self, groups: Groups, slots: Slots) -> Times:
        kept = groups.read(_SINCE, slots)
        since = np.full((len(slots), len(self._conditions)), INFINITY)
        for place, column in enumerate(kept.rows.columns):
            since[kept.owners, place] = column.to_numpy()
        return since

    def _store(self, groups: Groups, slots: Slots, since: Times) -> None:
        columns = [pa.array(each) for each in since.T]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.synopses[_SINCE].schema)
        groups.rewrite(_SINCE, slots, GroupRows(np.arange(len(slots)), rows))

    def _emitted(
        self, groups: Groups, slots: Slots, before: Times, since: Times, keys: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Return an event for each time span in which conditions of a group are met from now on."""
        owed = since < before
        owners: list[Ints] = []
        flags = []
        spans = []
        for place in range(len(self._conditions)):
            at = np.flatnonzero(owed[:, place])
            span = since[at, place], before[at, place]
            # all conditions with the same span share an event
            same = (since[at] == span[0][:, None]) & (before[at] == span[1][:, None])
            owed[at] &= ~same
            owners.append(at)
            flags.append(same)
            spans.append(span)
        owner, flag = np.concatenate(owners), np.concatenate(flags)
        le, re = (np.concatenate(each) for each in zip(*spans, strict=True))
        columns = [*keys.take(pa.array(owner)).columns, *map(pa.array, flag.T)]
        payload = pa.RecordBatch.from_arrays(columns, schema=self.result)
        return changes_of(payload, le, re, 1, *groups.identities(slots[owner]))
