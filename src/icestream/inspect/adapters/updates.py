"""State of update streams: the keys that are known, and the newest values of those that wait.

Idea: the queue of a shard is restored with the columns of its values and without the user's
function, which is not asked for anything.

Invariant: the values are those that a restarted query would serve
(`test_waiting_values_are_those_that_would_be_served`).

Limits: of a key that does not wait the value is gone, and only its identity is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.clock import SystemClock
from icestream.inspect.readable import Asked, StateRows, StateTable, key_row
from icestream.operators.protocol import PastVersion, Shard
from icestream.operators.updates.serving import Serving, ServingOperator
from icestream.operators.updates.step import UpdateStep
from icestream.plan.legend import Waiting
from icestream.state.keys import KeyCodec
from icestream.state.versions import Commit

#: what is told of a key beside its value
_TOLD = (
    pa.field("__waits_since", pa.int64()),
    pa.field("__last_update", pa.int64(), nullable=False),
    pa.field("__updates", pa.int64(), nullable=False),
    pa.field("__mean_gap", pa.float64(), nullable=False),
)
_ROWS_AT_ONCE = 16_384


class UpdateState:
    """The waiting keys of an update stream."""

    def __init__(self, legend: Waiting, commit: Commit) -> None:
        """Know the columns of values."""
        shards = range(len(commit.bases))
        keys = pa.schema([legend.payload.field(name) for name in legend.keys])
        self._payload, self._readers = legend.payload, legend.readers
        waiting = pa.schema([*_TOLD, *legend.payload])
        self._waiting = StateTable("queue", "waiting", legend.text, keys, waiting, shards)
        idle = pa.schema(_TOLD)
        self._idle = StateTable("queue", "known", legend.text, keys, idle, shards)
        self.tables: Sequence[StateTable] = (self._waiting, self._idle)
        self.notes: Sequence[str] = ()

    def read(
        self, shard: int, space: Shard, history: Sequence[PastVersion], commit: Commit, asked: Asked
    ) -> Iterator[StateRows]:
        """Restore the queue of a shard and yield its keys."""
        del commit
        step = UpdateStep(_nothing, self._payload, self._payload)
        steps = dict.fromkeys(range(self._readers), step)
        spec = Serving(self._payload, steps, "inplace", 0, None, SystemClock())
        operator = ServingOperator(spec, space)
        operator.restore(history)
        queue = operator.waiting
        for table, slots in (
            (self._waiting, queue.waiting_slots()),
            (self._idle, queue.idle_slots()),
        ):
            if table not in asked.tables:
                continue
            for first in range(0, len(slots), _ROWS_AT_ONCE):
                some = slots[first : first + _ROWS_AT_ONCE]
                values = queue.values(some).columns if table is self._waiting else []
                hi, lo, last, count, gap, _, _ = (each for _, each in queue.described(some))
                waits = pa.array(queue.since(some), mask=np.full(len(some), table is self._idle))
                told = [waits, pa.array(last), pa.array(count), pa.array(gap)]
                rows = pa.RecordBatch.from_arrays([*told, *values], schema=table.columns)
                if asked.key is not None:
                    one, two = KeyCodec(table.keys).identify(key_row(table.keys, asked.key))
                    chosen = np.flatnonzero((hi == one) & (lo == two))
                    rows, hi, lo = rows.take(pa.array(chosen)), hi[chosen], lo[chosen]
                yield StateRows(table, shard, rows, (hi, lo))


def _nothing(rows: Any) -> Any:
    """Return rows as they are: nobody asks."""
    return rows
