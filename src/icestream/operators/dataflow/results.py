"""Changes as the rows that users see, without those that cancel out.

Invariants:
1. The emitted changes add up to the input, and changes that are buffered together do not cancel
   each other (`test_oracle_changes_that_are_held_back_add_up`).
2. No more changes are buffered than there is memory for
   (`test_bounded_changes_are_held_back_while_there_is_room`).
3. However high the count of an event, few rows are in memory
   (`test_bounded_an_event_that_comes_very_often`).
4. Rows by key are emitted once, the last ones of the key (`test_rows_by_key_are_the_last_ones`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.errors import BudgetError, DefinitionError
from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    RE,
    column_of,
    consolidated,
    identities_of,
    payload_of,
)

#: the lifetime column of every row, and the column with its change
LIFETIME = "lifetime"
CHANGE = "change"
#: modes whose rows may be taken back, and modes whose rows hold now, by key
CHANGING = ("changes", "now")
HOLDING = ("update", "now")
#: maximum number of rows built at once for events with high counts, and of all rows
ROWS_AT_ONCE = 65_536
MOST_ROWS = 1 << 30


@dataclass(frozen=True)
class LifetimeRows:
    """Converts changes to rows: the lifetime, the change, the payload.

    A lifetime without an end has a null there. An event with a count of n becomes n rows. Rows in
    modes `now` and `update` hold now and have no lifetime.
    """

    payload: pa.Schema
    time: pa.DataType
    mode: str
    #: whether final rows are those of events at instants, which show no lifetime
    instants: bool = False
    #: how much later than meant events live, in microseconds
    delay: Micros = 0

    @property
    def schema(self) -> pa.Schema:
        if self._is_bare:
            return self.payload
        change = [pa.field(CHANGE, pa.int32(), nullable=False)] * (self.mode in CHANGING)
        lifetime = [pa.field(LIFETIME, self._lifetime, nullable=False)] * (self.mode not in HOLDING)
        head = [*lifetime, *change]
        taken = {each.name for each in head} & {name.lower() for name in self.payload.names}
        if taken:
            msg = (
                f"rows of events in output mode {self.mode!r} begin with columns that are called "
                f"{', '.join(each.name for each in head)}: rename {', '.join(sorted(taken))}, for "
                "example with withColumnRenamed"
            )
            raise DefinitionError(msg)
        return pa.schema([*head, *self.payload])

    @property
    def _is_bare(self) -> bool:
        return self.instants and self.mode == "append"

    @property
    def _lifetime(self) -> pa.DataType:
        return pa.struct([pa.field("start", self.time), pa.field("end", self.time)])

    def __call__(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        counts = np.abs(column_of(changes, DIFF))
        if (counts == 1).all():
            yield self._rows(changes)
            return
        total = float(counts.astype(np.float64).sum())
        if (counts < 0).any() or total > MOST_ROWS:
            msg = (
                f"events with a total count of {total:.0f} are too many rows of a result; "
                "aggregate before, or join on more columns"
            )
            raise BudgetError(msg)
        ends = np.cumsum(counts)
        for first in range(0, int(total), ROWS_AT_ONCE):
            numbers = np.arange(first, min(first + ROWS_AT_ONCE, int(total)))
            chosen = np.searchsorted(ends, numbers, side="right")
            yield self._rows(changes.take(pa.array(chosen)))

    def _rows(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        if self._is_bare:
            return pa.RecordBatch.from_arrays(payload_of(changes).columns, schema=self.schema)
        diff, starts, ends = (column_of(changes, name) for name in (DIFF, LE, RE))
        last = pa.array(ends - self.delay, mask=ends == INFINITY)
        lifetime = pa.StructArray.from_arrays(
            [each.cast(self.time) for each in (pa.array(starts - self.delay), last)],
            fields=list(self._lifetime),
        )
        head = [lifetime] * (self.mode not in HOLDING)
        head += [pa.array(np.sign(diff).astype(np.int32))] * (self.mode in CHANGING)
        columns = [*head, *payload_of(changes).columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class ResultBuffer:
    """Buffers the changes of a version, as many as there is memory for, and adds them up."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0

    def take(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Buffer changes; yield all, added up, once they exceed the memory."""
        self._held.append(changes)
        self._bytes += changes.nbytes
        if self._bytes > self._room:
            left = self._left()
            self._held, self._bytes = [left], left.nbytes
            if 2 * self._bytes > self._room:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._held:
            left = self._left()
            self._held, self._bytes = [], 0
            yield left

    def _left(self) -> pa.RecordBatch:
        """Return what is buffered without changes that cancel out: there are none if all add."""
        together = pa.concat_batches(self._held)
        return together if (column_of(together, DIFF) > 0).all() else consolidated(together)


class HeldRowBuffer:
    """Rows that hold, straight from an operator by their key, once for each key that changed.

    A batch has all rows of its groups. Several batches of one group follow each other, and no other
    is in them: the last one counts, and of windows the last row of each.
    """

    def __init__(self) -> None:
        self._held: pa.RecordBatch | None = None

    def take(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of keys of which no others can follow."""
        if self._held is not None and not _is_one_group(self._held.slice(0, 1), changes):
            yield from self.rest()
        if _is_one_group(changes):
            self._held = changes if self._held is None else _replaced(self._held, changes)
        else:
            yield changes

    def rest(self) -> Iterator[pa.RecordBatch]:
        held, self._held = self._held, None
        if held is not None:
            yield held


def _replaced(held: pa.RecordBatch, changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that hold, without those that others of the same lifetime replace."""
    stays = ~np.isin(column_of(held, LE), column_of(changes, LE))
    return pa.concat_batches([held.filter(pa.array(stays)), changes])


def _is_one_group(*batches: pa.RecordBatch) -> bool:
    """Return whether all changes are of one group."""
    first = [each[0] for each in identities_of(batches[0])]
    pairs = (zip(identities_of(each), first, strict=True) for each in batches)
    return all((column == one).all() for pair in pairs for column, one in pair)
