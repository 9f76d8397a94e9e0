"""Update streams in one shard: take what came, serve while there is time, keep the rest.

Idea: the updates of a batch enter the queue; then keys are served in the order of the schedule, a
slice of many keys at a time, until the time of the batch is used. What still waits stays in the
arena, and its log is one row for each waiting key that changed, and one without a value for each
that was served: what is superseded is never written.

Invariants:
1. The newest value of every key is served in the end, also after a restart at any batch
   (`test_oracle_every_keys_newest_value_is_served`).
2. Keys are served in the order of the schedule (`test_oracle_keys_are_served_in_schedule_order`).
3. A version logs one row for each key that changed or was served
   (`test_bounded_a_version_logs_one_row_for_each_key`).

Cost: the batch of a shard, folded to one row for each key, is in memory once beside the queue.

Limits: keys and waiting values must fit into the shard's memory; BudgetError says who holds what.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.clock import Clock
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.protocol import Emitted, Inputs, PastVersion, Shard
from icestream.operators.updates.books import Books
from icestream.operators.updates.folding import COUNT, FIRST, HI, LAST, LO, Folded, Folder, joined
from icestream.operators.updates.identities import places_among
from icestream.operators.updates.pacing import Pace
from icestream.operators.updates.step import UpdateStep
from icestream.operators.updates.telling import Told
from icestream.operators.updates.waiting import Waiting
from icestream.state.log.format import SegmentInfo
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.snapshots import SnapshotSchedule
from icestream.state.synopses.spec import Ids, Ints
from icestream.state.versions import BASE

#: lifetime classes of segments: changes of a version, and snapshots
CHANGED = "updates"
LIFETIMES = (CHANGED, BASE)
#: kinds of records: facts as JSON, waiting keys with values, keys without
FACTS, VALUES, KEYS = range(3)
#: rows of a record, and rows that are worth a result record
RECORD_ROWS = 16_384
#: bytes of a key in a snapshot, beside its value
KEY_BYTES = 56


@dataclass(frozen=True)
class Serving:
    """What a shard is told of a version."""

    step: UpdateStep
    schedule: str
    #: microseconds for serving
    budget: Micros
    #: when the rows of the version before reached the application; None if nobody knows
    delivered: Micros | None
    clock: Clock


class ServingOperator:
    """Serves the keys of one shard."""

    def __init__(self, spec: Serving, shard: Shard) -> None:
        """Attach to the shard's state."""
        self._spec = spec
        self._shard = shard
        self._header: dict[str, Any] = shard.arena.header
        self._waiting = Waiting(spec.step.payload, spec.schedule, shard.arena)
        self._books = Books(shard.arena, self._waiting.queue)
        self._pace = Pace(list(self._header.get("pace", [0.0] * 6)))
        self._snapshots = SnapshotSchedule(self._header)
        #: ordinals of the segments since the last snapshot
        self._segments: list[int] = self._header.setdefault("changed", [])
        self._batch: Folded | None = None
        self._served: tuple[Ids, Ids] = np.empty(0, np.uint64), np.empty(0, np.uint64)
        self._told = Told()
        self._released: tuple[int, ...] = ()

    @property
    def waiting(self) -> Waiting:
        """Return the keys that are known, for whoever looks at them."""
        return self._waiting

    # -- a version -------------------------------------------------------------------------

    def on_batch(self, inputs: Inputs) -> None:
        """Let the updates of the batch enter the queue."""
        at = self._spec.delivered
        self._waiting.delivered(self._spec.clock.now() if at is None else at)
        folder, rows = Folder(), 0
        for batch in inputs.tuples():
            folder.take(Folded(batch))
            rows += batch.num_rows
        self._batch = batch = folder.finish()
        outdated = self._waiting.queue.late
        replaced = 0
        if batch is not None:
            self._shard.account.reserve(batch.rows.nbytes)
            replaced = self._waiting.take_in(batch)
            replaced += rows - batch.rows.num_rows
        self._told = Told(superseded=replaced, outdated=self._waiting.queue.late - outdated)

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Serve until the time of the batch is used, then write the log."""
        yield from self._serve()
        self._log()
        queue = self._waiting.queue
        queue.cost = self._header["cost"] = sum(self._pace.cost)
        self._header["pace"] = self._pace.sums
        cumulative, lately = self._books.close(self._spec.clock.now())
        self._told = Told(
            **{
                **vars(self._told),
                "waiting": len(self._waiting),
                "keys": queue.keys,
                "stale": cumulative,
                "lately": lately,
            }
        )

    def _serve(self) -> Iterator[Emitted]:
        clock, spec = self._spec.clock, self._spec
        began = clock.monotonic()
        served: list[tuple[Ids, Ids]] = []
        made: list[pa.RecordBatch] = []
        calls = keys = 0
        while len(self._waiting):
            started = clock.monotonic()
            left = int(spec.budget - 1e6 * (started - began))
            count = self._pace.slice(left, first=not calls)
            if not count:
                break
            taken = self._waiting.serve(count, clock.now())
            made.append(spec.step(taken.rows))
            self._pace.learn(len(taken), 1e6 * (clock.monotonic() - started))
            served.append((taken.hi, taken.lo))
            calls, keys = calls + 1, keys + len(taken)
            if sum(each.num_rows for each in made) >= RECORD_ROWS:
                yield 0, joined(made)
                made = []
        if any(each.num_rows for each in made):
            yield 0, joined(made)
        if served:
            hi, lo = (np.concatenate(part) for part in zip(*served, strict=True))
            self._served = hi, lo
        took = int(1e6 * (clock.monotonic() - began))
        self._told = Told(**{**vars(self._told), "served": keys, "calls": calls, "serving": took})

    # -- log -------------------------------------------------------------------------------

    def _log(self) -> None:
        """Write what the version changed; now and then everything."""
        queue = self._waiting.queue
        size = KEY_BYTES * queue.keys + 8 * queue.cells.codec.width * len(queue)
        if self._snapshots.version_ends(size):
            self._write_snapshot()
            self._snapshots.take()
            self._released = tuple(self._segments)
            self._segments.clear()
            return
        hi, lo = self._served
        if self._batch is None and not len(hi):
            return
        self._append(CHANGED, FACTS, json.dumps(self._waiting.facts()).encode(), 0)
        self._write_changes(hi, lo)
        info = self._shard.seal(CHANGED)
        if info is not None:
            self._segments.append(info.ordinal)
            self._snapshots.log(info.bytes)

    def _write_changes(self, hi: Ids, lo: Ids) -> None:
        batch = self._batch
        if batch is None:
            self._append_rows(CHANGED, KEYS, _keys(hi, lo, None))
            return
        gone = places_among(*batch.identity, hi, lo) >= 0
        waits = ~gone & self._waiting.has(batch)
        self._append_rows(CHANGED, KEYS, _keys(hi, lo, batch))
        self._append_rows(CHANGED, VALUES, batch.take(np.flatnonzero(waits)).rows)

    def _write_snapshot(self) -> None:
        waiting = self._waiting
        self._append(BASE, FACTS, json.dumps(waiting.facts()).encode(), 0)
        for slots, kind in ((waiting.idle_slots(), KEYS), (waiting.waiting_slots(), VALUES)):
            for first in range(0, len(slots), RECORD_ROWS):
                some = slots[first : first + RECORD_ROWS]
                columns = waiting.described(some)
                values = waiting.values(some) if kind == VALUES else None
                arrays = [pa.array(column) for _, column in columns]
                names = [name for name, _ in columns]
                if values is not None:
                    arrays += values.columns
                    names += [f"v{place}" for place in range(values.num_columns)]
                self._append_rows(BASE, kind, pa.RecordBatch.from_arrays(arrays, names))
        self._shard.seal(BASE)

    def _append_rows(self, lifetime: str, kind: int, rows: pa.RecordBatch) -> None:
        for first in range(0, rows.num_rows, RECORD_ROWS):
            part = rows.slice(first, RECORD_ROWS)
            self._append(lifetime, kind, write_table(part), part.num_rows)

    def _append(self, lifetime: str, kind: int, payload: Any, rows: int) -> None:
        self._shard.segment(lifetime).append(payload, synopsis=kind, rows=rows)

    # -- coming back -----------------------------------------------------------------------

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Take in the snapshot, then what each version after it changed."""
        logged = 0
        for past in history:
            for lifetime, info in past.segments:
                if lifetime == BASE:
                    self._restore_snapshot(info)
                elif lifetime == CHANGED:
                    self._restore_changes(info)
                    self._segments.append(info.ordinal)
                    logged += info.bytes
        based = bool(history) and any(lifetime == BASE for lifetime, _ in history[0].segments)
        self._snapshots.resume(len(history) - based, logged)

    def _restore_snapshot(self, info: SegmentInfo) -> None:
        facts, records = self._records(info)
        same = facts["schedule"] == self._spec.schedule
        payload = self._spec.step.payload
        for kind, rows in records:
            described = {
                name: np.asarray(rows.column(name).to_numpy())
                for name in rows.schema.names
                if name.startswith("__")
            }
            values = None
            if kind == VALUES:
                columns = rows.columns[len(described) :]
                values = pa.RecordBatch.from_arrays(columns, schema=payload)
            if not same:
                described = self._waiting.rearranged(described)
            self._waiting.bring_back(described, values)
        self._waiting.recall(facts)

    def _restore_changes(self, info: SegmentInfo) -> None:
        """Let the same updates come and the same keys go."""
        facts, records = self._records(info)
        self._waiting.queue.cost = facts["cost"]
        served = [rows for kind, rows in records if kind == KEYS]
        parts = [rows for kind, rows in records if kind == VALUES]
        for rows in served:
            changed = rows.filter(pa.array(np.asarray(rows.column(COUNT).to_numpy()) > 0))
            if changed.num_rows:
                parts.append(_without_values(changed, self._spec.step.payload))
        if parts:
            self._waiting.take_in(Folded(joined(parts)))
        for rows in served:
            hi, lo = (np.asarray(rows.column(name).to_numpy()) for name in (HI, LO))
            self._waiting.take_out(hi, lo, self._spec.clock.now())
        self._waiting.recall(facts)

    def _records(
        self, info: SegmentInfo
    ) -> tuple[Mapping[str, Any], list[tuple[int, pa.RecordBatch]]]:
        with closing(self._shard.reader(info)) as reader:
            facts: Mapping[str, Any] = {}
            found = []
            for record in reader.read_many(reader.directory["marker"]):
                if record.synopsis == FACTS:
                    facts = json.loads(bytes(record.payload))
                else:
                    found.append((record.synopsis, read_batch(bytes(record.payload))))
        return facts, found

    # -- telling ---------------------------------------------------------------------------

    @property
    def took_snapshot(self) -> bool:
        """Tell whether the version just written stands without those before it."""
        return self._snapshots.taken

    @property
    def released(self) -> tuple[int, ...]:
        """Return ordinals of segments that a snapshot has replaced."""
        return self._released

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells of this shard."""
        return {
            "groups": self._waiting.queue.keys,
            "partitions": 1,
            "updates": self._told.to_json(),
        }


def _keys(hi: Ids, lo: Ids, batch: Folded | None) -> pa.RecordBatch:
    """Return keys that were served, with what the batch brought of them, without values."""
    first = np.full(len(hi), MINUS_INFINITY)
    last, count = first.copy(), np.zeros(len(hi), dtype=np.int64)
    if batch is not None and len(hi):
        places = places_among(hi, lo, *batch.identity)
        found = places >= 0
        first[found], last[found] = batch.first[places[found]], batch.last[places[found]]
        count[found] = batch.count[places[found]]
    columns: list[Ids | Ints] = [hi, lo, first, last, count]
    return pa.RecordBatch.from_arrays(
        [pa.array(each) for each in columns], [HI, LO, FIRST, LAST, COUNT]
    )


def _without_values(keys: pa.RecordBatch, payload: pa.Schema) -> pa.RecordBatch:
    """Return keys as updates whose values nobody needs any more."""
    nothing = pa.RecordBatch.from_arrays(
        [pa.nulls(keys.num_rows, each.type) for each in payload], schema=payload
    )
    names = (HI, LO, FIRST, LAST, COUNT)
    hi, lo, first, last, count = (np.asarray(keys.column(name).to_numpy()) for name in names)
    return Folded.of(hi, lo, first, last, count, nothing).rows
