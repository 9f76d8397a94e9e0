"""Raw events on the log: kept once for all groupings and windows, read again when they leave.

Idea: the task that reads a split writes the columns the query needs to one segment, in blocks of
about 64 KB with their earliest time. Nothing reads them until they leave a window; then `Leaving`
finds the blocks of a span of time and folds their events into entries once more, which the shards
take out of the running rows.

Invariants:
1. A span of time gives the events that were kept for it, each once
   (`test_oracle_both_stores_emit_the_same_rows`).
2. The memory of a task is one table of entries and a few blocks, whatever the span
   (`test_bounded_leaving_reads_block_by_block`).

Cost: each event is written once, and read once by each kind of window.

References: the one-window plan and its repository (Mendes et al., 2013, sections 2.2 and 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.columns import Column
from icestream.plan.lower import window_spec
from icestream.plan.nodes import TIME, Plan
from icestream.runtime.exchange import LEAVING, ExchangeWriter, SplitReport
from icestream.runtime.folding import TABLE_BYTES, EntryFolder
from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.state.versions import SEGMENTS

#: bytes of events in one block, about
BLOCK_BYTES = 65536
#: events that are folded at once
FOLD_ROWS = 65536

Ints = npt.NDArray[np.int64]


class TupleWriter:
    """Keeps the events of one split."""

    def __init__(self, writer: SegmentWriter, plan: Plan) -> None:
        """Append to a segment."""
        self._writer = writer
        self._plan = plan
        self._names = [*(f"k{place}" for place in range(len(plan.keys))), *plan.inputs.names]

    def append(self, batch: pa.RecordBatch, times: Ints) -> None:
        """Keep the events of a batch, whose times are given as microseconds."""
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
                rows=part.num_rows,
                expiry=self._plan.settled_by(int(when.max())),
            )


@dataclass(frozen=True)
class Leaving:
    """Folds the events that leave windows; what every task of that job is told."""

    plan: Plan
    version: int
    routes: tuple[int, ...]
    files: Files
    root: str
    #: for each family of windows, the span of time that leaves them
    spans: tuple[tuple[Micros, Micros], ...]
    #: segments that hold events of those spans
    segments: tuple[SegmentInfo, ...]
    table_bytes: int = TABLE_BYTES

    def run(self, part: int, parts: int, out: ExchangeWriter) -> SplitReport:
        """Fold one of so many parts of the events into `out`."""
        mine = self.segments[part::parts]
        folded = [self._fold(family, span, mine, out) for family, span in enumerate(self.spans)]
        return SplitReport(entries=sum(folded))

    def _fold(
        self,
        family: int,
        span: tuple[Micros, Micros],
        segments: Sequence[SegmentInfo],
        out: ExchangeWriter,
    ) -> int:
        folder = EntryFolder(self.plan, self.routes, self.table_bytes, out, kind=LEAVING + family)
        grid, names = window_spec(self.plan).grid, self.plan.inputs.names
        for batch in _together(self._events(span, segments)):
            times = batch.column(TIME).to_numpy()
            columns = {name: Column(batch.column(name)) for name in names}
            folder.take(batch, grid.panes_of(times), columns)
        folder.finish()
        return folder.entries

    def _events(
        self, span: tuple[Micros, Micros], segments: Sequence[SegmentInfo]
    ) -> Iterator[pa.RecordBatch]:
        first, end = span
        for info in segments:
            path = f"{self.root}/{SEGMENTS}/{info.name}"
            with closing(SegmentReader(self.files, path, info=info)) as reader:
                blocks = reader.directory
                chosen = (blocks["group"] < end) & (blocks["expiry"] > first)
                for record in reader.read_many(blocks["marker"][chosen]):
                    batch = read_batch(record.payload)
                    times = batch.column(TIME).to_numpy()
                    inside = (times >= first) & (times < end)
                    if inside.all():
                        yield batch
                    elif inside.any():
                        yield batch.take(pa.array(np.flatnonzero(inside)))


def _together(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join blocks to batches that are worth a pass over each field."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for block in blocks:
        waiting.append(block)
        rows += block.num_rows
        if rows >= FOLD_ROWS:
            yield pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
