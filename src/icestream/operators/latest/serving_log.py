"""What a shard of an update stream writes to its log, and how it is restored from it.

Idea: a version logs one row for each waiting key that changed, and one without a value for each key
that was served: superseded values are never written. A snapshot has every known key, the values of
those that wait, and their positions in the queue of each reader; keys and values that are not in
memory are copied from file to file, some at a time.

Invariants:
1. A version logs one row for each key that changed or was served
   (`test_bounded_a_version_logs_one_row_for_each_key`).
2. A restored queue serves the same keys in the same order, for every reader
   (`test_oracle_a_restored_queue_goes_on_as_the_one_before`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Mask
from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.latest.coalescing import (
    COUNT,
    FIRST,
    ID_HIGH_COLUMN,
    ID_LOW_COLUMN,
    LAST,
    ORIGIN,
    NewestUpdates,
    joined,
)
from icestream.operators.latest.pre_queue import PreQueueOperator
from icestream.operators.latest.waiting_keys import (
    GAP,
    NEWEST_INPUT,
    SINCE_FIRST,
    TURNS,
    WaitingKeys,
)
from icestream.operators.protocol import PastVersion, Shard
from icestream.state.identities import IdRange, places_among
from icestream.state.log.format import Record, SegmentInfo
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.queue.order import SCHEDULES
from icestream.state.snapshot_schedule import SnapshotSchedule
from icestream.state.versions.commits import BASE

#: lifetime classes of segments: changes of a version, and snapshots
CHANGED = "updates"
LIFETIMES = (CHANGED, BASE)
#: kinds of records: facts as JSON, waiting keys with values, keys without, rows that a join before
#: the queue took, the state of that join, and keys that were served before the updates came
FACTS, VALUES, KEYS, TAKEN, KNOWN, AHEAD = range(6)
#: maximum number of rows of a record
RECORD_ROWS = 16_384
#: bytes of a key in a snapshot, and of one that waits for a reader
KEY_BYTES = 40
ORDER_BYTES = 16

#: types of the columns that describe keys
_TYPES = {
    **dict.fromkeys((ID_HIGH_COLUMN, ID_LOW_COLUMN), pa.uint64()),
    **dict.fromkeys((FIRST, LAST, COUNT, SINCE_FIRST, TURNS, NEWEST_INPUT), pa.int64()),
    GAP: pa.float64(),
}

#: keys that were served to each reader
Served = Sequence[tuple[Ids, Ids]]


class ServingLog:
    """The log of one shard's queue."""

    def __init__(
        self,
        shard: Shard,
        waiting: WaitingKeys,
        payload: pa.Schema,
        front: PreQueueOperator | None = None,
    ) -> None:
        self._pre_queue = front
        self._shard = shard
        self._waiting = waiting
        self._payload = payload
        self._snapshots = SnapshotSchedule(shard.arena.header)
        #: ordinals of the segments since the last snapshot
        self._segments: list[int] = shard.arena.header.setdefault("changed", [])
        self.released: tuple[int, ...] = ()

    @property
    def took_snapshot(self) -> bool:
        return self._snapshots.taken

    # -- writing ---------------------------------------------------------------------------

    def write(
        self,
        batch: NewestUpdates | None,
        served: Served,
        taken: pa.RecordBatch | None = None,
        forgot: Micros = MINUS_INFINITY,
        ahead: Served = (),
    ) -> None:
        """Write what a version changed, and what a join took; from time to time a snapshot.

        Keys without updates since `forgot` were dropped.
        """
        if self._snapshots.version_ends(self._size):
            self._write_snapshot()
            self._snapshots.take()
            self.released = tuple(self._segments)
            self._segments.clear()
            return
        if batch is None and taken is None and not any(len(keys[0]) for keys in (*served, *ahead)):
            return
        facts = {**self._waiting.facts(), "forgot": forgot}
        self._append(CHANGED, FACTS, json.dumps(facts).encode(), 0)
        for number, keys in enumerate(ahead):
            self._append_rows(CHANGED, AHEAD, _keys(*keys, None, None), number)
        self._write_changes(batch, served)
        if taken is not None:
            self._append_rows(CHANGED, TAKEN, taken)
        info = self._shard.seal(CHANGED)
        if info is not None:
            self._segments.append(info.ordinal)
            self._snapshots.log(info.bytes)

    @property
    def _size(self) -> int:
        """Return the approximate size of a snapshot in bytes."""
        waiting, cells = self._waiting, self._waiting.cells
        ordered = sum(len(reader) for reader in waiting.readers)
        values = 8 * cells.codec.width * (cells.pages.used + waiting.cold.waiting)
        front = 0 if self._pre_queue is None else self._pre_queue.size
        return KEY_BYTES * waiting.keys + ORDER_BYTES * ordered + values + front

    def _write_changes(self, batch: NewestUpdates | None, served: Served) -> None:
        wanted = None if batch is None else _are_left(batch, served)
        for number, (id_high, id_low) in enumerate(served):
            # updates of keys whose values are not logged are recorded once
            newest = batch if number == 0 else None
            rows = _keys(id_high, id_low, newest, wanted)
            self._append_rows(CHANGED, KEYS, rows, number)
        if batch is not None and wanted is not None:
            self._append_rows(CHANGED, VALUES, batch.take(np.flatnonzero(wanted)).rows)

    def _write_snapshot(self) -> None:
        waiting = self._waiting
        self._append(BASE, FACTS, json.dumps(waiting.facts()).encode(), 0)
        for kind in (KEYS, VALUES):
            for rows, values in waiting.portions(RECORD_ROWS, waiting=kind == VALUES):
                columns = waiting.described(rows)
                if values is not None:
                    columns += waiting.ordered(rows)
                arrays = [pa.array(column) for _, column in columns]
                names = [name for name, _ in columns]
                if values is not None:
                    arrays += values.columns
                    names += [f"v{place}" for place in range(values.num_columns)]
                self._append_rows(BASE, kind, pa.RecordBatch.from_arrays(arrays, names))
        for payload in () if self._pre_queue is None else self._pre_queue.records():
            self._append(BASE, KNOWN, payload, 0)
        self._shard.seal(BASE)

    def _append_rows(self, lifetime: str, kind: int, rows: pa.RecordBatch, reader: int = 0) -> None:
        for first in range(0, rows.num_rows, RECORD_ROWS):
            part = rows.slice(first, RECORD_ROWS)
            self._append(lifetime, kind, write_table(part), part.num_rows, reader)

    def _append(self, lifetime: str, kind: int, payload: Any, rows: int, reader: int = 0) -> None:
        segment = self._shard.segment(lifetime)
        segment.append(payload, operator=reader, synopsis=kind, rows=rows)

    # -- restore -----------------------------------------------------------------------

    def restore(self, history: Sequence[PastVersion], now: Micros) -> None:
        """Load the snapshot, then apply the changes of each later version."""
        logged = 0
        for past in history:
            snapshots = [info for lifetime, info in past.segments if lifetime == BASE]
            if snapshots:
                self._restore_snapshots(snapshots, past.keeps)
            for lifetime, info in past.segments:
                if lifetime == CHANGED:
                    self._restore_changes(info, now)
                    self._segments.append(info.ordinal)
                    logged += info.bytes
        based = bool(history) and any(lifetime == BASE for lifetime, _ in history[0].segments)
        self._snapshots.resume(len(history) - based, logged)

    def _restore_snapshots(self, infos: Sequence[SegmentInfo], keeps: IdRange | None) -> None:
        """Load a snapshot, or those of several parents for the keys in a range."""
        before: list[list[bytes]] = []
        snapshots = list(map(self._records, infos))
        self._waiting.recall(self._waiting.together([facts for facts, _ in snapshots]))
        for _, records in snapshots:
            for kind in (KEYS, VALUES):
                for rows in (_typed(read_batch(bytes(each.payload))) for each in records[kind]):
                    if keeps is not None:
                        identity = np.asarray(rows.column(ID_HIGH_COLUMN).to_numpy())
                        rows = rows.filter(pa.array(keeps.holds(identity)))  # noqa: PLW2901
                    described = _described(rows)
                    values = None
                    if kind == VALUES:
                        columns = rows.columns[len(described) :]
                        values = pa.RecordBatch.from_arrays(columns, schema=self._payload)
                    self._waiting.bring_back(described, values)
            before.append([bytes(each.payload) for each in records[KNOWN]])
        if self._pre_queue is not None:
            self._pre_queue.take_over(before, keeps)

    def _restore_changes(self, info: SegmentInfo, now: Micros) -> None:
        """Replay the updates and the served keys of a version."""
        facts, records = self._records(info)
        self._take_out(records[AHEAD], now)
        taken = [read_batch(bytes(each.payload)) for each in records[TAKEN]]
        if taken and self._pre_queue is not None:
            self._pre_queue.take(joined(taken))
        parts = [_typed(read_batch(bytes(each.payload))) for each in records[VALUES]]
        for rows in _of_reader(records[KEYS], 0):
            changed = rows.filter(pa.array(np.asarray(rows.column(COUNT).to_numpy()) > 0))
            if changed.num_rows:
                parts.append(_without_values(changed, self._payload))
        if parts:
            self._waiting.take_in(NewestUpdates(joined(parts)))
        self._take_out(records[KEYS], now)
        self._waiting.recall(facts)
        if facts["forgot"] > MINUS_INFINITY:
            self._waiting.delivered(now)
            self._waiting.forget(facts["forgot"])
            if self._pre_queue is not None:
                self._pre_queue.forget(facts["forgot"])

    def _take_out(self, records: Sequence[Record], now: Micros) -> None:
        """Remove the keys that each reader was served."""
        for reader in range(len(self._waiting.readers)):
            for rows in _of_reader(records, reader):
                found = _described(rows)
                self._waiting.take_out(reader, found[ID_HIGH_COLUMN], found[ID_LOW_COLUMN], now)

    def _records(self, info: SegmentInfo) -> tuple[Mapping[str, Any], dict[int, list[Record]]]:
        """Return the facts, and the records of each kind."""
        with closing(self._shard.reader(info)) as reader:
            facts: Mapping[str, Any] = {}
            found: dict[int, list[Record]] = {kind: [] for kind in range(VALUES, AHEAD + 1)}
            for record in reader.read_many(reader.directory["marker"]):
                if record.synopsis == FACTS:
                    facts = json.loads(bytes(record.payload))
                    _check_schedule(facts["schedule"])
                else:
                    found[record.synopsis].append(record)
        return facts, found


