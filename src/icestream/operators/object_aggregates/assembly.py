"""Combines states from the log: slices in, one row per target and group out, a portion at a time.

Idea: a target is a node of the tree or a window; the caller lists the slices it is composed of.
Small targets are combined many at once, a large one in ranges of `id_high`, so that the slices in
memory together take no more than a portion. Only half a portion is planned, since sizes are
estimates.

Invariants:
1. Slices of a target are combined in the given order, whatever their order on the log
   (`test_an_event_behind_the_watermark_counts_in_windows_still_open`).
2. Memory beyond a portion is reserved first (`test_bounded_state_of_ten_times_the_budget`,
   `test_bounded_a_group_that_does_not_fit_is_an_error`), and the work takes what is reserved
   (`test_bounded_work_takes_no_more_than_is_reserved`, by measured allocations).

Limits: a constant comes on top: the block of each open segment and the slice that is being read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.operators.object_aggregates.directory import Slices
from icestream.operators.object_aggregates.states import States
from icestream.operators.object_aggregates.tree import SliceRange, portions
from icestream.operators.protocol import Shard
from icestream.state.budget import Refused
from icestream.state.identities import IdRange
from icestream.state.validation import validated

#: maximum number of slices that are read before they are combined
SLICES_AT_ONCE = 1024
#: maximum memory for lifting or combining a portion, in multiples of its size
WORK = 16


class Assembly:
    """Reads and combines the states of one shard."""

    def __init__(
        self, shard: Shard, states: States, portion: int, largest: Callable[[], int]
    ) -> None:
        """Reserve the memory that a portion of `portion` bytes needs.

        `largest` returns the bytes of the slices of the largest target so far.
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

    def combined(
        self, targets: Iterable[tuple[int, Slices]]
    ) -> Iterator[tuple[Ints, pa.RecordBatch]]:
        """Yield target and state of groups, sorted by (target, id_high, id_low), in portions."""
        before, ranges = None, 0
        for pieces in portions(targets, self.portion // 2):
            for found, rows in self._combine(pieces):
                ranges = ranges + 1 if int(found[0]) == before else 1
                before = int(found[-1])
                self.ranges = max(self.ranges, ranges)
                yield found, rows

    def _combine(self, pieces: Sequence[SliceRange]) -> Iterator[tuple[Ints, pa.RecordBatch]]:
        """Combine pieces together; if they are larger than estimated, one part after another."""
        held: tuple[Ints, pa.RecordBatch] | None = None
        wanted = [(piece, marker) for piece in pieces for marker in piece.slices["marker"].tolist()]
        for at in range(0, len(wanted), SLICES_AT_ONCE):
            read = self._read(wanted[at : at + SLICES_AT_ONCE], held, divisible=len(pieces) > 1)
            if read is None:
                held = None
                for part in self._divided(pieces):
                    yield from self._combine(part)
                return
            if read:
                found = np.concatenate([targets for targets, _ in read])
                held = self._states.combine(found, pa.concat_batches([rows for _, rows in read]))
        if held is not None:
            yield held
        self._shard.account.resize(WORK * self.portion)

    def _read(
        self,
        wanted: Sequence[tuple[SliceRange, int]],
        held: tuple[Ints, pa.RecordBatch] | None,
        *,
        divisible: bool,
    ) -> list[tuple[Ints, pa.RecordBatch]] | None:
        """Return targets and states of the selected groups, after `held`, in the given order.

        Returns None as soon as they turn out too large to be combined together and can be divided:
        there are several pieces, or several groups in the only one.
        """
        first = [] if held is None else [held]
        size = sum(rows.nbytes for _, rows in first)
        ends = {end for _, rows in first for end in self._states.ends(rows)}
        kept: dict[int, pa.RecordBatch] = {}
        uses = Counter(marker for _, marker in wanted)
        claimed = {
            marker: size
            for each in {id(each): each for each, _ in wanted}.values()
            for marker, size in each.slices[["marker", "bytes"]].tolist()
        }
        piece = wanted[0][0]
        for record in self._shard.log.read_many(np.array(sorted(uses), dtype=np.uint64)):
            with validated(self._shard.log.folder):
                if claimed[record.marker] != len(record.payload):
                    msg = f"a slice of {claimed[record.marker]} bytes has {len(record.payload)}"
                    raise ValueError(msg)
                rows = self._states.read(bytes(record.payload))
            if not piece.whole:
                rows = self._states.inside(rows, piece.low, piece.high)
            if self.keeps is not None:
                rows = self._states.inside(rows, self.keeps.low, self.keeps.high)
            kept[record.marker] = rows
            size += rows.nbytes * uses[record.marker]
            if rows.num_rows and len(ends) < 2:
                ends.update(self._states.ends(rows))
            if size > self.portion:
                if divisible or len(ends) > 1:
                    return None
                self._reserve(size, sum(claimed[each] * uses[each] for each in kept))
        return first + [
            (np.full(kept[marker].num_rows, each.target, dtype=np.int64), kept[marker])
            for each, marker in wanted
            if kept[marker].num_rows
        ]

    def _reserve(self, size: int, read: int) -> None:
        """Reserve the memory to combine `size` bytes of one group, out of `read` bytes of slices.

        A refusal states what the group needs for the largest target, not only for what was read.
        """
        try:
            self._shard.account.resize(WORK * size)
        except Refused as refused:
            more = WORK * max(0, int(size / read * self._largest()) - size)
            raise Refused(refused.owner, refused.needed + more, refused.free) from refused

    @staticmethod
    def _divided(pieces: Sequence[SliceRange]) -> list[Sequence[SliceRange]]:
        """Return pieces in smaller sets: half of them, or half of the range of the only one."""
        if len(pieces) > 1:
            middle = len(pieces) // 2
            return [pieces[:middle], pieces[middle:]]
        return [[half] for half in pieces[0].halves()]
