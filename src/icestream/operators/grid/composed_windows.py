"""Complete windows as partial results of longer ones.

Idea: when a window closes, its rows are exactly what longer windows around it need from its panes.
They are written to a file of the version, and longer tumbling windows add them instead of the
panes' slices, which have more rows. `Tiled` lists what a window is composed of, a `PaneTiling`
finds these tiles among panes, and a `WindowResults` holds the rows that one kind of window,
tumbling or sliding, passes on.

    15 min   [10 min            |5 min    )[5 min    |10 min            )   a period of two windows
                      watermark ^          reached: all before the tile that is still open

If the tile of an event is open when the event arrives, the event is counted through that tile; if
the tile has closed, the longer window takes the event's own slice. So a window holds, at any time,
what was in its closed tiles, and the rows are not needed after the version that wrote them: they
are not part of a snapshot, and a replay computes them again. Windows composed of panes may switch
to tiles in any version: for tiles that closed before, their panes, which still exist, are used.

Invariants:
1. Windows composed of windows emit what windows composed of panes do, also for events behind the
   watermark, after restarts and in partitions
   (`test_oracle_windows_made_of_windows_equal_those_of_panes`).
2. A pane is in one tile, and is reached when its tile has closed
   (`test_oracle_tiles_cover_every_pane_once`).
3. Switching to tiles does not change rows, with restarts before and after
   (`test_oracle_windows_may_be_made_of_tiles_from_any_version_on`).

Cost: a row written to local disk, and read once by each kind of window that takes it. Panes may
leave the log as soon as the windows that take them have closed.

Limits: sliding and cumulative windows are composed of panes, because what leaves them is needed
again when the tiles' rows are gone. Cumulative windows, and sliding windows that emit updates,
cannot be tiles. A kind of window that no view asked for is chosen at the first events or never, and
needs running rows of its own, which the choice does not weigh. Windows composed of tiles stay so:
panes that a tile has taken may have left the log.

References: efficient consolidation (Madsen, Zhou, Su, 2016, section 6.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from icestream.core.arrays import Ints, Mask, Table, slice_bounds
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import Layout
from icestream.operators.grid.partitions import Partition
from icestream.operators.grid.slice_log import SliceLog
from icestream.operators.grid.slices import SLICE, SliceDirectory, Slices
from icestream.plan.windows.grid import Cumulative, Grid, Windows
from icestream.state.files import LocalFiles
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter

#: source number of tiles that are panes
FROM_PANES = -1


@dataclass(frozen=True, slots=True)
class Tiled:
    """A tumbling window and the tiles that fill it, from its offset on until they repeat."""

    window: Windows
    #: how many adjacent windows of another kind, or panes if the kind is None
    tiles: tuple[tuple[Windows | None, int], ...]

    @property
    def sources(self) -> frozenset[Windows]:
        return frozenset(source for source, _ in self.tiles if source is not None)

    def to_json(self) -> list[Any]:
        tiles = [_written(source, count) for source, count in self.tiles]
        return [self.window.range, self.window.offset, tiles]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        length, offset, tiles = value
        return cls(
            Windows(length, length, offset),
            tuple(
                (Windows(r, slide[0] if slide else r, o) if r else None, count)
                for r, o, count, *slide in tiles
            ),
        )


class PaneTiling:
    """The tiles of one kind of window over the panes of a grid."""

    def __init__(
        self, tiled: Tiled, grid: Grid, families: Mapping[Windows | Cumulative, int]
    ) -> None:
        starts, sources, at = [], [], 0
        for source, count in tiled.tiles:
            if source is None:
                starts.append(at)
                sources.append(FROM_PANES)
                at += count
                continue
            length = source.range // grid.pane
            starts += range(at, at + count * length, length)
            sources += [families[source]] * count
            at += count * length
        self._starts = np.array(starts, dtype=np.int64)
        self._sources = np.array(sources, dtype=np.int64)
        self._period = at
        self._phase = (tiled.window.offset - grid.origin) // grid.pane

    @property
    def sources(self) -> tuple[int, ...]:
        """Return the families that are tiles, `FROM_PANES` for panes."""
        return tuple(np.unique(self._sources).tolist())

    def takes(self, source: int, panes: Ints) -> Mask:
        """Return which windows of a source, given by their first panes, are tiles."""
        offsets, tiles = self._locate(panes)
        mine: Mask = self._sources[tiles] == source
        if source != FROM_PANES:
            mine &= self._starts[tiles] == offsets
        return mine

    def reached(self, passed: int) -> int:
        """Return the pane before which all tiles have closed once panes before `passed` have."""
        (offset,), (tile,) = self._locate(np.array([passed], dtype=np.int64))
        whole = self._sources[tile] != FROM_PANES
        return passed - int(offset - self._starts[tile]) if whole else passed

    def _locate(self, panes: Ints) -> tuple[Ints, Ints]:
        """Return the position of panes within the period, and their tiles."""
        offsets = (panes - self._phase) % self._period
        return offsets, np.searchsorted(self._starts, offsets, side="right") - 1


class WindowResults:
    """The rows of windows that one family closes in a version, on local disk until it ends."""

    def __init__(self, path: str, layout: Layout, chunk_bytes: int) -> None:
        """Write to a file that is created on the first write."""
        self._path = path
        self._writer: SegmentWriter | None = None
        self._reader: SegmentReader | None = None
        self._log = SliceLog(self, layout, chunk_bytes)
        self._put: list[Slices] = []
        #: slices of the rows, by pane, once sealed
        self.slices: Slices = np.empty(0, dtype=SLICE)

    def put(self, pane: int, entries: Table) -> None:
        """Add rows of the window that begins with `pane`, as entries."""
        if len(entries):
            panes = np.full((len(entries), 1), pane, dtype=np.int64)
            rows = ExactRows(self._log.layout, np.concatenate([panes, entries], axis=1))
            self._put.append(self._log.write([rows], "", 0))

    def seal(self) -> None:
        if self._writer is not None:
            self._writer.finish(sync=False)
            self._reader = SegmentReader(LocalFiles(), self._path)
            slices = np.concatenate(self._put)
            self.slices = slices[np.argsort(slices["pane"], kind="stable")]

    def read(self, slices: Slices, partition: Partition) -> Iterator[tuple[int, Table]]:
        """Yield (pane, entries inside the partition) of slices, in their order."""
        return self._log.read(slices, partition)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._writer is not None:
            self._writer.abandon()

    # -- storage of the slices --------------------------------------------------------------

    def segment(self, lifetime: str) -> SegmentWriter:
        if self._writer is None:
            self._writer = SegmentWriter(LocalFiles(), self._path, 0)
        return self._writer

    @property
    def log(self) -> SegmentReader:
        assert self._reader is not None
        return self._reader


@dataclass(frozen=True)
class Tiles:
    """What enters the windows of one family: rows of other windows, and panes between them."""

    tiling: PaneTiling
    #: windows that were closed in this version, by family
    levels: Mapping[int, WindowResults]
    #: panes on the log
    directory: SliceDirectory
    slices: SliceLog

    def reached(self, passed: int) -> int:
        """Return the pane before which all tiles have closed once panes before `passed` have."""
        return self.tiling.reached(passed)

    def closing(
        self, reached: int, passed: int, partition: Partition
    ) -> Iterator[tuple[int, Table]]:
        """Yield the entries of closing tiles, in order; tiles before `reached` closed earlier."""
        slices, sources = self._wanted(reached, passed)
        for first, last in pairwise(slice_bounds(sources).tolist()):
            source = int(sources[first])
            log = self.slices if source == FROM_PANES else self.levels[source]
            yield from log.read(slices[first:last], partition)

    def _wanted(self, reached: int, passed: int) -> tuple[Slices, Ints]:
        """Return the slices of closing tiles, in the order of panes, and their sources."""
        found = []
        for source in self.tiling.sources:
            if source == FROM_PANES:
                slices = self.directory.between(reached, passed)
            else:
                slices = self.levels[source].slices
            found.append(slices[self.tiling.takes(source, slices["pane"])])
        sources = np.repeat(self.tiling.sources, [len(each) for each in found])
        together = np.concatenate(found)
        order = np.argsort(together["pane"], kind="stable")
        return together[order], sources[order]


def _written(source: Windows | None, count: int) -> list[int]:
    """Return tiles as range, offset and count, and the slide if they overlap."""
    if source is None:
        return [0, 0, count]
    return [source.range, source.offset, count, *([] if source.tumbles else [source.slide])]
