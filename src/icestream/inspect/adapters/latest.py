"""State of update streams: the known keys, and the newest values of those that wait.

Idea: the queue of a shard is restored with the columns of its values and without the user's
function, which is never called.

Invariants:
1. The values are those that a restarted query would serve
   (`test_waiting_values_are_those_that_would_be_served`).
2. Rows of operators in front of the queue are those that it could still match
   (`test_kept_rows_of_update_joins_are_those_that_can_match`), and tuples of windows those that
   these would contain (`test_tuples_of_update_windows_are_those_that_wait`).

Limits: a key that does not wait has no value any more; only its id is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.clock import SystemClock
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.lists import IDLE, READY, WAIT
from icestream.operators.dataflow.steps import unchanged
from icestream.operators.latest.pacing import ServingTime
from icestream.operators.latest.pre_queue import (
    PreQueueJoin,
    PreQueueNode,
    PreQueueOperator,
    PreQueueUnion,
)
from icestream.operators.latest.saved_arrays import State, table_of
from icestream.operators.latest.serving import Serving, ServingOperator
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.operators.latest.window_serving import (
    WindowedBy,
    WindowServing,
    WindowServingOperator,
)
from icestream.plan.state_schema import UpdateSchema
from icestream.state.keys import KeyCodec
from icestream.state.queue.windows.snapshot import content_of
from icestream.state.versions.commits import Commit

#: columns of a key besides its value
_KEY_COLUMNS = (
    pa.field("__waits_since", pa.int64()),
    pa.field("__last_update", pa.int64(), nullable=False),
    pa.field("__updates", pa.int64(), nullable=False),
    pa.field("__mean_gap", pa.float64(), nullable=False),
)
_ROWS_AT_ONCE = 16_384
#: the table of waiting values
WAITING = "waiting"


_LAST = pa.schema([pa.field("__last_update", pa.int64(), nullable=False)])


class PreQueueState:
    """The state of the operators of a tree."""

    def __init__(self, front: PreQueueNode | None, keys: pa.Schema, shards: range) -> None:
        """List the tables: two for each join, one for each union."""
        #: table, number of the operator and name of its array
        self._tables: list[tuple[StateTable, int, str]] = []
        arcs = [] if front is None else PreQueueOperator(front).nodes
        for number, arc in enumerate(arcs):
            text = ", ".join(f"{name} {value}" for name, value in arc.describe().items())
            if isinstance(arc, PreQueueJoin):
                for name, side in zip(("left", "right"), arc.sources, strict=True):
                    columns = side.stream.schema
                    table = StateTable(f"join {number}", name, text, keys, columns, shards)
                    self._tables.append((table, number, f"{name}.rows"))
            elif isinstance(arc, PreQueueUnion):
                table = StateTable(f"union {number}", "known", text, keys, _LAST, shards)
                self._tables.append((table, number, "last"))

    @property
    def tables(self) -> Sequence[StateTable]:
        return tuple(table for table, _, _ in self._tables)

    def read(
        self, operator: PreQueueOperator | None, shard: int, asked: ReadRequest
    ) -> Iterator[StateRows]:
        for states in () if operator is None else operator.states():
            for table, number, name in self._tables:
                if table in asked.tables:
                    yield _chosen(table, shard, states[number], name, asked)


def _chosen(
    table: StateTable, shard: int, state: State, name: str, asked: ReadRequest
) -> StateRows:
    """Return the rows of an operator that are asked for."""
    if name == "last":
        known = np.ascontiguousarray(state["known"].T).view(np.uint64)
        id_high, id_low = known[0], known[1]
        rows = pa.RecordBatch.from_arrays([pa.array(state[name][: len(id_high)])], schema=_LAST)
    else:
        held = table_of(state[name]).combine_chunks()
        columns = [column.combine_chunks() for column in held.columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=table.columns)
        id_high, id_low = KeyCodec(table.keys).identify(rows.select(table.keys.names))
    return asked.chosen(table, shard, rows, id_high, id_low)


class UpdateState:
    """The waiting keys of an update stream."""

    def __init__(self, state_schema: UpdateSchema, commit: Commit) -> None:
        shards = range(len(commit.bases))
        keys = pa.schema([state_schema.payload.field(name) for name in state_schema.keys])
        self._payload, self._readers = state_schema.payload, state_schema.readers
        waiting = pa.schema([*_KEY_COLUMNS, *state_schema.payload])
        self._waiting = StateTable("queue", WAITING, state_schema.text, keys, waiting, shards)
        idle = pa.schema(_KEY_COLUMNS)
        self._idle = StateTable("queue", "known", state_schema.text, keys, idle, shards)
        self._pre_queue = state_schema.front
        self._pre_queue_state = PreQueueState(state_schema.front, keys, shards)
        self.tables: Sequence[StateTable] = (
            self._waiting,
            self._idle,
            *self._pre_queue_state.tables,
        )
        self.notes: Sequence[str] = ()

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        """Restore the queue of a shard and yield its keys."""
        step = UpdateStep(unchanged, self._payload, self._payload)
        steps = dict.fromkeys(range(self._readers), step)
        spec = Serving(
            self._payload,
            steps,
            "inplace",
            ServingTime(0),
            None,
            SystemClock(),
            front=self._pre_queue,
        )
        operator = ServingOperator(spec, source.space)
        operator.restore(source.history)
        queue = operator.waiting
        for table in (self._waiting, self._idle):
            if table not in asked.tables:
                continue
            is_idle = table is self._idle
            for known, waiting in queue.portions(_ROWS_AT_ONCE, waiting=not is_idle):
                values = [] if waiting is None else waiting.columns
                id_high, id_low, last, count, gap, *_ = (each for _, each in queue.described(known))
                waits = pa.array(queue.since(known), mask=np.full(len(known), is_idle))
                facts = [waits, pa.array(last), pa.array(count), pa.array(gap)]
                rows = pa.RecordBatch.from_arrays([*facts, *values], schema=table.columns)
                yield asked.chosen(table, source.shard, rows, id_high, id_low)
        yield from self._pre_queue_state.read(operator.front, source.shard, asked)


#: columns of a group; instants are microseconds
_GROUP_COLUMNS = (
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
        groups = pa.schema([*keys, *_GROUP_COLUMNS])
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
        step = UpdateStep(unchanged, result, result)
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
