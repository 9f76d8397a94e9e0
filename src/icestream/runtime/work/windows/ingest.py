"""Ingest: one task per input split reads events and sends to the shards what they need.

Idea: events are folded into entries where they are read, so that one row per (group, pane) is sent
instead of one per event; parts of the plan that need the events themselves get them. A batch is
read once for all parts. The task also reports to the driver what only it can see: the latest time
of each source, and rows per key group.

Invariants:
1. An event is late if every window it is in has closed by the watermark before the batch, whatever
   the batch contains (`test_late_events_are_judged_by_the_watermark_before_the_batch`).
   A part of the plan gets the events that are in one of its own open windows.
2. The exchange file depends only on the events of the split and their order
   (`test_the_same_split_makes_the_same_parcel`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.folding.columns import ARRIVAL, ArrivalNumbers, InputColumn
from icestream.operators.session.rows import own_ends
from icestream.plan.grid.lower import window_spec
from icestream.plan.grid.parts import PlanPart, parts_of
from icestream.plan.nodes.queries import SOURCE, TIME, Plan
from icestream.plan.windows.session import Session
from icestream.runtime.exchange.parcels import ExchangeWriter, SplitReport
from icestream.runtime.ingest.reception import EventTimeCheck, count_entries
from icestream.runtime.work.windows.folding import TABLE_BYTES, EntryFolder, TupleSender
from icestream.runtime.work.windows.raw_events import TupleWriter

#: columns of rows folded by Spark, besides source, keys and partial aggregates
PANE = "pane"
EVENTS = "events"
LATEST = "latest"


@dataclass(frozen=True)
class Ingest:
    """The task of every split of a version."""

    plan: Plan
    version: int
    watermark: Micros
    routes: tuple[int, ...]
    #: bytes of the table of one task
    table_bytes: int = TABLE_BYTES
    #: ordinal of the segment that stores the events of the first split; None to store none
    raw_events_ordinal: int | None = None

    def run(
        self, batches: Iterable[pa.RecordBatch], out: ExchangeWriter, split: int = 0
    ) -> SplitReport:
        """Read the events of one split and send the result to `out`."""
        reception = EventTimeCheck(self.plan, self.watermark, out)
        parts = [
            (_Folding if part.folded else _Sending)(self, number, part, out, split)
            for number, part in enumerate(parts_of(self.plan))
        ]
        for batch in batches:
            events, times = reception.admit(batch)
            if events.num_rows:
                for part in parts:
                    part.take(events, times)
        for part in parts:
            part.finish(reception.report)
        return reception.report


@dataclass(frozen=True)
class FoldedIngest:
    """Ingest of rows that Spark has folded to one per (source, group, pane)."""

    ingest: Ingest

    @property
    def plan(self) -> Plan:
        return self.ingest.plan

    @property
    def version(self) -> int:
        return self.ingest.version

    def run(
        self, batches: Iterable[pa.RecordBatch], out: ExchangeWriter, split: int = 0
    ) -> SplitReport:
        """Turn the rows of one split into entries in `out`."""
        ingest, (part,) = self.ingest, parts_of(self.plan)
        reception = EventTimeCheck(ingest.plan, ingest.watermark, out)
        task = _Folding(ingest, 0, part, out, split, partial=True)
        for batch in batches:
            task.take_folded(batch, reception)
        task.finish(reception.report)
        return reception.report


class _Part:
    """What one part of the plan gets from a split."""

    def __init__(self, ingest: Ingest, part: PlanPart) -> None:
        self._events = part.events
        self._late_before = part.plan.late_before(ingest.watermark)
        self._watermark = ingest.watermark
        windows = part.plan.views[0].windows
        #: sessions in which each event has a gap of its own
        self._sessions = windows if isinstance(windows, Session) and windows.until else None
        #: latest end of such a session
        self._latest_end: Micros = MINUS_INFINITY

    def _open(self, batch: pa.RecordBatch, times: Ints) -> tuple[pa.RecordBatch, Ints]:
        """Return the events in open windows of this part, in the form that it reads."""
        batch = self._events(batch)
        if self._sessions is not None:
            ends = own_ends(batch, times, self._sessions)
            kept = np.flatnonzero(ends > np.maximum(times, self._watermark))
            self._latest_end = max(self._latest_end, int(ends[kept].max(initial=MINUS_INFINITY)))
            return batch.take(pa.array(kept)), times[kept]
        if int(times.min()) >= self._late_before:
            return batch, times
        kept = np.flatnonzero(times >= self._late_before)
        return batch.take(pa.array(kept)), times[kept]


class _Sending(_Part):
    """Sends events."""

    def __init__(
        self, ingest: Ingest, number: int, part: PlanPart, out: ExchangeWriter, split: int
    ) -> None:
        super().__init__(ingest, part)
        self._sender = TupleSender(part.plan, ingest.routes, out, number)

    def take(self, batch: pa.RecordBatch, times: Ints) -> None:
        batch, times = self._open(batch, times)
        if batch.num_rows:
            self._sender.take(batch, times)

    def finish(self, report: SplitReport) -> None:
        report.sent += self._sender.entries
        report.lifted += self._sender.lifted
        report.ends = max(report.ends, self._latest_end)
        count_entries(report, self._sender.entries, self._sender.load)


class _Folding(_Part):
    """Folds events."""

    def __init__(
        self,
        ingest: Ingest,
        number: int,
        part: PlanPart,
        out: ExchangeWriter,
        split: int,
        *,
        partial: bool = False,
    ) -> None:
        super().__init__(ingest, part)
        plan, ordinal = part.plan, ingest.raw_events_ordinal
        self._plan = plan
        self._grid = window_spec(plan).grid
        self._folder = EntryFolder(
            plan, ingest.routes, ingest.table_bytes, out, partial=partial, part=number
        )
        self._arrivals = ArrivalNumbers(ingest.version, split)
        self._begins: Micros = INFINITY
        self._kept = None if ordinal is None else TupleWriter(out.keep(ordinal + split), plan)

    def take(self, batch: pa.RecordBatch, times: Ints) -> None:
        batch, times = self._open(batch, times)
        if batch.num_rows == 0:
            return
        columns = {name: InputColumn(batch.column(name)) for name in self._plan.inputs.names}
        first = 0
        if self._folder.layout.needs_order:
            arrivals = self._arrivals.next(batch.num_rows)
            columns[TIME] = InputColumn(batch.column(TIME))
            columns.update({name: InputColumn(numbers) for name, numbers in arrivals.items()})
            first = arrivals[ARRIVAL][0].as_py()
        self._folder.take(batch, self._grid.panes_of(times), columns)
        self._begins = min(self._begins, int(times.min()))
        if self._kept is not None:
            self._kept.append(batch, times, first)

    def take_folded(self, batch: pa.RecordBatch, reception: EventTimeCheck) -> None:
        """Fold one batch of rows that each represent several events."""
        report = reception.report
        events = np.asarray(batch.column(EVENTS).to_numpy())
        report.rows += int(events.sum())
        # the latest time of a pane represents all of them
        timed = batch.filter(batch.column(LATEST).is_valid())
        if timed.num_rows:
            latest = np.asarray(timed.column(LATEST).to_numpy())
            reception.check_times(latest, timed.column(SOURCE))
        without = batch.column(PANE).is_null().to_numpy(zero_copy_only=False)
        if without.any():
            reception.refuse_without_time(
                int(events[without].sum()), batch.filter(pa.array(without))
            )
            batch = batch.filter(pa.array(~without))
        if batch.num_rows == 0:
            return
        latest = np.asarray(batch.column(LATEST).to_numpy())
        reception.note_times(latest, batch.column(SOURCE))
        panes = np.asarray(batch.column(PANE).to_numpy())
        late = panes < self._grid.passed(self._late_before)
        if late.any():
            report.late += int(np.asarray(batch.column(EVENTS).to_numpy())[late].sum())
            kept = np.flatnonzero(~late)
            batch, panes = batch.take(pa.array(kept)), panes[kept]
        if batch.num_rows == 0:
            return
        columns = {name: InputColumn(batch.column(name)) for name in batch.schema.names}
        self._folder.take(batch, panes, columns)
        self._begins = min(self._begins, self._grid.instant(int(panes.min())))

    def finish(self, report: SplitReport) -> None:
        """Send and report the remaining entries."""
        self._folder.finish()
        report.groups = self._folder.groups
        report.begins = self._begins
        count_entries(report, self._folder.entries, self._folder.load)
