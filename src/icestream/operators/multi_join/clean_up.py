"""The results that generations of partitions owe each other, from the log, in bounded memory.

Idea: all rows of the partitions at hand are on the log, in records that cover ranges of hi. The key
space is cut into ranges whose rows fit into the room there is, judged by the index of records; the
rows of a range are read, sorted by identity and generation, and combined. Rows of one hi that do
not fit are combined block by block: each block of the first port with each of the second, and so
on.

Invariants:
1. Each owed result comes once (`test_oracle_spills_and_clean_ups_at_any_moment`).
2. No more than the room is in use, also if one key exceeds it
   (`test_bounded_clean_up_of_one_key_that_exceeds_the_quota`).

Cost: a record that goes on in the next range is kept for it while there is room, so most are read
once; for a key that does not fit, once for each combination of blocks of the ports before it.

References: incremental view maintenance; block nested loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from icestream.kernels.joins.owed import END, WALK, owed
from icestream.kernels.joins.rows import LOG_HEAD, LOG_HI, LOG_LO
from icestream.kernels.words import Ints, Table
from icestream.operators.multi_join.generations import (
    FIRST_HI,
    LAST_HI,
    MARKER,
    PORT,
    ROWS,
    WORDS,
    Generations,
)
from icestream.operators.multi_join.logged import LoggedRows
from icestream.operators.multi_join.results import Members, Results
from icestream.operators.multi_join.spec import partitions_of
from icestream.state.log.format import Record
from icestream.state.log.reader import Log

#: words that putting rows in order takes for each
ORDERING = 12
#: part of the room that a range should fill, as its size is a guess
_FILL = 0.7
#: part of the room that is for records which the next range meets too
_AHEAD = 4


class Overflow(Exception):
    """Rows do not fit into the room."""

    def __init__(self, words: int) -> None:
        """Keep the words that were needed."""
        super().__init__(words)
        self.words = words


@dataclass
class Rows:
    """Rows of one port in the work heap, in the order of (identity, generation)."""

    places: Ints
    generations: Ints


@dataclass
class CleanUp:
    """Finds what partitions owe, range by range."""

    ports: int
    partitions: int
    generations: Generations
    log: Log
    results: Results
    #: epoch up to which rows are garbage, by partition
    floor: Ints
    #: words that may be in use
    room: int
    _heap: Ints = field(init=False)
    #: words of the heap in use, and of what puts rows in order
    _used: int = 0
    #: rows that later ranges meet too, by marker, with their last hi; words for them that are free
    _ahead: dict[int, tuple[int, LoggedRows]] = field(default_factory=dict)
    _spare: int = 0

    def __post_init__(self) -> None:
        """Make the work heap; its pages are touched when they are used."""
        self._spare = self.room // _AHEAD
        self.room -= self._spare
        self._heap = np.empty(self.room, dtype=np.int64)

    def owed(self, first: int, last: int) -> Iterator[tuple[Ints, Members]]:
        """Yield what is owed by rows whose hi is from `first` to `last`, both included."""
        waiting = [(first, last)]
        while waiting:
            first, last = waiting.pop()
            words, records = self._estimate(first, last)
            if not len(records):
                continue
            if words > _FILL * self.room and first < last:
                waiting += reversed(parts_of(first, last, words / (_FILL * self.room)))
                continue
            try:
                yield from self._range(first, last, records)
            except Overflow:
                if first < last:
                    waiting += reversed(parts_of(first, last, 2))
                else:
                    yield from self._blocks(first, records)

    def _estimate(self, first: int, last: int) -> tuple[float, Table]:
        """Return the words that a range takes, about, and the records it meets."""
        records = self.generations.records
        begins, ends = (records[:, at].view(np.uint64) for at in (FIRST_HI, LAST_HI))
        met = (begins <= np.uint64(last)) & (ends >= np.uint64(first))
        records, begins, ends = records[met], begins[met], ends[met]
        low = np.maximum(begins, np.uint64(first))
        high = np.minimum(ends, np.uint64(last))
        share = ((high - low).astype(np.float64) + 1) / ((ends - begins).astype(np.float64) + 1)
        words = records[:, WORDS] + ORDERING * records[:, ROWS]
        return float((words * share).sum()), records

    def _range(self, first: int, last: int, records: Table) -> Iterator[tuple[Ints, Members]]:
        """Yield what a range owes, all its rows in memory."""
        self._used = 0
        for marker in [marker for marker, (end, _) in self._ahead.items() if end < first]:
            self._taken_back(marker)
        rows = []
        for port in range(self.ports):
            rows.append(self._load(first, last, records[records[:, PORT] == port]))
            if not len(rows[-1].places):
                return
        yield from self._combined(rows)

    def _blocks(self, hi: int, records: Table) -> Iterator[tuple[Ints, Members]]:
        """Yield what the rows of one hi owe, a block of each port in memory."""
        blocks = []
        for port in range(self.ports):
            mine = records[records[:, PORT] == port]
            half = max(1, self.room // self.ports // 2)
            sizes = np.cumsum(mine[:, WORDS] + ORDERING * mine[:, ROWS]) // half
            blocks.append(np.split(mine, np.flatnonzero(np.diff(sizes)) + 1))
        self._used = 0
        yield from self._nested(hi, blocks, [])

    def _nested(
        self, hi: int, blocks: Sequence[Sequence[Table]], outer: list[Rows]
    ) -> Iterator[tuple[Ints, Members]]:
        if not blocks:
            yield from self._combined(outer)
            return
        used = self._used
        for block in blocks[0]:
            self._used = used
            rows = self._load(hi, hi, block)
            if len(rows.places):
                yield from self._nested(hi, blocks[1:], [*outer, rows])
        self._used = used

    def _load(self, first: int, last: int, records: Table) -> Rows:
        """Read the rows of one port whose hi is in a range, and put them in order."""
        places, generations = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for rows in self._read(records, last):
            words, starts, hi = rows.words, rows.starts, rows.hi
            begin = int(np.searchsorted(hi, np.uint64(first)))
            end = int(np.searchsorted(hi, np.uint64(last), side="right"))
            if begin == end:
                continue
            start = int(starts[begin])
            stop = len(words) if end == len(starts) else int(starts[end])
            needed = stop - start + ORDERING * (end - begin)
            if self._used + needed > self.room:
                raise Overflow(self._used + needed)
            partitions = partitions_of(hi[begin:end], self.partitions)
            mine = starts[begin:end] - start + self._used
            self._heap[self._used : self._used + stop - start] = words[start:stop]
            self._used += needed
            live = self.floor[partitions] < rows.epoch
            places.append(mine[live])
            generations.append(self.generations.of(partitions[live], rows.epoch))
        return self._ordered(np.concatenate(places), np.concatenate(generations))

    def _read(self, records: Table, last: int) -> Iterator[LoggedRows]:
        """Yield the rows of records, by marker, and keep those that go on behind a range."""
        order = np.argsort(records[:, MARKER].view(np.uint64))
        markers = records[order, MARKER].view(np.uint64)
        ends = records[order, LAST_HI].view(np.uint64).tolist()
        missing = np.array([marker not in self._ahead for marker in markers.tolist()], np.bool_)
        fresh = self.log.read_many(markers[missing])
        for marker, end in zip(markers.tolist(), ends, strict=True):
            kept = self._taken_back(marker)
            rows = self._rows_of(next(fresh)) if kept is None else kept
            yield rows
            size = len(rows.words) + len(rows.starts)
            if end > last and size <= self._spare:
                self._ahead[marker] = end, rows if kept is not None else rows.copied()
                self._spare -= size

    def _rows_of(self, record: Record) -> LoggedRows:
        return LoggedRows.of(record, self.results.codecs, self.log.folder)

    def _taken_back(self, marker: int) -> LoggedRows | None:
        """Return rows that were kept, and keep them no more."""
        found = self._ahead.pop(marker, None)
        if found is None:
            return None
        self._spare += len(found[1].words) + len(found[1].starts)
        return found[1]

    def _ordered(self, places: Ints, generations: Ints) -> Rows:
        """Put rows, which come in the order of their epochs, in that of identities."""
        hi = self._heap[places + LOG_HI].view(np.uint64)
        order = np.argsort(hi, kind="stable")
        hi = hi[order]
        lo = self._heap[places[order] + LOG_LO].view(np.uint64)
        if ((hi[1:] == hi[:-1]) & (lo[1:] != lo[:-1])).any():
            order = order[np.lexsort((lo, hi))]
        return Rows(places[order], generations[order])

    def _combined(self, rows: Sequence[Rows]) -> Iterator[tuple[Ints, Members]]:
        """Yield what rows in memory owe each other."""
        bounds = np.concatenate([[0], np.cumsum([len(each.places) for each in rows])])
        members = np.concatenate([each.places for each in rows])
        generations = np.concatenate([each.generations for each in rows])
        room = self.results.capacity()
        state = np.full(1, -1, dtype=np.int64)
        walk = np.zeros((self.ports, WALK), dtype=np.int64)
        walk[:, END] = bounds[:-1]
        count = room
        while count == room:
            found = np.empty((room, self.ports), dtype=np.int64)
            lifetimes = np.empty((room, 2), dtype=np.int64)
            count = owed(self._heap, members, generations, bounds, state, walk, found, lifetimes)
            if count:
                found = found[:count]
                yield (
                    self._heap,
                    Members(
                        {port: found[:, port] + LOG_HEAD for port in range(self.ports)},
                        {},
                        lifetimes[:count],
                        self._heap[found[:, 0] + LOG_HI].view(np.uint64),
                        self._heap[found[:, 0] + LOG_LO].view(np.uint64),
                    ),
                )


def parts_of(first: int, last: int, parts: float) -> list[tuple[int, int]]:
    """Cut a range into about so many of equal length, at least two."""
    length = last - first + 1
    count = min(length, max(2, int(np.ceil(parts))))
    bounds = [first + length * part // count for part in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


def runs_of(partitions: Ints, of: int) -> list[tuple[int, int]]:
    """Return the ranges of hi, both ends included, of partitions: neighbours in one."""
    if not len(partitions):
        return []
    breaks = np.flatnonzero(np.diff(partitions) > 1)
    firsts = [0, *(breaks + 1).tolist()]
    lasts = [*breaks.tolist(), len(partitions) - 1]
    return [
        (_begin(int(partitions[a]), of), _begin(int(partitions[b]) + 1, of) - 1)
        for a, b in zip(firsts, lasts, strict=True)
    ]


def _begin(partition: int, partitions: int) -> int:
    """Return the least hi of a partition."""
    return -(-(partition << 32) // partitions) << 32
