"""The exchange between ingest and shards: files on a shared disk or in the checkpoint's storage.

Idea: every split has one *parcel* in the segment format with its checksums. Tables of entries and
keys are records; `group` is the shard, `operator` the part of the plan that receives them. The
shards of a task share one `ParcelReader`, which opens each parcel once and finds the records of
each shard.

Invariants:
1. A shard reads its records by split and position, whatever the order of arrival
   (`test_parcels_are_read_in_the_order_of_splits`).
2. However many parcels there are, few files are open
   (`test_bounded_files_that_a_parcel_reader_has_open`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints, slice_bounds
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.dataflow.sorted_changes import between, by_group, first_and_last
from icestream.operators.folding.exact_rows import ExactRows, packed, unpacked
from icestream.operators.folding.fields import ENTRY_FIELDS, Layout
from icestream.operators.lifetimes.changes import LE, column_of
from icestream.runtime.exchange.refused_rows import Quarantine
from icestream.runtime.tables.writer import TableWriters
from icestream.state.files import Files
from icestream.state.log.format import ENTRY_DTYPE, SegmentInfo
from icestream.state.log.ipc import read_batch, read_table, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.log.segments import segment_name
from icestream.state.log.writer import SegmentWriter
from icestream.state.stores.bucket import REQUESTS
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.attempts import epoch_of, new_attempt
from icestream.state.versions.commits import RESULTS, SEGMENTS
from icestream.state.versions.table_files import LATE_VIEW, TableFile

KEYS = 0
TUPLES = 1
ENTRIES = 2
#: entries that leave the windows of family f have the kind LEAVING + f
LEAVING = 3
#: states of hot groups
STATES = (1 << 15) - 1
#: changes on edge e of a dataflow have the kind CHANGES + e
CHANGES = 1 << 15

#: bytes of entries in one record
RECORD_BYTES = 1 << 20
#: rows of keys in one record
RECORD_KEYS = 16_384
#: for shards that receive no entries
NO_FIELDS = Layout(())
#: parcels that a reader keeps open, and the bytes of those it reads as a whole
MOST_OPEN = 128
SMALL_PARCEL = 1 << 17
#: batches of mapped parcels that a reader remembers: their values are in the files
MOST_REMEMBERED = 512
#: more than the parcels of a batch
_MOST_PARCELS = 1 << 31


@dataclass
class SplitReport:
    """What a split reports to the driver."""

    rows: int = 0
    late: int = 0
    without_time: int = 0
    entries: int = 0
    #: number of entries that are events, sent to parts of the plan that need raw events
    sent: int = 0
    #: events of hot groups that were folded into states before sending
    lifted: int = 0
    #: groups found; a group is counted again if it reappears after the table was flushed
    groups: int = 0
    #: latest event time by source number
    seen: dict[int, Micros] = field(default_factory=dict)
    #: of update streams that forget keys: the median time of some events, and how many they are
    medians: list[tuple[Micros, int]] = field(default_factory=list)
    #: entries by key group
    load: dict[int, int] = field(default_factory=dict)
    #: stored event blocks that were read, their bytes, and the total of window kinds they were for
    blocks: int = 0
    block_bytes: int = 0
    block_uses: int = 0
    #: earliest time of accepted events; if Spark folded them, of their pane
    begins: Micros = INFINITY
    #: latest end of a session, where the gap is each event's own
    ends: Micros = MINUS_INFINITY


@dataclass(frozen=True)
class Sent:
    """Durable files that a split wrote in addition to its parcel."""

    #: events that came too late
    late: SegmentInfo | None
    #: the segment that stores its events
    raw_events: SegmentInfo | None
    #: files for the table of refused rows
    tables: tuple[TableFile, ...] = ()
    #: requests to an object store that it made
    requests: int = 0
    #: rows that were refused and stored
    bad_rows: int = 0


class ExchangeWriter:
    """Collects what one split sends to all shards in one file; durable data goes to others."""

    def __init__(
        self,
        files: Files,
        path: str,
        log_files: Files,
        root: str,
        name: str,
        codec: str | None = None,
        tables: TableWriters | None = None,
        refused: pa.Schema | None = None,
    ) -> None:
        """Write to `path`; late and stored events go to the checkpoint in `root`, or to a table.

        `refused` are the columns of stored bad rows; None if these end the query.
        """
        self.quarantine = Quarantine(refused, self.late)
        self._tables = tables
        self._log_files = log_files
        self._root = root
        self._name = name
        self._codec = codec
        self._late: SegmentWriter | None = None
        self._kept: SegmentWriter | None = None
        self._requests = REQUESTS.total()
        #: others see a file in a store once it is synced, on a disk at once
        self._in_store = isinstance(files, StoreFiles)
        self._writer = SegmentWriter(files, path, 0)

    def entries(self, shard: int, entries: ExactRows, kind: int = ENTRIES, part: int = 0) -> None:
        """Send entries, each row starting with its pane, to a part of the plan."""
        step = max(1, RECORD_BYTES // (8 * entries.table.shape[1]))
        for first in range(0, len(entries), step):
            rows = entries[first : first + step]
            self._writer.append(
                packed(rows), operator=part, synopsis=kind, group=shard, rows=len(rows)
            )

    def keys(self, shard: int, keys: pa.Table, part: int = 0) -> None:
        """Send keys of groups with their ids, to a part of the plan."""
        for first in range(0, keys.num_rows, RECORD_KEYS):
            rows = keys.slice(first, RECORD_KEYS)
            self._writer.append(
                write_table(rows), operator=part, synopsis=KEYS, group=shard, rows=rows.num_rows
            )

    def tuples(
        self, shard: int, events: pa.RecordBatch, part: int = 0, earliest: Micros = MINUS_INFINITY
    ) -> None:
        """Send raw events, of which `earliest` is the earliest time, to a part of the plan."""
        self._writer.append(
            write_table(events),
            operator=part,
            synopsis=TUPLES,
            group=shard,
            rows=events.num_rows,
            expiry=earliest,
        )

    def states(self, shard: int, states: pa.RecordBatch, part: int = 0) -> None:
        """Send states, each row starting with its pane, to a part of the plan."""
        self._writer.append(
            write_table(states), operator=part, synopsis=STATES, group=shard, rows=states.num_rows
        )

    def changes(
        self, shard: int, edge: int, changes: pa.RecordBatch, *, by_arrival: bool = False
    ) -> None:
        """Send changes on an edge: records in the order of groups, each with its range.

        Those sent `by_arrival` keep their order, and each record has its earliest time instead.
        """
        ordered = changes if by_arrival else by_group(changes)
        step = max(1, RECORD_BYTES // 4 * ordered.num_rows // max(1, ordered.nbytes))
        for start in range(0, ordered.num_rows, step):
            part = ordered.slice(start, step)
            first, last = (0, 0) if by_arrival else first_and_last(part)
            earliest = int(column_of(part, LE).min()) if by_arrival else last - (1 << 63)
            self._writer.append(
                write_table(part),
                synopsis=CHANGES + edge,
                group=shard,
                rows=part.num_rows,
                back=first,
                expiry=earliest,
            )

    def late(self, events: pa.RecordBatch) -> None:
        """Store rows that were refused: events that arrived too late, or without a time."""
        if self._tables is not None and self._tables.write(LATE_VIEW, events):
            return
        if self._late is None:
            path = f"{self._root}/{RESULTS}/{self._name}-late.rows"
            self._late = SegmentWriter(self._log_files, path, 0)
        self._late.append(write_table(events), rows=events.num_rows)

    def keep(self, ordinal: int) -> SegmentWriter:
        """Open the segment that stores the events of the split."""
        path = f"{self._root}/{SEGMENTS}/{segment_name(ordinal, new_attempt(epoch_of(self._name)))}"
        self._kept = SegmentWriter(self._log_files, path, ordinal, codec=self._codec)
        return self._kept

    def finish(self) -> Sent:
        """Close the parcel for others to read; it need not survive, as durable files must."""
        self._writer.finish(sync=self._in_store)
        late = None if self._late is None else self._late.finish()
        if self._kept is not None and self._kept.records == 0:
            self._kept.abandon()
            self._kept = None
        tables = () if self._tables is None else tuple(self._tables.finish(sync=True))
        kept = None if self._kept is None else self._kept.finish()
        requests = REQUESTS.total() - self._requests
        return Sent(late, kept, tables, requests, self.quarantine.count)

    def abandon(self) -> None:
        """Remove everything that was written."""
        for writer in (self._writer, self._late, self._kept, self._tables):
            if writer is not None:
                writer.abandon()


@dataclass(frozen=True)
class _Directory:
    """The directory of some parcels, sorted by shard and kind, then by parcel."""

    rows: npt.NDArray[np.void]
    #: where each run of rows begins that agree in all three, and the end of the last
    bounds: Ints
    #: the shard of each run, and its kind above the number of its parcel
    shards: Ints
    places: Ints

    def of(self, shard: int) -> dict[int, list[tuple[int, npt.NDArray[np.void]]]]:
        """Return the parcels with records for a shard and the rows of those records, by kind."""
        begin, end = self.shards.searchsorted((shard, shard + 1)).tolist()
        found: dict[int, list[tuple[int, npt.NDArray[np.void]]]] = {}
        runs = pairwise(self.bounds[begin : end + 1].tolist())
        for place, (start, stop) in zip(self.places[begin:end].tolist(), runs, strict=True):
            kind, parcel = divmod(place, _MOST_PARCELS)
            found.setdefault(kind, []).append((parcel, self.rows[start:stop]))
        return found


class ParcelReader:
    """The parcels of a batch, opened once for all shards that a task runs."""

    def __init__(self, files: Files, paths: Sequence[str]) -> None:
        self._files = files
        self._paths = paths
        self._open: OrderedDict[int, SegmentReader] = OrderedDict()
        self._remembered: OrderedDict[tuple[str, int], pa.RecordBatch] = OrderedDict()
        #: the shard that was asked for last, and its records by kind
        self._shard: tuple[int, dict[int, list[tuple[int, npt.NDArray[np.void]]]]] = (-1, {})

    def records(
        self, shard: int, part: int, synopsis: int
    ) -> Iterator[tuple[SegmentReader, npt.NDArray[np.void]]]:
        """Yield the parcels with records of a kind for a shard, and their directory rows."""
        if self._shard[0] != shard:
            self._shard = shard, self._directory.of(shard)
        for number, rows in self._shard[1].get(_kind(part, synopsis), ()):
            yield self._reader(number), rows

    def batches(
        self, reader: SegmentReader, rows: npt.NDArray[np.void]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of records, which may be asked for many times if they are mapped."""
        if not reader.is_mapped:
            yield from (read_batch(record.payload) for record in reader.read_rows(rows))
            return
        for number, marker in enumerate(rows["marker"].tolist()):
            batch = self._remembered.pop((reader.path, marker), None)
            if batch is None:
                (record,) = reader.read_rows(rows[number : number + 1])
                batch = read_batch(record.payload)
            self._remembered[reader.path, marker] = batch
            if len(self._remembered) > MOST_REMEMBERED:
                self._remembered.popitem(last=False)
            yield batch

    def rest(self) -> None:
        """Release the pages of mapped parcels that were read."""
        for reader in self._open.values():
            reader.rest()

    def close(self) -> None:
        self._remembered.clear()
        while self._open:
            self._open.popitem()[1].close()

    @cached_property
    def _directory(self) -> _Directory:
        found = [self._reader(number).directory for number in range(len(self._paths))]
        rows = np.concatenate(found) if found else np.empty(0, dtype=ENTRY_DTYPE)
        parcels = np.repeat(np.arange(len(found)), [len(each) for each in found])
        kinds = _kind(rows["operator"].astype(np.int64), rows["synopsis"])
        places = kinds * _MOST_PARCELS + parcels
        order = np.lexsort((places, rows["group"]))
        rows, places = rows[order], places[order]
        bounds = slice_bounds(rows["group"], places)
        return _Directory(rows, bounds, rows["group"][bounds[:-1]], places[bounds[:-1]])

    def _reader(self, number: int) -> SegmentReader:
        reader = self._open.pop(number, None)
        if reader is None:
            path = self._paths[number]
            reader = SegmentReader(self._files, path, small=SMALL_PARCEL, mapped=True)
        self._open[number] = reader
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        return reader


