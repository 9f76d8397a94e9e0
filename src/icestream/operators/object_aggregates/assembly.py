"""Combines states from the log: slices in, one row per target and group out, a portion at a time.

Idea: a target is a node of the tree or a window; the caller lists the slices it is composed of.
Small targets are combined many at once, a large one in ranges of `id_high`, so that the slices in
memory together take no more than a portion. Slices are sorted by group, so a large target is read
once, like the runs of a merge, unless more slices than fit have groups of the same range.

Invariants:
1. Slices of a target are combined in the given order, whatever their order on the log
   (`test_an_event_behind_the_watermark_counts_in_windows_still_open`).
2. Memory beyond a portion is reserved first (`test_bounded_state_of_ten_times_the_budget`,
   `test_bounded_a_group_that_does_not_fit_is_an_error`), and the work takes what is reserved
   (`test_bounded_work_takes_no_more_than_is_reserved`, by measured allocations).

Limits: a constant comes on top: the block of each open segment and the slice that is being read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.operators.object_aggregates.directory import Slices
from icestream.operators.object_aggregates.states import States
from icestream.operators.object_aggregates.tree import SLICE_OVERHEAD, SliceRange, portions
from icestream.operators.protocol import Shard
from icestream.state.budget import Refused
from icestream.state.identities import IdRange
from icestream.state.validation import validated

#: maximum number of slices that are read before they are combined
SLICES_AT_ONCE = 1024
#: maximum memory for lifting or combining a portion, in multiples of its size
WORK = 16
#: the same for large values: copies of them, and bytes for each value whatever its size
COPIES, BESIDE = 8, 256

#: target and state of each group
Combined = tuple[Ints, pa.RecordBatch]


class Assembly:
    """Reads and combines the states of one shard."""

    def __init__(
        self, shard: Shard, states: States, portion: int, largest: Callable[[], int]
    ) -> None:
        """Reserve the memory that a portion of `portion` bytes needs.

        `largest` returns the bytes of the slices of the largest target so far, or the most that
        are in memory at once if states do not grow.
        """
        self._shard = shard
        self._states = states
        self._largest = largest
        #: the ids of the shard, if slices have groups of others, too
        self.keeps: IdRange | None = None
        #: maximum bytes of slices that are in memory together
        self.portion = portion
        #: the maximum number of ranges of id_high that one target was combined in
        self.ranges = 1
        shard.account.resize(WORK * portion)

    def combined(self, targets: Iterable[tuple[int, Slices]]) -> Iterator[Combined]:
        """Yield target and state of groups, sorted by (target, id_high, id_low), in portions."""
        before, ranges = None, 0
        for pieces in portions(targets, self.portion // 2):
            for found, rows in self._combine(pieces):
                ranges = ranges + 1 if int(found[0]) == before else 1
                before = int(found[-1])
                self.ranges = max(self.ranges, ranges)
                yield found, rows

    def _combine(self, pieces: Sequence[SliceRange]) -> Iterator[Combined]:
        """Combine pieces together, or the only one in as many ranges of ids as it takes."""
        if sum(int(each.slices["bytes"].sum()) for each in pieces) <= self.portion:
            found = self._together(pieces)
            if len(found[0]):
                yield found
            return
        rest: SliceRange | None = pieces[0]
        while rest is not None:
            rest = yield from self._in_ranges(rest)

    def _together(self, pieces: Sequence[SliceRange]) -> Combined:
        kept = dict(self._read(np.concatenate([each.slices for each in pieces])))
        wanted = [(each, marker) for each in pieces for marker in each.slices["marker"].tolist()]
        targets = [np.full(kept[marker].num_rows, each.target) for each, marker in wanted]
        rows = pa.concat_batches([kept[marker] for _, marker in wanted])
        return self._states.combine(np.concatenate(targets), rows)

    def _in_ranges(self, piece: SliceRange) -> Generator[Combined, None, SliceRange | None]:
        """Yield the groups of a piece; return what is left of it, to be read once more.

        Slices are read by their first groups. When the next one does not fit, all groups before
        its first are complete. Where groups that are not complete fill the memory, the upper half
        of them is left for later.
        """
        states, low, high = self._states, piece.low, piece.high
        kept: dict[int, pa.RecordBatch] = {}
        size = 0
        for at, first, read in self._by_first_group(piece.slices):
            if first >= high:
                break
            kept[at] = states.inside(read, low, high)
            size += _size(kept[at])
            if size <= self.portion:
                continue
            bound = max(first, low)
            yield from self._combined_in(kept, piece.target, low, bound)
            kept = self._inside(kept, bound, high)
            while (size := sum(map(_size, kept.values()))) > self.portion:
                least, cut = states.middle(kept.values())
                if cut == high == least + 1:
                    if least == bound:
                        yield from self._alone(piece.part(least, high))
                        return _rest(piece, high)
                    cut = least
                high = cut
                kept = self._inside(kept, bound, high)
        yield from self._combined_in(kept, piece.target, low, high)
        return _rest(piece, high)

    def _by_first_group(self, slices: Slices) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield number, first id_high and states of slices, in the order of the latter."""
        order = np.argsort(slices["first_id_high"], kind="stable")
        sums = np.cumsum(slices["bytes"][order]) // max(1, self.portion // 4)
        for some in np.split(order, np.flatnonzero(np.diff(sums)) + 1):
            read = dict(self._read(slices[some]))
            for at in some.tolist():
                yield at, int(slices["first_id_high"][at]), read.pop(int(slices["marker"][at]))

    def _inside(
        self, kept: Mapping[int, pa.RecordBatch], low: int, high: int
    ) -> dict[int, pa.RecordBatch]:
        found = {at: self._states.inside(rows, low, high) for at, rows in kept.items()}
        return {at: rows for at, rows in found.items() if rows.num_rows}

    def _combined_in(
        self, kept: Mapping[int, pa.RecordBatch], target: int, low: int, high: int
    ) -> Iterator[Combined]:
        """Yield the groups of a range; slices are combined in the order of their numbers."""
        found = self._inside(kept, low, high) if low < high else {}
        if found:
            rows = pa.concat_batches([found[at] for at in sorted(found)])
            yield self._states.combine(np.full(rows.num_rows, target), rows)

    def _alone(self, piece: SliceRange) -> Iterator[Combined]:
        """Yield the state of one group, which takes more than a portion.

        States are combined whenever there is as much of them as of the last result: what chooses or
        counts never holds more than a few of them.
        """
        parts: list[pa.RecordBatch] = []
        size = values = read = combined = 0
        for at in range(len(piece.slices)):
            ((_, rows),) = self._read(piece.slices[at : at + 1])
            parts.append(self._states.inside(rows, piece.low, piece.high))
            read += int(piece.slices["bytes"][at])
            size += parts[-1].nbytes
            values += self._states.values(parts[-1])
            if size > self.portion:
                self._reserve(size, values, size / read)
            enough = size >= 2 * max(combined, self.portion) or len(parts) >= SLICES_AT_ONCE
            if enough or at == len(piece.slices) - 1:
                rows = pa.concat_batches(parts)
                held = self._states.combine(np.full(rows.num_rows, piece.target), rows)
                parts, size, values = [held[1]], held[1].nbytes, self._states.values(held[1])
                combined = size
        if len(held[0]):
            yield held
        self._shard.account.resize(WORK * self.portion)

    def _read(self, slices: Slices) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the states of slices, in the order of the log."""
        claimed = dict(slices[["marker", "bytes"]].tolist())
        for record in self._shard.log.read_many(np.array(sorted(claimed), dtype=np.uint64)):
            with validated(self._shard.log.folder):
                if claimed[record.marker] != len(record.payload):
                    msg = f"a slice of {claimed[record.marker]} bytes has {len(record.payload)}"
                    raise ValueError(msg)
                rows = self._states.read(bytes(record.payload))
            if self.keeps is not None:
                rows = self._states.inside(rows, self.keeps.low, self.keeps.high)
            yield record.marker, rows

    def _reserve(self, size: int, values: int, left: float) -> None:
        """Reserve the memory to combine `size` bytes of one group, with `values` values.

        `left` is the part of the slices read that is left in states. A refusal states what the
        group needs for the largest target, not only for what was read.
        """
        work = min(WORK * size, COPIES * size + BESIDE * values)
        try:
            self._shard.account.resize(max(work, WORK * self.portion))
        except Refused as refused:
            largest = self._largest() * (left if self._states.accumulates else 1)
            more = int(work * max(0.0, largest / size - 1))
            raise Refused(refused.owner, refused.needed + more, refused.free) from refused


def _size(rows: pa.RecordBatch) -> int:
    return int(rows.nbytes) + SLICE_OVERHEAD


def _rest(piece: SliceRange, high: int) -> SliceRange | None:
    return piece.part(high, piece.high) if high < piece.high else None
