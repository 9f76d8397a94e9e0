"""Rows of a chunk combined with the resident rows of the other ports, a bounded number at a time.

Invariant: each combination with a common instant is returned once, however many there are
(`test_bounded_a_hot_key_comes_in_pieces`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.kernels.multi_join import resident as k
from icestream.operators.multi_join.resident import Resident
from icestream.operators.multi_join.results import Members


@dataclass(frozen=True)
class Chunk:
    """Rows that arrived on a port."""

    port: int
    payload: pa.RecordBatch
    id_high: Ids
    id_low: Ids
    le: Ints
    re: Ints
    #: the key of each row, and the rows whose key has rows on all other ports
    slots: Ints
    hits: Ints


def combined(resident: Resident, ports: int, chunk: Chunk, room: int) -> Iterator[Members]:
    """Probe with the rows of a chunk: yield combinations with other ports, `room` at a time."""
    others = np.array([each for each in range(ports) if each != chunk.port])
    state, cursors = np.array([0, -1]), np.zeros(len(others), dtype=np.int64)
    parts = np.zeros((len(others), 2), dtype=np.int64)
    count = room if len(chunk.hits) else 0
    while count == room:
        found = np.empty((room, 1 + len(others)), dtype=np.int64)
        lifetimes = np.empty((room, 2), dtype=np.int64)
        count = k.combine(
            resident.heap,
            resident.keys,
            chunk.hits,
            chunk.slots,
            chunk.le,
            chunk.re,
            others,
            state,
            cursors,
            parts,
            found,
            lifetimes,
        )
        if count:
            mine = found[:count, 0]
            places = {
                int(other): found[:count, 1 + number] + k.HEAD
                for number, other in enumerate(others)
            }
            taken = {chunk.port: (chunk.payload, mine)}
            yield Members(places, taken, lifetimes[:count], chunk.id_high[mine], chunk.id_low[mine])
