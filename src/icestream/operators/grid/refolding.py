"""Slices that are not on the log but folded from raw events each time they are read.

Idea: with the store `tuples`, a pane's slices are gone once they have entered every window. Fields
without an inverse need them again, for suffixes and to leave. Such a slice is *owed*: it stands for
all groups of the shard in a range of `id_high`, in one pane, and is folded when it is read. The
directory still knows how many entries a pane had, so panes with many groups are owed in several
ranges of `id_high`.

Invariant: an owed slice is one entry per group, sorted by (id_high, id_low), however its events
were batched: the entries that leave are those that have suffixes
(`test_oracle_every_aggregate_from_raw_events`,
`test_crash_rebuilt_shards_see_the_events_their_versions_saw`).

Cost: each shard reads every event of the spans it needs and folds its own, twice for each kind of
window: once for suffixes, once to leave.

Limits: a pane is read once for each partition of the groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from icestream.core.arrays import Ints, Table, slice_bounds
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import Layout
from icestream.operators.folding.sorted_runs import sorted_run
from icestream.operators.grid.partitions import Partition
from icestream.operators.grid.rolling import Rolling
from icestream.operators.grid.slice_log import SliceLog, SlicePortion
from icestream.operators.grid.slices import SLICE, SliceDirectory, Slices
from icestream.operators.grid.two_stacks import TwoStacks
from icestream.plan.windows.grid import Sliding
from icestream.state.log.format import NO_MARKER


class RawEvents(Protocol):
    """Raw events of one shard, up to a version."""

    @property
    def read(self) -> Mapping[str, int]:
        """Return counters of what was read so far: `blocks`, `block_bytes` and `block_uses`."""

    def fold(
        self,
        layout: Layout,
        panes: tuple[int, int],
        high_words: tuple[int, int],
        capacity: int,
        version: int,
    ) -> tuple[Ints, ExactRows] | None:
        """Fold the events of panes, and of groups between two id_high, both inclusive.

        Returns pane and entry of each group, in any order; None if there are more than `capacity`.
        """


class OwedDirectory(SliceDirectory):
    """The slices of a directory, as owed slices."""

    def __init__(self, directory: SliceDirectory, rows: int) -> None:
        """Limit an owed slice to about `rows` rows."""
        self._directory = directory
        self._rows = rows

    @property
    def panes(self) -> Ints:
        return self._directory.panes

    def between(self, first: int, last: int) -> Slices:
        slices = self._directory.between(first, last)
        found: list[tuple[int, ...]] = []
        for begin, end in pairwise(slice_bounds(slices["pane"]).tolist()):
            pane, rows = int(slices["pane"][begin]), int(slices["rows"][begin:end].sum())
            ranges = -(-rows // self._rows) if end > begin else 0
            for number in range(ranges):
                low, high = number * 2**64 // ranges, (number + 1) * 2**64 // ranges - 1
                found.append((pane, NO_MARKER, -(-rows // ranges), low, high))
        return np.array(found, dtype=SLICE)


class OwedSlices(SliceLog):
    """Reads slices from the log, and folds those that are owed."""

    def __init__(self, events: RawEvents, version: int, *log: Any) -> None:
        """Fold events up to the given version; `log` has the arguments of `SliceLog`."""
        super().__init__(*log)
        self._events = events
        self.version = version

    @property
    def statistics(self) -> dict[str, int]:
        """Return the bytes of slices used and read, and counters of the event blocks."""
        return {**super().statistics, **self._events.read}

    @staticmethod
    def most_rows(layout: Layout, chunk_bytes: int) -> int:
        return max(1, chunk_bytes // (32 * (layout.entry_width + 5)))

    def portions(self, slices: Slices, partition: Partition) -> Iterator[SlicePortion]:
        """Yield the entries inside the partition of slices, in their order."""
        owed = slices["marker"] == np.uint64(NO_MARKER)
        for first, last in pairwise(slice_bounds(owed.astype(np.int64)).tolist()):
            if not owed[first:last].any():
                yield from super().portions(slices[first:last], partition)
                continue
            for part in self._together(slices[first:last]):
                yield self._fold(part, partition)

    def _together(self, owed: Slices) -> Iterator[Slices]:
        """Split owed slices where the range of groups changes or there are too many rows."""
        most = self.most_rows(self.layout, self._chunk_bytes)
        begin, rows = 0, 0
        for at in range(len(owed)):
            rows += int(owed["rows"][at])
            if at > begin and (
                rows > most or owed["first_id_high"][at] != owed["first_id_high"][begin]
            ):
                yield owed[begin:at]
                begin, rows = at, int(owed["rows"][at])
        yield owed[begin:]

    def _fold(self, owed: Slices, partition: Partition) -> SlicePortion:
        """Return the entries of owed slices, which have the same range of id_high."""
        low = max(int(owed["first_id_high"][0]), partition.low)
        high = min(int(owed["last_id_high"][0]), partition.high - 1)
        span = int(owed["pane"].min()), int(owed["pane"].max()) + 1
        panes, entries = self._entries(span, low, high, int(owed["rows"].sum()))
        begins, ends = (panes.searchsorted(owed["pane"], side) for side in ("left", "right"))
        parts = [entries[first:last] for first, last in zip(begins, ends, strict=True)]
        bounds = np.concatenate([[0], np.cumsum(ends - begins)])
        return SlicePortion(np.ascontiguousarray(owed["pane"]), bounds, np.concatenate(parts))

    def _entries(self, span: tuple[int, int], low: int, high: int, rows: int) -> tuple[Ints, Table]:
        """Return panes and entries between two id_high, sorted by (pane, id_high, id_low)."""
        if low > high:
            return np.empty(0, np.int64), np.empty((0, self.layout.entry_width), dtype=np.int64)
        found = self._events.fold(self.layout, span, (low, high), max(16, 2 * rows), self.version)
        if found is not None:
            panes, folded = found
            return sorted_run(panes, folded.reshaped(self.layout).table, self.layout)
        middle = (low + high) // 2
        halves = [self._entries(span, *half, rows) for half in ((low, middle), (middle + 1, high))]
        panes, entries = (np.concatenate(each) for each in zip(*halves, strict=True))
        return sorted_run(panes, entries, self.layout)


class OwedRolling(Rolling):
    """Running rows whose suffixes are computed from owed slices."""

    #: the owed slices
    owed: OwedDirectory

    def _two_stacks(self, partition: Partition) -> TwoStacks | None:
        two_stacks = super()._two_stacks(partition)
        if two_stacks is None:
            return None
        assert isinstance(self._course, Sliding)
        return TwoStacks(self._course, self.groups, partition, self.owed, self._slices)
