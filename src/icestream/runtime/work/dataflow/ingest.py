"""Ingest of a dataflow: the events of each source as changes, sent on the edges from it.

Invariant: a map that several edges have runs once for each event, so a row that it refuses is
stored once (`test_oracle_bad_rows_leave_no_trace`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, Micros
from icestream.operators.bad_rows import BadRows, mapped
from icestream.operators.dataflow.steps import sent
from icestream.operators.folding.columns import ARRIVAL, BATCH, ArrivalNumbers
from icestream.operators.lifetimes.changes import LE, RE, changes_of, column_of
from icestream.plan.events.dataflow import Dataflow, Edge, source_column
from icestream.plan.nodes.queries import SOURCE
from icestream.runtime.exchange.change_sender import ChangeTargets, Routing
from icestream.runtime.exchange.parcels import ExchangeWriter, SplitReport
from icestream.runtime.ingest.reception import EventTimeCheck


@dataclass(frozen=True)
class DataflowIngest:
    """The task of every split of a version of a dataflow."""

    plan: Dataflow
    version: int
    watermark: int
    sends: ChangeTargets

    def run(
        self, batches: Iterable[pa.RecordBatch], out: ExchangeWriter, split: int = 0
    ) -> SplitReport:
        """Read the events of one split and send them as changes."""
        routing = Routing(self.sends)
        count = 0

        arrivals = ArrivalNumbers(self.version, split)

        def send(events: pa.RecordBatch, times: Ints, *, late: bool = False) -> None:
            nonlocal count
            numbers = arrivals.next(events.num_rows)
            for source, part, instants, chosen in self._by_source(events, times):
                places = [np.asarray(numbers[each])[chosen] for each in (BATCH, ARRIVAL)]
                changes = _points(self._payload(part, source), instants, *places)
                #: what maps made of them, by the identities of the maps
                made: dict[tuple[int, ...], pa.RecordBatch] = {(): changes}
                for number, edge in enumerate(self.plan.edges):
                    if edge.source == source and edge.late == late:
                        rows = _mapped(edge, made, out)
                        count += self._send_on(number, edge, changes, rows, routing, out)

        reception = EventTimeCheck(self.plan, self.watermark, out, partial(send, late=True))
        for batch in batches:
            events, times = reception.admit(batch)
            if events.num_rows:
                send(events, times)
        return reception.finish(count, routing.load)

    def _by_source(
        self, events: pa.RecordBatch, times: Ints
    ) -> Iterator[tuple[int, pa.RecordBatch, Ints, Ints | slice]]:
        """Yield the events of each source that has any, and their places in the batch."""
        if len(self.plan.sources) == 1:
            yield 0, events, times, slice(None)
            return
        numbers = np.asarray(events.column(SOURCE).to_numpy())
        for source in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == source)
            yield source, events.take(pa.array(chosen)), times[chosen], chosen

    def _send_on(
        self,
        number: int,
        edge: Edge,
        before: pa.RecordBatch,
        changes: pa.RecordBatch,
        routing: Routing,
        out: ExchangeWriter,
    ) -> int:
        """Send changes, given also those before the maps of the edge; return their number."""
        if changes.num_rows == 0:
            return 0
        changes = sent(changes, edge.keys, edge.payload, self.plan.inside.get(number))
        top, latest = self.plan.tops.get(number), column_of(before, LE).max()
        if top is not None and _lives_at(latest, changes):
            changes = top.selected(changes)
        for shard, cut in routing.cut(number, changes):
            out.changes(shard, number, cut, by_arrival=edge.by_arrival)
        return int(changes.num_rows)

    def _payload(self, events: pa.RecordBatch, source: int) -> pa.RecordBatch:
        """Return the columns of a source under the user's names."""
        schema = self.plan.columns[source]
        columns = [events.column(source_column(source, place)) for place in range(len(schema))]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _mapped(
    edge: Edge, made: dict[tuple[int, ...], pa.RecordBatch], out: ExchangeWriter
) -> pa.RecordBatch:
    """Return what the maps of an edge make of changes, each map applied once for all edges."""
    place: tuple[int, ...] = ()
    texts = edge.texts[len(edge.texts) - len(edge.maps) :]
    for text, change in zip(texts, edge.maps, strict=True):
        rows, place = made[place], (*place, id(change))
        if place in made:
            continue
        made[place] = rows.slice(0, 0)
        for found in mapped(text, rows, change) if rows.num_rows else ():
            if isinstance(found, BadRows):
                out.quarantine.take(found)
            else:
                made[place] = found
    return made[place]


def _lives_at(instant: Micros, changes: pa.RecordBatch) -> bool:
    """Return whether all events live at an instant and for ever after it."""
    le, re = (column_of(changes, name) for name in (LE, RE))
    return bool((le <= instant).all() and (re == INFINITY).all())


def _points(payload: pa.RecordBatch, instants: Ints, batch: Ints, arrival: Ints) -> pa.RecordBatch:
    """Return point events with the identity of their arrival, as they belong to no group yet."""
    ones = np.ones(len(instants), dtype=np.int64)
    identity = batch.view(np.uint64), arrival.view(np.uint64)
    return changes_of(payload, instants, instants + 1, ones, *identity)
