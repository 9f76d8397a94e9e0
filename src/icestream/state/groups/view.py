"""A store as seen by one of several operators.

Idea: the operators of a grouped sub-query share one store, so that a group is loaded and evicted as
a whole. Each sees its own synopses, numbered from 0, and has timers of its own.

Invariants:
1. Operators do not see each other's rows and timers (`test_views_are_apart`), and the rows of
   others do not make their portions smaller (`test_portions_count_the_rows_of_their_operator`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Slots
from icestream.core.times import Micros
from icestream.state.groups.spec import GroupPieces, GroupRows, Groups, Kinds
from icestream.state.groups.store import GroupStore


class GroupView(Groups):
    """A store as one operator sees it: its own synopses, numbered from 0."""

    def __init__(self, store: GroupStore, first: int, count: int) -> None:
        """Show `count` synopses from `first` on."""
        self._store = store
        self._first = first
        self._own = range(count)

    def watermark(self) -> Micros:
        return self._store.watermark()

    def begin(self, watermark: Micros) -> None:
        """Begin a chunk, for all operators of the store."""
        self._store.begin(watermark)

    def locate(self, id_high: Ids, id_low: Ids) -> Slots:
        return self._store.locate(id_high, id_low)

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        return self._store.identities(slots)

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        """Cut distinct slots into parts whose rows fit into memory at once."""
        return self._store.portions(slots, [self._first + each for each in synopses or self._own])

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        return self._store.read(self._first + synopsis, slots)

    def fits(self, synopsis: int, slots: Slots) -> bool:
        """Return whether the rows of a portion can be read at once."""
        return self._store.fits(self._first + synopsis, slots)

    def pieces(self, synopsis: int, slots: Slots, kinds: Kinds | None = None) -> GroupPieces:
        """Return the rows of distinct groups of a portion, in batches that fit."""
        return self._store.pieces(self._first + synopsis, slots, kinds)

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> GroupRows:
        """Return at least the best rows of distinct groups."""
        return self._store.read_best(self._first + synopsis, slots, counts)

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        self._store.append(self._first + synopsis, slots, rows)

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        self._store.rewrite(self._first + synopsis, slots, rows)

    def remind(self, slots: Slots, due: Ints) -> None:
        """Set the time at which each group is due for this operator."""
        self._store.remind(slots, due, self._first)

    def hasten(self, slots: Slots, due: Ints) -> None:
        """Make groups due for this operator at these times, unless they are due earlier."""
        self._store.hasten(slots, due, self._first)

    def due(self, watermark: Micros) -> Slots:
        return self._store.due(watermark, self._first)
