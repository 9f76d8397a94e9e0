"""State of windows over update streams: groups with their newest window, and waiting tuples.

Invariant: the tuples are those that the windows of a restarted query would contain
(`test_tuples_of_update_windows_are_those_that_wait`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.clock import SystemClock
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.pre_queue import PreQueueState
from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.lists import IDLE, READY, WAIT
from icestream.operators.latest.pacing import ServingTime
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.operators.latest.window_serving import (
    WindowedBy,
    WindowServing,
    WindowServingOperator,
)
from icestream.plan.state_schema import UpdateSchema
from icestream.state.queue.windows.snapshot import content_of
from icestream.state.versions.commits import Commit

#: columns of a group; instants are microseconds
_TOLD = (
    pa.field("__state", pa.string(), nullable=False),
    pa.field("__waits_since", pa.int64()),
    pa.field("__last_update", pa.int64(), nullable=False),
    pa.field("__newest_window", pa.int64()),
    pa.field("__committed_window", pa.int64()),
    pa.field("__answer_due_since", pa.int64()),
)


class UpdateWindowState:
    """The groups of windows over an update stream."""

    def __init__(self, state_schema: UpdateSchema, commit: Commit) -> None:
        """Read the columns of groups and tuples from the schema."""
        assert state_schema.windowed is not None
        self._windowed: WindowedBy = state_schema.windowed
        self._pre_queue = state_schema.front
        shards = range(len(commit.bases))
        schema, by = self._windowed.schema, self._windowed.by
        keys = pa.schema([schema.field(name) for name in by])
        groups = pa.schema([*keys, *_TOLD])
        self._groups = StateTable("windows", "groups", state_schema.text, keys, groups, shards)
        self._payload = self._windowed.operator("inplace").payload
        tuples = pa.schema([*keys, pa.field("__time", pa.int64()), *self._payload])
        self._tuples = StateTable("windows", "tuples", state_schema.text, keys, tuples, shards)
        key = pa.schema([schema.field(name) for name in self._windowed.keys])
        self._pre_queue_state = PreQueueState(state_schema.front, key, shards)
        self.tables: Sequence[StateTable] = (
            self._groups,
            self._tuples,
            *self._pre_queue_state.tables,
        )
        self.notes: Sequence[str] = ()

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        """Restore the windows of a shard and yield their groups and tuples."""
        result = self._windowed.operator("inplace").result.schema
        step = UpdateStep(_nothing, result, result)
        spec = WindowServing(
            self._windowed, step, "inplace", ServingTime(0), SystemClock(), self._pre_queue
        )
        operator = WindowServingOperator(spec, source.space)
        operator.restore(source.history)
        for _ in operator.parts.each():
            yield from self._of_part(operator.parts.windows, source.shard, asked)
        yield from self._pre_queue_state.read(operator.front, source.shard, asked)

    def _of_part(
        self, windows: WindowedUpdates, shard: int, asked: ReadRequest
    ) -> Iterator[StateRows]:
        """Yield groups and tuples of a part of the keys."""
        cells = windows.queue.table
        id_high, id_low = np.ascontiguousarray(cells[:, :2].T).view(np.uint64)
        known = windows.known(np.arange(len(cells)))
        if self._groups in asked.tables and len(cells):
            columns = [*known, *self._key_columns(cells)]
            rows = pa.RecordBatch.from_arrays(columns, schema=self._groups.columns)
            yield asked.chosen(self._groups, shard, rows, id_high, id_low)
        if self._tuples in asked.tables and len(cells):
            content = content_of(windows.queue.arrays)
            of = np.repeat(np.arange(len(cells)), content["held"])
            words = content["tuples"]
            values = windows.queue.decoded(words[:, z.TUPLE :])
            columns = [*windows.known(of), pa.array(words[:, z.TIME]), *values.columns]
            rows = pa.RecordBatch.from_arrays(columns, schema=self._tuples.columns)
            yield asked.chosen(self._tuples, shard, rows, id_high[of], id_low[of])

    def _key_columns(self, cells: np.ndarray[Any, Any]) -> list[pa.Array]:
        states, spec = cells[:, z.STATES], self._windowed.windows
        names = np.array(["done", "idle", "ready", "waiting"])
        waits, ready, idle = (states & each != 0 for each in (WAIT, READY, IDLE))
        shown = names[np.select([waits, ready, idle], [3, 2, 1], 0)]

        def end_of(column: int) -> pa.Array:
            numbers = cells[:, column]
            return pa.array(numbers * spec.slide + spec.size - 1, mask=numbers == z.NONE)

        return [
            pa.array(shown.tolist(), pa.string()),
            pa.array(cells[:, z.SINCE], mask=~waits),
            pa.array(cells[:, z.LAST]),
            end_of(z.NEWEST),
            end_of(z.COMMITTED),
            pa.array(cells[:, z.LACKS], mask=cells[:, z.LACKS] == z.NONE),
        ]


def _nothing(rows: Any) -> Any:
    """Return rows unchanged; never called."""
    return rows
