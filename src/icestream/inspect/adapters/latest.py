"""State of update streams: the known keys, and the newest values of those that wait.

Idea: the queue of a shard is restored with the columns of its values and without the user's
function, which is never called.

Invariant: the values are those that a restarted query would serve
(`test_waiting_values_are_those_that_would_be_served`).

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
from icestream.inspect.adapters.pre_queue import PreQueueState
from icestream.operators.latest.pacing import ServingTime
from icestream.operators.latest.serving import Serving, ServingOperator
from icestream.operators.latest.step import UpdateStep
from icestream.plan.state_schema import UpdateSchema
from icestream.state.versions.commits import Commit

#: columns of a key besides its value
_TOLD = (
    pa.field("__waits_since", pa.int64()),
    pa.field("__last_update", pa.int64(), nullable=False),
    pa.field("__updates", pa.int64(), nullable=False),
    pa.field("__mean_gap", pa.float64(), nullable=False),
)
_ROWS_AT_ONCE = 16_384
#: the table of waiting values
WAITING = "waiting"


class UpdateState:
    """The waiting keys of an update stream."""

    def __init__(self, state_schema: UpdateSchema, commit: Commit) -> None:
        shards = range(len(commit.bases))
        keys = pa.schema([state_schema.payload.field(name) for name in state_schema.keys])
        self._payload, self._readers = state_schema.payload, state_schema.readers
        waiting = pa.schema([*_TOLD, *state_schema.payload])
        self._waiting = StateTable("queue", WAITING, state_schema.text, keys, waiting, shards)
        idle = pa.schema(_TOLD)
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
        step = UpdateStep(_nothing, self._payload, self._payload)
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


def _nothing(rows: Any) -> Any:
    """Return rows unchanged; never called."""
    return rows
