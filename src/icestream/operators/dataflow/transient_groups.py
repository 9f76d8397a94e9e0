"""Groups of which nothing is kept: they come and go within a version, past the store.

Idea: a request lives for an instant, and so does every group that is made for it alone. An operator
that is told that all changes of such groups are at hand reads nothing of them and keeps nothing, so
they need no place in a directory: they are numbered for the call, and forgotten.

Invariants:
1. Operators say the same of groups that pass as of groups in a store
   (`test_oracle_operators_that_forget_early_say_the_same`).
2. Whatever a store knows of, or lasts, does not pass
   (`test_groups_that_are_known_or_last_do_not_pass`).
3. A row that is handed over to be kept is an error, not a loss
   (`test_a_passing_group_keeps_nothing`).

Cost: the changes are sorted by group, unless they come so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import RE, column_of, identities_of
from icestream.state.groups.spec import GroupRows, Groups, Synopsis
from icestream.state.identities import distinct

_NONE: Ints = np.empty(0, dtype=np.int64)


class TransientGroups(Groups):
    """Groups of some changes; nothing is known of them and nothing is kept."""

    def __init__(self, changes: pa.RecordBatch, synopses: Sequence[Synopsis]) -> None:
        """Number the groups."""
        self._given = identities_of(changes)
        self._hi, self._lo, self._numbers = distinct(*self._given)
        self._synopses = synopses

    def begin(self, watermark: Micros) -> None:
        """Do nothing: nothing expires."""

    def locate(self, hi: Ids, lo: Ids) -> Slots:
        """Return the number of each group, which must be one of the changes'."""
        if all(map(np.array_equal, self._given, (hi, lo))):
            return self._numbers
        highs, lows = np.concatenate([self._hi, hi]), np.concatenate([self._lo, lo])
        return distinct(highs, lows)[2][len(self._hi) :]

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        """Return hi and lo of groups."""
        return self._hi[slots], self._lo[slots]

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        """Yield all groups at once: they have no rows."""
        del synopses
        if len(slots):
            yield slots

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        """Return no rows."""
        del slots
        schema = self._synopses[synopsis].schema
        nothing = [pa.array([], field.type) for field in schema]
        return GroupRows(_NONE, pa.RecordBatch.from_arrays(nothing, schema=schema))

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> GroupRows:
        """Return no rows."""
        del counts
        return self.read(synopsis, slots)

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        """Refuse rows."""
        del synopsis, slots
        _refuse(rows.num_rows)

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        """Refuse rows."""
        del synopsis, slots
        _refuse(rows.rows.num_rows)

    def remind(self, slots: Slots, due: Ints) -> None:
        """Refuse to wake anybody."""
        del slots
        _refuse(int(np.count_nonzero(due < INFINITY)))

    def hasten(self, slots: Slots, due: Ints) -> None:
        """Refuse to wake anybody."""
        self.remind(slots, due)

    def due(self, watermark: Micros) -> Slots:
        """Return that nobody waits."""
        del watermark
        return _NONE


def lasting(changes: pa.RecordBatch, over: Micros) -> Mask:
    """Tell which changes are of groups that may have something that ends past an instant."""
    late = column_of(changes, RE) > over
    if not late.any() or late.all():
        return late
    hi, _ = identities_of(changes)
    return np.isin(hi, np.unique(hi[late]))


def _refuse(count: int) -> None:
    if count:
        msg = f"{count} rows or instants of groups that pass were to be kept"
        raise AssertionError(msg)
