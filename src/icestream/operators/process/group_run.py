"""Runs a processor written for one group over chunks of many groups.

Idea: load a portion of groups, call user code for one group after the other, write what changed.

Invariant: nothing survives between two chunks except what is in the store
(`test_oracle_per_group_state_is_a_dictionary` pickles the operator between chunks).
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from icestream.core.arrays import Slots
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.process.declarations import Declared
from icestream.operators.process.group_state import GroupContext
from icestream.operators.process.grouping import GroupPortion
from icestream.operators.process.output import Collected, user_errors
from icestream.operators.process.per_group import (
    Decoded,
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimedRows,
    TimerValues,
)
from icestream.operators.process.timers import TimerTable
from icestream.operators.process.values import Row, RowCoder
from icestream.state.groups.spec import Groups

#: the position while user code is not called for any group
_NO_GROUP = -1


class PerGroupRun:
    """A processor with its state variables."""

    def __init__(
        self, processor: StatefulProcessor, name: str, keys: pa.Schema, result: pa.Schema
    ) -> None:
        """Let a copy of the processor declare its state."""
        self._name = name
        self._key_coder = RowCoder(keys)
        self._result = result
        self._scene = GroupContext()
        self._timers = TimerValues()
        self._handle = StatefulProcessorHandle(self._scene, self._timers)
        self._processor = copy.copy(processor)
        self._processor.init(self._handle)
        self._handle.close()
        given = type(processor).handleExpiredTimer
        self.has_timers = given is not StatefulProcessor.handleExpiredTimer
        self.declared: dict[str, Declared] = self._handle.declared

    def on_rows(
        self, groups: Groups, portion: GroupPortion, keys: pa.RecordBatch, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        made = Collected(self._result)
        rows = Decoded(portion.events, portion.times, portion.ends, portion.diffs)
        handle = self._processor.handleInputRows
        with self._at_work(groups, portion.slots, keys, watermark, watermark) as known:
            for position, key, now, first, last in self._calls(portion, known):
                made.add(position, now, handle(key, TimedRows(rows, first, last), self._timers))
            output = self._finished(made, groups, portion.slots)
        yield from output

    def on_timers(
        self, groups: Groups, slots: Slots, keys: pa.RecordBatch, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Fire the timers of groups that the watermark has reached, group by group."""
        made = Collected(self._result)
        handle, timers = self._processor.handleExpiredTimer, self._timers
        with self._at_work(groups, slots, keys, watermark, MINUS_INFINITY) as known:
            for position, key in enumerate(known):
                self._scene.position = position
                timers.move(position, watermark)
                while (instant := timers.due()) is not None:
                    self._scene.now = instant
                    timers.move(position, instant)
                    made.add(position, instant, handle(key, timers, ExpiredTimerInfo(instant)))
            output = self._finished(made, groups, slots)
        yield from output

    def _calls(
        self, portion: GroupPortion, known: list[Row]
    ) -> Iterator[tuple[int, Row, Micros, int, int]]:
        """Yield, for each group, its position, key, time, and where its rows begin and end."""
        starts = portion.starts.tolist()
        times = portion.times[portion.starts[1:] - 1].tolist()
        scene, timers = self._scene, self._timers
        for position, key in enumerate(known):
            now = times[position]
            scene.position, scene.now = position, now
            timers.move(position, now)
            yield position, key, now, starts[position], starts[position + 1]

    @contextmanager
    def _at_work(
        self,
        groups: Groups,
        slots: Slots,
        keys: pa.RecordBatch,
        watermark: Micros,
        floor: Micros,
    ) -> Iterator[list[Row]]:
        """Set up the context, yield keys, write what changed; errors name operator and key."""
        variables, timers = self._handle.variables, None
        if self.has_timers:
            timers = TimerTable(groups, len(variables), slots, floor)
        collects = gc.isenabled()
        gc.disable()  # values live as long as the chunk: looking for cycles costs half the time
        self._scene.begin(groups, slots, watermark)
        self._timers.open(timers, watermark, allowed=self.has_timers)
        known = self._key_coder.rows(keys)
        try:
            with user_errors(lambda: self._place(known)):
                yield known
                self._scene.position = _NO_GROUP
                for variable in variables:
                    variable.flush()
                if timers is not None:
                    timers.flush(keys)
        finally:
            if collects:
                gc.enable()
            for variable in variables:
                variable.begin()
            self._scene.end()
            self._timers.open(None, watermark, allowed=self.has_timers)

    def _finished(self, made: Collected, groups: Groups, slots: Slots) -> list[pa.RecordBatch]:
        """Return the collected output as changes, before any state is written."""
        self._scene.position = _NO_GROUP
        return list(made.take(*groups.identities(slots)))

    def _place(self, known: list[Row]) -> str:
        """Return the operator, and the group if there is one, that an error comes from."""
        position = self._scene.position
        return self._name if position == _NO_GROUP else f"{self._name}, key {known[position]!r}"
