"""Join of two update streams on their key: the newest match of every key.

Idea: rows of both sides match if their keys are equal, their times are at most `within` apart and
the condition, if there is one, holds. The time of a match is that of its newer row. Among several
matches of one time, the one with the newest rows is delivered, and only if it is newer than the
last one of its key. A row is stored as long as a future row of the other side can match it. Rows of
a side may arrive up to `lateness` behind its newest one, whatever their keys, so a row is forgotten
when the other side is that far ahead, even if its key never appears there. So is a key that has no
rows.

Invariants:
1. The match delivered for rows of one side is the newest one with any of them, if it is newer than
   the last (`test_oracle_join_beside_its_definition`).
2. Times of a key's matches never decrease, and (time, time of the older row) increases (same test).
3. If rows of both sides arrive in time order, the newest match of every instant that has one is
   delivered, however they are cut (`test_oracle_every_match_does_not_depend_on_the_pieces`).
4. Rows are stored while the other side's time of their key is less than `within` ahead, and that of
   any key less than `within` and `lateness` (`test_bounded_join_forgets_what_cannot_match`,
   `test_bounded_join_forgets_keys_of_one_side`).

Cost: per batch a copy of the stored rows' keys and times, and the pairs within reach if there is a
condition; without one two binary searches per instant.

Limits: rows of a side that are older than their key's latest are dropped as late, and one as old
replaces it; rows that arrive later than `lateness` may miss matches.

References: section 3.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, numbers_of
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.queue.windows.key_times import going_up
from icestream.operators.latest.saved_arrays import State, bytes_of, table_of
from icestream.operators.latest.update_stream import KeptKeys, KeyDirectory, UpdateStream, grown
from icestream.sql.expressions.compile import Predicate
from icestream.state.identities import IdRange

LEFT, RIGHT = 0, 1
#: minimum number of rows of a side before expired ones are removed
ENOUGH_ROWS = 1024
#: maximum number of pairs for which a condition is evaluated at once
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
        #: position in `rows` of each stored row
        self.places: Ints = np.zeros(0, dtype=np.int64)
        #: rows left when rows were last removed
        self.settled = 0

    def add(self, rows: pa.RecordBatch, keys: Ints, times: Ints) -> None:
        order = np.lexsort((times, keys))
        at = bounds(self.keys, self.times, keys[order], times[order])
        places = self.rows.num_rows + order
        self.keys = np.insert(self.keys, at, keys[order])
        self.times = np.insert(self.times, at, times[order])
        self.places = np.insert(self.places, at, places)
        self.rows = pa.concat_tables([self.rows, pa.Table.from_batches([rows])])

    def replace(self, keys: Ints, times: Ints) -> None:
        """Remove rows with the keys and times of others that are about to be added."""
        at = bounds(self.keys, self.times, keys, times)
        there = np.flatnonzero(at < len(self.keys))
        at = at[there]
        same = (self.keys[at] == keys[there]) & (self.times[at] == times[there])
        left = np.ones(len(self.keys), dtype=np.bool_)
        left[at[same]] = False
        self.keys, self.times, self.places = (
            each[left] for each in (self.keys, self.times, self.places)
        )

    @property
    def newest(self) -> int:
        """The time of the newest row of all keys."""
        return int(self.last.max(initial=MINUS_INFINITY))

    def forget(self, before: Ints) -> bool:
        """Remove rows up to a time for each key, from time to time; return whether it was time."""
        if self.rows.num_rows <= max(ENOUGH_ROWS, 2 * self.settled):
            return False
        left = self.times > before[self.keys]
        self.keys, self.times, self.places = (
            each[left] for each in (self.keys, self.times, self.places)
        )
        self.rows = self.rows.take(pa.array(self.places)).combine_chunks()
        self.places = np.arange(len(self.keys))
        self.settled = len(self.keys)
        return True


@dataclass(frozen=True)
class _Pairs:
    """Rows of both sides that match."""

    keys: Ints
    #: times of the newer and of the older row
    younger: Ints
    older: Ints
    #: positions of the rows in the tables of their sides
    left: Ints
    right: Ints

    @classmethod
    def of(cls, keys: Ints, ours: Ints, theirs: Ints, left: Ints, right: Ints) -> _Pairs:
        """Return pairs of rows with times of the left and of the right."""
        return cls(keys, np.maximum(ours, theirs), np.minimum(ours, theirs), left, right)

    @classmethod
    def together(cls, parts: Sequence[_Pairs]) -> _Pairs:
        columns = zip(*(astuple(each) for each in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def chosen(self, places: Ints) -> _Pairs:
        return _Pairs(*(column[places] for column in astuple(self)))

    def newest_of_instants(self) -> _Pairs:
        """Return the match with the newest rows of each key and time, sorted by key and time."""
        ordered = self.chosen(np.lexsort((self.older, self.younger, self.keys)))
        keys, times = ordered.keys, ordered.younger
        ends = (keys[1:] != keys[:-1]) | (times[1:] != times[:-1])
        return ordered.chosen(np.flatnonzero(np.append(ends, [True])[: len(keys)]))

    def last_of_keys(self) -> _Pairs:
        """Return the last pair of each key, given pairs sorted by key and time."""
        ends = self.keys[1:] != self.keys[:-1]
        return self.chosen(np.flatnonzero(np.append(ends, [True])[: len(self.keys)]))

    def by_time(self) -> _Pairs:
        return self.chosen(np.argsort(self.younger, kind="stable"))


class UpdateJoin:
    """Delivers the newest match of every key of two streams."""

    def __init__(
        self,
        left: UpdateStream,
        right: UpdateStream,
        *,
        within: Micros,
        lateness: Micros = INFINITY,
        condition: str | None = None,
        zone: str = "UTC",
    ) -> None:
        """Join on the key.

        Args:
            left: stream of port 0.
            right: stream of port 1; its key columns are those of the left, its other columns have
                different names.
            within: how far apart in time matching rows may be, in the unit of the time columns.
            lateness: how far a row may be behind the newest one of its side and find all matches.
            condition: SQL over the columns of a result, in addition to the key.
            zone: time zone of the session.
        """
        kinds = [
            [stream.schema.field(name).type for name in (*stream.keys, stream.time)]
            for stream in (left, right)
        ]
        if set(left.keys) != set(right.keys) or kinds[0] != kinds[1] or within < 0:
            msg = (
                "a join of update streams needs the same key columns and time types on both sides, "
                f"and a time to join within; got {left.keys} and {right.keys}, {within}"
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
        self._lateness = lateness
        self._sides = (_Side(left), _Side(right))
        self._keys = KeyDirectory()
        #: times of the newer and the older row of the last match of each key
        self._younger: Ints = np.zeros(0, dtype=np.int64)
        self._older: Ints = np.zeros(0, dtype=np.int64)
        #: number of rows that were older than their key's latest on their side
        self.late = 0

    def state(self) -> State:
        """Return the whole state, for `recall`."""
        count = len(self._keys)
        known: State = {
            "known": self._keys.state(),
            "younger": self._younger[:count],
            "older": self._older[:count],
            "late": np.array([self.late]),
        }
        for name, side in zip(("left", "right"), self._sides, strict=True):
            rows = side.rows.take(pa.array(side.places)).combine_chunks()
            known |= {
                f"{name}.rows": bytes_of(rows),
                f"{name}.keys": side.keys,
                f"{name}.last": side.last[:count],
                f"{name}.settled": np.array([side.settled]),
            }
        return known

    def taken_over(self, states: Sequence[State], keeps: IdRange) -> State:
        """Return the states of parents, of the keys in a range, as one."""
        keyless = not self.result.keys
        keys = KeptKeys.of([each["known"] for each in states], keeps, keyless=keyless)
        names = ("known", "younger", "older", "left.last", "right.last")
        found = {name: keys.by_key(states, name) for name in names}
        found["late"] = np.sum([each["late"] for each in states], axis=0)
        for side in ("left", "right"):
            owners = [each[f"{side}.keys"] for each in states]
            mine = [keys.members(parent, each) for parent, each in enumerate(owners)]
            found[f"{side}.keys"] = np.concatenate(
                [keys.numbers(at, owners[at][which]) for at, which in enumerate(mine)]
            )
            rows = [
                table_of(each[f"{side}.rows"]).filter(pa.array(which))
                for each, which in zip(states, mine, strict=True)
            ]
            found[f"{side}.rows"] = bytes_of(pa.concat_tables(rows).combine_chunks())
            found[f"{side}.settled"] = np.array([len(found[f"{side}.keys"])])
        return found

    def recall(self, state: State) -> None:
        """Restore what `state` returned."""
        self._keys.recall(state["known"])
        self._younger, self._older = state["younger"], state["older"]
        for name, side in zip(("left", "right"), self._sides, strict=True):
            _check_side(state, name, side, len(self._keys))
        self.late = int(state["late"][0])
        for name, side in zip(("left", "right"), self._sides, strict=True):
            side.rows = table_of(state[f"{name}.rows"])
            side.keys, side.times = state[f"{name}.keys"], side.stream.times(side.rows)
            side.last = state[f"{name}.last"]
            side.places = np.arange(len(side.keys))
            side.settled = int(state[f"{name}.settled"][0])

    def on_batch(self, inputs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Store rows of both sides; return the newest new match of every instant, in time order."""
        known = [side.rows.num_rows for side in self._sides]
        fresh, reached = [], []
        for port, rows in enumerate(inputs):
            fresh.append(self._enter(port, rows))
            if self._predicate is not None:
                reached.append(self._reached(port, *fresh[-1]))
        if self._predicate is None:
            found = self._news(self._at_instants(fresh), known)
        else:
            found = self._fulfilling(self._news(_Pairs.together(reached), known))
        pairs = found.newest_of_instants()
        newest = pairs.last_of_keys()
        self._younger[newest.keys], self._older[newest.keys] = newest.younger, newest.older
        return self._delivered(pairs.by_time())

    def forget(self, before: Micros) -> None:
        """Do nothing: a join forgets what cannot match any more by itself."""

    def _enter(self, port: int, rows: pa.RecordBatch) -> tuple[Ints, Ints, Ints]:
        """Store rows that are newer than their key's latest; return keys, times and positions."""
        mine = self._sides[port]
        keys = self._keys.numbers(*self.result.identify(rows))
        times = mine.stream.times(rows)
        self._grow()
        keep = np.empty(len(times), dtype=np.bool_)
        self.late += going_up(keys, times, mine.last, keep)
        kept = np.flatnonzero(keep)
        order = kept[np.lexsort((times[kept], keys[kept]))]
        ties = (np.diff(keys[order]) == 0) & (np.diff(times[order]) == 0)
        kept = np.sort(order[np.append(~ties, [True])[: len(order)]])
        keys, times = keys[kept], times[kept]
        mine.replace(keys, times)
        places = np.arange(mine.rows.num_rows, mine.rows.num_rows + len(keys))
        mine.add(rows.take(pa.array(kept)), keys, times)
        return keys, times, places

    def _grow(self) -> None:
        count = len(self._keys)
        for side in self._sides:
            side.last = grown(side.last, count, MINUS_INFINITY)
        self._younger = grown(self._younger, count, MINUS_INFINITY)
        self._older = grown(self._older, count, MINUS_INFINITY)

    def _reached(self, port: int, keys: Ints, times: Ints, places: Ints) -> _Pairs:
        """Return the pairs of new rows of a side with all rows that they can match."""
        other = self._sides[1 - port]
        begins = bounds(other.keys, other.times, keys, times - self._within)
        ends = bounds(other.keys, other.times, keys, times + self._within + 1)
        mine_at, other_at = np.repeat(np.arange(len(keys)), ends - begins), numbers_of(begins, ends)
        sides = [places[mine_at], other.places[other_at]]
        ours, theirs = times[mine_at], other.times[other_at]
        return _Pairs.of(keys[mine_at], ours, theirs, *(sides if port == LEFT else sides[::-1]))

    def _at_instants(self, fresh: Sequence[tuple[Ints, Ints, Ints]]) -> _Pairs:
        """Return, for instants that new rows may have changed, the newest rows of both sides."""
        keys, times = [], []
        for port, (mine, at, _) in enumerate(fresh):
            other = self._sides[1 - port]
            reached = np.zeros(len(other.keys) + 1, dtype=np.int64)
            np.add.at(reached, bounds(other.keys, other.times, mine, at + 1), 1)
            np.add.at(reached, bounds(other.keys, other.times, mine, at + self._within + 1), -1)
            chosen = np.flatnonzero(np.cumsum(reached[:-1]) > 0)
            keys += [mine, other.keys[chosen]]
            times += [at, other.times[chosen]]
        instants = np.unique(np.stack([np.concatenate(keys), np.concatenate(times)]), axis=1)
        of, until = instants
        found = []
        is_pair = np.ones(len(of), dtype=np.bool_)
        for side in self._sides:
            place = bounds(side.keys, side.times, of, until + 1) - 1
            there = place >= 0
            there[there] = side.keys[place[there]] == of[there]
            there[there] = side.times[place[there]] >= until[there] - self._within
            is_pair &= there
            found.append((side, place))
        (ours, left), (theirs, right) = (
            (side.times[place[is_pair]], side.places[place[is_pair]]) for side, place in found
        )
        return _Pairs.of(of[is_pair], ours, theirs, left, right)

    def _news(self, pairs: _Pairs, known: Sequence[int]) -> _Pairs:
        """Return the pairs that are newer than those delivered, or as new with a new row.

        The first `known` rows of each side are not new.
        """
        younger, older = self._younger[pairs.keys], self._older[pairs.keys]
        is_new = (pairs.left >= known[LEFT]) | (pairs.right >= known[RIGHT])
        later = (pairs.older > older) | ((pairs.older == older) & is_new)
        news = (pairs.younger > younger) | ((pairs.younger == younger) & later)
        return pairs.chosen(np.flatnonzero(news))

    def _fulfilling(self, pairs: _Pairs) -> _Pairs:
        kept = [np.zeros(0, dtype=np.int64)]
        for first in range(0, len(pairs.keys), PAIRS_AT_ONCE):
            part = np.arange(first, min(first + PAIRS_AT_ONCE, len(pairs.keys)))
            rows = self._joined(pairs.chosen(part))
            if self._predicate is not None:
                kept.append(part[self._predicate.mask(rows).to_numpy(zero_copy_only=False)])
        return pairs.chosen(np.concatenate(kept))

    def _delivered(self, pairs: _Pairs) -> pa.RecordBatch:
        """Return matches as rows, and remove rows that cannot match any more."""
        rows = self._joined(pairs)
        forgotten = False
        for side, opposite in (self._sides, self._sides[::-1]):
            reached = np.maximum(opposite.last, _minus(opposite.newest, self._lateness))
            forgotten |= side.forget(_minus(reached, self._within))
        if forgotten:
            self._forget_keys()
        return rows

    def _forget_keys(self) -> None:
        """Forget keys without rows whose next row, on either side, is newer than all before."""
        count = len(self._keys)
        stays = np.zeros(count, dtype=np.bool_)
        for side in self._sides:
            stays[side.keys] = True
        newest = np.maximum(self._sides[LEFT].last[:count], self._sides[RIGHT].last[:count])
        reached = min(side.newest for side in self._sides)
        stays |= newest >= _minus(reached, self._lateness)
        if 2 * np.count_nonzero(stays) > count:
            return
        numbers, known = np.cumsum(stays) - 1, self._keys.state()[stays].copy()
        self._keys = KeyDirectory()
        self._keys.recall(known)
        self._younger, self._older = self._younger[:count][stays], self._older[:count][stays]
        for side in self._sides:
            side.keys, side.last = numbers[side.keys], side.last[:count][stays]

    def _joined(self, pairs: _Pairs) -> pa.RecordBatch:
        """Combine rows of both sides."""
        left, right = (
            side.rows.take(pa.array(places))
            for side, places in zip(self._sides, (pairs.left, pairs.right), strict=True)
        )
        columns = []
        for field in self.result.schema:
            if field.name == self.result.time:
                columns.append(pa.array(pairs.younger).cast(field.type))
            else:
                source = left if field.name in left.column_names else right
                columns.append(source.column(field.name).combine_chunks())
        return pa.RecordBatch.from_arrays(columns, schema=self.result.schema)