def _are_left(batch: NewestUpdates, served: Served) -> Mask:
    """Return which updates some reader was not served."""
    id_high, id_low = batch.identity
    left = np.zeros(len(id_high), dtype=np.bool_)
    for keys in served:
        left |= places_among(id_high, id_low, *keys) < 0
    return left


def _check_schedule(schedule: str) -> None:
    """Refuse a log whose keys wait in an order that does not exist any more."""
    if schedule not in SCHEDULES:
        msg = (
            f"the keys of this checkpoint wait in the order {schedule!r}, which this version does "
            "not have: let the version that wrote it serve all of them once with "
            "schedule='inplace' and trigger(availableNow=True), or begin a new checkpoint"
        )
        raise DefinitionError(msg)


def _of_reader(records: Sequence[Record], reader: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a reader's records."""
    for record in records:
        if record.operator == reader:
            yield _typed(read_batch(bytes(record.payload)))


def _typed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Check rows that were read; ValueError if a column for kernels has another type."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        # each of several readers has columns of its own
        kind = _TYPES.get(name.rstrip("0123456789"), column.type)
        if column.type != kind or (name.startswith("__") and column.null_count):
            msg = f"column {name} has the type {column.type}, or has nulls"
            raise ValueError(msg)
    return rows


def _described(rows: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns that describe keys, by name."""
    names = [name for name in rows.schema.names if name.startswith("__")]
    return {name: np.asarray(rows.column(name).to_numpy()) for name in names}


def _keys(id_high: Ids, id_low: Ids, batch: NewestUpdates | None, wanted: Any) -> pa.RecordBatch:
    """Return served keys, with the batch's updates of those that no reader waits for now."""
    first = np.full(len(id_high), MINUS_INFINITY)
    last, count = first.copy(), np.zeros(len(id_high), dtype=np.int64)
    if batch is not None and len(id_high):
        places = places_among(id_high, id_low, *batch.identity)
        found = places >= 0
        found[found] = ~wanted[places[found]]
        first[found], last[found] = batch.first[places[found]], batch.last[places[found]]
        count[found] = batch.count[places[found]]
    columns: dict[str, Any] = {
        ID_HIGH_COLUMN: id_high,
        ID_LOW_COLUMN: id_low,
        FIRST: first,
        LAST: last,
        COUNT: count,
    }
    if batch is not None and ORIGIN in batch.rows.schema.names:
        inputs = np.zeros(len(id_high), dtype=np.int64)
        if len(id_high):
            inputs[found] = batch.rows.column(ORIGIN).to_numpy()[places[found]]
        columns[NEWEST_INPUT] = inputs
    return pa.RecordBatch.from_pydict({name: pa.array(each) for name, each in columns.items()})


def _without_values(keys: pa.RecordBatch, payload: pa.Schema) -> pa.RecordBatch:
    """Return keys as updates whose values are not needed any more."""
    columns = [
        keys.column(NEWEST_INPUT).cast(each.type)
        if each.name == ORIGIN and NEWEST_INPUT in keys.schema.names
        else pa.nulls(keys.num_rows, each.type)
        for each in payload
    ]
    nothing = pa.RecordBatch.from_arrays(columns, schema=payload)
    names = (ID_HIGH_COLUMN, ID_LOW_COLUMN, FIRST, LAST, COUNT)
    id_high, id_low, first, last, count = (
        np.asarray(keys.column(name).to_numpy()) for name in names
    )
    return NewestUpdates.of(id_high, id_low, first, last, count, nothing).rows
