"""State of the operators in front of a queue of updates: rows of joins, times of unions.

Invariant: the rows are those that a restarted query could still match
(`test_kept_rows_of_update_joins_are_those_that_can_match`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.operators.latest.pre_queue import (
    PreQueueJoin,
    PreQueueNode,
    PreQueueOperator,
    PreQueueUnion,
)
from icestream.operators.latest.saved_arrays import State, table_of
from icestream.state.keys import KeyCodec

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
