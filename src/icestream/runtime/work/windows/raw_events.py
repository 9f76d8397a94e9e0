"""Raw events on the log: stored once for all groupings and windows, read again when they leave.

Idea: the task that reads a split writes the columns that the query needs to one segment, in blocks
of about 64 KB with their earliest time. Nothing reads them until they leave a window; then
`ExpiredEventFold` finds the blocks of the spans that leave and folds their events into entries
again, which the shards subtract from the running rows. A thread reads blocks ahead into a pool with
one block per kind of window and one more; a block that leaves several of them is read once for all.

Invariants:
1. A time span yields the events that were stored for it, each once
   (`test_oracle_both_stores_emit_the_same_rows`).
2. A task uses the pool, a share of one table of entries per kind of window, and the events that are
   folded at once, however long the spans are (`test_bounded_leaving_reads_block_by_block`).
3. Blocks that may have events of a span are read, each once
   (`test_bounded_a_block_that_leaves_several_windows_is_read_once`).

Cost: each event is written once and read once per kind of window, or once for all kinds that it
leaves in the same version.

References: the one-window plan and its repository, and one repository for several windows with a
pool of one block for each and one more (Mendes et al., 2013, sections 2.2, 3 and 4).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.folding.columns import InputColumn
from icestream.plan.grid.lower import window_spec
from icestream.plan.nodes.queries import TIME, Plan
from icestream.runtime.exchange.parcels import LEAVING, ExchangeWriter, SplitReport
from icestream.runtime.work.windows.folding import TABLE_BYTES, EntryFolder
from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.state.read_ahead import read_ahead
from icestream.state.validation import validated
from icestream.state.versions.commits import SEGMENTS

#: approximate bytes of events in one block
BLOCK_BYTES = 65536
#: events that are folded at once, over all kinds of windows
FOLD_ROWS = 65536
#: minimum bytes of the table of entries of one kind of window
LEAST_SHARE = 1 << 18


class TupleWriter:
    """Stores the events of one split."""

    def __init__(self, writer: SegmentWriter, plan: Plan) -> None:
        self._writer = writer
        self._plan = plan
        self._names = [*(f"k{place}" for place in range(len(plan.keys))), *plan.inputs.names]

    def append(self, batch: pa.RecordBatch, times: Ints, arrival: int = 0) -> None:
        """Store the events of a batch; `arrival` is the arrival number of the first."""
        events = pa.RecordBatch.from_arrays(
            [pa.array(times), *(batch.column(name) for name in self._names)],
            names=[TIME, *self._names],
        )
        step = max(1, BLOCK_BYTES * events.num_rows // max(1, events.nbytes))
        for first in range(0, events.num_rows, step):
            part, when = events.slice(first, step), times[first : first + step]
            self._writer.append(
                write_table(part),
                group=int(when.min()),
                back=arrival + first,
                rows=part.num_rows,
                expiry=self._plan.settled_by(int(when.max())),
            )


@dataclass(frozen=True)
class ExpiredEventFold:
    """Folds the events that leave windows; the task of every part of that job."""

    plan: Plan
    version: int
    routes: tuple[int, ...]
    files: Files
    root: str
    #: for each family of windows, the time span that leaves them
    spans: tuple[tuple[Micros, Micros], ...]
    #: segments with events of those spans
    segments: tuple[SegmentInfo, ...]
    table_bytes: int = TABLE_BYTES

    def run(self, part: int, parts: int, out: ExchangeWriter) -> SplitReport:
        """Fold one of `parts` parts of the events into `out`."""
        report = SplitReport()
        families = [n for n, (first, end) in enumerate(self.spans) if first < end]
        folds = {family: self._fold(family, len(families), out) for family in families}
        blocks = self._blocks(self.segments[part::parts], folds)
        with closing(read_ahead(blocks, len(families) + 1)) as pool:
            for size, batch, chosen in pool:
                report.blocks += 1
                report.block_bytes += size
                report.block_uses += len(chosen)
                for fold in chosen:
                    fold.take(batch)
        for fold in folds.values():
            report.entries += fold.finish()
        return report

    def _fold(self, family: int, families: int, out: ExchangeWriter) -> _Fold:
        """Return the fold of a family's span, with its share of the memory."""
        table_bytes = max(LEAST_SHARE, self.table_bytes // families)
        folder = EntryFolder(self.plan, self.routes, table_bytes, out, kind=LEAVING + family)
        return _Fold(self.plan, folder, self.spans[family], max(1, FOLD_ROWS // families))

    def _blocks(
        self, segments: Sequence[SegmentInfo], folds: Mapping[int, _Fold]
    ) -> Generator[_Block]:
        """Read the blocks with events of any span; yield each with the folds that need it."""
        for info in segments:
            path = f"{self.root}/{SEGMENTS}/{info.name}"
            with (
                closing(SegmentReader(self.files, path, info=info)) as reader,
                validated(path),
            ):
                blocks = reader.directory
                meets = {
                    family: dict.fromkeys(blocks["marker"][self._meets(family, blocks)].tolist())
                    for family in folds
                }
                wanted = dict.fromkeys(marker for found in meets.values() for marker in found)
                for record in reader.read_many(list(wanted)):
                    chosen = [
                        fold for family, fold in folds.items() if record.marker in meets[family]
                    ]
                    yield len(record.payload), read_batch(record.payload), chosen

    def _meets(self, family: int, blocks: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Return which blocks may have events of a family's span."""
        first, end = self.spans[family]
        found: npt.NDArray[np.bool_] = (blocks["group"] < end) & (
            blocks["expiry"] >= settled_from(self.plan, first)
        )
        return found


def settled_from(plan: Plan, first: Micros) -> Micros:
    """Return the earliest expiry of raw events on the log, in blocks from `first` on."""
    return first if first == MINUS_INFINITY else plan.settled_by(first)


class _Fold:
    """Folds the events of one span, enough at once to make a pass over each field pay."""

    def __init__(
        self, plan: Plan, folder: EntryFolder, span: tuple[Micros, Micros], rows: int
    ) -> None:
        self._folder = folder
        self._span = span
        self._rows = rows
        self._grid = window_spec(plan).grid
        self._names = plan.inputs.names
        self._waiting: list[pa.RecordBatch] = []

    def take(self, block: pa.RecordBatch) -> None:
        """Take the events of a block that are inside the span."""
        first, end = self._span
        times = block.column(TIME).to_numpy()
        inside = np.flatnonzero((times >= first) & (times < end))
        if len(inside):
            # copy, so that the block can leave the pool
            self._waiting.append(block.take(pa.array(inside)))
            if sum(each.num_rows for each in self._waiting) >= self._rows:
                self._fold()

    def finish(self) -> int:
        """Fold the remaining events; return the number of entries."""
        if self._waiting:
            self._fold()
        self._folder.finish()
        return self._folder.entries

    def _fold(self) -> None:
        batch, self._waiting = pa.concat_batches(self._waiting), []
        columns = {name: InputColumn(batch.column(name)) for name in self._names}
        self._folder.take(batch, self._grid.panes_of(batch.column(TIME).to_numpy()), columns)


#: bytes of a block, its events, and the folds that need them
_Block = tuple[int, pa.RecordBatch, list[_Fold]]
