"""What every ingest task does: read the times of events, refuse events without one, count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints, Mask
from icestream.core.errors import InputError
from icestream.core.times import FURTHEST, YEAR, Micros
from icestream.plan.computation import Computation
from icestream.plan.nodes.queries import SOURCE, TIME
from icestream.runtime.exchange.parcels import ExchangeWriter, SplitReport
from icestream.runtime.exchange.refused_rows import ADVICE, REASON, SOURCE_NAME
from icestream.state.log.format import SegmentInfo

#: names of columns that are read for refused rows alone start with it
KEPT = "kept"
#: reasons
LATE = "late"
WITHOUT_TIME = "without time"
DISTANT = "time out of range"


class IngestTask(Protocol):
    """Turns one split into an exchange parcel."""

    @property
    def plan(self) -> Computation:
        """Return the plan that the events are for."""
        ...

    @property
    def version(self) -> int:
        """Return the version that is being made."""
        ...

    def run(
        self, batches: Iterable[pa.RecordBatch], out: ExchangeWriter, split: int = 0
    ) -> SplitReport:
        """Read one split."""
        ...


class RereadTask(Protocol):
    """Turns events on the log into exchange parcels."""

    @property
    def version(self) -> int:
        """Return the version that is being made."""
        ...

    @property
    def segments(self) -> Sequence[SegmentInfo]:
        """Return the segments to read."""
        ...

    def run(self, part: int, parts: int, out: ExchangeWriter) -> SplitReport:
        """Read one of `parts` parts of the segments into `out`."""
        ...


class EventTimeCheck:
    """Checks the times of events: records the latest, separates late events and those without."""

    def __init__(
        self,
        plan: Computation,
        watermark: Micros,
        out: ExchangeWriter,
        on_late: Callable[[pa.RecordBatch, Ints], None] | None = None,
    ) -> None:
        """Compare events with the watermark before the batch; `on_late` takes late events."""
        self.report = SplitReport()
        self._plan = plan
        self._late_before = plan.late_before(watermark)
        self._watermark = watermark
        #: columns with ends of sessions, before which an event is not late whatever its time
        self._own_ends = plan.own_ends
        self._out = out
        self._on_late = on_late

    def admit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        """Return the accepted events, with their times, without columns kept of refused ones."""
        accepted, times = self._admitted(batch)
        return _read_columns(accepted), times

    def _admitted(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        self.report.rows += batch.num_rows
        missing = batch.column(TIME).null_count
        if missing:
            without = batch.filter(batch.column(TIME).is_null())
            self.refuse_without_time(missing, without)
            if self._stores:
                self._keep(without, WITHOUT_TIME)
            batch = batch.filter(batch.column(TIME).is_valid())
        times = np.asarray(batch.column(TIME).cast(pa.int64()).to_numpy())
        if batch.num_rows == 0:
            return batch, times
        if self._out.quarantine.stores:
            batch, times = self._without_distant(batch, times)
        if batch.num_rows == 0:
            return batch, times
        self.check_times(times, batch.column(SOURCE))
        self.note_times(times, batch.column(SOURCE))
        if int(times.min()) < self._late_before:
            late = times < self._late_before
            for name in self._own_ends:
                ends = pc.max_element_wise(batch.column(name).cast(pa.int64()), pa.array(times))
                late &= ends.to_numpy() <= self._watermark
            self.report.late += int(late.sum())
            if self._stores:
                self._keep(batch.filter(pa.array(late)), LATE)
            if self._on_late is not None:
                self._on_late(_read_columns(batch.filter(pa.array(late))), times[late])
            kept = np.flatnonzero(~late)
            batch, times = batch.take(pa.array(kept)), times[kept]
        return batch, times

    def _keep(self, rows: pa.RecordBatch, reason: str) -> None:
        """Store refused rows: whole, with source and reason, if their columns were read."""
        kept = [name for name in rows.schema.names if name.startswith(KEPT)]
        if self._out.quarantine.stores:
            found = [rows.column(name) for name in kept]
            self._out.quarantine.keep(rows, self._sources_of(rows), reason, found)
            return
        if not kept:
            if reason == LATE:
                self._out.late(rows)
            return
        columns = [
            *(rows.column(name) for name in kept),
            pa.array(self._sources_of(rows), pa.string()),
            pa.array([reason] * rows.num_rows, pa.string()),
        ]
        self._out.late(pa.RecordBatch.from_arrays(columns, [*kept, SOURCE_NAME, REASON]))

    def _without_distant(self, batch: pa.RecordBatch, times: Ints) -> tuple[pa.RecordBatch, Ints]:
        """Store events whose times are refused, and return the others."""
        far = self._is_distant(times)
        if far.any():
            some = batch.filter(pa.array(far))
            kept = [some.column(name) for name in some.schema.names if name.startswith(KEPT)]
            self._out.quarantine.refuse(some, self._sources_of(some), DISTANT, kept)
            batch, times = batch.filter(pa.array(~far)), times[~far]
        return batch, times

    @property
    def _stores(self) -> bool:
        return self._plan.late == "keep" or self._out.quarantine.stores

    def _sources_of(self, rows: pa.RecordBatch) -> list[str]:
        names = [each.name for each in self._plan.sources]
        return [names[number] for number in rows.column(SOURCE).to_pylist()]

    def refuse_without_time(self, events: int, batch: pa.RecordBatch) -> None:
        """Count events without a time, or refuse them if their source is strict."""
        self.report.without_time += events
        sources = self._plan.sources
        numbers = batch.column(SOURCE).unique().to_pylist()
        strict = [number for number in numbers if sources[number].nulls == "error"]
        if strict and not self._out.quarantine.stores:
            msg = (
                f"{events} events of {sources[strict[0]].name} have no time (the time column is "
                "null). Filter them out before ice.stream(...), or pass nulls='drop' to it to "
                f"ignore and count them. {ADVICE}"
            )
            raise InputError(msg)

    def check_times(self, times: Ints, sources: pa.Array) -> None:
        """Refuse times that no window can have, or whose ends would not fit into 64 bits."""
        if int(times.min()) >= self._plan.earliest and int(times.max()) <= FURTHEST:
            return
        row = int(np.flatnonzero(self._is_distant(times))[0])
        name, time = self._plan.sources[sources[row].as_py()].name, int(times[row])
        wanted = f"must be within {FURTHEST // YEAR:,} years of 1970"
        if -FURTHEST <= time < self._plan.earliest:
            wanted = "in windows of latestBy must be after 1970-01-01"
        msg = (
            f"an event of {name} has the time {time:,} microseconds since 1970, about the year "
            f"{1970 + time // YEAR}: times {wanted}. "
            "Its unit may be wrong. Correct it, or filter the event out, before ice.stream(...). "
            f"{ADVICE}"
        )
        raise InputError(msg)

    def _is_distant(self, times: Ints) -> Mask:
        return (times < self._plan.earliest) | (times > FURTHEST)

    def note_times(self, times: Ints, sources: pa.Array) -> None:
        seen = self.report.seen
        if len(self._plan.sources) == 1:
            latest = int(times.max())
            seen[0] = max(seen.get(0, latest), latest)
            return
        numbers = sources.to_numpy()
        for number in np.unique(numbers).tolist():
            latest = int(times[numbers == number].max())
            seen[number] = max(seen.get(number, latest), latest)

    def finish(self, entries: int, load: Ints) -> SplitReport:
        """Return the report, with the number of entries that were sent."""
        count_entries(self.report, entries, load)
        return self.report


def _read_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if not name.startswith(KEPT)])


def count_entries(report: SplitReport, entries: int, load: Ints) -> None:
    """Add the entries that an ingest task sent for a part of the plan to its report."""
    report.entries += entries
    groups = np.flatnonzero(load)
    counts = dict(zip(groups.tolist(), load[groups].tolist(), strict=True))
    for group, count in report.load.items():
        counts[group] = counts.get(group, 0) + count
    report.load = counts
