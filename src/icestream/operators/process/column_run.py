"""Runs a processor written for many groups over portions of a chunk.

Idea: load a portion of groups, call user code once, write what changed. Timers fire in rounds: each
round fires the earliest due timer of every group that has one, for all groups at once.

Invariant: nothing survives between two chunks except what is in the store
(`test_oracle_per_group_state_is_a_dictionary` pickles the operator between chunks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Slots
from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.lifetimes.changes import changes_of, taken
from icestream.operators.process.column_map import MapColumns
from icestream.operators.process.column_state import (
    ColumnVariable,
    PortionContext,
    RowColumns,
    ValueColumns,
    chosen_groups,
)
from icestream.operators.process.declarations import (
    Declared,
    ListState,
    MapState,
    TableState,
    ValueState,
)
from icestream.operators.process.grouping import GroupPortion
from icestream.operators.process.output import (
    TIMES,
    fitted,
    time_columns,
    user_errors,
    wrong_output,
)
from icestream.operators.process.timers import DELETE, TimerTable
from icestream.operators.process.vectorised import (
    GROUP,
    ColumnTimers,
    DueBatch,
    GroupedBatch,
    State,
    VectorisedProcessor,
)
from icestream.state.groups.spec import Groups


class VectorisedRun:
    """A processor with the state it declares."""

    def __init__(
        self, processor: VectorisedProcessor, name: str, keys: pa.Schema, result: pa.Schema
    ) -> None:
        self._processor = processor
        self._name = name
        self._result = result
        self.declared: dict[str, Declared] = dict(processor.state)
        for variable, declared in self.declared.items():
            if not isinstance(declared, (ValueState, ListState, TableState, MapState)):
                msg = f"{name}: state {variable!r} is not a value, list, table or map: {declared!r}"
                raise DefinitionError(msg)
            declared.check(variable)
        if processor.emits not in {"group", "event"}:
            msg = f"{name} must emit a row per 'group' or 'event', not per {processor.emits!r}"
            raise DefinitionError(msg)
        given = type(processor).on_timers
        self.has_timers = given is not VectorisedProcessor.on_timers

    def on_rows(
        self, groups: Groups, portion: GroupPortion, keys: pa.RecordBatch, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        made: list[pa.RecordBatch] = []
        with self._at_work(groups, portion.slots, keys, watermark, watermark) as work:
            batch = work.batch(portion, keys)
            output = self._processor.process(batch, work.state)
            if self._processor.emits == "event":
                made += self._made(work.stage, output, batch.group, batch.times)
            else:
                made += self._made(work.stage, output, np.arange(len(batch)), work.stage.now)
        yield from made

    def on_timers(
        self, groups: Groups, slots: Slots, keys: pa.RecordBatch, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Fire the timers of groups that the watermark has reached, in rounds."""
        made: list[pa.RecordBatch] = []
        with self._at_work(groups, slots, keys, watermark, MINUS_INFINITY) as work:
            while (batch := work.due(keys)) is not None:
                output = self._processor.on_timers(batch, work.state)
                made += self._made(work.stage, output, batch.group, batch.times)
        yield from made

    def _made(
        self, stage: PortionContext, output: Any, of_each: Ints, times: Ints
    ) -> Iterator[pa.RecordBatch]:
        """Convert output to changes; without `__group`, row i belongs to group `of_each[i]`."""
        if output is None:
            return
        batch = self._as_batch(output)
        payload = fitted(batch, self._result, (*TIMES, GROUP))
        if GROUP in batch.schema.names:
            numbers = chosen_groups(batch.column(GROUP), len(stage.focus))
            times = stage.now[numbers]
        elif batch.num_rows == len(of_each):
            numbers = of_each
        else:
            each = self._processor.emits
            msg = (
                f"output has {batch.num_rows} rows for {len(of_each)}, one for each {each}: add "
                f"the column {GROUP} with the number of each row's group"
            )
            raise DefinitionError(msg)
        id_high, id_low = stage.groups.identities(stage.slots[stage.focus])
        le, re, diff = time_columns(batch, times)
        yield changes_of(payload, le, re, diff, id_high[numbers], id_low[numbers])

    def _as_batch(self, output: Any) -> pa.RecordBatch:
        if isinstance(output, pa.RecordBatch):
            return output
        named = output
        if not isinstance(output, Mapping):
            if len(output) != len(self._result):
                raise wrong_output(self._result, [f"{len(output)} without names"])
            named = dict(zip(self._result.names, output, strict=True))
        types = dict(zip(self._result.names, self._result.types, strict=True))
        try:
            arrays = [pa.array(column, type=types.get(name)) for name, column in named.items()]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise wrong_output(self._result, named, f": {error}") from error
        return pa.RecordBatch.from_arrays(arrays, names=list(named))

    @contextmanager
    def _at_work(
        self,
        groups: Groups,
        slots: Slots,
        keys: pa.RecordBatch,
        watermark: Micros,
        floor: Micros,
    ) -> Iterator[_Work]:
        """Load groups and write what changed; errors name the operator and the first key."""
        timers = TimerTable(groups, len(self.declared), slots, floor) if self.has_timers else None
        work = _Work(PortionContext(groups, slots, watermark), timers, self.declared)

        def first_key() -> str:
            first = tuple(column[0].as_py() for column in keys.columns)
            return f" (in a batch of {len(slots)} groups, the first of key {first!r})"

        with user_errors(lambda: self._name, first_key):
            yield work
            for variable in work.variables.values():
                variable.flush()
            if timers is not None:
                timers.flush(keys)


class _Work:
    """One portion of groups with its variables and timers."""

    def __init__(
        self, stage: PortionContext, timers: TimerTable | None, declared: Mapping[str, Declared]
    ) -> None:
        self.stage = stage
        self.timers = timers
        self.variables = {
            name: _variable(stage, number, name, kind)
            for number, (name, kind) in enumerate(declared.items())
        }
        self.state = State(self.variables)

    def batch(self, portion: GroupPortion, keys: pa.RecordBatch) -> GroupedBatch:
        """Return the events of the portion in the form that user code receives."""
        sizes = np.diff(portion.starts)
        self.stage.now = portion.times[portion.starts[1:] - 1]
        return GroupedBatch(
            events=portion.events,
            group=np.repeat(np.arange(len(sizes)), sizes),
            starts=portion.starts,
            keys=keys,
            times=portion.times,
            ends=portion.ends,
            diffs=portion.diffs,
            timers=ColumnTimers(self.timers, self.stage, None),
            watermark=self.stage.watermark,
        )

    def due(self, keys: pa.RecordBatch) -> DueBatch | None:
        """Select the groups that have a due timer and remove the earliest timer of each."""
        if self.timers is None:
            return None
        owners, at = self.timers.pending()
        reached = at <= self.stage.watermark
        owners, at = owners[reached], at[reached]
        if not owners.size:
            return None
        focus, first = np.unique(owners, return_index=True)
        self.stage.focus, self.stage.now = focus, at[first]
        self.timers.note(focus, at[first], DELETE)
        timers = ColumnTimers(self.timers, self.stage, at[first])
        return DueBatch(taken(keys, focus), at[first], timers, self.stage.watermark)


def _variable(stage: PortionContext, number: int, name: str, declared: Declared) -> ColumnVariable:
    if isinstance(declared, MapState):
        return MapColumns(stage, number, name, declared)
    if isinstance(declared, ValueState):
        return ValueColumns(stage, number, name, declared)
    return RowColumns(stage, number, name, declared)
