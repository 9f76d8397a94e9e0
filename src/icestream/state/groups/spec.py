"""The interface of state by group, as operators use it.

Idea: the state of a group is a bag of rows in one or more *synopses* (kinds of rows). Operators
refer to groups by slots, and read, append or replace rows of many groups in one call; they do not
know whether a group is in memory or on the log. Appending needs no read, so it never loads a group.

Invariants (every implementation; `tests/state/groups/test_contract.py`):
1. `read` returns the rows appended since the group was last rewritten, in that order (of a synopsis
   with a rank, in any order), without those whose expiry the watermark has reached. Between two
   versions, rows of a synopsis with `wear` may have been consolidated.
2. Slots stay valid until the next `begin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import Micros

#: returns an id for each row; rows that may cancel or replace each other have equal ones
Kinds = Callable[[pa.RecordBatch], Ids]


@dataclass(frozen=True)
class Wear:
    """How appended rows make others superfluous, and how to be rid of them."""

    #: returns rows that mean the same, without the superfluous ones; a group's stay in order
    consolidated: Callable[[GroupRows], GroupRows]
    #: int64 column: a row with a negative value cancels another; without it any may replace another
    sign: str | None = None
    #: which rows `consolidated` has to see together; without it, all rows of a group
    kinds: Kinds | None = None


@dataclass(frozen=True)
class Synopsis:
    """One kind of rows that an operator stores for each group."""

    name: str
    schema: pa.Schema
    #: int64 column with the time at which a row expires; without it, rows never expire
    expiry: str | None = None
    #: int64 or float64 column, never null: the rows with the largest values can be read alone;
    #: rows of such a synopsis are read in any order
    rank: str | None = None
    #: without it, every row counts until it expires or its group is rewritten; not stored
    wear: Wear | None = field(default=None, compare=False)


@dataclass(frozen=True)
class GroupRows:
    """Rows of several groups."""

    #: position, among the slots requested, of the group each row belongs to; ascending
    owners: Ints
    rows: pa.RecordBatch

    def where(self, chosen: Mask) -> GroupRows:
        return GroupRows(self.owners[chosen], self.rows.filter(pa.array(chosen)))


@dataclass(frozen=True)
class GroupPieces:
    """Rows of groups in batches that fit into memory; each can be read again, by its number."""

    count: int
    read: Callable[[int], GroupRows]
    #: returns the number of the batch that has the rows of each kind, if it has only one group's
    place: Callable[[Ids], Ints] = lambda kinds: np.zeros(len(kinds), dtype=np.int64)

    def __iter__(self) -> Iterator[GroupRows]:
        return map(self.read, range(self.count))


class Groups(Protocol):
    """Rows by group, in the synopses of one operator."""

    #: whether the groups have no rows and will never have any: all of their changes are at hand
    are_transient: bool = False

    def watermark(self) -> Micros:
        """Return the latest watermark of a `begin`; rows that it has reached are gone."""
        ...

    def begin(self, watermark: Micros) -> None:
        """Begin a chunk of work: slots returned before become invalid, expired rows are gone."""
        ...

    def locate(self, id_high: Ids, id_low: Ids) -> Slots:
        """Return the slot of each group, opened if it is new; equal ids have equal slots."""
        ...

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        """Return id_high and id_low of groups."""
        ...

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        """Cut distinct slots into parts whose rows fit into memory at once.

        `synopses` are those whose rows are counted, all by default. Parts come in any order;
        ascending slots are ascending in each.
        """
        ...

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        """Return the rows of distinct groups, in the order of the slots, then of appending."""
        ...

    def fits(self, synopsis: int, slots: Slots) -> bool:
        """Return whether the rows of a portion can be read at once: not if one group is large."""
        ...

    def pieces(self, synopsis: int, slots: Slots, kinds: Kinds | None = None) -> GroupPieces:
        """Return the rows of distinct groups of a portion, in one batch or, of one group, several.

        A group too large for memory is read in batches, in the order of appending; with `kinds`,
        rows of one kind are in one batch, in this order. Rows appended later are not among them. A
        batch may be empty.
        """
        ...

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> GroupRows:
        """Return at least the `counts` best rows, by rank, of each distinct group."""
        ...

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        """Append rows to groups, one slot for each row, without reading the groups."""
        ...

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        """Replace all rows of distinct groups; a group without new rows becomes empty."""
        ...

    def remind(self, slots: Slots, due: Ints) -> None:
        """Set the time at which each group is due; INFINITY for never."""
        ...

    def hasten(self, slots: Slots, due: Ints) -> None:
        """Make distinct groups due at these times, unless they are due earlier already."""
        ...

    def due(self, watermark: Micros) -> Slots:
        """Return the groups that are due at or before the watermark.

        There may be more of them than memory has room for: set new times for those returned,
        `begin` again, and repeat until none is returned.
        """
        ...