def _kind(part: Any, synopsis: Any) -> Any:
    """Return one number for a part of the plan and a kind of records."""
    return (part << 16) + synopsis


@dataclass(frozen=True)
class Parcels:
    """The parcels of a batch, for one shard."""

    reader: ParcelReader
    shard: int
    #: the fields of entries
    layout: Layout = NO_FIELDS
    #: the part of the plan that receives them
    part: int = 0

    def entries(self) -> Iterator[ExactRows]:
        """Yield tables of entries, each row starting with its pane."""
        for payload in self._payloads(ENTRIES):
            yield unpacked(payload, self.layout, ENTRY_FIELDS + 1)

    def leaving(self, family: int) -> Iterator[ExactRows]:
        """Yield entries that leave the windows of a family."""
        for payload in self._payloads(LEAVING + family):
            yield unpacked(payload, self.layout, ENTRY_FIELDS + 1)

    def groups(self) -> Iterator[pa.Table]:
        for payload in self._payloads(KEYS):
            yield read_table(payload)

    def tuples(self) -> Iterator[pa.RecordBatch]:
        for payload in self._payloads(TUPLES):
            yield read_batch(payload)

    def earliest(self) -> Ints:
        """Return the earliest time in each batch of raw events."""
        return self._earliest(TUPLES)

    def earliest_sent(self, edge: int) -> Ints:
        """Return the earliest time in each batch of `as_sent`."""
        return self._earliest(CHANGES + edge)

    def states(self) -> Iterator[pa.RecordBatch]:
        """Yield states of hot groups, each row starting with its pane."""
        for payload in self._payloads(STATES):
            yield read_batch(payload)

    def ranges(self, edge: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return the first id and the bytes of each record of changes."""
        found = [mine for _, mine in self._records(CHANGES + edge)]
        rows = np.concatenate(found) if found else np.empty(0, dtype=ENTRY_DTYPE)
        return rows["back"].astype(np.uint64), rows["length"].astype(np.int64)

    def changes(self, edge: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes on an edge within a range of ids."""
        self.reader.rest()
        for reader, rows in self._records(CHANGES + edge):
            greatest = rows["expiry"].astype(np.uint64) ^ np.uint64(1 << 63)
            meets = (greatest >= np.uint64(first)) & (rows["back"] <= np.uint64(last - 1))
            for batch in self.reader.batches(reader, rows[meets]):
                part = between(batch, first, last)
                if part.num_rows:
                    yield part

    def as_sent(self, edge: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes on an edge that were sent as they arrived."""
        for payload in self._payloads(CHANGES + edge):
            yield read_batch(payload)

    def _earliest(self, synopsis: int) -> Ints:
        found = [rows["expiry"] for _, rows in self._records(synopsis)]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def _payloads(self, synopsis: int) -> Iterator[memoryview]:
        for reader, rows in self._records(synopsis):
            for record in reader.read_rows(rows):
                yield record.payload

    def _records(self, synopsis: int) -> Iterator[tuple[SegmentReader, npt.NDArray[np.void]]]:
        """Yield every parcel with such records for this shard, and their directory rows."""
        return self.reader.records(self.shard, self.part, synopsis)
