"""Updates in transit: one row per key with its newest value, and a summary of the others.

Idea: of all updates of a key only the newest matters, but the first determines since when the key
waits, and their number how often it is updated. So a row has identity, first and last time, number
of updates, and the newest value; rows are in the order in which keys first appeared.

Invariants:
1. However updates are cut into batches, they fold to the same rows
   (`test_oracle_folding_does_not_depend_on_the_pieces`).
2. Among equal times the update that arrived last wins (the same test), or that of the most trusted
   input (`test_oracle_a_union_believes_its_source_of_truth`).

Cost: one sort of each batch by key and time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.kernels.hashing import START_HIGH, START_LOW
from icestream.state.identities import numbered
from icestream.state.keys import identified

#: first columns of the rows
ID_HIGH_COLUMN = "__hi"
ID_LOW_COLUMN = "__lo"
#: earliest and latest time of the updates that a row summarises, and their number
FIRST = "__first"
LAST = "__last"
COUNT = "__count"
#: column with the input of a value, if there are several inputs
ORIGIN = "__origin"

HEAD = (
    pa.field(ID_HIGH_COLUMN, pa.uint64(), nullable=False),
    pa.field(ID_LOW_COLUMN, pa.uint64(), nullable=False),
    pa.field(FIRST, pa.int64(), nullable=False),
    pa.field(LAST, pa.int64(), nullable=False),
    pa.field(COUNT, pa.int64(), nullable=False),
)
#: how many rows to collect before they are folded again
ENOUGH_ROWS = 65_536


def newest(
    id_high: Ids, id_low: Ids, times: Ints, trust: Ints | None = None
) -> tuple[Ints, Ints, Ints]:
    """Fold updates, given by the identities of keys, to the newest one of each key.

    Returns the row of the newest update of each key (among equal times the most trusted one, then
    the one that arrived last), the key number of each update, and the first row of each key. Keys
    are in the order in which they first appeared.
    """
    numbers, heads = numbered(id_high, id_low)
    order = np.lexsort((times, numbers) if trust is None else (trust, times, numbers))
    last = np.searchsorted(numbers[order], np.arange(len(heads)), side="right") - 1
    return order[last], numbers, heads


def identity_of(payload: pa.RecordBatch, keys: tuple[str, ...]) -> tuple[Ids, Ids]:
    """Return (id_high, id_low) of each update's key; without key columns all have one key."""
    if keys:
        return identified(payload, keys)
    return np.full(payload.num_rows, START_HIGH), np.full(payload.num_rows, START_LOW)


@dataclass(frozen=True)
class NewestUpdates:
    """Updates of keys; a key may have several."""

    rows: pa.RecordBatch

    @classmethod
    def of(
        cls,
        id_high: Ids,
        id_low: Ids,
        first: Ints,
        last: Ints,
        count: Ints,
        payload: pa.RecordBatch,
    ) -> NewestUpdates:
        """Build rows from their parts."""
        head = [pa.array(each) for each in (id_high, id_low, first, last, count)]
        schema = pa.schema([*HEAD, *payload.schema])
        return cls(pa.RecordBatch.from_arrays([*head, *payload.columns], schema=schema))

    @property
    def identity(self) -> tuple[Ids, Ids]:
        """Return id_high and id_low of each row."""
        return self._numbers(ID_HIGH_COLUMN), self._numbers(ID_LOW_COLUMN)

    @property
    def first(self) -> Ints:
        """Return the earliest time of each row."""
        return self._numbers(FIRST)

    @property
    def last(self) -> Ints:
        """Return the latest time of each row."""
        return self._numbers(LAST)

    @property
    def count(self) -> Ints:
        return self._numbers(COUNT)

    @property
    def payload(self) -> pa.RecordBatch:
        fields = [
            self.rows.schema.field(place) for place in range(len(HEAD), self.rows.num_columns)
        ]
        return pa.RecordBatch.from_arrays(self.rows.columns[len(HEAD) :], schema=pa.schema(fields))

    def take(self, chosen: Ints) -> NewestUpdates:
        return NewestUpdates(self.rows.take(pa.array(chosen)))

    def _numbers(self, name: str) -> np.ndarray:
        return np.asarray(self.rows.column(name).to_numpy())


def folded(updates: NewestUpdates, ranks: Ints | None = None) -> NewestUpdates:
    """Coalesce updates in transit, in the order of arrival, to one row for each key.

    With ranks, among equal times the update of the input with the lowest rank wins.
    """
    id_high, id_low = updates.identity
    first, last, count = updates.first, updates.last, updates.count
    trust = None if ranks is None else -ranks[updates.rows.column(ORIGIN).to_numpy()]
    chosen, numbers, heads = newest(id_high, id_low, last, trust)
    if len(chosen) == len(id_high):
        return updates
    earliest, total = first[heads].copy(), np.zeros(len(heads), dtype=np.int64)
    np.minimum.at(earliest, numbers, first)
    np.add.at(total, numbers, count)
    payload = updates.payload.take(pa.array(chosen))
    return NewestUpdates.of(id_high[chosen], id_low[chosen], earliest, last[chosen], total, payload)


@dataclass
class UpdateCoalescer:
    """Collects updates and keeps one row for each key."""

    ranks: Ints | None = None
    _parts: list[pa.RecordBatch] = field(default_factory=list)
    _rows: int = 0
    _settled: int = 0

    def take(self, updates: NewestUpdates) -> None:
        """Add updates that arrived after those added before."""
        part = folded(updates, self.ranks).rows
        self._parts.append(part)
        self._rows += part.num_rows
        if self._rows > max(ENOUGH_ROWS, 2 * self._settled):
            self._settle()

    def finish(self) -> NewestUpdates | None:
        """Return one row for each key, or None if there was nothing."""
        if not self._parts:
            return None
        self._settle()
        return NewestUpdates(self._parts[0])

    def _settle(self) -> None:
        together = joined(self._parts)
        self._parts = [folded(NewestUpdates(together), self.ranks).rows]
        self._rows = self._settled = self._parts[0].num_rows


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches of coalesced updates as one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
