"""An n-way symmetric hash join in one shard, which spills partitions and defers their results.

Idea: a row that arrives on a port is combined with the resident rows of all other ports and then
becomes resident itself. Rows are on the log at the end of their version at the latest, so spilling
a partition drops it from memory without writing: its resident *generation* ends. Results whose
members are of one generation have been emitted by then; clean-up emits those of several
generations.

Order of calls in a version: `spill` (what the driver chose), `on_changes` for the input, then
`clean_up` if it is time, `forget`, `end_version`. After that the caller seals the class `BASE`.

Invariants:
1. Results emitted early and by clean-ups add up to the join of the input, each result once, for any
   spills and clean-ups (`test_oracle_spills_and_clean_ups_at_any_moment`).
2. Arena and work buffers stay inside the quota, clean-up included
   (`test_bounded_state_of_ten_times_the_quota`).
3. A partition that was cleaned up returns to memory if there is room
   (`test_a_partition_that_was_cleaned_up_returns_to_memory`), and clean-up leaves there what is
   resident (`test_clean_up_evicts_nothing`).
4. A restored join continues exactly like the original
   (`test_crash_restored_joins_emit_the_same_results`).
5. Segments without a needed row are released with the next snapshot
   (`test_bounded_ended_rows_leave_the_log`).

Cost: O(rows + results) and one sort of the rows of a flush; spilling is one pass over the resident
rows. A row is logged once.

Limits: inputs only grow. A row must be smaller than a fraction of the quota.

References: partition groups as units of spill; productivity of a partition group; clean-up as
incremental view maintenance (run-time operator state spilling).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Table
from icestream.core.errors import InputError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels.multi_join import resident as k
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.lifetimes.changes import DIFF, LE, RE, column_of, identities_of, payload_of
from icestream.operators.multi_join.clean_up import CleanUp, Overflow
from icestream.operators.multi_join.generations import (
    CLEANED,
    CUT,
    DISCARDED,
    RETURNED,
    Generations,
)
from icestream.operators.multi_join.logged_rows import SORTING, LoggedRows, flush, most_records
from icestream.operators.multi_join.merging import Needs, SegmentMerge, worth_merging
from icestream.operators.multi_join.probing import Chunk, combined
from icestream.operators.multi_join.recovery import JoinRecovery
from icestream.operators.multi_join.resident import Resident
from icestream.operators.multi_join.results import JoinResults, Members
from icestream.operators.multi_join.spec import JOINED, MERGED, MultiJoinSpec
from icestream.operators.multi_join.spill_strategies import SpillRanking
from icestream.operators.protocol import PastVersion, Shard
from icestream.state.budget import Refused, fail
from icestream.state.snapshot_schedule import SnapshotSchedule

#: 1/WORK of the quota is for work buffers, and 1/USES of these for each of three uses
WORK = 8
USES = 3
#: 1/CLEANING of the quota is enough for clean-up, though more saves reading records again
CLEANING = 32
#: maximum number of rows combined and stored at once
CHUNK_ROWS = 16_384
#: maximum bytes of a record of rows, and of one that is flushed: it covers few partitions
RECORD_BYTES = 65_536
FLUSHED_BYTES = 8_192
#: share of the quota up to which partitions return to memory, unless the caller gives another
FILL = 0.6
#: share of the resident words that must have ended before the rest is compacted
WORTH_DROPPING = 4

#: counters of a version: rows received; results emitted at once, and by clean-up; bytes logged for
#: recovery; bytes spilled, number of spills; the same of those forced by a full quota, and of these
#: the bytes that were chosen before there were statistics of the whole query
COUNTS = (
    *("rows", "early", "late", "logged_bytes", "spilled_bytes", "spills"),
    *("forced_spills", "forced_bytes", "unranked_bytes"),
)


class MultiJoin:
    """One join in one shard."""

    def __init__(
        self,
        spec: MultiJoinSpec,
        shard: Shard,
        ranking: SpillRanking | None = None,
    ) -> None:
        """Attach to the shard's arena; if there is no room, partitions leave by their ranking.

        The classes `JOINED` and `MERGED` belong to the join, which seals them; their segments never
        expire but are `released`.
        """
        self._ranking = ranking or SpillRanking()
        self._spec = spec
        self._shard = shard
        name = f"join-{spec.number}"
        numbers: dict[str, Any] = shard.arena.header.setdefault(name, {})
        numbers.setdefault("watermark", MINUS_INFINITY)
        #: counters of this version
        self._counts = dict.fromkeys(COUNTS, 0)
        self._numbers = numbers
        self._schedule = SnapshotSchedule(shard.arena.header, f"{name}.snapshots")
        quota = shard.account.budget.total
        self._record_bytes = max(1024, min(RECORD_BYTES, quota // 128))
        self._flushed_bytes = min(FLUSHED_BYTES, self._record_bytes)
        self._resident = Resident(shard.arena, name, spec.ports, spec.partitions, numbers)
        self._generations = Generations(shard.arena, name, spec.partitions, numbers)
        #: bytes for each use of the work buffers
        self._work = quota // WORK // USES
        self._results = JoinResults(spec, self._work)
        self._history = JoinRecovery(
            spec.number,
            shard,
            self._resident,
            self._generations,
            numbers,
            self._record_bytes,
            self._results.codecs,
        )
        #: events of partitions in this version: kind, and rows of (partition, epoch)
        self._events: list[tuple[int, Table]] = []
        self._ended = np.zeros(spec.partitions, dtype=np.bool_)
        #: results that clean-ups of this version emitted, by partition
        self._late = np.zeros(spec.partitions, dtype=np.int64)
        self._released: tuple[int, ...] = ()
        #: whether the log is sealed in this version, and whether partitions were discarded
        self._sealed = self._discarded = False
        self._with_room(lambda: shard.account.reserve(USES * self._work))

    def reserve(self, size: int) -> None:
        """Reserve bytes of the quota for the caller; spill partitions if necessary."""
        self._with_room(lambda: self._shard.account.reserve(size))

    # -- rows arrive -------------------------------------------------------------------------

    def on_changes(self, port: int, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the results of new rows of a port with the resident rows, then store the new rows.

        Rows and results are changes with the head of `lifetimes.changes`; their identity is that of
        the join key and `__diff` must be 1 (InputError). Must not follow `clean_up` in the same
        version. The iterator must be exhausted before any other call.
        """
        if changes.num_rows == 0:
            return
        if (column_of(changes, DIFF) != 1).any():
            msg = (
                f"stream {port} of {self._spec.text or 'a join'} retracts or repeats events, but a "
                "join that defers results needs streams that only grow: use onPressure='fetch', or "
                "join before events are shortened or aggregated"
            )
            raise InputError(msg)
        width = 8 * self._results.codecs[port].width + changes.nbytes // changes.num_rows
        rows = min(CHUNK_ROWS, max(1, self._work // (2 * width + 64)))
        for first in range(0, changes.num_rows, rows):
            yield from self._take(port, changes.slice(first, rows))

    def _take(self, port: int, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Combine and store rows, half of them at a time if there is no room for all."""
        payload = payload_of(chunk)
        rows = self._results.codecs[port].encode(payload)
        count = chunk.num_rows
        try:
            self._with_room(lambda: self._reserve(count, len(rows.words)))
        except Refused:
            if count == 1:
                raise
            yield from self._take(port, chunk.slice(0, count // 2))
            yield from self._take(port, chunk.slice(count // 2))
            return
        id_high, id_low = identities_of(chunk)
        le, re = column_of(chunk, LE), column_of(chunk, RE)
        slots, hits = self._resident.open(id_high, id_low, port)
        came = Chunk(port, payload, id_high, id_low, le, re, slots, hits)
        room = self._results.capacity()
        for members in combined(self._resident, self._spec.ports, came, room):
            yield from self._counted(self._resident.heap, members)
        self._resident.link(slots, port, le, re, rows.words, rows.offsets[:-1], fresh=True)
        self._counts["rows"] += count
        if self._resident.fresh * SORTING > self._work:
            self._flush()

    def _reserve(self, rows: int, words: int) -> None:
        """Reserve memory for rows and for the index of the records they will be logged in."""
        self._resident.reserve(rows, words)
        fresh, waiting = self._resident.fresh, self._resident.words - self._resident.logged
        self._generations.reserve(
            most_records(fresh + rows, waiting + words, self._spec.ports, self._flushed_bytes)
        )

    def _counted(self, heap: Ints, members: Members) -> Iterator[pa.RecordBatch]:
        """Yield results, and count them for their partitions."""
        for made in self._results.made(heap, members):
            self._resident.facts[:, k.OUTPUTS] += self._by_partition(made)
            self._counts["early"] += made.num_rows
            yield made

    def _by_partition(self, made: pa.RecordBatch) -> Ints:
        id_high = np.asarray(made.column(ID_HIGH_COLUMN).to_numpy())
        return np.bincount(self._spec.partitions_of(id_high), minlength=self._spec.partitions)

    # -- what is resident ---------------------------------------------------------------------

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the resident bytes of every partition (P_size in the paper)."""
        return np.array(self._resident.facts[:, k.BYTES])

    def outputs(self) -> npt.NDArray[np.int64]:
        """Return the results of this join in the resident generation of each partition."""
        return np.array(self._resident.facts[:, k.OUTPUTS])

    def streams(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the number of resident rows of each port, and of their keys."""
        return self._resident.streams()

    def generations(self) -> npt.NDArray[np.int64]:
        """Return the number of generations on disk of each partition, without the resident one."""
        return self._generations.counts()

    def ended(self) -> npt.NDArray[np.bool_]:
        """Return in which partitions a resident generation ended during this version."""
        return self._ended.copy()

    def dirty(self) -> npt.NDArray[np.bool_]:
        """Return which partitions may owe results, so that clean-up would read them."""
        facts = self._resident.facts
        several: Mask = facts[:, k.OLDER] + (facts[:, k.MEMBERS] > 0) > 1
        return several & (facts[:, k.NEWS] > 0)

    def owes_since(self, watermark: Micros) -> Micros:
        """Return an instant before which no result that clean-up may still emit begins.

        That is the join's output watermark; it is `watermark`, that of the inputs, if nothing is
        owed. An owed result has a member that arrived after its partition was spilled.
        """
        firsts = self._resident.facts[self.dirty(), k.FIRST]
        return min(watermark, *firsts.tolist()) if len(firsts) else watermark

    # -- spilling -----------------------------------------------------------

    def spill(self, partitions: npt.NDArray[np.int64]) -> int:
        """End the resident generations of partitions; return the bytes (of `sizes`) freed."""
        facts = self._resident.facts
        some = np.unique(partitions)
        some = some[facts[some, k.MEMBERS] > 0]
        if not len(some):
            return 0
        self._flush()
        freed = int(facts[some, k.BYTES].sum())
        doomed = np.zeros(self._spec.partitions, dtype=np.bool_)
        doomed[some] = True
        del facts
        self._resident.drop(doomed, self._numbers["watermark"])
        self._happened(CUT, some)
        self._counts["spills"] += 1
        self._counts["spilled_bytes"] += freed
        return freed

    def _happened(self, kind: int, partitions: Ints) -> None:
        """Apply an event to partitions, and record it for the log."""
        events = np.column_stack([partitions, np.full_like(partitions, self._generations.epoch)])
        self._events.append((kind, events))
        self._ended[partitions] |= kind in (CUT, DISCARDED)
        self._history.note(kind, events)

    def _with_room(self, attempt: Callable[[], None]) -> None:
        """Try something that needs memory; spill partitions while it is refused."""
        while True:
            try:
                attempt()
            except Refused as refused:
                if not self._relieve(refused.needed - refused.free):
                    raise
            else:
                return

    def _relieve(self, size: int) -> bool:
        """Spill the partitions that the strategy ranks lowest; return False if there are none."""
        sizes = self.sizes()
        if not sizes.any():
            return False
        freed = self.spill(self._ranking.leaving(sizes, self.outputs(), size))
        self._counts["forced_spills"] += 1
        self._counts["forced_bytes"] += freed
        self._counts["unranked_bytes"] += 0 if self._ranking.is_informed else freed
        return True

    def _flush(self) -> None:
        """Write rows that are not on the log."""
        if self._resident.fresh:
            if self._sealed:
                msg = (
                    "rows arrived after clean_up: a version must take rows first and clean up last"
                )
                raise AssertionError(msg)
            writer = self._shard.segment(JOINED)
            written = flush(
                self._resident, self._generations, writer, self._spec.number, self._flushed_bytes
            )
            self._counts["logged_bytes"] += written
            self._schedule.log(written)

    # -- clean-up --------------------------------------------------------------------------

    def clean_up(
        self,
        partitions: npt.NDArray[np.int64] | None = None,
        *,
        last: bool = False,
        fill: float = FILL,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the results that partitions (all if None) owe; afterwards they owe nothing.

        What is resident stays. Partitions that owe nothing return to memory as a whole, as long as
        no more than the fraction `fill` of the quota is held. With `last` no more rows will arrive:
        the state of these partitions is discarded.
        """
        every = np.arange(self._spec.partitions)
        chosen = every if partitions is None else np.unique(partitions)
        due = chosen[self.dirty()[chosen]]
        self._seal()
        if last:
            self._discard(np.setdiff1d(chosen, due))
        if len(due):
            yield from self._owed(due)
            self._happened(CLEANED, due)
        if last:
            self._discard(due)
        else:
            self._return(chosen, fill)

    def _return(self, partitions: Ints, fill: float) -> None:
        """Read partitions that owe nothing back into memory.

        The first are those that owed the most results for a byte.
        """
        facts, budget = np.array(self._resident.facts), self._shard.account.budget
        away = partitions[(facts[partitions, k.OLDER] > 0) & ~self.dirty()[partitions]]
        expected = self._history.sizes_on_log(self._numbers["watermark"])
        missed = self._late + facts[:, k.OUTPUTS]
        ranked = away[np.argsort(-missed[away] / np.maximum(expected[away], 1), kind="stable")]
        sizes = expected[ranked]
        fits = np.cumsum(sizes) <= fill * budget.total - (budget.total - budget.free)
        chosen = ranked[fits & (sizes > 0)]
        if not len(chosen):
            return
        returning = np.zeros(self._spec.partitions, dtype=np.bool_)
        returning[chosen] = True
        try:
            for rows in self._history.away_rows(returning, self._numbers["watermark"]):
                words = int((rows.words[rows.payloads] >> 32).sum())
                self._resident.reserve(len(rows.starts), words)
                self._link(rows)
        except Refused:
            self._resident.drop(returning, self._numbers["watermark"])
            self._happened(CUT, chosen[facts[chosen, k.MEMBERS] > 0])
        else:
            self._happened(RETURNED, chosen)

    def _owed(self, due: Ints) -> Iterator[pa.RecordBatch]:
        budget = self._shard.account.budget
        least = budget.total // CLEANING
        while budget.free < 2 * least and self._relieve(2 * least - budget.free):
            pass
        # no rows arrive and none are sorted: two of the three uses of the work buffers are free
        spare = (USES - 1) * self._work
        room = max(least, budget.free - least)
        try:
            self._shard.account.reserve(room)
        except Refused as refused:
            raise fail(budget, room, self._shard.account.owner) from refused
        chosen = np.zeros(self._spec.partitions, dtype=np.bool_)
        chosen[due] = True
        try:
            cleaning = CleanUp(
                chosen,
                np.array(self._resident.facts[:, k.FLOOR]),
                np.array(self._resident.facts[:, k.CLEANED]),
                self._generations,
                self._shard.log,
                self._results,
                (room + spare) // 8,
            )
            for heap, members in cleaning.owed():
                for made in self._results.made(heap, members):
                    self._counts["late"] += made.num_rows
                    self._late += self._by_partition(made)
                    yield made
        except Overflow as overflow:
            raise fail(budget, 8 * overflow.words, self._shard.account.owner) from overflow
        finally:
            self._shard.account.release(room)

    def _discard(self, partitions: Ints) -> None:
        if not len(partitions):
            return
        doomed = np.zeros(self._spec.partitions, dtype=np.bool_)
        doomed[partitions] = True
        self._resident.drop(doomed, self._numbers["watermark"])
        self._happened(DISCARDED, partitions)
        self._discarded = True

    def forget(self, watermark: Micros) -> None:
        """Drop rows that ended at or before the input watermark, unless results are owed."""
        self._numbers["watermark"] = watermark
        facts = self._resident.facts
        if WORTH_DROPPING * self._resident.ended(watermark) > self._resident.words:
            self._flush()
            del facts
            self._resident.drop(np.zeros(self._spec.partitions, dtype=np.bool_), watermark)
            facts = self._resident.facts
        dirty = self.dirty()
        over = np.flatnonzero(~dirty & (facts[:, k.LATEST] <= watermark) & (facts[:, k.OLDER] > 0))
        if len(over):
            ended = self._generations.last_cuts()[over]
            self._history.note(DISCARDED, np.column_stack([over, ended]))
        self._forget_records()

    def _forget_records(self) -> None:
        """Drop records without needed rows; note the moment for partitions that owe nothing."""
        facts, dirty, watermark = self._resident.facts, self.dirty(), self._numbers["watermark"]
        facts[~dirty, k.SETTLED] = self._generations.epoch
        facts[~dirty, k.PASSED] = watermark
        needs = self._needs()
        self._generations.forget(needs.floor, needs.since, needs.after)

    def _needs(self) -> Needs:
        """Return which rows on the log partitions need."""
        facts = np.array(self._resident.facts)
        floor, after, cleaned, settled = (
            facts[:, each] for each in (k.FLOOR, k.PASSED, k.CLEANED, k.SETTLED)
        )
        since = np.where(self.dirty(), settled, np.iinfo(np.int64).max)
        return Needs(floor, since, after, cleaned, settled)

    def _merge(self) -> None:
        """Merge segments with little that is needed, or of the same size, if there is room."""
        generations, account = self._generations, self._shard.account
        room, taken = account.budget.total // WORK, 0
        ordinals = worth_merging(generations, room // 8)
        if not len(ordinals):
            return
        try:
            account.reserve(room)
            taken = room
            generations.reserve_segment()
            kept, made = SegmentMerge(
                generations,
                self._needs(),
                self._shard.log,
                self._results.codecs,
                self._history.holds,
                self._shard.segment(MERGED),
                self._spec.number,
                self._flushed_bytes // 8,
                self._record_bytes // 8,
                room // 8,
            ).run(ordinals)
            account.release(taken)
            taken = 0
            generations.load_merged(kept, made)
        except Refused:
            return
        finally:
            account.release(taken)
            info = self._shard.seal(MERGED)
            if info is not None:
                generations.add_segment(info.ordinal)

    # -- versions --------------------------------------------------------------------------

    def end_version(self, watermark: Micros, *, snapshot: bool | None = None) -> None:
        """Write what is new to the log, and a snapshot: if requested, or else when it is due.

        `watermark` is that of the inputs; earlier joins hold it back while they owe results.
        """
        self._numbers["watermark"] = watermark
        self._seal()
        self._schedule.log(self._history.log_events(self._events))
        self._events = []
        due = self._schedule.version_ends(self._history.size) or self._discarded
        self._released = ()
        if due if snapshot is None else snapshot:
            self._forget_records()
            self._merge()
            self._released = self._generations.release()
            self._history.save()
            self._schedule.take()

    def _seal(self) -> None:
        """Write rows that are not on the log and make all that was written readable."""
        self._flush()

        def sealed() -> None:
            self._generations.reserve_segment()
            info = self._shard.seal(JOINED)
            if info is not None:
                self._sealed = True
                self._generations.add_segment(info.ordinal)

        self._with_room(sealed)

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Restore the state at the end of `history`, which begins with a snapshot or empty."""
        if not history:
            return
        self._schedule.resume(*self._history.restore(history))
        for rows in self._history.resident_rows(self._numbers["watermark"]):
            self._take_back(rows)

    def _take_back(self, rows: LoggedRows) -> None:
        """Load logged rows of generations that have not ended into memory."""
        rows = rows.where(self._history.is_resident(rows))
        count = len(rows.starts)
        words = int((rows.words[rows.payloads] >> 32).sum())
        try:
            self._with_room(lambda: self._resident.reserve(count, words))
        except Refused:
            if count == 1:
                raise
            self._take_back(rows.where(slice(0, count // 2)))
            self._take_back(rows.where(slice(count // 2, None)))
            return
        self._link(rows.where(self._history.is_resident(rows)))

    def _link(self, rows: LoggedRows) -> None:
        """Store logged rows, for which there is room."""
        slots, _ = self._resident.open(rows.id_high, rows.id_low, rows.port)
        self._resident.link(
            slots, rows.port, rows.le, rows.re, rows.words, rows.payloads, fresh=False
        )

    @property
    def took_snapshot(self) -> bool:
        return self._schedule.taken

    @property
    def released(self) -> tuple[int, ...]:
        """Return the ordinals of segments that are no longer needed."""
        return self._released

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report shows: totals of the state, counters of this version."""
        return {
            "resident_bytes": int(self._resident.facts[:, k.BYTES].sum()),
            "generations": int(self._generations.counts().sum()),
            "owing": int(self.dirty().sum()),
            "index_bytes": self._generations.bytes,
            **self._counts,
        }
