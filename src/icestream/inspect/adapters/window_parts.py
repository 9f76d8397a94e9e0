"""State of windows as the parts that they consist of: panes, open sessions, states of objects.

Idea: segments of such windows contain entries by pane; snapshots and new keys contain the keys of
their groups. So panes are read from the log, and no window is closed. Panes that have left all
windows are not shown. Panes are read only if requested by name: most people want the open windows.

Of windows with object aggregates and of sessions, the operator of a shard is restored and yields
its parts: states of panes as the log stores them (a list of values with their times or counts, the
bytes of a sketch), or open sessions with their bounds and fields.

Invariants:
1. The entry shown for a group and a pane is the fold of its events, each pair once
   (`test_oracle_panes_are_what_events_fold_to`).
2. The state shown for a group and a pane is that of its events, each pair once
   (`test_oracle_states_of_panes_are_those_of_their_events`).
3. The fields shown for a session are the fold of its events
   (`test_oracle_open_sessions_are_what_events_fold_to`).

Cost: memory for the entries of some panes at a time, and for all keys of a shard.

References: `docs/formats/log.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.fields import FieldColumns
from icestream.operators.folding.exact_rows import ExactRows, concatenated, unpacked
from icestream.operators.folding.fields import ENTRY_FIELDS
from icestream.operators.folding.sorted_runs import sorted_run
from icestream.operators.grid.operator import PANES
from icestream.operators.grid.records import GROUP_KEYS, GROUP_ROWS, NEW_KEYS
from icestream.operators.grid.spec import WindowSpec
from icestream.operators.object_aggregates.operator import ObjectOperator
from icestream.operators.object_aggregates.states import ObjectSpec, States
from icestream.operators.session.operator import SessionOperator
from icestream.operators.session.rows import Sessions
from icestream.operators.session.spec import END, SESSION_FIELDS, START, SessionSpec
from icestream.plan.grid import lower
from icestream.plan.grid.parts import parts_of
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Grid, WindowSequence
from icestream.state.identities import distinct, identities, places_among
from icestream.state.log.ipc import read_table
from icestream.state.versions.commits import BASE, Commit

#: column with the first instant of a pane
PANE = "__pane"
#: approximate number of entries that are read together
_ROWS_AT_ONCE = 16_384


def obstacle(plan: Plan, commit: Commit) -> str | None:
    """Return why an adapter has no panes to read; None if there are."""
    if lower.on_panes(plan) is None or len(parts_of(plan)) > 1:
        return "panes exist only if all windows are on a grid with aggregates of fixed size"
    if str(commit.decisions.get("store", PANES)) != PANES or commit.decisions.get("switched"):
        return "the log of this query stores, or stored, raw events, not panes"
    if commit.decisions.get("composition"):
        return "some windows of this query are composed of the rows of others, not of panes"
    return None


class PaneState:
    """The panes of a plan."""

    def __init__(self, plan: Plan, commit: Commit) -> None:
        """Read the fields from the plan; there must be no obstacle."""
        self.spec = lower.window_spec(plan)
        self.layout = self.spec.layout
        self.fields = FieldColumns.of(self.layout, self.spec.types, plan)
        pane = pa.field(PANE, plan.time, nullable=False)
        columns = [pane, *self.spec.keys, *self.fields.schema]
        text = "partial aggregates of each group and pane"
        self.table = _of_windows(PANES, text, self.spec.keys, columns, commit)

    def first(self, watermark: Micros) -> int | None:
        """Return the first pane that some window still needs; None for all."""
        return _first_open(self.spec.courses, watermark)

    # -- reading ---------------------------------------------------------------------------

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        keys = LoggedKeys(source, self.spec)
        for panes, entries in self.entries(source):
            id_high, id_low = identities(entries.table)
            rows = self.rows(panes, entries, keys.of(id_high, id_low))
            yield asked.chosen(self.table, source.shard, rows, id_high, id_low)

    def entries(self, source: ScratchShard) -> Iterator[tuple[Ints, ExactRows]]:
        """Yield panes and entries, those of one group and pane merged, some panes at a time."""
        slices = self._slices(source)
        first = self.first(source.commit.watermark)
        if first is not None:
            slices = slices[slices["group"] >= first]
        slices = slices[np.argsort(slices["group"], kind="stable")]
        for part in _whole_panes(slices):
            tables = {
                record.marker: unpacked(bytes(record.payload), self.layout, ENTRY_FIELDS)
                for record in source.space.log.read_many(part["marker"])
            }
            ordered = [tables[marker] for marker in part["marker"].tolist()]
            panes = np.repeat(part["group"], [len(each) for each in ordered])
            rows = concatenated(*ordered)
            panes, entries = sorted_run(panes, rows.table, rows.layout)
            yield panes, ExactRows(rows.layout, entries)

    def _slices(self, source: ScratchShard) -> npt.NDArray[np.void]:
        """Return the slices of a shard, from the directories of its segments."""
        found = []
        for info in source.space.log.segments.values():
            with closing(source.space.reader(info)) as reader:
                found.append(reader.directory[["marker", "group", "rows"]].copy())
        return np.concatenate(found) if found else np.empty(0, dtype=_NO_SLICES)

    # -- columns ---------------------------------------------------------------------------

    def rows(self, panes: Ints, entries: ExactRows, keys: pa.Table) -> pa.RecordBatch:
        grid = self.spec.grid
        kind = self.table.columns.field(PANE).type
        instants = pa.array(panes * grid.pane + grid.origin).view(kind)
        columns = [each.combine_chunks() for each in keys.columns]
        shown = [instants, *columns, *self.fields.shown(entries)]
        return pa.RecordBatch.from_arrays(shown, schema=self.table.columns)


def instants_of(rows: pa.RecordBatch) -> Ints:
    """Return the first instant of the pane of each row of state."""
    return np.asarray(rows.column(PANE).view(pa.int64()).to_numpy())


class LoggedKeys:
    """The key columns of the groups of a shard, as its log stores them."""

    def __init__(self, source: ScratchShard, spec: WindowSpec) -> None:
        """Read the keys of the last snapshot and those logged after it."""
        self._columns = columns = len(spec.keys)
        #: words before the rows of groups
        self._head = len(spec.layout.sums)
        parts = list(self._parts(source)) if columns else []
        id_high, id_low = (
            np.concatenate([np.empty(0, np.uint64), *(each[half] for each in parts)])
            for half in range(2)
        )
        #: each group once, and its key as a row
        self._id_high, self._id_low, numbers = distinct(id_high, id_low)
        self._row = np.empty(len(self._id_high), dtype=np.int64)
        self._row[numbers] = np.arange(len(numbers))
        names = [f"k{place}" for place in range(columns)]
        tables = [each.rename_columns(names) for _, _, each in parts]
        self._keys = pa.concat_tables(tables) if tables else None

    def of(self, id_high: Ids, id_low: Ids) -> pa.Table:
        """Return the keys of groups; ValueError if one is unknown."""
        if not self._columns:
            return pa.table({})
        places = places_among(id_high, id_low, self._id_high, self._id_low)
        if self._keys is None or (places < 0).any():
            msg = "panes on the log have groups without a key"
            raise ValueError(msg)
        return self._keys.take(pa.array(self._row[places]))

    def _parts(self, source: ScratchShard) -> Iterator[tuple[Ids, Ids, pa.Table]]:
        for past in source.history:
            for lifetime, info in past.segments:
                if lifetime == BASE:
                    with closing(source.space.reader(info)) as reader:
                        yield from self._of_records(reader.scan())

    def _of_records(self, records: Iterator[Any]) -> Iterator[tuple[Ids, Ids, pa.Table]]:
        ids: Any = None
        for record in records:
            if record.synopsis == GROUP_ROWS:
                table = np.frombuffer(bytes(record.payload), dtype=np.uint64)[self._head :]
                ids = table.reshape(record.rows, -1)[:, :2]
            elif record.synopsis == GROUP_KEYS:
                yield ids[:, 0].copy(), ids[:, 1].copy(), read_table(bytes(record.payload))
            elif record.synopsis == NEW_KEYS:
                fresh = read_table(bytes(record.payload))
                id_high, id_low = (np.asarray(fresh.column(place).to_numpy()) for place in range(2))
                first = fresh.num_columns - self._columns
                yield id_high, id_low, fresh.select(list(range(first, fresh.num_columns)))


def _whole_panes(slices: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.void]]:
    """Split slices, sorted by pane, between panes into parts of about equal numbers of rows."""
    begin = 0
    rows = np.cumsum(slices["rows"].astype(np.int64))
    while begin < len(slices):
        before = int(rows[begin - 1]) if begin else 0
        last = min(int(np.searchsorted(rows, before + _ROWS_AT_ONCE)), len(slices) - 1)
        end = int(np.searchsorted(slices["group"], slices["group"][last], side="right"))
        yield slices[begin:end]
        begin = end


_NO_SLICES = np.dtype([("marker", np.uint64), ("group", np.int64), ("rows", np.uint32)])


class ObjectAggregateState:
    """The panes of a plan that has only windows with object aggregates."""

    def __init__(self, plan: Plan, spec: ObjectSpec, commit: Commit) -> None:
        """Read the columns from a plan with a single part."""
        self.plan, self.spec = plan, spec
        self.states = States(spec)
        self.grid = Grid.of([spec.windows])
        self.fields = FieldColumns.of(self.states.layout, spec.types, plan)
        #: columns with states of object aggregates
        self.objects = [
            pa.field(f"__state({aggregate.alias})", kind) for aggregate, kind in self.states.objects
        ]
        pane = pa.field(PANE, plan.time, nullable=False)
        keys = plan.group_keys
        columns = [pane, *keys, *self.fields.schema, *self.objects]
        self.table = _of_windows(PANES, "states of each group and pane", keys, columns, commit)

    def first(self, watermark: Micros) -> int | None:
        """Return the first pane that some window still needs; None for all."""
        return _first_open([self.spec.windows.on(self.grid)], watermark)

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        for panes, states in source.operator(ObjectOperator, self.plan).panes():
            id_high, id_low = self.states.identities(states)
            rows = self._rows(panes, states)
            yield asked.chosen(self.table, source.shard, rows, id_high, id_low)

    def _rows(self, panes: Ints, states: pa.RecordBatch) -> pa.RecordBatch:
        instants = pa.array(panes * self.grid.pane + self.grid.origin).view(self.plan.time)
        fields = self.fields.shown(self.states.entries(states))
        shown = [instants, *self.states.keys(states), *fields, *self.states.of_objects(states)]
        return pa.RecordBatch.from_arrays(shown, schema=self.table.columns)


SESSIONS = "sessions"
#: columns with the first event of a session, and its end if no further event arrives
STARTS = "__start"
ENDS = "__end"


class SessionState:
    """The open sessions of a plan that has nothing else."""

    def __init__(self, plan: Plan, spec: SessionSpec, commit: Commit) -> None:
        """Read the fields from a plan with a single part."""
        self.plan, self.spec = plan, spec
        self.fields = FieldColumns.of(spec.layout, spec.types, plan)
        keys = plan.group_keys
        bounds = [pa.field(name, plan.time, nullable=False) for name in (STARTS, ENDS)]
        columns = [*bounds, *keys, *self.fields.schema]
        text = "partial aggregates of each open session"
        self.table = _of_windows(SESSIONS, text, keys, columns, commit)

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        for sessions in source.operator(SessionOperator, self.plan).open_sessions():
            id_high, id_low = identities(sessions.rows)
            rows = self._rows(sessions)
            yield asked.chosen(self.table, source.shard, rows, id_high, id_low)

    def _rows(self, sessions: Sessions) -> pa.RecordBatch:
        bounds = [
            pa.array(np.ascontiguousarray(sessions.rows[:, place])).view(self.plan.time)
            for place in (START, END)
        ]
        shown = [*bounds, *sessions.keys.columns, *self.fields.shown(entries_of(sessions))]
        return pa.RecordBatch.from_arrays(shown, schema=self.table.columns)

    def bounds(self, rows: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Return begin and end of the sessions in rows."""
        begins, ends = (
            np.asarray(rows.column(name).view(pa.int64()).to_numpy()) for name in (STARTS, ENDS)
        )
        return begins, ends


def entries_of(sessions: Sessions) -> ExactRows:
    """Return rows of state of sessions as entries: id and fields, without bounds."""
    rows = sessions.rows
    entries = np.concatenate([rows[:, :START], rows[:, SESSION_FIELDS:]], axis=1)
    return ExactRows(sessions.exact.layout, entries)


def _of_windows(
    name: str, text: str, keys: pa.Schema, columns: Sequence[pa.Field], commit: Commit
) -> StateTable:
    """Return a table of parts of windows, which is read only if its name is given."""
    operator = SESSIONS if name == SESSIONS else "windows"
    shards = range(len(commit.bases))
    return StateTable(operator, name, text, keys, pa.schema(columns), shards, by_name=True)


def _first_open(courses: Sequence[WindowSequence], watermark: Micros) -> int | None:
    """Return the first pane that some window needs after a watermark; None for all."""
    if watermark == MINUS_INFINITY:
        return None
    return min(course.first_open(watermark) for course in courses)
