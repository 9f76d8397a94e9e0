"""Ingest of update streams: each split sends the newest value of each key, and nothing else.

Idea: updates that are superseded in the same split end here. For steps over every event all events
are sent, spread evenly over the shards; for joins and windows all of them, by key.

Invariants:
1. Each split sends one row per key (`test_superseded_updates_do_not_travel`).
2. The same split makes the same parcel (`test_the_same_updates_make_the_same_parcel`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, slice_bounds
from icestream.kernels.fold import routes_of
from icestream.operators.latest.coalescing import (
    ORIGIN,
    NewestUpdates,
    UpdateCoalescer,
    identity_of,
)
from icestream.plan.nodes.queries import SOURCE
from icestream.plan.nodes.updates import Updates, column
from icestream.runtime.exchange.parcels import ExchangeWriter, SplitReport
from icestream.runtime.ingest.reception import EventTimeCheck

#: kinds of records: the newest update of each key, and every event
NEWEST, EVERY = range(2)
#: rows of one record
RECORD_ROWS = 16_384
#: an odd number with well-mixed bits, whose multiples are spread over all shards
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class UpdatesIngest:
    """The task of every split of a version."""

    plan: Updates
    version: int
    watermark: int
    routes: tuple[int, ...]
    #: whether superseded updates are sent too
    whole: bool = False

    def run(
        self, batches: Iterable[pa.RecordBatch], out: ExchangeWriter, split: int = 0
    ) -> SplitReport:
        """Read the events of one split and send what the shards need of them."""
        task = _Sending(self, out, split)
        for batch in batches:
            task.take(batch)
        return task.finish()


class _Sending:
    """One split."""

    def __init__(self, ingest: UpdatesIngest, out: ExchangeWriter, split: int) -> None:
        self._plan = ingest.plan
        joins = ingest.plan.front is not None or ingest.plan.windowed is not None
        self._whole = ingest.whole or joins
        self._out = out
        self._reception = EventTimeCheck(ingest.plan, ingest.watermark, out)
        self._routes = np.array(ingest.routes, dtype=np.int64)
        self._load = np.zeros(len(self._routes), dtype=np.int64)
        ranks = ingest.plan.ranks
        self._folder = UpdateCoalescer(None if ranks is None else np.array(ranks, dtype=np.int64))
        #: number of the next event, for events that may go to any shard
        self._next = split << 40
        self._sent = 0

    def take(self, batch: pa.RecordBatch) -> None:
        events, times = self._reception.admit(batch)
        if not events.num_rows:
            return
        latest = self._plan.latest
        if latest is not None and latest.forget is not None:
            median = int(np.partition(times, len(times) // 2)[len(times) // 2])
            self._reception.report.medians.append((median, len(times)))
        payload = self._payload(events)
        if self._plan.every:
            self._send(self._updates(payload, times, *self._spread(len(times))), EVERY)
        if latest is not None:
            updates = self._updates(payload, times, *identity_of(payload, latest.keys))
            if self._whole:
                self._send(updates, NEWEST)
            else:
                self._folder.take(updates)

    def finish(self) -> SplitReport:
        """Send what was collected and return the report of the split."""
        updates = self._folder.finish()
        if updates is not None:
            self._send(updates, NEWEST)
        return self._reception.finish(self._sent, self._load)

    def _updates(
        self, payload: pa.RecordBatch, times: Ints, id_high: Ids, id_low: Ids
    ) -> NewestUpdates:
        return NewestUpdates.of(id_high, id_low, times, times, np.ones_like(times), payload)

    def _spread(self, count: int) -> tuple[Ids, Ids]:
        numbers = np.arange(self._next, self._next + count, dtype=np.int64).view(np.uint64)
        self._next += count
        return numbers * _SPREAD, numbers

    def _send(self, updates: NewestUpdates, kind: int) -> None:
        for shard, part in self._cut(updates):
            for first in range(0, part.num_rows, RECORD_ROWS):
                self._out.tuples(shard, part.slice(first, RECORD_ROWS), kind)
        self._sent += updates.rows.num_rows

    def _cut(self, updates: NewestUpdates) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each shard, in their order."""
        id_high, _ = updates.identity
        shards = np.empty(len(id_high), dtype=np.int64)
        routes_of(id_high, len(self._routes), self._routes, shards, self._load)
        order = np.argsort(shards, kind="stable")
        rows, shards = updates.rows.take(pa.array(order)), shards[order]
        for start, end in pairwise(slice_bounds(shards).tolist()):
            yield int(shards[start]), rows.slice(start, end - start)

    def _payload(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns under the user's names."""
        plan = self._plan
        columns = [events.column(column(place)) for place in range(len(plan.columns))]
        if ORIGIN in plan.travels.names:
            columns.append(events.column(SOURCE))
        return pa.RecordBatch.from_arrays(columns, schema=plan.travels)
