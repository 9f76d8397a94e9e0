"""Slices of panes on the log: written as sorted runs, read back by pane.

Idea: entries of a batch are sorted by (pane, id_high, id_low), a chunk at a time, and appended as
records of at most 64 KB, or 256 KB with much memory, each of one pane. Reading takes any list of
slices in order and yields their entries inside a range of `id_high`, one portion ahead of their
use. Slices that were read are cached for a while: those that entered a window soon get suffixes and
leave it, or enter another. Small ones that were just written stay in memory (`RecentSlices`).
Slices that several kinds of windows share are read once, contiguously, if there is room
(`prepare`).

Invariant: reading a range of `id_high` returns the entries written for it, by (pane, arrival)
(`test_oracle_windows_equal_the_obvious_computation`).

Cost: one sort per chunk; 40 bytes of directory for each record; memory for two portions, a quarter
of a chunk each, and for the cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from icestream.core.arrays import Ids, Ints, Table, slice_bounds
from icestream.core.times import Micros
from icestream.operators.folding.exact_rows import (
    ExactRows,
    concatenated,
    packed,
    replace_extents,
    reshaped,
    unpacked,
)
from icestream.operators.folding.fields import ENTRY_FIELDS, Layout
from icestream.operators.folding.sorted_runs import sorted_run
from icestream.operators.grid.partitions import Partition
from icestream.operators.grid.slices import SLICE, RecentSlices, Slices
from icestream.state.log.format import Record
from icestream.state.log.writer import SegmentWriter

#: bytes of entries in one slice record, and with much memory
SLICE_BYTES = 1 << 16
MOST_SLICE_BYTES = 1 << 18
#: kind of these records
ENTRIES = 0


class RecordSource(Protocol):
    """Records that can be looked up."""

    def read_many(self, markers: Ids) -> Iterator[Record]:
        """Return records in the order of their markers."""


class SliceStorage(Protocol):
    """Where slices are stored: a shard, or a separate file."""

    @property
    def log(self) -> RecordSource:
        """Return the log to read from."""

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return the segment to write to."""


@dataclass(frozen=True, slots=True)
class SlicePortion:
    """The entries of some slices, concatenated."""

    #: pane of each slice
    panes: Ints
    #: where the entries of each slice begin, and the end of the last
    bounds: Ints
    entries: Table

    @property
    def arrays(self) -> tuple[Ints, Ints, Table]:
        return self.panes, self.bounds, self.entries

    def slices(self) -> Iterator[tuple[int, Table]]:
        """Yield pane and entries of each slice that has some."""
        for pane, (first, last) in zip(
            self.panes.tolist(), pairwise(self.bounds.tolist()), strict=True
        ):
            if first < last:
                yield pane, self.entries[first:last]


