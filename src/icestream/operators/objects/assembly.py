"""Combining states from the log: slices in, one row per target and group out, a portion at a time.

Idea: a target is a node of the tree or a window; whoever wants it names the slices it is made of.
Small targets are combined many at once, a large one in ranges of hi, so that the slices in memory
together take no more than a portion.

Invariants:
1. Slices of a target are combined in the order given, whatever the order they lie in on the log
   (`test_slices_are_combined_in_the_order_given`).
2. What is held beyond a portion is reserved first (`test_bounded_state_of_ten_times_the_budget`,
   `test_bounded_a_group_that_does_not_fit_is_an_error`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.operators.objects.directory import Slices
from icestream.operators.objects.states import States
from icestream.operators.objects.tree import Piece, portions
from icestream.operators.protocol import Shard

Ints = npt.NDArray[np.int64]

#: slices that are read before they are combined
SLICES_AT_ONCE = 1024
#: what combining a portion takes, in sizes of the portion
WORK = 8


class Assembly:
    """Reads and combines the states of one shard."""

    def __init__(self, shard: Shard, states: States, portion: int) -> None:
        """Reserve what a portion of so many bytes takes."""
        self._shard = shard
        self._states = states
        #: bytes of slices that are in memory together
        self.portion = portion
        #: the most ranges of hi that one target was combined in
        self.ranges = 1
        shard.account.resize(WORK * portion)

    def combined(
        self, targets: Iterable[tuple[int, Slices]]
    ) -> Iterator[tuple[Ints, pa.RecordBatch]]:
        """Yield target and state of groups, sorted by (target, hi, lo), in portions."""
        before, ranges = None, 0
        for pieces in portions(targets, self.portion):
            for found, rows in self._combine(pieces):
                ranges = ranges + 1 if int(found[0]) == before else 1
                before = int(found[-1])
                self.ranges = max(self.ranges, ranges)
                yield found, rows

    def _combine(self, pieces: Sequence[Piece]) -> Iterator[tuple[Ints, pa.RecordBatch]]:
        """Combine pieces together; if they hold more than was thought, one part after another."""
        held: tuple[Ints, pa.RecordBatch] | None = None
        wanted = [(piece, marker) for piece in pieces for marker in piece.slices["marker"].tolist()]
        for at in range(0, len(wanted), SLICES_AT_ONCE):
            read = list(self._read(wanted[at : at + SLICES_AT_ONCE]))
            if held is not None:
                read.insert(0, held)
            size = sum(rows.nbytes for _, rows in read)
            if size > 2 * self.portion and (parts := self._divided(pieces, read)):
                for part in parts:
                    yield from self._combine(part)
                return
            if read:
                self._shard.account.resize(WORK * max(size, self.portion))
                found = np.concatenate([targets for targets, _ in read])
                held = self._states.combine(found, pa.concat_batches([rows for _, rows in read]))
        if held is not None:
            yield held
            self._shard.account.resize(WORK * self.portion)

    def _read(self, wanted: Sequence[tuple[Piece, int]]) -> Iterator[tuple[Ints, pa.RecordBatch]]:
        """Yield target and state of the groups of slices that count, in the order asked for."""
        kept: dict[int, pa.RecordBatch] = {}
        markers = np.unique(np.array([marker for _, marker in wanted], dtype=np.uint64))
        narrow = wanted[0][0] if all(piece is wanted[0][0] for piece, _ in wanted) else None
        for record in self._shard.log.read_many(markers):
            rows = self._states.read(bytes(record.payload))
            kept[record.marker] = rows if narrow is None else self._inside(rows, narrow)
        for piece, marker in wanted:
            rows = kept[marker] if narrow is not None else self._inside(kept[marker], piece)
            if rows.num_rows:
                yield np.full(rows.num_rows, piece.target, dtype=np.int64), rows

    def _inside(self, rows: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
        return rows if piece.whole else self._states.inside(rows, piece.low, piece.high)

    def _divided(
        self, pieces: Sequence[Piece], read: Sequence[tuple[Ints, pa.RecordBatch]]
    ) -> list[Sequence[Piece]]:
        """Return pieces in smaller sets; none if all that was read belongs to one group."""
        if len(pieces) > 1:
            middle = len(pieces) // 2
            return [pieces[:middle], pieces[middle:]]
        ends = {end for _, rows in read for end in self._states.ends(rows)}
        return [[half] for half in pieces[0].halves()] if len(ends) > 1 else []
