"""Groups without state: they begin and end within a version and bypass the store.

Idea: a request lives for an instant, and so does every group that exists only for it. If an
operator gets all changes of such groups at once, it reads and stores nothing for them, so they need
no entry in a directory: they are numbered for the call and then dropped.

Invariants:
1. Operators emit the same for transient groups as for groups in a store
   (`test_oracle_operators_that_forget_early_say_the_same`).
2. Groups that a store knows, or that last, are not transient
   (`test_groups_that_are_known_or_last_do_not_pass`).
3. Storing a row of a transient group is an error, not a loss
   (`test_a_passing_group_keeps_nothing`).

Cost: the changes are sorted by group, unless they already are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.lifetimes.changes import RE, column_of, identities_of
from icestream.state.groups.spec import GroupPieces, GroupRows, Groups, Kinds, Synopsis
from icestream.state.identities import distinct

_NONE: Ints = np.empty(0, dtype=np.int64)


class TransientGroups(Groups):
    """The groups of some changes; they have no state."""

    are_transient: bool = True

    def __init__(self, changes: pa.RecordBatch, synopses: Sequence[Synopsis]) -> None:
        self._given = identities_of(changes)
        self._id_high, self._id_low, self._numbers = distinct(*self._given)
        self._synopses = synopses

    def watermark(self) -> Micros:
        """Return the earliest instant: nothing expires."""
        return MINUS_INFINITY

    def begin(self, watermark: Micros) -> None:
        """Do nothing: nothing expires."""

    def locate(self, id_high: Ids, id_low: Ids) -> Slots:
        """Return the number of each group, which must be a group of the changes."""
        if all(map(np.array_equal, self._given, (id_high, id_low))):
            return self._numbers
        highs, lows = (
            np.concatenate([self._id_high, id_high]),
            np.concatenate([self._id_low, id_low]),
        )
        return distinct(highs, lows)[2][len(self._id_high) :]

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        return self._id_high[slots], self._id_low[slots]

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        """Yield all groups at once: they have no rows."""
        if len(slots):
            yield slots

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        schema = self._synopses[synopsis].schema
        return GroupRows(_NONE, pa.RecordBatch.from_pylist([], schema=schema))

    def fits(self, synopsis: int, slots: Slots) -> bool:
        """Return True: there are no rows."""
        return True

    def pieces(self, synopsis: int, slots: Slots, kinds: Kinds | None = None) -> GroupPieces:
        return GroupPieces(1, lambda _: self.read(synopsis, slots))

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> GroupRows:
        return self.read(synopsis, slots)

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        _refuse(rows.num_rows)

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        _refuse(rows.rows.num_rows)

    def remind(self, slots: Slots, due: Ints) -> None:
        _refuse(int(np.count_nonzero(due < INFINITY)))

    def hasten(self, slots: Slots, due: Ints) -> None:
        self.remind(slots, due)

    def due(self, watermark: Micros) -> Slots:
        return _NONE


def lasting(changes: pa.RecordBatch, over: Micros) -> Mask:
    """Return which changes are not of transient groups: something may end past an instant."""
    late = column_of(changes, RE) > over
    if not late.any() or late.all():
        return late
    id_high, _ = identities_of(changes)
    return np.isin(id_high, np.unique(id_high[late]))


def _refuse(count: int) -> None:
    if count:
        msg = f"{count} rows or wake-ups of transient groups cannot be stored"
        raise AssertionError(msg)
