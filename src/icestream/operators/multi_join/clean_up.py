"""The results that generations of partitions owe each other, from the log, in bounded memory.

Idea: all rows of the partitions at hand are on the log, in records that cover ranges of `id_high`.
The key space is cut into ranges whose rows are expected, by the index of records, to fill the
available memory. For each range, its records are read once, in the order of epochs; rows of
partitions that owe results are sorted by identity and generation, and combined all at once. If the
rows of one `id_high` do not fit, they are combined block by block: each block of the first port
with each of the second, and so on.

Invariants:
1. Each owed result is emitted once (`test_oracle_spills_and_clean_ups_at_any_moment`,
   `test_oracle_generations_of_merged_segments`).
2. Memory stays within the limit, even if one key exceeds it
   (`test_bounded_clean_up_of_one_key_that_exceeds_the_quota`).
   A key that does not fit is soon alone (`test_bounded_a_key_that_does_not_fit_is_soon_alone`).
3. Partitions that fit into memory together are read together, wherever they are
   (`test_bounded_scattered_partitions_are_read_in_one_pass`).

Cost: a record is read once for each range it overlaps; for a key that does not fit, once for each
combination of blocks of the ports before it. Python does no work per row, partition or generation,
only some microseconds per record.

References: incremental view maintenance; block nested loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table
from icestream.core.errors import DamageError
from icestream.kernels.multi_join.gathering import (
    DAMAGED,
    FULL,
    ORDERING,
    PLACE,
    order_pairs,
    pairs_of,
    take_rows,
)
from icestream.kernels.multi_join.owed import END, WALK, owed
from icestream.kernels.multi_join.rows import LOG_HEAD, LOG_ID_HIGH, LOG_ID_LOW
from icestream.operators.multi_join.generations import (
    FIRST_ID_HIGH,
    LAST_ID_HIGH,
    MARKER,
    PORT,
    ROWS,
    WORDS,
    Generations,
)
from icestream.operators.multi_join.logged_rows import checked_words, no_rows
from icestream.operators.multi_join.results import JoinResults, Members
from icestream.operators.multi_join.spec import first_id_high
from icestream.state.log.reader import Log

#: share of the available memory that a range should fill, since its size is an estimate
_FILL = 0.8


class Overflow(Exception):
    """Rows do not fit into the available memory."""

    def __init__(self, words: int) -> None:
        super().__init__(words)
        self.words = words


@dataclass
class CleanUp:
    """Finds the results that partitions owe, range by range."""

    #: for each partition, whether it owes results
    due: npt.NDArray[np.bool_]
    #: epoch up to which rows are garbage, by partition
    floor: Ints
    #: epoch of the last clean-up, by partition
    cleaned: Ints
    generations: Generations
    log: Log
    results: JoinResults
    #: words that may be in use
    room: int
    _heap: Ints = field(init=False)
    #: words of rows in the heap, their number, and that of each port
    _used: int = 0
    _count: int = 0
    _counts: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Allocate the work heap; its pages are touched when they are used."""
        self._heap = np.empty(self.room, dtype=np.int64)
        self._counts = np.zeros(len(self.results.codecs), dtype=np.int64)

    def owed(self) -> Iterator[tuple[Ints, Members]]:
        """Yield the owed results: the words that hold their members, and the members."""
        waiting = self._ranges()[::-1]
        while waiting:
            first, last = waiting.pop()
            records = self._met(first, last)
            if len(np.unique(records[:, PORT])) < len(self._counts):
                continue
            self._used = self._count = 0
            self._counts[:] = 0
            try:
                self._load(first, last, records)
            except Overflow:
                if first < last:
                    waiting += reversed(self._halves(first, last))
                else:
                    yield from self._nested(first, self._blocks(records))
            else:
                yield from self._combined()

    def _ranges(self) -> list[tuple[int, int]]:
        """Return ranges of id_high, both ends inclusive, that together cover all partitions."""
        records, partitions = self.generations.records, len(self.due)
        words = records[:, WORDS] + ORDERING * records[:, ROWS]
        loads = self.generations.by_partition(records, words)
        share = _FILL * self.room
        found: list[tuple[int, int, float]] = []
        for partition in np.flatnonzero(self.due).tolist():
            load = float(loads[partition])
            if found and found[-1][2] + load <= share:
                found[-1] = found[-1][0], partition, found[-1][2] + load
            else:
                found.append((partition, partition, load))
        ranges = []
        for low, high, load in found:
            ends = first_id_high(low, partitions), first_id_high(high + 1, partitions) - 1
            ranges += [ends] if load <= share else parts_of(*ends, load / share)
        return ranges

    def _halves(self, first: int, last: int) -> list[tuple[int, int]]:
        """Split a range that did not fit in two, by the rows that did: a hot key is soon alone."""
        places = pairs_of(self._heap, 0, self._count)[:, PLACE]
        if not len(places):
            return parts_of(first, last, 2)
        found = self._heap[places + LOG_ID_HIGH].view(np.uint64)
        middle = int(np.partition(found, len(found) // 2)[len(found) // 2])
        cut = middle if middle > first else first + 1
        return [(first, cut - 1), (cut, last)]

    def _met(self, first: int, last: int) -> Table:
        """Return the records that overlap a range."""
        records = self.generations.records
        begins, ends = (records[:, at].view(np.uint64) for at in (FIRST_ID_HIGH, LAST_ID_HIGH))
        found: Table = records[(begins <= np.uint64(last)) & (ends >= np.uint64(first))]
        return found

    def _load(self, first: int, last: int, records: Table) -> None:
        """Add the rows with id_high in a range to the heap, sorted among themselves."""
        before, codecs, heap = self._count, self.results.codecs, self._heap
        ends = np.uint64(first), np.uint64(last)
        cuts, begins = self.generations.cuts, self.generations.cut_begins()
        #: port, epoch and first row of each record, as the log returns them
        runs: list[tuple[int, int, int]] = []
        for record in self.log.read_many(records[:, MARKER].view(np.uint64)):
            words = checked_words(record, codecs, self.log.folder)
            known = self._count
            port, epoch = record.synopsis, record.group
            used, self._count = take_rows(
                words,
                port,
                epoch,
                *ends,
                self.due,
                self.floor,
                self.cleaned,
                cuts,
                begins,
                heap,
                self._used,
                known,
            )
            if used == FULL:
                raise Overflow(self.room + len(words))
            payloads = pairs_of(heap, known, self._count)[:, PLACE] + LOG_HEAD
            stops = payloads + (heap[payloads] >> 32)
            if used == DAMAGED or not codecs[port].fits(heap, payloads, stops):
                raise DamageError(self.log.folder, no_rows(record))
            self._used = used
            runs.append((port, epoch, known - before))
        count = self._count
        pairs, spare = pairs_of(heap, before, count), pairs_of(heap, count, 2 * count - before)
        order_pairs(heap, pairs, spare, _by_epoch(runs, pairs, spare), self._counts)

    def _blocks(self, records: Table) -> list[Sequence[Table]]:
        """Return the records of each port in blocks; one block of each port fits into memory."""
        blocks: list[Sequence[Table]] = []
        for port in range(len(self._counts)):
            mine = records[records[:, PORT] == port]
            half = max(1, self.room // len(self._counts) // 2)
            sizes = np.cumsum(mine[:, WORDS] + ORDERING * mine[:, ROWS]) // half
            blocks.append(np.split(mine, np.flatnonzero(np.diff(sizes)) + 1))
        self._used = self._count = 0
        self._counts[:] = 0
        return blocks

    def _nested(
        self, id_high: int, blocks: Sequence[Sequence[Table]]
    ) -> Iterator[tuple[Ints, Members]]:
        """Yield what the rows of one id_high owe, with one block of each port in memory."""
        if not blocks:
            yield from self._combined()
            return
        port = len(self._counts) - len(blocks)
        used, count = self._used, self._count
        for block in blocks[0]:
            self._load(id_high, id_high, block)
            if self._count > count:
                yield from self._nested(id_high, blocks[1:])
            self._used, self._count, self._counts[port] = used, count, 0

    def _combined(self) -> Iterator[tuple[Ints, Members]]:
        """Yield what rows in the heap owe each other."""
        ports = len(self._counts)
        bounds = np.concatenate([[0], np.cumsum(self._counts)])
        pairs = pairs_of(self._heap, 0, self._count)
        room = self.results.capacity()
        state = np.full(1, -1, dtype=np.int64)
        walk = np.zeros((ports, WALK), dtype=np.int64)
        walk[:, END] = bounds[:-1]
        count = room
        while count == room:
            found = np.empty((room, ports), dtype=np.int64)
            lifetimes = np.empty((room, 2), dtype=np.int64)
            count = owed(self._heap, pairs, bounds, state, walk, found, lifetimes)
            if count:
                found = found[:count]
                yield (
                    self._heap,
                    Members(
                        {port: found[:, port] + LOG_HEAD for port in range(ports)},
                        {},
                        lifetimes[:count],
                        self._heap[found[:, 0] + LOG_ID_HIGH].view(np.uint64),
                        self._heap[found[:, 0] + LOG_ID_LOW].view(np.uint64),
                    ),
                )


def _by_epoch(runs: Sequence[tuple[int, int, int]], pairs: Table, spare: Table) -> Ints:
    """Put the rows of a port in the order of epochs; return where those of each record begin.

    The log returns records in its own order; those with merged rows, of old epochs, are later.
    """
    ports, epochs, begins = np.array(runs, dtype=np.int64).reshape(-1, 3).T
    ends, order = np.append(begins[1:], len(pairs)), np.lexsort((epochs, ports))
    bounds = np.append(0, np.cumsum((ends - begins)[order]))
    if (np.diff(order) < 0).any():
        for place, run in enumerate(order):
            spare[bounds[place] : bounds[place + 1]] = pairs[begins[run] : ends[run]]
        pairs[:] = spare
    return bounds


def parts_of(first: int, last: int, parts: float) -> list[tuple[int, int]]:
    """Split a range of ids to clean up into about `parts` of equal length, at least two."""
    length = last - first + 1
    count = min(length, max(2, int(np.ceil(parts))))
    bounds = [first + length * part // count for part in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]
