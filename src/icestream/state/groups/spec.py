"""What operators may ask of the state they keep by group.

Idea: the state of a group is a bag of rows in one or more *synopses*. Operators name groups by
slots and read, add to or replace rows of many groups in one call; whether a group is in memory or
on the log is not theirs to know. Adding needs no read, so it never brings a group back.

Invariants (every implementation; `tests/state/groups/test_contract.py`):
1. `read` returns the rows appended since the group was last rewritten, in that order (of a synopsis
   with a rank, in any order), without those whose expiry the watermark has reached.
2. Slots stay valid until the next `begin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Slots
from icestream.core.times import Micros


@dataclass(frozen=True)
class Synopsis:
    """One kind of rows that an operator keeps for each group."""

    name: str
    schema: pa.Schema
    #: int64 column with the instant at which a row is garbage; rows live for ever without
    expiry: str | None = None
    #: int64 or float64 column, never null, by which the best rows, the largest, may be asked for
    #: alone; the rows of such a synopsis are read in any order
    rank: str | None = None


@dataclass(frozen=True)
class GroupRows:
    """Rows of several groups."""

    #: position, among the slots asked for, of the group each row belongs to; ascending
    owners: Ints
    rows: pa.RecordBatch


class Groups(Protocol):
    """Rows by group, in the synopses of one operator."""

    def begin(self, watermark: Micros) -> None:
        """Begin a chunk of work: slots given out before are void, expired rows are gone."""
        ...

    def locate(self, hi: Ids, lo: Ids) -> Slots:
        """Return the slot of each group, opened if it is new; equal identities, equal slots."""
        ...

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        """Return hi and lo of groups."""
        ...

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        """Cut distinct slots into parts whose rows fit into memory at once.

        Those of the synopses that are named, or of all. Parts come in any order; ascending slots
        are ascending in each.
        """
        ...

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        """Return the rows of distinct groups, in the order of the slots, then of their appends."""
        ...

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> GroupRows:
        """Return at least the `counts` best rows, by rank, of each of some distinct groups."""
        ...

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        """Add rows to the groups of `slots`, one slot for each row, without reading them."""
        ...

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        """Replace all rows of distinct groups; a group without rows is empty from now on."""
        ...

    def remind(self, slots: Slots, due: Ints) -> None:
        """Set the instant at which each group wants to be woken; INFINITY for never."""
        ...

    def hasten(self, slots: Slots, due: Ints) -> None:
        """Wake distinct groups at these instants, but for those that are to be woken before."""
        ...

    def due(self, watermark: Micros) -> Slots:
        """Return the groups whose instant is at or before the watermark.

        There may be more of them than memory has room for: set new instants for those returned,
        `begin` again, and ask until there are none.
        """
        ...
