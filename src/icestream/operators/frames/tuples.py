"""Tuples on the log: in the order of the stream; before that, if they must wait, as they arrive.

Idea: tuples before the watermark are *settled* tuples, written in the order of (time, arrival):
tuple n of that sequence is the n-th event of the shard, for ever. Tuples that enter and leave
windows are read from the sequence, in one direction. Whoever brings tuples knows how early those
that follow may be, so a batch in about the order of time is sorted in memory, a chunk at a time.
Tuples from the watermark on are sorted by (time, arrival), a chunk at a time, written as *arrivals*
and merged when the watermark has passed; so are batches of more disorder than memory holds.

Invariants:
1. The sequence is sorted by (time, arrival), whatever the disorder, the number of ties, the size of
   the chunks and what is known of later tuples
   (`test_oracle_settled_tuples_are_sorted_by_time_and_arrival`).
2. At most two chunks of tuples and a block are sorted at a time, even if more have the same time
   (`test_bounded_more_ties_than_a_chunk_holds`).
3. What settles with its batch is written once (`test_tuples_that_need_not_wait_are_written_once`),
   and the first two chunks of it enter windows without being read
   (`test_tuples_that_just_settled_are_not_read`).

Cost: a tuple that settles with its batch is packed and written once. Others are packed and written
twice, and read to be settled: an arrival block that the watermark has passed only in part again
with the next watermark, and blocks that overlap in time once for every two chunks that settle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table, slice_bounds
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.packing import packed, unpack, unpacked
from icestream.operators.frames.layout import TupleLayout
from icestream.operators.grid.partitions import Partition
from icestream.operators.logged_operator import once, records_of
from icestream.operators.protocol import PastVersion, Shard
from icestream.state.identities import IdRange, keep_ids, kept_ids
from icestream.state.table import CountedTable

#: lifetime classes of blocks; settled tuples of several parents are written again as one sequence
ARRIVALS = "arrivals"
MERGED = "merged"
SETTLED = "settled"

#: words of an event's identity, in tuples that have one until they settle
EVENT_WORDS = 2

#: an entry of a directory of blocks: records of tuples sorted by (time, arrival), in the order in
#: which they were written
BLOCK = np.dtype(
    [("marker", np.uint64), ("rows", np.int64), ("first", np.int64), ("last", np.int64)]
)
Blocks = npt.NDArray[np.void]

#: bytes of tuples in one record: the least, and the most where chunks are large
BLOCK_BYTES = 65536
MOST_BLOCK_BYTES = 1 << 20
#: chunks of tuples that stay in memory from when they settle until they have entered windows
HELD_CHUNKS = 2


@dataclass(frozen=True)
class TupleRun:
    """A run of the sequence: its tuples inside a partition, and the times of all of them."""

    #: place of its first tuple in the sequence, and of the one after its last
    first: int
    last: int
    times: Ints
    tuples: Table
    #: place of each of the `tuples`
    places: Ints


class TupleLog:
    """The tuples of one shard."""

    def __init__(
        self,
        shard: Shard,
        layout: TupleLayout,
        chunk_bytes: int,
        lives: Micros | None,
        with_room: Callable[[Callable[[], object]], None],
        settled: Callable[[Table], Table] | None = None,
    ) -> None:
        """Attach to the shard.

        Args:
            shard: where the log and the arena are.
            layout: the layout of the tuples.
            chunk_bytes: bytes of tuples sorted or read at once.
            lives: how long after its time a settled tuple is needed; None if unknown.
            with_room: runs an action that needs memory, after making room if necessary.
            settled: takes tuples as they arrive, in the order in which they settle, and returns
                what is stored from then on. Such tuples have an identity of `EVENT_WORDS` words
                before their time, which orders those of equal time.
        """
        self._shard = shard
        self._width = layout.tuple_width
        self._settled_form = settled
        #: words of a tuple as it arrives
        self._arriving_width = self._width + (EVENT_WORDS if settled is not None else 0)
        self._lives = lives
        self._with_room = with_room
        #: tuples read at a time, and sorted
        self.chunk_rows = max(2, chunk_bytes // layout.tuple_bytes)
        self.sorted_rows = 2 * self.chunk_rows
        block_bytes = max(BLOCK_BYTES, min(chunk_bytes // 2, MOST_BLOCK_BYTES))
        self._block_rows = max(1, block_bytes // layout.tuple_bytes)
        self._most_rows = max(1, MOST_BLOCK_BYTES // layout.tuple_bytes)
        self._blocks_at_once = max(1, self.chunk_rows // self._block_rows)
        self._arrivals = CountedTable(shard.arena, ARRIVALS, BLOCK)
        self._settled = CountedTable(shard.arena, SETTLED, BLOCK)
        #: the first tuples that settled in the current version, and their place in the sequence
        self._held: list[Table] = []
        self._held_at = 0
        #: how many more tuples can be held; below 0 once there were too many
        self._room = 0
        #: blocks of the version that is being replayed
        self._new = {name: np.empty(0, dtype=BLOCK) for name in (ARRIVALS, SETTLED)}
        #: number of blocks read, their bytes, and the sum of frames they were read for
        self.reads = {"blocks": 0, "block_bytes": 0, "block_uses": 0}
        #: the start of the sequence: number of tuples dropped from it, and ordinals of segments
        #: whose tuples were all dropped since the last snapshot
        self.books = shard.arena.header.setdefault("sequence", {"dropped": 0, "passed": []})
        self._header = shard.arena.header

    @property
    def size(self) -> int:
        """Return the number of tuples settled so far."""
        return int(self.books["dropped"]) + int(self._settled.records["rows"].sum())

    # -- writing ---------------------------------------------------------------------------

    def keep(self, keeps: IdRange | None) -> None:
        """Settle only the tuples of a shard that shares blocks of arrivals with others."""
        keep_ids(self._header, keeps)

    def take_over(self, arrivals: Sequence[Blocks], settled: Sequence[Blocks]) -> None:
        """Take the blocks of several parents, whose sequences become one."""
        form, width = self._settled_form, self._arriving_width
        self._settled_form, self._arriving_width = None, self._width
        self._with_room(lambda: self._arrivals.replace(once(settled, BLOCK)))
        self.settle(MINUS_INFINITY, INFINITY, lifetime=MERGED)
        self._settled_form, self._arriving_width = form, width
        self._with_room(lambda: self._arrivals.replace(once(arrivals, BLOCK)))

    def settle(
        self,
        before: Micros,
        watermark: Micros,
        arriving: Iterable[tuple[Table, Micros]] = (),
        lifetime: str = SETTLED,
    ) -> int:
        """Append the tuples from one watermark to the next to the sequence; return bytes written.

        `arriving` are the tuples of a batch in the order of arrival, each table with a time that
        none of the tuples in later tables is before.
        """
        self._held, self._held_at, self._room = [], self.size, HELD_CHUNKS * self.chunk_rows
        settling = _Settling(self, before, watermark, lifetime)
        for table, bound in arriving:
            settling.take(table, bound)
        arrivals = settling.waiting()
        self._with_room(lambda: self._shard.seal(ARRIVALS))
        self._with_room(lambda: self._arrivals.append(arrivals))
        start = settling.settled_before
        while start < watermark:
            start, tables = self._next_settled(start, watermark)
            for table in tables:
                settling.write(table)
        self._with_room(lambda: self._shard.seal(lifetime))
        settled = np.array(settling.blocks, dtype=BLOCK)
        self._take_settled(settled, watermark)
        words = int(arrivals["rows"].sum()) * self._arriving_width
        return 8 * (words + int(settled["rows"].sum()) * self._width)

    def earlier(self, before: Micros, watermark: Micros) -> Table | None:
        """Return tuples of earlier batches that settle, in order; None if they are many."""
        blocks = self._overlapping(before, watermark)
        if int(blocks["rows"].sum()) > self.chunk_rows // 2:
            return None
        found = [
            _between(table, before, watermark)
            for table in self._own(self._read(blocks, self._arriving_width))
        ]
        return self.by_time([np.empty((0, self._arriving_width), dtype=np.int64), *found])

    def _next_settled(self, start: Micros, end: Micros) -> tuple[Micros, Iterator[Table]]:
        """Return where to continue, and the tuples from `start` up to there in order."""
        held: list[Table] = []
        size = 0
        left = self._overlapping(start, end)
        while len(left):
            some, left = left[: self._blocks_at_once], left[self._blocks_at_once :]
            for table in self._own(self._read(some, self._arriving_width)):
                held.append(_between(table, start, end))
                size += len(held[-1])
                if size <= self.sorted_rows:
                    continue
                joined = np.concatenate(held)
                end = max(start + 1, int(np.partition(joined[:, -1], size // 2)[size // 2]))
                held = [_between(joined, start, end)]
                size = len(held[0])
                if size > self.sorted_rows:
                    return end, self._of_instant(start)
                left = left[left["first"] < end]
        return end, iter([self.by_time(held)] if size else [])

    def _of_instant(self, time: Micros) -> Iterator[Table]:
        """Yield the tuples of one time in the order of arrival."""
        blocks = self._overlapping(time, time + 1)
        for at in range(0, len(blocks), self._blocks_at_once):
            some = blocks[at : at + self._blocks_at_once]
            for table in self._own(self._read(some, self._arriving_width)):
                yield _between(table, time, time + 1)

    def _own(self, tables: Iterator[Table]) -> Iterator[Table]:
        keeps = kept_ids(self._header)
        if keeps is None:
            return tables
        return (
            table[keeps.holds(np.ascontiguousarray(table[:, 0]).view(np.uint64))]
            for table in tables
        )

    def _overlapping(self, start: Micros, end: Micros) -> Blocks:
        """Return the arrival blocks that reach into [start, end), in the order of arrival."""
        blocks = self._arrivals.records
        return blocks[(blocks["first"] < end) & (blocks["last"] >= start)].copy()

    def write(self, lifetime: str, table: Table) -> Iterator[tuple[int, ...]]:
        """Write sorted tuples; yield the directory entries of their blocks."""
        if lifetime != ARRIVALS and self._settled_form is not None:
            table = self._settled_form(table)
        if lifetime == SETTLED:
            self._room -= len(table)
            if self._room >= 0:
                self._held.append(table)
            else:
                # those that follow must not take its place
                self._room = -1
        for first in range(0, len(table), self._block_rows):
            part = table[first : first + self._block_rows]
            low, high = part[[0, -1], -1].tolist()
            marker = self._shard.segment(lifetime).append(
                packed(part), group=low, rows=len(part), expiry=self._expiry(lifetime, high)
            )
            yield marker, len(part), low, high

    def _expiry(self, lifetime: str, last: Micros) -> Micros:
        if lifetime == ARRIVALS:
            return last + 1
        return INFINITY if self._lives is None else min(INFINITY, last + self._lives)

    def _take_settled(self, blocks: Blocks, watermark: Micros) -> None:
        self._with_room(lambda: self._settled.append(blocks))
        self._arrivals.keep(self._arrivals.records["last"] >= watermark)

    def drop(self, place: int) -> None:
        """Drop the settled blocks that end at or before a place in the sequence."""
        self._held = []
        blocks = self._settled.records
        ends = self.books["dropped"] + np.cumsum(blocks["rows"])
        gone = ends <= place
        if not gone.any():
            return
        if self._lives is None:
            ordinals = blocks["marker"] >> np.uint64(32)
            passed = set(ordinals[gone].tolist()) - set(ordinals[~gone].tolist())
            self.books["passed"] = sorted(passed.union(self.books["passed"]))
        self.books["dropped"] += int(blocks["rows"][gone].sum())
        self._settled.keep(~gone)

    def release(self) -> tuple[int, ...]:
        """Return, once, the segments that no later restore reads; called at snapshots."""
        passed, self.books["passed"] = tuple(self.books["passed"]), []
        return passed

    # -- reading ---------------------------------------------------------------------------

    def read(
        self, first: int, last: int, partition: Partition, frames: int = 1
    ) -> Iterator[TupleRun]:
        """Yield the tuples from one place of the sequence to another, a chunk at a time.

        `frames` is how many frames they are read for.
        """
        at = self._held_at
        yield from self._from_log(first, min(last, at), partition, frames)
        for table in self._held:
            for begin in range(at, at + len(table), self.chunk_rows):
                end = min(begin + self.chunk_rows, at + len(table))
                low, high = max(first, begin), min(last, end)
                if low < high:
                    yield self._run(low, high, table[low - at : high - at], partition)
            at += len(table)
        yield from self._from_log(max(first, at), last, partition, frames)

    def _from_log(
        self, first: int, last: int, partition: Partition, frames: int
    ) -> Iterator[TupleRun]:
        for portion in self._portions(first, last):
            yield self._stretch(*portion, partition)
            self.reads["block_uses"] += (frames - 1) * len(portion[-1])

    def read_back(self, first: int, last: int, partition: Partition) -> Iterator[TupleRun]:
        for portion in reversed(list(self._portions(first, last))):
            yield self._stretch(*portion, partition)

    def arrived(self, partition: Partition | None = None) -> Iterator[Table]:
        """Yield the tuples of a partition, or all, that a replayed version wrote."""
        for table in chain(
            self._read(self._new[ARRIVALS], self._arriving_width),
            self._read(self._new[SETTLED], self._width),
        ):
            if partition is None:
                yield table
                continue
            id_high = np.ascontiguousarray(table[:, 0]).view(np.uint64)
            yield np.ascontiguousarray(table[partition.holds(id_high)])

    def nothing(self, place: int) -> TupleRun:
        """Return an empty run at a place of the sequence."""
        none = np.empty(0, dtype=np.int64)
        return TupleRun(place, place, none, np.empty((0, self._width), dtype=np.int64), none)

    def place_after(self, time: Micros) -> int:
        """Return the place of the first tuple of the sequence that is later than a time."""
        blocks = self._settled.records
        passed = int(np.searchsorted(blocks["last"], time, side="right"))
        place = int(self.books["dropped"]) + int(blocks["rows"][:passed].sum())
        if passed == len(blocks) or blocks["first"][passed] > time:
            return place
        table = next(self._read(blocks[passed : passed + 1].copy(), self._width))
        return place + int(np.searchsorted(table[:, -1], time, side="right"))

    def _portions(self, first: int, last: int) -> Iterator[tuple[int, int, int, Blocks]]:
        """Split a run into portions of about a chunk: ends, where the blocks begin, the blocks."""
        blocks = self._settled.records
        ends = self.books["dropped"] + np.cumsum(blocks["rows"])
        begins = ends - blocks["rows"]
        chosen = np.flatnonzero((ends > first) & (begins < last))
        if first >= last or len(chosen) == 0:
            return
        rows = blocks["rows"][chosen]
        bounds = slice_bounds((np.cumsum(rows) - rows) // self.chunk_rows)
        for at, until in pairwise(bounds.tolist()):
            part = chosen[at:until]
            begin, end = int(begins[part[0]]), int(ends[part[-1]])
            yield max(first, begin), min(last, end), begin, blocks[part]

    def _stretch(
        self, first: int, last: int, begin: int, blocks: Blocks, partition: Partition
    ) -> TupleRun:
        whole = self._whole(blocks, self._width)[first - begin : last - begin]
        return self._run(first, last, whole, partition)

    def _run(self, first: int, last: int, whole: Table, partition: Partition) -> TupleRun:
        times = np.ascontiguousarray(whole[:, -1])
        places = np.arange(first, last)
        if not partition.whole:
            id_high = np.ascontiguousarray(whole[:, 0]).view(np.uint64)
            inside = partition.holds(id_high)
            whole, places = np.ascontiguousarray(whole[inside]), places[inside]
        return TupleRun(first, last, times, whole, places)

    def _read(self, blocks: Blocks, width: int) -> Iterator[Table]:
        """Yield the tuples of blocks, which are given in the order of their markers."""
        for payload, rows in self._payloads(blocks, width):
            yield unpacked(payload, rows, width)

    def _whole(self, blocks: Blocks, width: int) -> Table:
        ends = np.cumsum(blocks["rows"])
        table = np.zeros((int(ends[-1]), width), dtype=np.int64)
        for (payload, rows), end in zip(self._payloads(blocks, width), ends.tolist(), strict=True):
            unpack(payload, table[end - rows : end])
        return table

    def _payloads(self, blocks: Blocks, width: int) -> Iterator[tuple[memoryview, int]]:
        self.reads["blocks"] += len(blocks)
        self.reads["block_uses"] += len(blocks)
        self.reads["block_bytes"] += 8 * width * int(blocks["rows"].sum())
        records = self._shard.log.read_many(blocks["marker"])
        for record, rows in zip(records, blocks["rows"].tolist(), strict=True):
            yield record.payload, rows

    def by_time(self, tables: list[Table]) -> Table:
        """Return tuples that arrived, by time and by arrival."""
        table = tables[0] if len(tables) == 1 else np.concatenate(tables)
        times = table[:, -1]
        if not (times[1:] >= times[:-1]).all():
            table = table[np.argsort(times, kind="stable")]
        if self._settled_form is None or _are_ordered(table):
            return table
        return table[np.lexsort((table[:, -2], table[:, -3], table[:, -1]))]

    # -- snapshot and restore --------------------------------------------------------------

    def directory(self, name: str) -> CountedTable:
        """Return the blocks of a lifetime class."""
        return self._arrivals if name == ARRIVALS else self._settled

    def known(self, blocks: Blocks) -> Blocks:
        """Return the blocks of a snapshot; ValueError if one has a wrong number of tuples."""
        for rows in (blocks["rows"].min(initial=1), blocks["rows"].max(initial=1)):
            self._check_rows(int(rows))
        return blocks

    def _check_rows(self, rows: int) -> None:
        if not 1 <= rows <= self._most_rows:
            msg = f"a block must have 1 to {self._most_rows} tuples, not {rows}"
            raise ValueError(msg)

    def replay(self, past: PastVersion) -> int:
        """Add the blocks that a past version wrote; return the rows in them."""
        self._new = {
            ARRIVALS: self._described(past, ARRIVALS, self._arriving_width),
            SETTLED: self._described(past, SETTLED, self._width),
        }
        self._with_room(lambda: self._arrivals.append(self._new[ARRIVALS]))
        self._take_settled(self._new[SETTLED], past.watermark)
        return sum(int(blocks["rows"].sum()) for blocks in self._new.values())

    def _described(self, past: PastVersion, lifetime: str, width: int) -> Blocks:
        """Return the directory entries of the blocks that a past version wrote."""
        found = []
        for record in records_of(self._shard, past, lifetime):
            self._check_rows(record.rows)
            times = unpacked(record.payload, record.rows, width)[:, -1]
            found.append((record.marker, record.rows, int(times[0]), int(times[-1])))
        return np.array(found, dtype=BLOCK)


class _Settling:
    """The tuples of a batch while they settle."""

    def __init__(self, log: TupleLog, before: Micros, watermark: Micros, lifetime: str) -> None:
        self._log = log
        self._before = before
        self._watermark = watermark
        self._lifetime = lifetime
        #: all tuples before it are written, except those that must wait
        self.settled_before = before
        #: directory entries of settled blocks, and of arrivals
        self.blocks: list[tuple[int, ...]] = []
        self._arrivals: list[tuple[int, ...]] = []
        #: tuples of earlier batches; None once all are merged from the log
        self._earlier = log.earlier(before, watermark)
        #: tuples of this batch that settle, and others, in the order of arrival
        self._early: list[Table] = []
        self._late: list[Table] = []

    def take(self, table: Table, bound: Micros) -> None:
        """Take tuples; none of those that follow is before the bound."""
        if self._earlier is None:
            self._keep(table)
            return
        times = table[:, -1]
        if int(times.max()) >= self._watermark:
            self._keep(table[times >= self._watermark])
            table = _between(table, self._before, self._watermark)
        elif int(times.min()) < self._before:
            table = _between(table, self._before, self._watermark)
        if len(table):
            self._early.append(table)
        if sum(map(len, self._early)) >= self._log.chunk_rows:
            self._release(min(bound, self._watermark))
            if sum(map(len, self._early)) > self._log.chunk_rows:
                self._give_up()

    def waiting(self) -> Blocks:
        """Write what is left; return the directory entries of arrivals."""
        if self._earlier is not None:
            self._release(self._watermark)
        assert not self._early, "an event was before the earliest time of its record"
        self._write_late()
        return np.array(self._arrivals, dtype=BLOCK)

    def write(self, table: Table) -> None:
        """Write tuples that settle, in order."""
        self.blocks += self._log.write(self._lifetime, table)

    def _release(self, bound: Micros) -> None:
        """Write the tuples before a bound, which no later one is before."""
        assert self._earlier is not None
        if bound <= self.settled_before:
            return
        old = int(np.searchsorted(self._earlier[:, -1], bound))
        parts = [self._earlier[:old]] if old else []
        if self._early:
            early = self._log.by_time(self._early)
            new = int(np.searchsorted(early[:, -1], bound))
            parts += [early[:new]] if new else []
            self._early = [early[new:]] if new < len(early) else []
        if parts:
            self.write(self._log.by_time(parts))
        self._earlier = self._earlier[old:]
        self.settled_before = bound

    def _give_up(self) -> None:
        """Let all tuples wait that are not written yet: they are merged from the log."""
        early, self._early, self._earlier = self._early, [], None
        self._arrivals += self._log.write(ARRIVALS, self._log.by_time(early))

    def _keep(self, table: Table) -> None:
        if len(table):
            self._late.append(table)
        if sum(map(len, chain(self._early, self._late))) >= self._log.sorted_rows:
            self._write_late()

    def _write_late(self) -> None:
        if self._late:
            self._arrivals += self._log.write(ARRIVALS, self._log.by_time(self._late))
            self._late = []


def _are_ordered(table: Table) -> bool:
    """Return whether tuples with an identity, sorted by time, are in its order where times tie."""
    ties = np.flatnonzero(table[1:, -1] == table[:-1, -1])
    (high, low), (next_high, next_low) = (table[at, -3:-1].T for at in (ties, ties + 1))
    return bool(((high < next_high) | ((high == next_high) & (low <= next_low))).all())


def _between(table: Table, first: Micros, last: Micros) -> Table:
    """Return the tuples with `first <= time < last`."""
    chosen = (table[:, -1] >= first) & (table[:, -1] < last)
    return table if chosen.all() else table[chosen]
