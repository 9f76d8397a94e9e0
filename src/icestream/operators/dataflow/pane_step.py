"""Windows on a grid, and sessions, over the changes that a component receives.

Idea: the operator of panes takes entries, those of object aggregates and sessions take events; here
they get them from changes. A shard folds the events that it receives into a table of entries of
bounded size. Rows are events at the last instant of their window, which nothing retracts.

Invariants:
1. Rows are those of aggregates over copies of events in their windows, whatever the batches, late
   events and restarts (`TestWindowsBehindJoins`).
2. An event that is late for these windows, though not for others of the same source, is skipped
   (`test_events_late_for_one_of_two_windows_count_in_the_other`).
3. The keys of a batch with more groups than memory holds are found by folding again
   (`test_bounded_groups_go_cold_and_come_back`).

Cost: that of the operator; one fold of each event, which does not depend on the overlap of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.bad_rows import BadRows
from icestream.operators.folding.columns import ARRIVAL, BATCH, TIME, InputColumn, window_column
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import Layout
from icestream.operators.folding.fold import (
    ID_HIGH_COLUMN,
    ID_LOW_COLUMN,
    EntryRun,
    EntryTable,
)
from icestream.operators.grid.slice_log import SLICE_BYTES
from icestream.operators.lifetimes.changes import LE, changes_of, column_of, one_each, payload_of
from icestream.operators.protocol import ChangeInputs, Operator, PastVersion, Shard
from icestream.plan.windows.grid import Cumulative, Grid, Windows
from icestream.plan.windows.session import Session
from icestream.state.keys import KeyCodec

#: the latest watermark of the step, in the arena's header
_REACHED = "paned"
#: part of the quota for the table in which events are folded, and for the keys of a batch
_TABLE = 1 / 16
_KEYS = 1 / 32

Events = Callable[[], Iterator[pa.RecordBatch]]


class PaneStep:
    """The windows of one shard."""

    def __init__(
        self,
        operator: Operator,
        shard: Shard,
        reading: EntryReading | TupleReading,
        edges: Sequence[int],
        windows: Windows | Cumulative | Session,
        result: pa.Schema,
        delay: Micros,
    ) -> None:
        """Give the operator of some windows the events that arrive on edges."""
        self._operator = operator
        self._shard = shard
        self._reading = reading
        self._edges = edges
        self._windows = windows
        self._result = result
        self._delay = delay
        self._header: dict[str, Any] = shard.arena.header
        self._header.setdefault(_REACHED, MINUS_INFINITY)
        budget = shard.account.budget
        #: bytes of rows that steps after this one may hold
        self.gathered_bytes = max(SLICE_BYTES, int(_TABLE * budget.total))
        self._folding = budget.account("folding")
        self._folding.resize(reading.table_bytes(budget.total))

    def run(self, inputs: ChangeInputs | None, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the windows that a watermark closes."""
        if inputs is not None:
            events = _OpenEvents(inputs, self._edges, self._late_before)
            self._operator.on_batch(self._reading.inputs(events, self._folding.held))
        for made in self._operator.on_watermark(watermark):
            rows = made[1] if isinstance(made, tuple) else made
            yield rows if isinstance(rows, BadRows) else self._changes(rows)
        self._header[_REACHED] = watermark

    @property
    def _late_before(self) -> Micros:
        return self._windows.late_before(self._header[_REACHED])

    def _changes(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as events at the last instant of their window."""
        ends = np.asarray(rows.column(0).field("end").cast(pa.int64()))
        shown = moved(rows, -self._delay) if self._delay else rows
        payload = pa.RecordBatch.from_arrays(shown.columns, schema=self._result)
        nobody = np.zeros(rows.num_rows, dtype=np.uint64)
        return changes_of(payload, ends - 1, ends, 1, nobody, nobody)

    def restore(self, history: Sequence[PastVersion]) -> None:
        self._operator.restore(history)
        if history:
            self._header[_REACHED] = history[-1].watermark

    @property
    def took_snapshot(self) -> bool:
        return self._operator.took_snapshot

    @property
    def released(self) -> tuple[int, ...]:
        return self._operator.released

    @property
    def statistics(self) -> dict[str, Any]:
        own, account = self._operator.statistics, self._shard.account
        needed = account.held + self._folding.held + self._shard.arena.bytes
        return {
            **own,
            "needed_bytes": account.budget.whole(needed),
            "cold": {"bytes_read": own.get("image_bytes_read", 0)},
        }


def moved(rows: pa.RecordBatch, by: Micros) -> pa.RecordBatch:
    """Return rows of windows, which are their first column, that are later."""
    window = rows.column(0)
    bounds = (np.asarray(window.field(edge).cast(pa.int64())) + by for edge in ("start", "end"))
    column = window_column(window.type, *bounds)
    return pa.RecordBatch.from_arrays([column, *rows.columns[1:]], schema=rows.schema)


@dataclass(frozen=True)
class _OpenEvents:
    """The events of a batch that are in an open window; they can be read again."""

    arrived: ChangeInputs
    edges: Sequence[int]
    late_before: Micros

    def __call__(self) -> Iterator[pa.RecordBatch]:
        for changes in chain.from_iterable(map(self.arrived.as_sent, self.edges)):
            events, times = one_each(changes), column_of(changes, LE)
            if len(times) and int(times.min()) < self.late_before:
                events = events.filter(pa.array(column_of(events, LE) >= self.late_before))
            if events.num_rows:
                yield events


@dataclass(frozen=True)
class EntryReading:
    """Events as entries of panes."""

    layout: Layout
    grid: Grid
    #: the keys of groups, and the columns of changes that have them
    keys: pa.Schema
    columns: tuple[str, ...]

    def table_bytes(self, quota: int) -> int:
        """Return the bytes of the table and of the keys that are kept."""
        return max(2 * SLICE_BYTES, int(_TABLE * quota)) + int(_KEYS * quota)

    def inputs(self, events: Events, size: int) -> FoldedEvents:
        return FoldedEvents(self, events, size)


class FoldedEvents:
    """The entries of a batch and the keys of their groups."""

    def __init__(self, reading: EntryReading, events: Events, size: int) -> None:
        self._reading = reading
        self._events = events
        self._codec = KeyCodec(reading.keys)
        self._room = int(size * _KEYS / (_KEYS + _TABLE))
        row = EntryTable.row_bytes(reading.layout)
        self._capacity = max(16, (size - self._room) // row)
        #: the keys, unless there are too many
        self._keys: list[pa.Table] | None = []

    def entries(self) -> Iterator[ExactRows]:
        """Yield tables of entries, with the pane as the first word of each row."""
        for run in self._runs():
            if self._keys is not None:
                self._keys.append(run.keys)
                if sum(each.nbytes for each in self._keys) > self._room:
                    self._keys = None
            rows = np.concatenate([run.panes[:, None], run.entries.table], axis=1)
            yield ExactRows(run.entries.layout, rows)

    def groups(self) -> Iterator[pa.Table]:
        """Yield the keys of the entries' groups."""
        if self._keys is not None:
            return iter(self._keys)
        return (run.keys for run in self._runs())

    def leaving(self, family: int) -> Iterator[ExactRows]:
        """Yield nothing: entries that entered leave as they are."""
        return iter(())

    def _runs(self) -> Iterator[EntryRun]:
        reading = self._reading
        table = EntryTable(reading.layout, self._codec, self._capacity)
        for events in self._events():
            times = column_of(events, LE)
            keys = [events.column(name) for name in reading.columns]
            by = (pa.RecordBatch.from_arrays(keys, schema=reading.keys),)
            yield from table.fold(by, reading.grid.panes_of(times), self._inputs(events, times))
        last = table.take()
        if len(last.panes):
            yield last

    def _inputs(self, events: pa.RecordBatch, times: Ints) -> dict[str, InputColumn]:
        payload = payload_of(events)
        columns = {name: InputColumn(payload.column(name)) for name in payload.schema.names}
        if self._reading.layout.needs_order:
            columns[TIME] = InputColumn(pa.array(times))
            columns |= {name: InputColumn(payload.column(name)) for name in (BATCH, ARRIVAL)}
        return columns


@dataclass(frozen=True)
class TupleReading:
    """Events as the operators of object aggregates and of sessions take them."""

    #: the keys of groups, and the columns of changes that have them
    keys: pa.Schema
    columns: tuple[str, ...]

    def table_bytes(self, quota: int) -> int:
        """Return the bytes that are kept here: none."""
        return 0

    def inputs(self, events: Events, size: int) -> PlainEvents:
        return PlainEvents(self, events)


@dataclass(frozen=True)
class PlainEvents:
    """The events of a batch."""

    reading: TupleReading
    events: Events

    def tuples(self) -> Iterator[pa.RecordBatch]:
        """Yield events in the order in which they arrive: time, group identity, keys, inputs."""
        reading, codec = self.reading, KeyCodec(self.reading.keys)
        for events in self.events():
            keys = pa.RecordBatch.from_arrays(
                [events.column(name) for name in reading.columns], schema=reading.keys
            )
            payload = payload_of(events)
            inputs = [name for name in payload.schema.names if name not in reading.columns]
            columns = [events.column(name) for name in (LE, ID_HIGH_COLUMN, ID_LOW_COLUMN)]
            columns += [*codec.canonical(keys).columns, *(payload.column(n) for n in inputs)]
            names = [TIME, ID_HIGH_COLUMN, ID_LOW_COLUMN, *reading.keys.names, *inputs]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    def states(self) -> Iterator[pa.RecordBatch]:
        """Yield nothing: no sender folds events."""
        return iter(())
