"""Sending changes to another component: divided by shard, collected, written as a parcel.

Idea: a shard of a component sends parcels to the shards of later components in the form that ingest
tasks use for the first. The shards of component c are numbered after those of the components before
it.

Invariant: what a shard receives depends only on the changes that were sent and their order
(`test_the_same_changes_make_the_same_parcel`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icestream.core.arrays import slice_bounds
from icestream.kernels.fold import routes_of
from icestream.operators.dataflow.sorted_changes import by_group
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.runtime.exchange.parcels import ExchangeWriter
from icestream.state.files import Files

#: rows per shard, on average, and bytes that are collected before they are divided and written: of
#: long sorted runs, a pass of the receiver reads few records
ENOUGH_ROWS = 16_384
ENOUGH_BYTES = 4 << 20


@dataclass(frozen=True)
class ChangeTargets:
    """The destinations of a task's changes."""

    files: Files
    folder: str
    routes: tuple[int, ...]
    #: shards of a component
    shards: int
    #: component at the end of each edge
    targets: tuple[int, ...]
    #: edges whose changes keep the order in which they arrive
    by_arrival: tuple[int, ...] = ()


@dataclass
class Routing:
    """Divides changes by destination shard."""

    sends: ChangeTargets
    #: rows by key group
    load: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.load = np.zeros(len(self.sends.routes), dtype=np.int64)
        self._routes = np.array(self.sends.routes, dtype=np.int64)

    def cut(self, edge: int, changes: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the part of each shard that has one, in the order of groups or as they arrive.

        If shards own ranges of ids, which is usual, the parts by group are slices of one sort.
        """
        if not changes.num_rows:
            return
        if edge not in self.sends.by_arrival:
            changes = by_group(changes)
        id_high = np.asarray(changes.column(ID_HIGH_COLUMN).to_numpy())
        shards = np.empty(len(id_high), dtype=np.int64)
        routes_of(id_high, len(self._routes), self._routes, shards, self.load)
        first = self.sends.targets[edge] * self.sends.shards
        if (shards[1:] < shards[:-1]).any():
            order = np.argsort(shards, kind="stable")
            changes, shards = changes.take(pa.array(order)), shards[order]
        for start, end in pairwise(slice_bounds(shards).tolist()):
            yield first + int(shards[start]), changes.slice(start, end - start)


class ChangeSender:
    """Fills one parcel."""

    def __init__(self, sends: ChangeTargets, name: str) -> None:
        """Write to a file of this name, created with the first change."""
        self._sends = sends
        self._routing = Routing(sends)
        self._path = f"{sends.folder}/{name}.parcel"
        self._out: ExchangeWriter | None = None
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._enough = ENOUGH_ROWS * sends.shards

    def take(self, edge: int, changes: pa.RecordBatch) -> None:
        if not changes.num_rows:
            return
        waiting = self._waiting.setdefault(edge, [])
        waiting.append(changes)
        rows = sum(each.num_rows for each in waiting)
        if rows >= self._enough and sum(each.nbytes for each in waiting) >= ENOUGH_BYTES:
            self._write(edge)

    def finish(self) -> str | None:
        """Close the parcel and return its path; None if nothing was sent."""
        for edge in sorted(self._waiting):
            self._write(edge)
        if self._out is None:
            return None
        self._out.finish()
        return self._path

    def _write(self, edge: int) -> None:
        if self._out is None:
            self._out = ExchangeWriter(self._sends.files, self._path, self._sends.files, "", "")
        together = pa.concat_batches(self._waiting.pop(edge))
        for shard, part in self._routing.cut(edge, together):
            self._out.changes(shard, edge, part, by_arrival=edge in self._sends.by_arrival)
