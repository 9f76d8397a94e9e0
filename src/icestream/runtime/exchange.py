"""The exchange between ingest and shards: files on a shared disk, or blobs through Spark's shuffle.

Idea: both carry the same bytes, one *parcel* per split and shard or one per split, in the segment
format with its checksums. Tables of entries and keys are records; `group` is the shard.

Invariant: a shard reads its records by split and position, whatever the order of arrival
(`test_parcels_are_read_in_the_order_of_splits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.kernels.words import Table
from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo
from icestream.state.log.ipc import read_table, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter

ENTRIES = 0
KEYS = 1

#: bytes of entries in one record
RECORD_BYTES = 1 << 20
#: rows of keys in one record
RECORD_KEYS = 16_384


class ExchangeWriter:
    """Collects what one split sends to all shards, in one file; late events in another."""

    def __init__(self, files: Files, path: str, late_files: Files, late_path: str) -> None:
        """Write to `path`, and late events, if any, to `late_path`."""
        self._late_files = late_files
        self._late_path = late_path
        self._late: SegmentWriter | None = None
        self._writer = SegmentWriter(files, path, 0)

    def entries(self, shard: int, table: Table) -> None:
        """Send entries, each row led by its pane."""
        step = max(1, RECORD_BYTES // (8 * table.shape[1]))
        for first in range(0, len(table), step):
            part = table[first : first + step]
            self._writer.append(part, synopsis=ENTRIES, group=shard, rows=len(part))

    def keys(self, shard: int, keys: pa.Table) -> None:
        """Send keys of groups with their identity."""
        for first in range(0, keys.num_rows, RECORD_KEYS):
            part = keys.slice(first, RECORD_KEYS)
            self._writer.append(write_table(part), synopsis=KEYS, group=shard, rows=part.num_rows)

    def late(self, events: pa.RecordBatch) -> None:
        """Keep events that came too late."""
        if self._late is None:
            self._late = SegmentWriter(self._late_files, self._late_path, 0)
        self._late.append(write_table(events), rows=events.num_rows)

    def finish(self) -> tuple[SegmentInfo, SegmentInfo | None]:
        """Close the parcel; late events are synced, the rest need not survive."""
        late = None if self._late is None else self._late.finish()
        return self._writer.finish(sync=False), late

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._writer.abandon()
        if self._late is not None:
            self._late.abandon()


@dataclass(frozen=True)
class Parcels:
    """The parcels of a batch, for one shard."""

    files: Files
    paths: Sequence[str]
    shard: int
    #: words of an entry with its pane
    width: int

    def entries(self) -> Iterator[Table]:
        """Yield tables of entries, each row led by its pane."""
        for payload in self._payloads(ENTRIES):
            yield np.frombuffer(payload, dtype=np.int64).reshape(-1, self.width)

    def groups(self) -> Iterator[pa.Table]:
        """Yield keys of the entries' groups."""
        for payload in self._payloads(KEYS):
            yield read_table(payload)

    def _payloads(self, synopsis: int) -> Iterator[memoryview]:
        for path in self.paths:
            with closing(SegmentReader(self.files, path)) as reader:
                rows = reader.directory
                mine = rows[(rows["group"] == self.shard) & (rows["synopsis"] == synopsis)]
                for record in reader.read_many(mine["marker"]):
                    yield record.payload
