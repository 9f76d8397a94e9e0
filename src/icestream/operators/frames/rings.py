"""Frames of the last n events of each group: one ring of tuples per group, in a file.

Idea: the tuple that leaves a group is the one that the entering tuple overwrites in the group's
ring, so a batch reads and writes only one range of each ring. Every time a ring has been filled,
the suffixes of its tuples are computed once, for fields without an inverse. The file is part of the
arena's folder, a cache; snapshots copy it to the log.

    n = 4, events 1 to 6      ring  5 6 3 4     the window is 3 4 5 6; event 7 overwrites 3

Invariants:
1. Rows equal folding the last n events from scratch
   (`test_oracle_every_frame_equals_the_obvious_computation`).
2. A snapshot restores rings as they were (`test_parity_rings_beside_a_dict`).

Cost: O(1) per event, amortised; one read and one write of the file per group and chunk.

Limits: the last n events of one group must fit into a part of the quota at once. Groups are never
closed: their last events do not expire.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Table, slice_bounds
from icestream.core.errors import StorageError
from icestream.core.times import Micros
from icestream.kernels.frames import moving as kernels
from icestream.operators.frames.layout import FrameLayout
from icestream.operators.frames.output import FrameOutput
from icestream.operators.frames.tuples import TupleRun
from icestream.operators.grid.groups import ResidentGroups
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.state.arena import Arena, write_at

#: bytes of one piece of a snapshot
PIECE_BYTES = 65536


class Rings:
    """Rings of equal length, by number, in one file."""

    def __init__(self, arena: Arena, length: int, width: int, name: str = "rings") -> None:
        """Attach to the file `name` in the arena's folder; a row has `width` words."""
        self._path = arena.path(name)
        self.length = length
        self.width = width
        self._handle = -1

    def open(self) -> None:
        """Open the file until `close`."""
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        os.close(self._handle)
        self._handle = -1

    @property
    def disk_bytes(self) -> int:
        return os.stat(self._path).st_blocks * 512 if os.path.exists(self._path) else 0

    def read(self, ring: int, first: int, out: Table) -> None:
        """Fill `out` with rows of a ring from slot `first` on."""
        place = (ring * self.length + first) * self.width * 8
        if os.preadv(self._handle, [out.data.cast("B")], place) != out.nbytes:
            msg = f"{self._path} is shorter than the rings in it; restart to rebuild it"
            raise StorageError(msg)

    def write(self, ring: int, first: int, rows: Table) -> None:
        """Replace rows of a ring from slot `first` on."""
        self.load((ring * self.length + first) * self.width * 8, rows.data.cast("B"))

    def image(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of the whole file, in pieces."""
        size, place = os.fstat(self._handle).st_size, 0
        while place < size:
            try:
                place = os.lseek(self._handle, place, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                msg = f"cannot read {self._path}: {error.strerror}; restart to rebuild it"
                raise StorageError(msg) from error
            piece = os.pread(self._handle, PIECE_BYTES, place)
            yield place, piece
            place += len(piece)

    def load(self, place: int, piece: memoryview) -> None:
        write_at(self._path, self._handle, piece, place)


@dataclass(frozen=True, slots=True)
class _Run:
    """The tuples of one group in a chunk, and the range of its ring they need."""

    slot: int
    #: where its tuples begin and end in the chunk's order
    first: int
    last: int
    #: number of the group's ring, first slot, number of slots, and how many of them to read
    ring: int
    begin: int
    held: int
    read: int


class RingPass:
    """One pass of a frame over the tuples of a version, for the groups of one partition."""

    def __init__(
        self,
        frame: Frame,
        layout: FrameLayout,
        groups: ResidentGroups,
        position: dict[str, Any],
        output: FrameOutput,
        rings: Rings,
        buffer: Table,
    ) -> None:
        """Begin where the previous version ended; `buffer` has room for at least one ring."""
        slide = frame.slide
        self._layout = layout
        self._groups = groups
        self._position = position
        self._output = output
        self._rings = rings
        self._buffer = buffer
        self._every = slide.rows if isinstance(slide, RowsSlide) else 1
        self._slide = slide if isinstance(slide, int) else 0
        self.due: Micros | None = None
        #: no group is ever closed
        self.emptied: Ints = np.empty(0, dtype=np.int64)

    def begin(self, place: int) -> None:
        """Do nothing: there is nothing to rebuild."""

    def done_with(self, slots: Ints) -> Mask:
        """Return False for every group: each needs its ring again."""
        return np.zeros(len(slots), dtype=np.bool_)

    def finish(self, place: int, watermark: Micros) -> Iterator[pa.RecordBatch]:
        if self._slide:
            yield from self._show_due(watermark)

    def take(self, stretch: TupleRun, slots: Ints) -> Iterator[pa.RecordBatch]:
        """Let the tuples of a run enter, group by group."""
        if len(slots) == 0:
            return
        tuples, layout = stretch.tuples, self._layout
        order = np.argsort(slots, kind="stable")
        fields = np.empty((len(tuples), layout.field_words), dtype=np.int64)
        times = np.empty(len(tuples), dtype=np.int64)
        shown = np.zeros(len(tuples), dtype=np.bool_)
        for runs in self._portions(self._runs(slots[order])):
            places = self._load(runs)
            kernels.roll(
                self._groups.rows,
                tuples,
                order,
                np.array([runs[0].first, *(run.last for run in runs)]),
                np.array([run.slot for run in runs]),
                self._buffer,
                places,
                layout.in_rings,
                self._rings.length,
                self._every,
                self._slide,
                layout.ops,
                layout.in_tuples,
                layout.in_rows,
                layout.group_identity,
                layout.suffixes_at,
                fields,
                times,
                shown,
            )
            self._store(runs, places)
        chosen = np.flatnonzero(shown)
        if self._slide:
            chosen = chosen[np.argsort(times[chosen], kind="stable")]
        if len(chosen):
            yield self._output.batch(fields[chosen], slots[chosen], times[chosen])

    def _runs(self, slots: Ints) -> Iterator[_Run]:
        """Yield the groups of a chunk, given the sorted rows of its tuples' groups."""
        rows, extras, length = self._groups.rows, self._layout.extras_at, self._rings.length
        bounds = slice_bounds(slots)
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            slot = int(slots[first])
            count, ring = rows[slot, extras : extras + 2].tolist()
            if ring < 0:
                ring = self._position["rings"]
                self._position["rings"] += 1
                rows[slot, extras + kernels.MARK] = ring
            begin, more = count % length, last - first
            if begin + more < length:
                yield _Run(slot, first, last, ring, begin, more, more if count >= length else 0)
            else:
                yield _Run(slot, first, last, ring, 0, length, min(count, length))

    def _portions(self, runs: Iterator[_Run]) -> Iterator[list[_Run]]:
        """Split runs into portions whose rings fit into the buffer."""
        portion: list[_Run] = []
        held = 0
        for run in runs:
            if portion and held + run.held > len(self._buffer):
                yield portion
                portion, held = [], 0
            portion.append(run)
            held += run.held
        yield portion

    def _load(self, runs: list[_Run]) -> Ints:
        """Read the parts of rings that the runs need; return where slot 0 of each ring would be."""
        at = 0
        places = np.empty(len(runs), dtype=np.int64)
        for number, run in enumerate(runs):
            if run.read:
                self._rings.read(run.ring, run.begin, self._buffer[at : at + run.read])
            places[number] = at - run.begin
            at += run.held
        return places

    def _store(self, runs: list[_Run], places: Ints) -> None:
        """Write back the changed parts."""
        for run, place in zip(runs, places.tolist(), strict=True):
            at = place + run.begin
            self._rings.write(run.ring, run.begin, self._buffer[at : at + run.held])

    def _show_due(self, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the groups whose row is due."""
        output, layout, first = self._output, self._layout, 0
        while True:
            first, output.rows = kernels.show_due(
                self._groups.rows,
                first,
                len(self._groups.rows),
                watermark,
                layout.ops,
                layout.in_rows,
                layout.suffixes_at,
                layout.extras_at,
                output.fields,
                output.slots,
                output.times,
                0,
            )
            if output.rows:
                yield output.take()
            if first == len(self._groups.rows):
                return