def _check_side(state: State, name: str, side: _Side, known: int) -> None:
    """Reject rows that are not sorted, or that have unknown keys."""
    keys, rows, last = state[f"{name}.keys"], table_of(state[f"{name}.rows"]), state[f"{name}.last"]
    arrays = (keys, last, state["younger"], state["older"])
    whole = (
        all(each.dtype == np.int64 and each.ndim == 1 for each in arrays)
        and rows.schema == side.rows.schema
        and rows.num_rows == len(keys)
        and all(len(each) >= known for each in arrays[1:])
        and ((keys >= 0) & (keys < known)).all()
    )
    if whole:
        newer = np.diff(side.stream.times(rows)) > 0
        whole = bool(((np.diff(keys) > 0) | ((np.diff(keys) == 0) & newer)).all())
    if not whole:
        msg = f"the {name} rows of a join of update streams are not sorted"
        raise ValueError(msg)


def bounds(keys: Ints, times: Ints, wanted_keys: Ints, wanted_times: Ints) -> Ints:
    """Return, in rows of a join sorted by key and time, the first position not before each."""
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


def _minus(times: Ints | int, length: Micros) -> Ints:
    """Return earlier times, no earlier than the minimum."""
    least = MINUS_INFINITY + length
    return np.where(np.less(times, least), MINUS_INFINITY, np.subtract(times, length))
