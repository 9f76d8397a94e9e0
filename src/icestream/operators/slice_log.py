"""Slices of panes on the log: written as sorted runs, read back by pane.

Idea: entries of a batch are sorted by (pane, hi, lo) a chunk at a time and appended as records of
at most 64 KB, each of one pane. Reading takes any list of slices in order and yields their entries,
those outside a range of hi left out, a portion ahead of their use.

Invariant: what is read back for a range of hi are the entries written for it, by (pane, arrival)
(`test_oracle_windows_equal_the_obvious_computation`).

Cost: one sort per chunk; 40 bytes of directory for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from icestream.core.times import Micros
from icestream.kernels.words import Table
from icestream.operators.fields import Layout
from icestream.operators.partitions import Partition
from icestream.operators.runs import slice_bounds, sorted_run
from icestream.operators.slices import SLICE, Slices
from icestream.state.log.format import Record
from icestream.state.log.writer import SegmentWriter

#: bytes of entries in one slice record
SLICE_BYTES = 65536
#: kind of the records
ENTRIES = 0


class Readable(Protocol):
    """Records that can be looked up."""

    def read_many(self, markers: npt.NDArray[np.uint64]) -> Iterator[Record]:
        """Return records in the order of their markers."""
        ...


class Place(Protocol):
    """Where slices are: a shard, or a file of its own."""

    @property
    def log(self) -> Readable:
        """Return what can be read."""
        ...

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return what can be written."""
        ...


class SliceLog:
    """Writes and reads the slices of one shard."""

    def __init__(self, place: Place, layout: Layout, chunk_bytes: int) -> None:
        """Sort and read `chunk_bytes` of entries at a time."""
        self._place = place
        self._layout = layout
        self._chunk_bytes = chunk_bytes

    def write(
        self,
        tables: Iterable[Table],
        lifetime: str,
        expiry: Callable[[int], Micros] | Micros,
        operator: int = 0,
    ) -> Slices:
        """Append entries, each row led by its pane, to the open segment of a lifetime class.

        `expiry` is when a slice is garbage, for each pane or for all.
        """
        found: list[tuple[int, ...]] = []
        pending: list[Table] = []
        size = 0
        for table in tables:
            pending.append(table)
            size += table.nbytes
            if size >= self._chunk_bytes:
                found += self._write_run(np.concatenate(pending), lifetime, expiry, operator)
                pending, size = [], 0
        if pending:
            found += self._write_run(np.concatenate(pending), lifetime, expiry, operator)
        return np.array(found, dtype=SLICE)

    def _write_run(
        self, table: Table, lifetime: str, expiry: Callable[[int], Micros] | Micros, operator: int
    ) -> Iterator[tuple[int, ...]]:
        panes, entries = sorted_run(
            np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1:]), self._layout
        )
        writer = self._place.segment(lifetime)
        limit = max(1, SLICE_BYTES // (8 * self._layout.entry_width))
        for first, last in pairwise(slice_bounds(panes).tolist()):
            pane = int(panes[first])
            until = expiry if isinstance(expiry, int) else expiry(pane)
            for at in range(first, last, limit):
                part = entries[at : min(at + limit, last)]
                marker = writer.append(
                    part,
                    operator=operator,
                    synopsis=ENTRIES,
                    group=pane,
                    rows=len(part),
                    expiry=until,
                )
                ends = part[[0, -1], 0].view(np.uint64).tolist()
                yield (pane, marker, len(part), *ends)

    def bytes_of(self, slices: Slices) -> int:
        """Return the bytes of the entries of some slices."""
        return int(slices["rows"].sum()) * 8 * self._layout.entry_width

    def read(self, slices: Slices, partition: Partition) -> Iterator[tuple[int, Table]]:
        """Yield (pane, entries inside the partition) of slices, in their order, read ahead."""
        low, high = np.uint64(partition.low), np.uint64(partition.high - 1)
        wanted = slices[(slices["first_hi"] <= high) & (slices["last_hi"] >= low)]
        width, whole = self._layout.entry_width, partition.whole
        for part in _portions(wanted, self._chunk_bytes // (8 * width)):
            records = {r.marker: r.payload for r in self._place.log.read_many(part["marker"])}
            for pane, marker in zip(part["pane"].tolist(), part["marker"].tolist(), strict=True):
                table = np.frombuffer(records[marker], dtype=np.int64).reshape(-1, width)
                if whole:
                    yield pane, table
                    continue
                hi = np.ascontiguousarray(table[:, 0]).view(np.uint64)
                first = int(np.searchsorted(hi, low, side="left"))
                last = int(np.searchsorted(hi, high, side="right"))
                if first < last:
                    yield pane, table[first:last]


class Ahead:
    """Slices in the order of panes, taken up to a pane at a time."""

    def __init__(self, slices: Iterator[tuple[int, Table]]) -> None:
        """Take slices from an iterator as they are asked for."""
        self._slices = slices
        self._next: tuple[int, Table] | None = None

    def before(self, pane: int) -> Iterator[tuple[int, Table]]:
        """Yield the slices that are left of panes before `pane`."""
        while True:
            if self._next is None:
                self._next = next(self._slices, None)
            if self._next is None or self._next[0] >= pane:
                return
            current, self._next = self._next, None
            yield current


def described(record: Record) -> tuple[int, ...]:
    """Return what the directory keeps of a slice."""
    rows = np.frombuffer(record.payload, dtype=np.uint64).reshape(record.rows, -1)
    return record.group, record.marker, record.rows, int(rows[0, 0]), int(rows[-1, 0])


def _portions(slices: Slices, rows: int) -> Iterator[Slices]:
    """Cut slices into portions of about so many rows, at least one slice each."""
    if len(slices) == 0:
        return
    portion = (np.cumsum(slices["rows"]) - slices["rows"]) // max(1, rows)
    for first, last in pairwise(slice_bounds(portion).tolist()):
        yield slices[first:last]
