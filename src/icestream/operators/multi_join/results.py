"""Results of a join as batches, built from the positions of their members.

Idea: kernels return combinations as positions of rows in a heap of words. Their payloads are
gathered and decoded here, port by port, in pieces that fit into the memory for results.

Invariants:
1. A piece has at most `ROWS_AT_ONCE` rows, and takes about the memory given unless one row alone
   takes more (`test_bounded_results_come_in_small_pieces`).

Cost: one copy of the members' payloads, and their decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.multi_join.rows import gather_payloads
from icestream.operators.lifetimes.changes import changes_of
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.state.rows import RowCodec

#: maximum number of results emitted together
ROWS_AT_ONCE = 1 << 16
#: words of a result in addition to its payload: those of its head
_HEAD_WORDS = 6


@dataclass(frozen=True)
class Members:
    """Combinations, one row each: where the payload of each port's member is."""

    #: positions in the heap of the payloads of a port's members
    places: Mapping[int, Ints]
    #: payloads of ports whose members are not in a heap, row by row
    taken: Mapping[int, tuple[pa.RecordBatch, Ints]]
    #: start and end of each combination's lifetime
    lifetimes: Table
    id_high: Ids
    id_low: Ids


class JoinResults:
    """Builds the results of one join."""

    def __init__(self, spec: MultiJoinSpec, room: int) -> None:
        """Build results in about `room` bytes at a time."""
        self._spec = spec
        self._room = room // 8
        self.codecs = tuple(map(RowCodec, spec.inputs))
        self._shown = sorted({port for port, _, _ in spec.columns})

    def capacity(self) -> int:
        """Return the maximum number of combinations at once: positions, lifetimes, identities."""
        words = _HEAD_WORDS + 2 * self._spec.ports
        return max(1, min(ROWS_AT_ONCE, self._room // words))

    def made(self, heap: Ints, members: Members) -> Iterator[pa.RecordBatch]:
        sizes = {port: heap[members.places[port]] >> 32 for port in self._in_heap(members)}
        words = np.full(len(members.id_high), _HEAD_WORDS, dtype=np.int64)
        for each in sizes.values():
            words += 2 * each
        for rows, _ in members.taken.values():
            words += rows.nbytes // (8 * rows.num_rows)
        cuts = np.cumsum(words) // max(1, self._room)
        bounds = [0, *(np.flatnonzero(np.diff(cuts)) + 1).tolist(), len(words)]
        for first, last in pairwise(bounds):
            made = self._piece(heap, members, sizes, slice(first, last))
            if made.num_rows:
                yield made

    def _in_heap(self, members: Members) -> list[int]:
        return [port for port in self._shown if port in members.places]

    def _piece(
        self, heap: Ints, members: Members, sizes: Mapping[int, Ints], some: slice
    ) -> pa.RecordBatch:
        payloads = {}
        for port in self._shown:
            if port in members.taken:
                rows, which = members.taken[port]
                payloads[port] = rows.take(pa.array(which[some]))
                continue
            words = np.empty(int(sizes[port][some].sum()), dtype=np.int64)
            gather_payloads(heap, members.places[port][some], words)
            payloads[port] = self.codecs[port].decode(words, some.stop - some.start)
        columns = [payloads[port].column(column) for port, column, _ in self._spec.columns]
        payload = _batch(columns, self._spec.payload, some.stop - some.start)
        made = changes_of(
            payload,
            np.ascontiguousarray(members.lifetimes[some, 0]),
            np.ascontiguousarray(members.lifetimes[some, 1]),
            np.ones(some.stop - some.start, dtype=np.int64),
            members.id_high[some],
            members.id_low[some],
        )
        return made if self._spec.where is None else made.filter(self._spec.where.mask(payload))


def _batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Build a batch of columns, even if there are none."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
