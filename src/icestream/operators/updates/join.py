"""Join of two update streams on their key: the newest match of every key.

Idea: rows of both sides match if their keys are equal, their times are at most `within` apart and a
condition, if there is one, holds. The time of a match is that of its younger row; of several, the
one with the youngest rows is delivered, and only if it is newer than the last one delivered for its
key. A row is kept as long as a row of the other side that is yet to come can match it.

Invariants:
1. What is delivered with a batch is the newest match there is with a row of that batch, if newer
   than the last (`test_oracle_join_beside_its_definition`).
2. Times of a key's matches never go back, and (time, time of the older row) goes up (same test).
3. Rows are kept while the other side's time is less than `within` ahead
   (`test_bounded_join_forgets_what_cannot_match`).

Cost: per batch a copy of the kept rows' keys and times, and the pairs within reach if there is a
condition; without one a binary search per row.

Limits: rows of a side that are not newer than their key's latest are dropped as late.

References: section 3.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels.ranges import numbers_of
from icestream.kernels.update_windows.groups import going_up
from icestream.operators.expressions import Predicate
from icestream.operators.updates.kept import State, bytes_of, table_of
from icestream.operators.updates.streams import KeyDirectory, UpdateStream, grown
from icestream.state.synopses.spec import Ints

LEFT, RIGHT = 0, 1
#: rows of a side that are looked through for ones to forget, at least
ENOUGH_ROWS = 1024
#: pairs that a condition is evaluated over at once
PAIRS_AT_ONCE = 65_536


class _Side:
    """The rows of one input that can still match, by key and time."""

    def __init__(self, stream: UpdateStream) -> None:
        self.stream = stream
        self.rows = stream.schema.empty_table()
        self.keys: Ints = np.zeros(0, dtype=np.int64)
        self.times: Ints = np.zeros(0, dtype=np.int64)
        #: latest time of each key
        self.last: Ints = np.zeros(0, dtype=np.int64)
        #: row in `rows` of each kept one
        self.places: Ints = np.zeros(0, dtype=np.int64)
        self.settled = 0

    def add(self, rows: pa.RecordBatch, keys: Ints, times: Ints) -> None:
        """Keep rows beside the others."""
        order = np.lexsort((times, keys))
        at = bounds(self.keys, self.times, keys[order], times[order])
        places = self.rows.num_rows + order
        self.keys = np.insert(self.keys, at, keys[order])
        self.times = np.insert(self.times, at, times[order])
        self.places = np.insert(self.places, at, places)
        self.rows = pa.concat_tables([self.rows, pa.Table.from_batches([rows])])

    def forget(self, before: Ints) -> None:
        """Forget rows up to a time for each key, once in a while."""
        if self.rows.num_rows <= max(ENOUGH_ROWS, 2 * self.settled):
            return
        left = self.times > before[self.keys]
        self.keys, self.times, self.places = (
            each[left] for each in (self.keys, self.times, self.places)
        )
        self.rows = self.rows.take(pa.array(self.places)).combine_chunks()
        self.places = np.arange(len(self.keys))
        self.settled = len(self.keys)


class UpdateJoin:
    """Delivers the newest match of every key of two streams."""

    def __init__(
        self,
        left: UpdateStream,
        right: UpdateStream,
        *,
        within: Micros,
        condition: str | None = None,
        zone: str = "UTC",
    ) -> None:
        """Join on the key.

        Args:
            left: rows of port 0.
            right: rows of port 1; its key columns are those of the left, its other columns have
                names of their own.
            within: how far apart in time matching rows may be, in the unit of the time columns.
            condition: SQL over the columns of a result, where there is more than the key.
            zone: of the session.
        """
        kinds = [
            [stream.schema.field(name).type for name in (*stream.keys, stream.time)]
            for stream in (left, right)
        ]
        if set(left.keys) != set(right.keys) or kinds[0] != kinds[1] or within < 0:
            msg = (
                "a join of update streams is on their key, within some time: both need the same "
                f"key columns and types of time; got {left.keys} and {right.keys}, {within}"
            )
            raise DefinitionError(msg)
        taken = {*left.keys, left.time, *left.others}
        twice = [name for name in right.others if name in taken]
        if twice:
            msg = f"both sides of a join have columns {twice}; rename them on one side"
            raise DefinitionError(msg)
        fields = [left.schema.field(name) for name in (*left.keys, left.time, *left.others)]
        fields += [right.schema.field(name) for name in right.others]
        self.result = UpdateStream(pa.schema(fields), left.keys, left.time)
        self._predicate = (
            None if condition is None else Predicate.bind(self.result.schema, condition, zone=zone)
        )
        self._within = within
        self._sides = (_Side(left), _Side(right))
        self._keys = KeyDirectory()
        #: times of the younger and the older row of the last match of each key
        self._younger: Ints = np.zeros(0, dtype=np.int64)
        self._older: Ints = np.zeros(0, dtype=np.int64)
        #: rows that were not newer than their key's latest of their side
        self.late = 0

    @property
    def kept(self) -> tuple[int, int]:
        """Rows that are kept of each side."""
        return self._sides[LEFT].rows.num_rows, self._sides[RIGHT].rows.num_rows

    def state(self) -> State:
        """Return all that is known, for `recall`."""
        known: State = {
            "known": self._keys.state(),
            "younger": self._younger,
            "older": self._older,
            "late": np.array([self.late]),
        }
        for name, side in zip(("left", "right"), self._sides, strict=True):
            rows = side.rows.take(pa.array(side.places)).combine_chunks()
            known |= {
                f"{name}.rows": bytes_of(rows),
                f"{name}.keys": side.keys,
                f"{name}.times": side.times,
                f"{name}.last": side.last,
            }
        return known

    def recall(self, state: State) -> None:
        """Go on where `state` was asked for."""
        self._keys.recall(state["known"])
        self._younger, self._older = state["younger"], state["older"]
        self.late = int(state["late"][0])
        for name, side in zip(("left", "right"), self._sides, strict=True):
            side.rows = table_of(state[f"{name}.rows"])
            side.keys, side.times = state[f"{name}.keys"], state[f"{name}.times"]
            side.last = state[f"{name}.last"]
            side.places = np.arange(len(side.keys))
            side.settled = len(side.keys)

    def on_rows(self, port: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Take rows of one side and return the newest matches."""
        mine, other = self._sides[port], self._sides[1 - port]
        keys = self._keys.numbers(*self.result.identify(rows))
        times = mine.stream.times(rows)
        self._grow()
        keep = np.empty(len(times), dtype=np.bool_)
        self.late += going_up(keys, times, mine.last, True, keep)
        rows, keys, times = rows.filter(pa.array(keep)), keys[keep], times[keep]
        begins = bounds(other.keys, other.times, keys, times - self._within)
        ends = bounds(other.keys, other.times, keys, times + self._within + 1)
        if self._predicate is None:
            begins = np.maximum(begins, ends - 1)
        mine_at, other_at = np.repeat(np.arange(len(keys)), ends - begins), numbers_of(begins, ends)
        found = self._matches(port, rows, times, mine_at, other_at)
        mine.add(rows, keys, times)
        for side, opposite in ((mine, other), (other, mine)):
            side.forget(_minus(opposite.last, self._within))
        return found

    def _grow(self) -> None:
        count = len(self._keys)
        for side in self._sides:
            side.last = grown(side.last, count, MINUS_INFINITY)
        self._younger = grown(self._younger, count, MINUS_INFINITY)
        self._older = grown(self._older, count, MINUS_INFINITY)

    def _matches(
        self, port: int, rows: pa.RecordBatch, times: Ints, mine_at: Ints, other_at: Ints
    ) -> pa.RecordBatch:
        """Return the newest of some pairs of each key, if newer than what was delivered."""
        other = self._sides[1 - port]
        keys = other.keys[other_at]
        younger = np.maximum(times[mine_at], other.times[other_at])
        older = np.minimum(times[mine_at], other.times[other_at])
        news = (younger > self._younger[keys]) | (
            (younger == self._younger[keys]) & (older > self._older[keys])
        )
        pairs = np.flatnonzero(news)
        if self._predicate is not None:
            pairs = self._fulfilling(port, rows, younger, mine_at, other_at, pairs)
        order = pairs[np.lexsort((older[pairs], younger[pairs], keys[pairs]))]
        last = np.append(keys[order][1:] != keys[order][:-1], [True])[: len(order)]
        chosen = order[last]
        self._younger[keys[chosen]], self._older[keys[chosen]] = younger[chosen], older[chosen]
        return self._joined(port, rows, younger[chosen], mine_at[chosen], other_at[chosen])

    def _fulfilling(
        self,
        port: int,
        rows: pa.RecordBatch,
        younger: Ints,
        mine_at: Ints,
        other_at: Ints,
        pairs: Ints,
    ) -> Ints:
        """Return the pairs that meet the condition."""
        kept = [pairs[:0]]
        for first in range(0, len(pairs), PAIRS_AT_ONCE):
            part = pairs[first : first + PAIRS_AT_ONCE]
            joined = self._joined(port, rows, younger[part], mine_at[part], other_at[part])
            if self._predicate is not None:
                kept.append(part[self._predicate.mask(joined).to_numpy(zero_copy_only=False)])
        return np.concatenate(kept)

    def _joined(
        self, port: int, rows: pa.RecordBatch, younger: Ints, mine_at: Ints, other_at: Ints
    ) -> pa.RecordBatch:
        """Put rows of both sides together."""
        other = self._sides[1 - port]
        mine = pa.Table.from_batches([rows]).take(pa.array(mine_at))
        theirs = other.rows.take(pa.array(other.places[other_at]))
        left, right = (mine, theirs) if port == LEFT else (theirs, mine)
        columns = []
        for field in self.result.schema:
            if field.name == self.result.time:
                columns.append(pa.array(younger).cast(field.type))
            else:
                source = left if field.name in left.column_names else right
                columns.append(source.column(field.name).combine_chunks())
        return pa.RecordBatch.from_arrays(columns, schema=self.result.schema)


def bounds(keys: Ints, times: Ints, wanted_keys: Ints, wanted_times: Ints) -> Ints:
    """Return the first place, in rows sorted by key and time, not before each wanted one."""
    first = np.searchsorted(keys, wanted_keys, "left")
    last = np.searchsorted(keys, wanted_keys, "right")
    while (first < last).any():
        middle = (first + last) >> 1
        inside = first < last
        earlier = np.zeros(len(first), dtype=np.bool_)
        earlier[inside] = times[middle[inside]] < wanted_times[inside]
        first = np.where(earlier, middle + 1, first)
        last = np.where(inside & ~earlier, middle, last)
    return first


def _minus(times: Ints, length: Micros) -> Ints:
    """Return earlier times; those before all stay so."""
    return np.where(times == MINUS_INFINITY, times, times - length)
