"""Writes the state of windows anew for a query with other aggregates, groupings or views.

Idea: the old operator of a shard is restored in a scratch folder and read pane by pane, or session
by session. Fields that both queries have are carried over, new ones begin empty, and an empty
operator of the new query receives the result as one batch, advances to the watermark, and ends with
a snapshot. Rows that it emits meanwhile were emitted long ago.

Invariants:
1. Windows go on as if both queries had folded their own events
   (`test_oracle_windows_go_on_with_other_aggregates`).
2. Panes are read twice, some at a time; state larger than the memory is converted
   (`test_bounded_windows_larger_than_memory_go_on`).
3. Carried fields keep every bit, and new ones are those of no events
   (`test_oracle_windows_go_on_with_other_aggregates`).

Cost: all panes or open sessions of the shard are read and written; all its keys are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.window_parts import (
    LoggedKeys,
    ObjectAggregateState,
    PaneState,
    SessionState,
)
from icestream.inspect.adapters.windows import NoInputs, kept
from icestream.inspect.rewriting.changes import ShardRewrite
from icestream.inspect.rewriting.panes import check
from icestream.kernels import double_sums, field_words
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import Field, Layout, SumExtent
from icestream.operators.folding.fold import identified
from icestream.operators.object_aggregates.operator import ObjectOperator
from icestream.operators.object_aggregates.states import ObjectSpec, States
from icestream.operators.session.operator import SessionOperator
from icestream.operators.session.rows import Sessions
from icestream.plan.evolution.windows import carried_fields, continued, fields_of, matching
from icestream.plan.grid import lower
from icestream.plan.nodes.queries import Plan
from icestream.state import snapshot_schedule
from icestream.state.identities import distinct, identities
from icestream.state.versions.commits import BASE, Commit


@dataclass(frozen=True)
class EvolvedWindows:
    """The conversion of the state of one plan of windows to that of another."""

    before: Plan
    after: Plan
    commit: Commit

    @cached_property
    def _state(self) -> PaneState | SessionState | ObjectAggregateState:
        """Return what reads the old state; CheckpointError if nothing can."""
        found = kept(self.before, self.commit)
        if found is None or isinstance(found, PaneState):
            check(self.before, self.commit)
        assert found is not None
        return found

    def check(self) -> None:
        """Refuse state that cannot be read; CheckpointError says why."""
        self._state  # noqa: B018 - found now, before anything is written

    @cached_property
    def _fields(self) -> FieldConversion:
        layout = Layout(fields_of(self.after))
        return FieldConversion(layout, carried_fields(self.before, self.after))

    def change(
        self, reads: AbstractContextManager[ScratchShard], made: ScratchShard
    ) -> ShardRewrite:
        """Write the state of a shard to `made`, given how it is opened for reading."""
        released = tuple(made.space.log.segments)
        with reads as source:
            if isinstance(self._state, SessionState):
                return self._sessions(self._state, source, made)
            panes = self._pane_reader(self._state, source)
            operator = lower.lowered(self.after).operator(made.space)
            batch = _ConvertedPanes(panes, self.after.group_keys, self._objects)
            snapshot_schedule.schedule_all(made.space.arena.header, "now")
            operator.on_batch(batch)
            for _ in operator.on_watermark(self.commit.watermark):
                pass
        return ShardRewrite(0, batch.rows, snapshot=True, released=released)

    def _sessions(
        self, state: SessionState, source: ScratchShard, made: ScratchShard
    ) -> ShardRewrite:
        old = source.operator(SessionOperator, state.plan)
        made.space.arena.header["position"] = dict(source.space.arena.header["position"])
        operator = lower.lowered(self.after).operator(made.space)
        assert isinstance(operator, SessionOperator)
        rows = 0

        def converted() -> Iterator[Sessions]:
            nonlocal rows
            for each in old.open_sessions():
                rows += len(each)
                yield Sessions(self._fields.of(each.exact), each.keys)

        operator.record(converted())
        made.space.seal(BASE)
        return ShardRewrite(0, rows, snapshot=True)

    def _pane_reader(
        self, state: PaneState | ObjectAggregateState, source: ScratchShard
    ) -> _PaneReader:
        """Return what reads panes, converted entries, keys and old states, as often as needed."""
        if isinstance(state, PaneState):
            keys = LoggedKeys(source, state.spec)

            def on_log() -> Iterator[_Portion]:
                for panes, entries in state.entries(source):
                    found = keys.of(*identities(entries.table)).combine_chunks()
                    columns = [each.combine_chunks() for each in found.columns]
                    yield _Portion(panes, self._fields.of(entries), columns, [])

            return on_log
        operator, states = source.operator(ObjectOperator, state.plan), state.states

        def in_states() -> Iterator[_Portion]:
            for panes, rows in operator.panes():
                entries = self._fields.of(states.entries(rows))
                yield _Portion(panes, entries, states.keys(rows), states.of_objects(rows))

        return in_states

    @cached_property
    def _objects(self) -> tuple[States, list[int | None]] | None:
        """Return the states of the new query, and the place of what each goes on with."""
        sole = lower.sole_part(self.after)
        if sole is None or not isinstance(sole[1], ObjectSpec):
            return None
        states, old = States(sole[1]), self._state
        known = list(old.states.objects) if isinstance(old, ObjectAggregateState) else []
        places: list[int | None] = []
        for aggregate, kind in states.objects:
            same = continued(aggregate, matching(self.after.views[0], self.before))
            at = [n for n, (each, its) in enumerate(known) if each == same and its == kind]
            places.append(at[0] if at else None)
        return states, places


@dataclass(frozen=True)
class _Portion:
    """Some panes: entries with their keys, and the states of old object aggregates."""

    panes: Ints
    entries: ExactRows
    keys: list[pa.Array]
    objects: list[pa.Array]


_PaneReader = Callable[[], Iterator[_Portion]]


class _ConvertedPanes(NoInputs):
    """The panes of a shard as a batch of the new query."""

    def __init__(
        self,
        read: _PaneReader,
        keys: pa.Schema,
        objects: tuple[States, list[int | None]] | None,
    ) -> None:
        self._read, self._keys, self._objects = read, keys, objects
        self.rows = 0

    def entries(self) -> Iterator[ExactRows]:
        """Yield entries, each row starting with its pane."""
        for each in () if self._objects else self._read():
            self.rows += len(each.panes)
            rows = np.column_stack([each.panes, each.entries.table])
            yield ExactRows(each.entries.layout, rows)

    def groups(self) -> Iterator[pa.Table]:
        """Yield id, latest pane and key of each group of some panes."""
        for each in () if self._objects else self._read():
            id_high, id_low, numbers = distinct(*identities(each.entries.table))
            last = np.full(len(id_high), np.iinfo(np.int64).min)
            np.maximum.at(last, numbers, each.panes)
            row = np.empty(len(id_high), dtype=np.int64)
            row[numbers] = np.arange(len(numbers))
            columns = [key.take(pa.array(row)) for key in each.keys]
            keys = pa.Table.from_arrays(columns, self._keys.names) if columns else pa.table({})
            yield identified(keys, np.stack([id_high, id_low], axis=1), last)

    def states(self) -> Iterator[pa.RecordBatch]:
        """Yield pane and state of each group, for windows with object aggregates."""
        if self._objects is None:
            return
        states, places = self._objects
        for each in self._read():
            self.rows += len(each.panes)
            objects = [
                states.empty(number, len(each.panes)) if place is None else each.objects[place]
                for number, place in enumerate(places)
            ]
            rows = states.batch(each.entries, each.keys, objects)
            yield pa.RecordBatch.from_arrays(
                [pa.array(each.panes), *rows.columns], ["pane", *rows.schema.names]
            )


@dataclass(frozen=True)
class FieldConversion:
    """Which words of rows become which, where a query has other fields than before."""

    layout: Layout
    #: fields of the new layout, with the old ones that they go on with
    carried: Mapping[Field, Field | None]

    def of(self, rows: ExactRows) -> ExactRows:
        """Return rows with the new fields; words in front of them stay."""
        old, head = rows.layout, rows.fields_at
        extents: dict[Field | None, SumExtent] = dict(zip(old.sums, old.bounds, strict=True))
        layout = self.layout.widened(
            extents.get(self.carried[field], SumExtent()) for field in self.layout.sums
        )
        out = np.empty((len(rows), head + layout.field_words), dtype=np.int64)
        out[:, :head] = rows.table[:, :head]
        out[:, head:] = layout.at.identity
        for field, source in self.carried.items():
            if source is not None:
                words = _words(rows.table[:, head:], old, source)
                target = _place(layout, field)
                if words.shape[1] < target.stop - target.start:
                    words = np.column_stack([words, words >> 63])
                out[:, head:][:, target] = words
        return ExactRows(layout, out)


def _words(fields: Table, layout: Layout, field: Field) -> Table:
    return fields[:, _place(layout, field)]


def _place(layout: Layout, field: Field) -> slice:
    """Return the words of a field."""
    if not field.adds_doubles:
        first = layout.place(field)
        return slice(first, first + field_words.WORDS[field.op])
    first, _, count, specials = layout.at.sums_at[layout.sums.index(field)].tolist()
    return slice(first, first + count + double_sums.SPECIALS * (specials >= 0))
