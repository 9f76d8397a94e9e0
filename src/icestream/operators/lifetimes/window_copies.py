"""Events as members of their windows: one change for each window that an event is in.

Idea: a change of a window concerns its last instant only, so whatever the order of events, a window
has one answer, and it is final when the watermark reaches the end of the window. The event's own
time goes into a column, for functions that depend on it. Grouping sets are copies as well: one for
each set, without the keys that are not in it.

Invariants:
1. An event is in the windows that contain its time
   (`test_oracle_every_kind_of_window_is_in_the_table_while_it_is_open`).
2. An event counts once in each grouping set (the same test).
3. Events that are added up before they are copied count as often as they came
   (`test_oracle_copies_in_windows_are_the_same_anywhere`).

Cost: O(windows of an event) for each change.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from icestream.core.arrays import Ints
from icestream.operators.folding.columns import window_column
from icestream.operators.lifetimes.changes import (
    BEGAN,
    DIFF,
    LE,
    changes_of,
    column_of,
    identities,
    identities_of,
    payload_of,
    with_column,
    with_payload,
)
from icestream.plan.windows.frame import GROUPING_ID
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.state.identities import numbered

#: column with start and end of the window of a copy, and with the time of an event in a frame
WINDOW = "__window"
#: events that are looked at first to learn how many are equal
_SAMPLE = 1024


@dataclass(frozen=True)
class WindowEnds:
    """Copies events into their windows, as points at the ends of these.

    Of events of one pane, which are in the same windows, those with equal columns become one
    change, if that halves them.
    """

    windows: Windows | Cumulative
    time: pa.DataType
    #: columns to add, each with an edge of the window: `start` or `end`
    edges: tuple[tuple[str, str], ...]

    def columns(self, payload: pa.Schema) -> pa.Schema:
        return pa.schema(
            [*payload, *(pa.field(name, self.time, nullable=False) for name, _ in self.edges)]
        )

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        changes = self._folded(changes)
        event, start, end = windows_of(self.windows, column_of(changes, LE))
        payload = payload_of(changes).take(pa.array(event))
        times = {"start": start, "end": end}
        made = [pa.array(times[edge]).cast(self.time) for _, edge in self.edges]
        columns = self.columns(payload.schema)
        copies = pa.RecordBatch.from_arrays([*payload.columns, *made], schema=columns)
        ids = [each[event] for each in identities_of(changes)]
        return changes_of(copies, end, end + 1, column_of(changes, DIFF)[event], *ids)

    def _folded(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return one change for the equal rows of a pane, unless too few are equal."""
        pane = gcd(self.windows.range, self.windows.slide)
        panes = (column_of(changes, LE) - self.windows.offset) // pane
        rows = payload_of(changes)
        if any(map(pt.is_nested, rows.schema.types)):
            return changes
        rows = rows.append_column("", pa.array(panes))
        sample = rows.slice(0, _SAMPLE)
        if 2 * len(numbered(*identities(sample))[1]) > sample.num_rows:
            return changes
        numbers, heads = numbered(*identities(rows))
        diffs = np.zeros(len(heads), dtype=np.int64)
        np.add.at(diffs, numbers, column_of(changes, DIFF))
        return with_column(changes.take(pa.array(heads)), DIFF, diffs)


def windows_of(windows: Windows | Cumulative, times: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the event, the start and the end of each copy of events in their windows."""
    if isinstance(windows, Cumulative):
        base = (times - windows.offset) // windows.size * windows.size + windows.offset
        first = (times - base) // windows.step + 1
        counts = windows.size // windows.step - first + 1
        event = np.repeat(np.arange(len(times)), counts)
        number = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts, counts)
        return event, base[event], base[event] + (first[event] + number) * windows.step
    last = (times - windows.offset) // windows.slide * windows.slide + windows.offset
    counts = (last + windows.range - times - 1) // windows.slide + 1
    event = np.repeat(np.arange(len(times)), counts)
    number = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = last[event] - number * windows.slide
    return event, start, start + windows.range


@dataclass(frozen=True)
class GroupingCopies:
    """Copies events into the grouping sets of some keys."""

    keys: tuple[str, ...]
    #: the keys of each set, and the number of the set in the rows
    sets: tuple[tuple[tuple[str, ...], int], ...]

    def columns(self, payload: pa.Schema) -> pa.Schema:
        fields = [each.with_nullable(True) if each.name in self.keys else each for each in payload]
        return pa.schema([*fields, pa.field(GROUPING_ID, pa.int64(), nullable=False)])

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        payload = payload_of(changes)
        columns, count = self.columns(payload.schema), changes.num_rows
        made = []
        for chosen, number in self.sets:
            kept = [
                pa.nulls(count, field.type)
                if field.name in self.keys and field.name not in chosen
                else payload.column(field.name)
                for field in payload.schema
            ]
            kept.append(pa.array(np.full(count, number, dtype=np.int64)))
            copies = pa.RecordBatch.from_arrays(kept, schema=columns)
            made.append(with_payload(changes, copies))
        return pa.concat_batches(made)


@dataclass(frozen=True)
class OwnTimes:
    """Adds the time of each event as a column, also for functions that depend on it."""

    time: pa.DataType

    def columns(self, payload: pa.Schema) -> pa.Schema:
        return pa.schema(
            [pa.field(WINDOW, self.time), *payload, pa.field(BEGAN, pa.int64(), nullable=False)]
        )

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        times, payload = changes.column(LE), payload_of(changes)
        columns = self.columns(payload.schema)
        timed = [times.cast(self.time), *payload.columns, times]
        return with_payload(changes, pa.RecordBatch.from_arrays(timed, schema=columns))


def window_columns(
    windows: Windows | Cumulative | Session, time: pa.DataType, payload: pa.Schema
) -> pa.Schema:
    """Return the columns of copies of events in windows."""
    window = windows.heading(time).with_name(WINDOW)
    return pa.schema([window, *payload, pa.field(BEGAN, pa.int64(), nullable=False)])


def in_windows(
    payload: pa.RecordBatch, start: Ints, end: Ints, times: Ints, columns: pa.Schema
) -> pa.RecordBatch:
    """Return events with the window that each is in, and their own times."""
    made = window_column(columns[0].type, start, end)
    return pa.RecordBatch.from_arrays([made, *payload.columns, pa.array(times)], schema=columns)
