"""Stored events, read by a shard that must fold them again for fields without an inverse.

Idea: the commits name the segments of raw events and the version that added each. A shard reads the
blocks of a time span in the order of arrival and folds the events of its own groups. Events that
arrived after a version are ignored, so that a replay of the version sees the same events.

Invariant: blocks are read ahead, at most one pool at a time, and each is counted
(`test_bounded_events_that_are_folded_again_come_through_the_pool`).

Cost: every shard reads all blocks of a span and computes the ids of their groups. A task reads the
commits once, when it first needs events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import Micros
from icestream.kernels.fold import routes_of
from icestream.operators.folding.columns import ARRIVAL, BATCH, InputColumn
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import Layout
from icestream.operators.folding.fold import EntryTable
from icestream.plan.grid.lower import window_spec
from icestream.plan.nodes.queries import TIME, Plan
from icestream.runtime.work.windows.folding import groupings
from icestream.runtime.work.windows.raw_events import settled_from
from icestream.state.files import Files
from icestream.state.keys import KeyCodec
from icestream.state.log.format import Record
from icestream.state.log.ipc import read_batch
from icestream.state.log.reader import SegmentReader
from icestream.state.read_ahead import read_ahead
from icestream.state.versions.commits import NO_SHARD, SEGMENTS, LiveSegment, VersionStore
from icestream.state.versions.live_segments import live_at


@dataclass(frozen=True)
class RawEventReader:
    """The stored events of one shard."""

    plan: Plan
    routes: tuple[int, ...]
    files: Files
    root: str
    #: the version that is being made, and the segments stored for it
    version: int
    fresh: tuple[LiveSegment, ...]
    shard: int
    #: blocks that were read, their bytes, and the number of spans
    read: Counter[str] = field(default_factory=Counter, compare=False)

    def fold(
        self,
        layout: Layout,
        panes: tuple[int, int],
        high_words: tuple[int, int],
        capacity: int,
        version: int,
    ) -> tuple[Ints, ExactRows] | None:
        """Fold events of some panes and a range of id_high; None if there are too many."""
        spec = window_spec(self.plan)
        codec = KeyCodec(self.plan.group_keys)
        table = EntryTable(layout, codec, capacity)
        first, end = (spec.grid.instant(pane) for pane in panes)
        for batch in self._events(first, end, version):
            for keys in groupings(self.plan, batch, self.plan.group_keys):
                chosen = np.flatnonzero(self._mine(codec, keys, high_words))
                whole = len(chosen) == batch.num_rows
                if len(chosen) == 0:
                    continue
                mine = batch if whole else batch.take(pa.array(chosen))
                own = keys if whole else keys.take(pa.array(chosen))
                columns = {name: InputColumn(mine.column(name)) for name in mine.schema.names}
                times = np.asarray(mine.column(TIME).to_numpy())
                for _ in table.fold([own], spec.grid.panes_of(times), columns):
                    return None
        run = table.take()
        return run.panes, run.entries

    def _mine(
        self, codec: KeyCodec, keys: pa.RecordBatch, high_words: tuple[int, int]
    ) -> npt.NDArray[np.bool_]:
        """Return which keys belong to this shard and to a range of id_high."""
        id_high, _ = codec.identify(keys)
        shards = np.empty(len(id_high), dtype=np.int64)
        load = np.zeros(self.plan.key_groups, dtype=np.int64)
        routes_of(
            id_high, self.plan.key_groups, np.array(self.routes, dtype=np.int64), shards, load
        )
        low, high = (np.uint64(each) for each in high_words)
        mine: npt.NDArray[np.bool_] = (shards == self.shard) & (id_high >= low) & (id_high <= high)
        return mine

    def _events(self, first: Micros, end: Micros, version: int) -> Iterator[pa.RecordBatch]:
        """Yield the events of a span that a version sees, with their arrival numbers."""
        pool = len(window_spec(self.plan).families) + 1
        with closing(read_ahead(self._blocks(first, end, version), pool)) as blocks:
            for known_since, record, batch in blocks:
                self.read.update(blocks=1, block_bytes=len(record.payload), block_uses=1)
                arrivals = record.back + np.arange(batch.num_rows)
                times = batch.column(TIME).to_numpy()
                inside = np.flatnonzero((times >= first) & (times < end))
                if len(inside):
                    numbered = batch.append_column(ARRIVAL, pa.array(arrivals))
                    versions = np.full(batch.num_rows, known_since, dtype=np.int64)
                    numbered = numbered.append_column(BATCH, pa.array(versions))
                    yield numbered.take(pa.array(inside))

    def _blocks(self, first: Micros, end: Micros, version: int) -> Generator[_Block]:
        """Read the blocks that may have events of a span, among those that a version sees."""
        least = settled_from(self.plan, first)
        for segment in self._segments:
            begins, info = segment.begins, segment.info
            if segment.version > version or begins is None or begins >= end or info.expiry < least:
                continue
            path = f"{self.root}/{SEGMENTS}/{info.name}"
            with closing(SegmentReader(self.files, path, info=info)) as reader:
                blocks = reader.directory
                chosen = (blocks["group"] < end) & (blocks["expiry"] >= least)
                for record in reader.read_many(blocks["marker"][chosen]):
                    yield segment.version, record, read_batch(record.payload)

    @cached_property
    def _segments(self) -> tuple[LiveSegment, ...]:
        """Return the segments of events of the last version and of the current one."""
        before = self.version - 1
        live = live_at(VersionStore(self.files, self.root), before, (NO_SHARD,))
        return (*live, *self.fresh)


#: a block with the version that stored it, and its events
_Block = tuple[int, Record, pa.RecordBatch]
