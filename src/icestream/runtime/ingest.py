"""Ingest: one task per input split turns events into entries, cut by shard.

Idea: events are folded into entries where they are read, so what travels is one row per (group,
pane) and not one per event. An entry goes to the shard that owns its key group. The task also tells
the driver what only it can see: the latest time of each source, and rows per key group.

Invariants:
1. An event is late when every window it is in has closed by the watermark before the batch; never
   by the batch's own events (`test_late_events_are_judged_by_the_watermark_before_the_batch`).
2. The exchange file depends on the events of the split and their order alone
   (`test_the_same_split_makes_the_same_parcel`).

Cost: one pass over the events per field and grouping set; memory of one `EntryTable` and one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.errors import InputError
from icestream.core.times import Micros
from icestream.kernels.fold import routes_of
from icestream.operators.columns import Column
from icestream.operators.fold import HI, EntryTable, Run
from icestream.operators.runs import slice_bounds, sorted_run
from icestream.plan.nodes import SOURCE, TIME, Plan
from icestream.runtime.exchange import ExchangeWriter
from icestream.state.keys import KeyCodec

#: bytes of the table that entries are folded in before they are handed on, at most and at least
TABLE_BYTES = 8 << 20
LEAST_TABLE_BYTES = 1 << 20

#: columns of rows that Spark has folded, beside source, keys and partial aggregates
PANE = "pane"
EVENTS = "events"
LATEST = "latest"


@dataclass
class SplitReport:
    """What a split tells the driver."""

    rows: int = 0
    late: int = 0
    without_time: int = 0
    entries: int = 0
    #: latest event time by source number
    seen: dict[int, Micros] = field(default_factory=dict)
    #: entries by key group
    load: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ingest:
    """What every ingest task of a version is told."""

    plan: Plan
    version: int
    watermark: Micros
    routes: tuple[int, ...]
    #: bytes of the table of one task
    table_bytes: int = TABLE_BYTES

    def run(self, batches: Iterable[pa.RecordBatch], out: ExchangeWriter) -> SplitReport:
        """Fold the events of one split into `out`."""
        task = _Split(self, out)
        for batch in batches:
            task.take(batch)
        task.finish()
        return task.report


@dataclass(frozen=True)
class FoldedIngest:
    """Ingest of rows that Spark has folded to one per (source, group, pane)."""

    ingest: Ingest

    def run(self, batches: Iterable[pa.RecordBatch], out: ExchangeWriter) -> SplitReport:
        """Turn the rows of one split into entries in `out`."""
        task = _Split(self.ingest, out, partial=True)
        for batch in batches:
            task.take_folded(batch)
        task.finish()
        return task.report


class _Split:
    def __init__(self, ingest: Ingest, out: ExchangeWriter, *, partial: bool = False) -> None:
        plan = ingest.plan
        self.report = SplitReport()
        self._plan = plan
        self._out = out
        self._layout = plan.spec.layout
        capacity = ingest.table_bytes // EntryTable.row_bytes(self._layout)
        self._table = EntryTable(self._layout, KeyCodec(plan.group_keys), capacity, partial=partial)
        self._routes = np.array(ingest.routes, dtype=np.int64)
        self._load = np.zeros(plan.key_groups, dtype=np.int64)
        self._first_open = (
            plan.windows.first_open(ingest.watermark)
            if ingest.watermark > np.iinfo(np.int64).min
            else np.iinfo(np.int64).min
        )

    def take(self, batch: pa.RecordBatch) -> None:
        """Fold one batch of events."""
        self.report.rows += batch.num_rows
        batch = self._with_times(batch)
        if batch.num_rows == 0:
            return
        times = np.asarray(batch.column(TIME).cast(pa.int64()).to_numpy())
        self._note_times(times, batch.column(SOURCE))
        panes = self._plan.windows.panes_of(times)
        late = panes < self._first_open
        if late.any():
            self.report.late += int(late.sum())
            if self._plan.late == "keep":
                self._out.late(batch.filter(pa.array(late)))
            kept = np.flatnonzero(~late)
            batch, panes = batch.take(pa.array(kept)), panes[kept]
        self._fold(batch, panes, self._plan.inputs.names)

    def take_folded(self, batch: pa.RecordBatch) -> None:
        """Fold one batch of rows that stand for several events each."""
        events = np.asarray(batch.column(EVENTS).to_numpy())
        self.report.rows += int(events.sum())
        without = batch.column(PANE).is_null().to_numpy(zero_copy_only=False)
        if without.any():
            self._refuse_without_time(int(events[without].sum()), batch.filter(pa.array(without)))
            batch = batch.filter(pa.array(~without))
        if batch.num_rows == 0:
            return
        self._note_times(np.asarray(batch.column(LATEST).to_numpy()), batch.column(SOURCE))
        panes = np.asarray(batch.column(PANE).to_numpy())
        late = panes < self._first_open
        if late.any():
            self.report.late += int(np.asarray(batch.column(EVENTS).to_numpy())[late].sum())
            kept = np.flatnonzero(~late)
            batch, panes = batch.take(pa.array(kept)), panes[kept]
        self._fold(batch, panes, batch.schema.names)

    def _fold(self, batch: pa.RecordBatch, panes: npt.NDArray[np.int64], names: list[str]) -> None:
        columns = {name: Column(batch.column(name)) for name in names}
        for keys in self._groupings(batch):
            for run in self._table.fold(keys, panes, columns):
                self._send(run)

    def finish(self) -> None:
        """Hand on what is left."""
        self._send(self._table.take())
        busy = np.flatnonzero(self._load)
        self.report.load = dict(zip(busy.tolist(), self._load[busy].tolist(), strict=True))

    def _with_times(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        missing = batch.column(TIME).null_count
        if missing:
            self._refuse_without_time(missing, batch.filter(batch.column(TIME).is_null()))
            batch = batch.filter(batch.column(TIME).is_valid())
        return batch

    def _refuse_without_time(self, events: int, batch: pa.RecordBatch) -> None:
        """Count events without a time, or refuse them where their source asks for it."""
        self.report.without_time += events
        sources = self._plan.sources
        numbers = batch.column(SOURCE).unique().to_pylist()
        strict = [number for number in numbers if sources[number].nulls == "error"]
        if strict:
            msg = (
                f"{events} events of {sources[strict[0]].name} have no time (the time column is "
                "null). Filter them out before ice.stream(...), or pass nulls='drop' to it to "
                "leave them out and count them"
            )
            raise InputError(msg)

    def _note_times(self, times: npt.NDArray[np.int64], sources: pa.Array) -> None:
        seen = self.report.seen
        if len(self._plan.sources) == 1:
            seen[0] = max(seen.get(0, int(times.max())), int(times.max()))
            return
        numbers = sources.to_numpy()
        for number in np.unique(numbers).tolist():
            latest = int(times[numbers == number].max())
            seen[number] = max(seen.get(number, latest), latest)

    def _groupings(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        columns = [batch.column(f"k{i}") for i in range(len(plan.keys))]
        if plan.grouping_sets is None:
            yield _batch(columns, plan.group_keys, batch.num_rows)
            return
        for chosen in plan.grouping_sets:
            masked = [
                column if i in chosen else pa.nulls(batch.num_rows, column.type)
                for i, column in enumerate(columns)
            ]
            number = grouping_id(chosen, len(columns))
            ids = pa.array(np.full(batch.num_rows, number, dtype=np.int64))
            yield _batch([*masked, ids], plan.group_keys, batch.num_rows)

    def _send(self, run: Run) -> None:
        if len(run.panes) == 0:
            return
        self.report.entries += len(run.panes)
        key_groups = self._plan.key_groups
        hi = np.ascontiguousarray(run.entries[:, 0]).view(np.uint64)
        shards = np.empty(len(hi), dtype=np.int64)
        routes_of(hi, key_groups, self._routes, shards, self._load)
        lowest = int(run.panes.min())
        span = int(run.panes.max()) - lowest + 1
        ranks, entries = sorted_run(shards * span + (run.panes - lowest), run.entries, self._layout)
        owners, panes = ranks // span, ranks % span + lowest
        bounds = slice_bounds(owners).tolist()
        for first, last in pairwise(bounds):
            part = np.concatenate([panes[first:last, None], entries[first:last]], axis=1)
            self._out.entries(int(owners[first]), part)
        key_hi = run.keys.column(HI).to_numpy()
        key_shards = np.empty(len(key_hi), dtype=np.int64)
        routes_of(key_hi, key_groups, self._routes, key_shards, np.zeros_like(self._load))
        for shard in np.unique(key_shards).tolist():
            self._out.keys(shard, run.keys.filter(pa.array(key_shards == shard)))


def grouping_id(chosen: tuple[int, ...], keys: int) -> int:
    """Return Spark's grouping id: a bit, first key highest, for each key left out."""
    return sum(1 << (keys - 1 - i) for i in range(keys) if i not in chosen)


def _batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if not columns:
        none = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
        return pa.RecordBatch.from_struct_array(none)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