class SliceLog:
    """Writes and reads the slices of one shard."""

    def __init__(
        self,
        place: SliceStorage,
        layout: Layout,
        chunk_bytes: int,
        kept_bytes: int = 0,
        recent: RecentSlices | None = None,
    ) -> None:
        """Sort `chunk_bytes` of entries at a time, read a quarter; cache `kept_bytes`.

        What is written is also added to `recent` slices.
        """
        self._place = place
        self._recent = recent
        #: the layout that entries are read in; it has room for all that were written
        self.layout = layout
        self._chunk_bytes = chunk_bytes
        #: cached slices, by marker
        self._kept: dict[int, Table] = {}
        #: markers and bytes of each read, oldest first, and bytes left in the cache
        self._readings: deque[tuple[list[int], int]] = deque()
        self._room = kept_bytes
        #: bytes of entries used, and those that had to be read
        self._taken = self._read = 0
        #: prepared slices: markers, where the entries of each begin, entries
        self._prepared: list[tuple[Ids, Ints, Table]] = []

    @property
    def statistics(self) -> dict[str, int]:
        """Return the bytes of slices that windows used, and those that had to be read."""
        return {"slice_bytes_used": self._taken, "slice_bytes_read": self._read}

    def write(
        self,
        tables: Iterable[ExactRows],
        lifetime: str,
        expiry: Callable[[int], Micros] | Micros,
        operator: int = 0,
    ) -> Slices:
        """Append entries, each row starting with its pane, to the open segment of a lifetime class.

        `expiry` is when a slice expires, for each pane or for all.
        """
        found: list[tuple[int, ...]] = []
        pending: list[ExactRows] = []
        size = 0
        for each in tables:
            pending.append(each)
            size += each.table.nbytes
            if size >= self._chunk_bytes:
                found += self._write_run(concatenated(*pending), lifetime, expiry, operator)
                pending, size = [], 0
        if pending:
            found += self._write_run(concatenated(*pending), lifetime, expiry, operator)
        return np.array(found, dtype=SLICE)

    def _write_run(
        self,
        rows: ExactRows,
        lifetime: str,
        expiry: Callable[[int], Micros] | Micros,
        operator: int,
    ) -> list[tuple[int, ...]]:
        layout, table = rows.layout, rows.table
        panes, entries = sorted_run(
            np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1:]), layout
        )
        self.widen(layout)
        writer = self._place.segment(lifetime)
        size = max(SLICE_BYTES, min(MOST_SLICE_BYTES, self._chunk_bytes // 32))
        limit = max(1, size // (8 * layout.entry_width))
        id_high = entries[:, 0].view(np.uint64)
        found = list[tuple[int, ...]]()
        for first, last in pairwise(slice_bounds(panes).tolist()):
            pane = int(panes[first])
            until = expiry if isinstance(expiry, int) else expiry(pane)
            for at in range(first, last, limit):
                end = min(at + limit, last)
                marker = writer.append(
                    packed(ExactRows(layout, entries[at:end])),
                    operator=operator,
                    synopsis=ENTRIES,
                    group=pane,
                    rows=end - at,
                    expiry=until,
                )
                found.append((pane, marker, end - at, int(id_high[at]), int(id_high[end - 1])))
        if self._recent is not None and 0 < len(entries) <= self._recent.most:
            _, markers, sizes, _, _ = zip(*found, strict=True)
            entries = reshaped(entries, layout, self.layout, ENTRY_FIELDS)
            self._recent.add(markers, sizes, entries)
        return found

    def widen(self, layout: Layout) -> None:
        """Read entries in a layout that has room for those of another, too."""
        wider = self.layout.widened(layout.bounds)
        if wider.at is not self.layout.at:
            self.release()
            self._kept.clear()
            self._room += sum(size for _, size in self._readings)
            self._readings.clear()
            if self._recent is not None:
                self._recent.restart(wider.entry_width)
        self.layout = wider

    def known(self, slices: Slices) -> Slices:
        """Return the slices of a snapshot; ValueError if one has a wrong number of entries."""
        most = max(1, MOST_SLICE_BYTES // (8 * replace_extents(self.layout).entry_width))
        if ((slices["rows"] < 1) | (slices["rows"] > most)).any():
            msg = f"a slice must have 1 to {most} entries"
            raise ValueError(msg)
        return slices

    def bytes_of(self, slices: Slices) -> int:
        return int(slices["rows"].sum()) * 8 * self.layout.entry_width

    def read(self, slices: Slices, partition: Partition) -> Iterator[tuple[int, Table]]:
        """Yield (pane, entries inside the partition) of slices, in their order, read ahead."""
        for portion in self.portions(slices, partition):
            yield from portion.slices()

    def prepare(self, slices: Slices) -> None:
        """Read slices that will be used in parts, unless they are too many to hold."""
        size = self.bytes_of(slices)
        if not 0 < size <= self._room:
            return
        bounds = np.concatenate([[0], np.cumsum(slices["rows"])])
        markers = np.ascontiguousarray(slices["marker"])
        entries = np.empty((int(bounds[-1]), self.layout.entry_width), dtype=np.int64)
        self._fetch(_places(markers.tolist(), bounds.tolist(), entries))
        self._room -= size
        self._prepared.append((markers, bounds, entries))

    def release(self) -> None:
        self._room += sum(entries.nbytes for _, _, entries in self._prepared)
        self._prepared.clear()

    def _ready(self, slices: Slices) -> SlicePortion | None:
        """Return slices as one portion, if they were prepared contiguously."""
        for markers, bounds, entries in self._prepared:
            first = np.flatnonzero(markers == slices["marker"][0])
            if len(first) and np.array_equal(
                markers[(at := int(first[0])) : at + len(slices)], slices["marker"]
            ):
                own = bounds[at : at + len(slices) + 1]
                mine = entries[own[0] : own[-1]]
                self._taken += mine.nbytes
                return SlicePortion(np.ascontiguousarray(slices["pane"]), own - own[0], mine)
        return None

    def portions(self, slices: Slices, partition: Partition) -> Iterator[SlicePortion]:
        """Yield the entries inside the partition of slices, in their order, many at a time."""
        whole = partition.whole
        if whole and len(slices) and (ready := self._ready(slices)) is not None:
            yield ready
            return
        wanted = slices if whole else slices[partition.meets(slices)]
        for part in _portions(wanted, self._chunk_bytes // (32 * self.layout.entry_width)):
            bounds = np.concatenate([[0], np.cumsum(part["rows"])])
            entries = self._gathered(part["marker"].tolist(), bounds.tolist())
            if not whole:
                id_high = np.ascontiguousarray(entries[:, 0]).view(np.uint64)
                inside = partition.holds(id_high)
                bounds = np.concatenate([[0], np.cumsum(inside)])[bounds]
                entries = entries[inside]
            yield SlicePortion(np.ascontiguousarray(part["pane"]), bounds, entries)

    def _gathered(self, markers: list[int], bounds: list[int]) -> Table:
        """Return the entries of slices, concatenated, given where each begins."""
        width = self.layout.entry_width
        entries = np.empty((bounds[-1], width), dtype=np.int64)
        self._taken += entries.nbytes
        if self._kept.keys() >= set(markers):
            return np.concatenate([self._kept[marker] for marker in markers], out=entries)
        missing = _places(markers, bounds, entries)
        if self._recent is not None:
            self._recent.fill(missing)
        for marker in self._kept.keys() & missing.keys():
            missing.pop(marker)[:] = self._kept[marker]
        self._fetch(missing)
        self._keep(missing, entries.nbytes)
        return entries

    def _fetch(self, missing: dict[int, Table]) -> None:
        """Read slices into their places."""
        found = 0
        for record in self._place.log.read_many(np.array(list(missing), dtype=np.uint64)):
            missing[record.marker][:] = self._unpacked(record)
            self._read += len(record.payload)
            found += 1
        if found < len(missing):
            msg = f"{len(missing) - found} slices that windows need are no longer on the log"
            raise AssertionError(msg)

    def _unpacked(self, record: Record) -> Table:
        return unpacked(record.payload, self.layout, ENTRY_FIELDS, self.layout).table

    def described(self, record: Record) -> tuple[int, ...]:
        """Return the directory entry of a record with a slice, for which there will be room."""
        own = unpacked(record.payload, self.layout, ENTRY_FIELDS)
        self.widen(own.layout)
        if len(own.table) != record.rows:
            msg = f"a slice of {record.rows} entries has {len(own.table)}"
            raise ValueError(msg)
        first, last = own.table[[0, -1], 0].view(np.uint64).tolist()
        return record.group, record.marker, record.rows, first, last

    def _keep(self, read: dict[int, Table], size: int) -> None:
        """Cache what was read; evict the oldest reads."""
        self._kept.update(read)
        self._readings.append((list(read), size))
        self._room -= size
        while self._room < 0:
            markers, freed = self._readings.popleft()
            for marker in markers:
                del self._kept[marker]
            self._room += freed


class SliceCursor:
    """Slices in the order of panes, taken up to a pane at a time."""

    def __init__(self, slices: Iterator[tuple[int, Table]]) -> None:
        self._slices = slices
        self._next: tuple[int, Table] | None = None

    def before(self, pane: int) -> Iterator[tuple[int, Table]]:
        """Yield the remaining slices of panes before `pane`."""
        while True:
            if self._next is None:
                self._next = next(self._slices, None)
            if self._next is None or self._next[0] >= pane:
                return
            current, self._next = self._next, None
            yield current


def _places(markers: list[int], bounds: list[int], entries: Table) -> dict[int, Table]:
    """Return where the entries of each slice go, given where each begins."""
    pairs = zip(markers, pairwise(bounds), strict=True)
    return {marker: entries[first:last] for marker, (first, last) in pairs}


def _portions(slices: Slices, rows: int) -> Iterator[Slices]:
    """Split slices into portions of about `rows` rows, at least one slice each."""
    if len(slices) == 0:
        return
    portion = (np.cumsum(slices["rows"]) - slices["rows"]) // max(1, rows)
    for first, last in pairwise(slice_bounds(portion).tolist()):
        yield slices[first:last]
