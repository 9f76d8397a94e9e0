"""Events and what was computed about them elsewhere, brought together in one row.

Idea: an event and its features arrive under the event's identity, the event when it is read, the
features in the version whose watermark passes it. Until then the event waits on the log, in blocks
sorted by identity. A version takes ranges of identities, as large as memory allows: it sorts every
part by identity, puts the columns side by side and emits rows by time and arrival. Identities are
spread evenly, so no distribution of keys or times makes a range too large.

Invariants:
1. Every event is emitted once, in the version whose watermark passes it, with the features under
   its own identity (`test_oracle_features_are_those_of_sql`).
2. What waits is on the log, and memory holds one range of it
   (`TestOver.test_bounded_groups_go_cold_and_come_back`).

Cost: an event that waits is written once and read in every version whose watermark lies between
the times of its block; 56 bytes of memory for a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask
from icestream.core.errors import CheckpointError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.dataflow.sorted_changes import between, bounds_of
from icestream.operators.folding.columns import ARRIVAL, BATCH
from icestream.operators.frames.event_frames import EVENT_FIELDS
from icestream.operators.lifetimes.changes import (
    LE,
    changes_of,
    changes_schema,
    column_of,
    identities_of,
    one_each,
    taken,
)
from icestream.operators.logged_operator import LoggedOperator, once, records_of
from icestream.operators.protocol import ChangeInputs, PastVersion, Shard
from icestream.state.identities import EVERY_ID, keep_ids, kept_ids
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.table import CountedTable
from icestream.state.versions.commits import BASE

#: lifetime class of events that wait
WAITING = "waiting"
#: approximate bytes of a block of events that wait
BLOCK_BYTES = 65_536
#: part of the quota that one range of events may fill, and how much sorting and joining it takes
ROOM = 1 / 8
WORK = 4

_BLOCK = np.dtype(
    [
        ("marker", np.uint64),
        ("rows", np.int64),
        ("size", np.int64),
        ("first", np.int64),
        ("last", np.int64),
        ("low", np.uint64),
        ("high", np.uint64),
    ]
)
_BLOCKS = 1
_POSITION = 2

_Blocks = npt.NDArray[np.void]


@dataclass(frozen=True)
class GatherSpec:
    """What is brought together: events, and sets of features of each."""

    payload: pa.Schema
    #: columns of each set of features, without the event's identity
    features: tuple[pa.Schema, ...]
    #: names of the columns that are emitted
    names: tuple[str, ...]
    #: the edges on which events arrive, and those of each set of features
    edges: tuple[int, ...] = ()
    feature_edges: tuple[int, ...] = ()

    @property
    def result(self) -> pa.Schema:
        fields = {each.name: each for part in (self.payload, *self.features) for each in part}
        return pa.schema([fields[name] for name in self.names])

    @property
    def received(self) -> pa.Schema:
        """Return the columns of the events that arrive."""
        return pa.schema([*EVENT_FIELDS, *self.payload])

    @property
    def lifetimes(self) -> tuple[str, ...]:
        return (WAITING, BASE)

    @property
    def lends_buffers(self) -> bool:
        return True

    @property
    def least_quota(self) -> int:
        """Return the bytes that a shard needs."""
        return 16 * BLOCK_BYTES

    def opened(self, shard: Shard) -> Gather:
        return Gather(self, shard)


class Gather(LoggedOperator):
    """The events of one shard that wait for their features."""

    _position_kind = _POSITION

    def __init__(self, spec: GatherSpec, shard: Shard) -> None:
        super().__init__(shard)
        self._spec = spec
        self._header.setdefault("gathered", MINUS_INFINITY)
        budget = shard.account.budget
        #: bytes of events and features that are brought together at once
        self.gathered_bytes = max(1, budget.buffers // WORK or int(ROOM * budget.total))
        shard.account.resize(max(WORK * self.gathered_bytes, budget.buffers))
        self._blocks = CountedTable(shard.arena, WAITING, _BLOCK)

    def run(self, inputs: ChangeInputs | None, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the events that a watermark makes final, with their features."""
        watermark = max(watermark, self._header["gathered"])
        due = self._blocks.records
        due = due[due["first"] < watermark].copy()
        written: list[tuple[int, ...]] = []
        # blocks may have events of other shards
        keeps = kept_ids(self._header) or EVERY_ID
        begin, end = keeps.low, keeps.high
        bounds = [each for each in self._bounds(inputs, due) if begin < each < end]
        for low, high in pairwise([begin, *bounds, end]):
            fresh = list(_read(inputs, self._spec.edges, low, high))
            arrived = [*fresh, *self._waited(due, low, high)]
            yield from self._together(inputs, arrived, low, high, watermark)
            for changes in fresh:
                written += self._kept(changes, watermark)
        self._shard.seal(WAITING)
        self._take(np.array(written, dtype=_BLOCK), watermark)
        if self._schedule.version_ends(32 * len(self._blocks)):
            self._save_directory(self._blocks.records, _BLOCKS)
            self._save_position({"gathered": self._header["gathered"]})
        self._shard.seal(BASE)

    def _together(
        self,
        inputs: ChangeInputs | None,
        arrived: Sequence[pa.RecordBatch],
        low: int,
        high: int,
        watermark: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range of identities."""
        before = self._header["gathered"]
        final = []
        for changes in arrived:
            times = column_of(changes, LE)
            final.append(_chosen(changes, (times < watermark) & (times >= before)))
        events = _ByIdentity.of(final, self._spec.received)
        sets = [
            _ByIdentity.of(_read(inputs, (edge,), low, high), features)
            for edge, features in zip(self._spec.feature_edges, self._spec.features, strict=True)
        ]
        for found in sets:
            if not all(map(np.array_equal, events.identities, found.identities)):
                msg = (
                    f"{len(events.order)} events are final and {len(found.order)} have features: "
                    "the state of over(...) is damaged; start from another checkpoint"
                )
                raise CheckpointError(msg)
        if len(events.order):
            yield self._rows(events, sets)

    def _rows(self, events: _ByIdentity, sets: Sequence[_ByIdentity]) -> pa.RecordBatch:
        times, batch, arrival = (
            column_of(events.changes, name)[events.order] for name in (LE, BATCH, ARRIVAL)
        )
        order = np.lexsort((arrival, batch, times))
        columns: dict[str, pa.Array] = {}
        for found in (events, *sets):
            names = [name for name in found.changes.schema.names if name in self._spec.names]
            payload = found.changes.select(names)
            rows = taken(payload, found.order[order])
            columns |= dict(zip(names, rows.columns, strict=True))
        rows = pa.RecordBatch.from_arrays(
            [columns[name] for name in self._spec.names], schema=self._spec.result
        )
        times, high, low = times[order], batch[order].view(np.uint64), arrival[order]
        return changes_of(rows, times, times + 1, 1, high, low.view(np.uint64))

    # -- events that wait ------------------------------------------------------------------

    def _kept(self, changes: pa.RecordBatch, watermark: Micros) -> Iterator[tuple[int, ...]]:
        """Write the events that are not final yet; yield the entries of their blocks."""
        changes = _chosen(changes, column_of(changes, LE) >= watermark)
        if changes.num_rows == 0:
            return
        rows = max(1, BLOCK_BYTES * changes.num_rows // max(1, changes.nbytes))
        for first in range(0, changes.num_rows, rows):
            block = changes.slice(first, rows)
            payload = write_table(block)
            expiry = int(column_of(block, LE).max()) + 1
            marker = self._shard.segment(WAITING).append(
                payload, rows=block.num_rows, expiry=expiry
            )
            self._schedule.log(payload.size)
            yield _entry(marker, block, payload.size)

    def _waited(self, blocks: _Blocks, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Yield the events of blocks in a range of identities."""
        inside = (blocks["low"] <= np.uint64(high - 1)) & (blocks["high"] >= np.uint64(low))
        for record in self._shard.log.read_many(blocks["marker"][inside]):
            yield between(read_batch(record.payload), low, high)

    def _take(self, blocks: _Blocks, watermark: Micros) -> None:
        """Add blocks to the directory, and drop those whose events are all final."""
        self._blocks.keep(self._blocks.records["last"] >= watermark)
        self._blocks.append(blocks)
        self._header["gathered"] = watermark

    def _bounds(self, inputs: ChangeInputs | None, blocks: _Blocks) -> list[int]:
        """Return the identities at which to split, so that a range fits into memory."""
        firsts, sizes = [blocks["low"]], [blocks["size"]]
        edges = (*self._spec.edges, *self._spec.feature_edges) if inputs is not None else ()
        for edge in edges:
            assert inputs is not None
            found, size = inputs.ranges(edge)
            firsts.append(found)
            sizes.append(size)
        return bounds_of(np.concatenate(firsts), np.concatenate(sizes), self.gathered_bytes)

    # -- snapshot and restore --------------------------------------------------------------

    def _load(self, past: PastVersion, snapshots: Sequence[SegmentReader]) -> None:
        found = []
        for reader in snapshots:
            self._header.update(self._position_in(reader))
            found += [
                np.frombuffer(record.payload, dtype=_BLOCK)
                for record in reader.scan()
                if record.synopsis == _BLOCKS
            ]
        self._blocks.append(once(found, _BLOCK))
        keep_ids(self._header, past.keeps)

    def _replay(self, past: PastVersion) -> None:
        found = [
            _entry(record.marker, read_batch(record.payload), len(record.payload))
            for record in records_of(self._shard, past, WAITING)
        ]
        self._take(np.array(found, dtype=_BLOCK), past.watermark)
        self._schedule.version_ends(32 * len(self._blocks))
        keep_ids(self._header, past.keeps)

    @property
    def statistics(self) -> dict[str, Any]:
        account = self._shard.account
        needed = account.budget.whole(account.held + self._shard.arena.bytes)
        return {"groups": 0, "partitions": 1, "loads": [], "needed_bytes": needed, "cold": {}}


def _entry(marker: int, block: pa.RecordBatch, size: int) -> tuple[int, ...]:
    """Return the entry of a block in the directory."""
    times, (identity, _) = column_of(block, LE), identities_of(block)
    ends = int(times.min()), int(times.max())
    return marker, block.num_rows, size, *ends, int(identity[0]), int(identity[-1])


def _read(
    inputs: ChangeInputs | None, edges: Iterable[int], low: int, high: int
) -> Iterator[pa.RecordBatch]:
    """Yield the events that arrived on edges, in a range of identities."""
    if inputs is not None:
        for edge in edges:
            for changes in inputs.changes(edge, low, high):
                yield one_each(changes)


@dataclass(frozen=True)
class _ByIdentity:
    """Changes, and their order by identity."""

    changes: pa.RecordBatch
    order: Ints
    #: id_high and id_low, in order
    identities: tuple[Ids, Ids]

    @classmethod
    def of(cls, parts: Iterable[pa.RecordBatch], payload: pa.Schema) -> _ByIdentity:
        """Sort the identities of changes with a payload."""
        found = [part for part in parts if part.num_rows]
        if not found:
            found = [pa.RecordBatch.from_pylist([], schema=changes_schema(payload))]
        whole = pa.concat_batches(found)
        id_high, id_low = identities_of(whole)
        order = np.argsort(id_high, kind="stable")
        if (np.diff(id_high[order]) == 0).any():
            order = np.lexsort((id_low, id_high))
        return cls(whole, order, (id_high[order], id_low[order]))


def _chosen(changes: pa.RecordBatch, which: Mask) -> pa.RecordBatch:
    return changes if which.all() else changes.filter(pa.array(which))
