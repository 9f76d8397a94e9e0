"""A store as one operator of several sees it.

Idea: the operators of a grouped sub-query share one store, so that a group comes and goes as a
whole. Each sees its own synopses, numbered from 0, and has instants of its own.

Invariants:
1. Operators do not see each other's rows and instants (`test_views_are_apart`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Slots
from icestream.core.times import Micros
from icestream.state.groups.spec import GroupRows, Groups


class SharedStore(Groups, Protocol):
    """What several operators share."""

    def remind_of(self, synopsis: int, slots: Slots, due: Ints) -> None:
        """Set the instant of a synopsis of each group."""
        ...

    def hasten_of(self, synopsis: int, slots: Slots, due: Ints) -> None:
        """Set the instant of a synopsis of each group, unless it has an earlier one."""
        ...

    def due_of(self, synopsis: int, watermark: Micros) -> Slots:
        """Return groups with a synopsis that is due."""
        ...


class GroupView(Groups):
    """A store as one operator sees it: its own synopses, numbered from 0."""

    def __init__(self, store: SharedStore, first: int, count: int) -> None:
        """Show `count` synopses from `first` on."""
        self._store = store
        self._first = first
        self.count = count

    def begin(self, watermark: Micros) -> None:
        """Begin a chunk, for all operators of the store."""
        self._store.begin(watermark)

    def locate(self, hi: Ids, lo: Ids) -> Slots:
        """Return the slot of each group."""
        return self._store.locate(hi, lo)

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        """Return hi and lo of groups."""
        return self._store.identities(slots)

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        """Cut distinct slots into parts whose rows fit into memory at once."""
        return self._store.portions(slots, [self._first + each for each in synopses])

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        """Return the rows of distinct groups."""
        return self._store.read(self._first + synopsis, slots)

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> GroupRows:
        """Return at least the best rows of distinct groups."""
        return self._store.read_best(self._first + synopsis, slots, counts)

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        """Add rows to groups."""
        self._store.append(self._first + synopsis, slots, rows)

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        """Replace all rows of distinct groups."""
        self._store.rewrite(self._first + synopsis, slots, rows)

    def remind(self, slots: Slots, due: Ints) -> None:
        """Set the instant at which this operator wants to be woken for each group."""
        self._store.remind_of(self._first, slots, due)

    def hasten(self, slots: Slots, due: Ints) -> None:
        """Wake this operator for groups at these instants, but for those it waits for less."""
        self._store.hasten_of(self._first, slots, due)

    def due(self, watermark: Micros) -> Slots:
        """Return groups for which this operator wants to be woken."""
        return self._store.due_of(self._first, watermark)
