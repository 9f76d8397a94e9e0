"""An n-way symmetric hash join in one shard, whose partitions leave memory and owe results later.

Idea: a row that comes on a port is combined with the resident rows of all other ports and is then
resident itself. Rows are on the log at the end of their version at the latest, so a partition that
leaves memory is forgotten, not written: its resident *generation* has ended. Results whose members
are of one generation have been emitted when it ends; clean-up emits those of several.

Used in this order in a version: `spill` (what the driver chose), `on_changes` for what came, then
`clean_up` if it is time, `forget`, `end_version`. The caller seals the class `BASE` after that.

Invariants:
1. What is emitted early and by clean-ups adds up to the join of what came, each result once, for
   any spills and clean-ups (`test_oracle_spills_and_clean_ups_at_any_moment`).
2. Arena and work buffers stay inside the quota, clean-up included
   (`test_bounded_state_of_ten_times_the_quota`).
3. A restored join goes on as the one before would have
   (`test_crash_restored_joins_emit_the_same_results`).
4. Segments without a needed row are released with the next snapshot
   (`test_bounded_ended_rows_leave_the_log`).

Cost: O(rows + results) and one sort of the rows of a flush; spilling is one pass over what is
resident. A row is logged once.

Limits: inputs only grow. A row is at most a fraction of the quota.

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
from icestream.operators.folding.fold import HI
from icestream.operators.lifetimes.changes import DIFF, LE, RE, column_of, identities_of, payload_of
from icestream.operators.multi_join import flushing
from icestream.operators.multi_join.clean_up import CleanUp, Overflow
from icestream.operators.multi_join.generations import CLEANED, CUT, DISCARDED, Generations
from icestream.operators.multi_join.logged_rows import LoggedRows
from icestream.operators.multi_join.probing import Chunk, combined
from icestream.operators.multi_join.recovery import JoinRecovery
from icestream.operators.multi_join.resident import Resident
from icestream.operators.multi_join.results import JoinResults, Members
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.protocol import PastVersion, Shard
from icestream.state.budget import Refused, fail
from icestream.state.snapshot_schedule import SnapshotSchedule

#: part of the quota that work buffers take, and of those what one of three uses takes
WORK = 8
USES = 3
#: rows combined and kept at once, at most
CHUNK_ROWS = 16_384
#: bytes of a record of rows, at most
RECORD_BYTES = 65_536
#: part of the resident bytes that leaves memory when there is no room
SPILLED = 0.3
#: part of the resident words that must have ended before the others close ranks
WORTH_DROPPING = 4

#: what is counted in a version: rows that came; results made at once, and by clean-up; bytes logged
#: for recovery; bytes that left memory, how often, and how often of need alone
COUNTS = ("rows", "early", "late", "logged_bytes", "spilled_bytes", "spills", "forced_spills")


class MultiJoin:
    """One join in one shard."""

    def __init__(self, spec: MultiJoinSpec, shard: Shard, lifetime: str) -> None:
        """Attach to the shard's arena; `lifetime` is the class of the segments with its rows.

        That class is the join's own; it is sealed by the join, and its segments never expire: they
        are `released`.
        """
        self._spec = spec
        self._shard = shard
        self._lifetime = lifetime
        name = f"join-{spec.number}"
        numbers: dict[str, Any] = shard.arena.header.setdefault(name, {})
        numbers.setdefault("watermark", MINUS_INFINITY)
        #: counts of this version
        self._counts = dict.fromkeys(COUNTS, 0)
        self._numbers = numbers
        self._schedule = SnapshotSchedule(shard.arena.header, f"{name}.snapshots")
        quota = shard.account.budget.total
        self._record_bytes = max(1024, min(RECORD_BYTES, quota // 128))
        self._resident = Resident(shard.arena, name, spec.ports, spec.partitions, numbers)
        self._generations = Generations(shard.arena, name, spec.partitions, numbers)
        #: bytes of each of the uses of work buffers
        self._work = quota // WORK // USES
        self._results = JoinResults(spec, self._work)
        self._history = JoinRecovery(
            spec.number,
            lifetime,
            shard,
            self._resident,
            self._generations,
            numbers,
            self._record_bytes,
            self._results.codecs,
        )
        #: what happened to partitions in this version: kind, and rows of (partition, epoch)
        self._events: list[tuple[int, Table]] = []
        self._ended = np.zeros(spec.partitions, dtype=np.bool_)
        self._released: tuple[int, ...] = ()
        #: whether rows can be logged no more in this version, and whether some were discarded
        self._sealed = self._discarded = False
        self._with_room(lambda: shard.account.reserve(USES * self._work))

    def reserve(self, size: int) -> None:
        """Take bytes of the quota for whoever feeds the join; partitions leave if need be."""
        self._with_room(lambda: self._shard.account.reserve(size))

    # -- rows come -------------------------------------------------------------------------

    def on_changes(self, port: int, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the results that rows of a port make with what is resident, then keep the rows.

        Rows and results are changes with the head of `temporal.changes`, `__hi` and `__lo` those of
        the join key; `__diff` must be 1 (InputError). Not after `clean_up` in the same version.
        The iterator must be used up before the join is asked for anything else.
        """
        if changes.num_rows == 0:
            return
        if (column_of(changes, DIFF) != 1).any():
            msg = (
                f"stream {port} of {self._spec.text or 'a join'} takes events back or repeats "
                "them, but a join that defers results takes streams that only grow: use "
                "onPressure='fetch', or join before events are shortened or aggregated"
            )
            raise InputError(msg)
        width = 8 * self._results.codecs[port].width + changes.nbytes // changes.num_rows
        rows = min(CHUNK_ROWS, max(1, self._work // (2 * width + 64)))
        for first in range(0, changes.num_rows, rows):
            yield from self._take(port, changes.slice(first, rows))

    def _take(self, port: int, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Combine rows and keep them, half of them at a time if there is no room for all."""
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
        hi, lo = identities_of(chunk)
        le, re = column_of(chunk, LE), column_of(chunk, RE)
        slots, hits = self._resident.open(hi, lo, port)
        came = Chunk(port, payload, hi, lo, le, re, slots, hits)
        room = self._results.capacity()
        for members in combined(self._resident, self._spec.ports, came, room):
            yield from self._counted(self._resident.heap, members)
        self._resident.link(slots, port, le, re, rows.words, rows.offsets[:-1], fresh=True)
        self._counts["rows"] += count
        if self._resident.fresh * flushing.SORTING > self._work:
            self._flush()

    def _reserve(self, rows: int, words: int) -> None:
        """Make room for rows and for the records that they and others will be logged in."""
        self._resident.reserve(rows, words)
        fresh, waiting = self._resident.fresh, self._resident.words - self._resident.logged
        self._generations.reserve(
            flushing.most_records(
                fresh + rows, waiting + words, self._spec.ports, self._record_bytes
            )
        )

    def _counted(self, heap: Ints, members: Members) -> Iterator[pa.RecordBatch]:
        """Yield results, and count them for their partitions."""
        for made in self._results.made(heap, members):
            hi = np.asarray(made.column(HI).to_numpy())
            counts = np.bincount(self._spec.partitions_of(hi), minlength=self._spec.partitions)
            self._resident.facts[:, k.OUTPUTS] += counts
            self._counts["early"] += made.num_rows
            yield made

    # -- what is there ---------------------------------------------------------------------

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the resident bytes of each partition, all of them (P_size in the paper)."""
        return np.array(self._resident.facts[:, k.BYTES])

    def outputs(self) -> npt.NDArray[np.int64]:
        """Return the results made in each partition's resident generation, by this join alone."""
        return np.array(self._resident.facts[:, k.OUTPUTS])

    def streams(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the resident rows of each port, and how many keys they have."""
        return self._resident.streams()

    def generations(self) -> npt.NDArray[np.int64]:
        """Return the generations on disk, the resident one not counted, of each partition."""
        return self._generations.counts()

    def ended(self) -> npt.NDArray[np.bool_]:
        """Tell in which partitions a resident generation ended in this version, for any reason."""
        return self._ended.copy()

    def dirty(self) -> npt.NDArray[np.bool_]:
        """Tell which partitions may owe results: clean-up would look at these."""
        facts = self._resident.facts
        owing: Mask = facts[:, k.OLDER] + (facts[:, k.MEMBERS] > 0) > 1
        return owing

    def owes_since(self, watermark: Micros) -> Micros:
        """Return an instant before which no result begins that clean-up may still emit.

        `watermark` if nothing is owed: the output watermark of this join, given that of its inputs.
        A result that is owed has a member that came when its partition had left memory before.
        """
        firsts = self._resident.facts[self.dirty(), k.FIRST]
        return min(watermark, *firsts.tolist()) if len(firsts) else watermark

    # -- partitions leave memory -----------------------------------------------------------

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
        """Let something happen to partitions, and remember it for the log."""
        events = np.column_stack([partitions, np.full_like(partitions, self._generations.epoch)])
        self._events.append((kind, events))
        self._ended[partitions] = True
        self._history.note(kind, events)

    def _with_room(self, attempt: Callable[[], None]) -> None:
        """Try something that needs room; let partitions leave while it is refused."""
        while True:
            try:
                attempt()
            except Refused as refused:
                if not self._relieve(refused.needed - refused.free):
                    raise
            else:
                return

    def _relieve(self, size: int) -> bool:
        """Let the least productive partitions leave; False if there are none."""
        sizes, outputs = self.sizes(), self.outputs()
        resident = np.flatnonzero(sizes)
        if not len(resident):
            return False
        productivity = outputs[resident] / sizes[resident]
        ranked = resident[np.lexsort((-sizes[resident], productivity))]
        enough = np.cumsum(sizes[ranked]) >= max(size, int(SPILLED * sizes.sum()))
        count = int(np.argmax(enough)) + 1 if enough.any() else len(ranked)
        self.spill(ranked[:count])
        self._counts["forced_spills"] += 1
        return True

    def _flush(self) -> None:
        """Write rows that are not on the log."""
        if self._resident.fresh:
            if self._sealed:
                msg = "rows came after clean_up: a version takes rows first and cleans up last"
                raise AssertionError(msg)
            writer = self._shard.segment(self._lifetime)
            written = flushing.flush(
                self._resident, self._generations, writer, self._spec.number, self._record_bytes
            )
            self._counts["logged_bytes"] += written
            self._schedule.log(written)

    # -- clean-up --------------------------------------------------------------------------

    def clean_up(
        self, partitions: npt.NDArray[np.int64] | None = None, *, last: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the results that partitions (all if None) owe; they are clean afterwards.

        With `last` nothing will come any more: what they keep is discarded.
        """
        every = np.arange(self._spec.partitions)
        chosen = every if partitions is None else np.unique(partitions)
        due = chosen[self.dirty()[chosen]]
        self._seal()
        if last:
            self._discard(np.setdiff1d(chosen, due))
        self.spill(due)
        if len(due):
            yield from self._owed(due)
            self._happened(CLEANED, due)
        if last:
            self._discard(due)

    def _owed(self, due: Ints) -> Iterator[pa.RecordBatch]:
        budget = self._shard.account.budget
        least = budget.total // WORK
        while budget.free < 2 * least and self._relieve(least):
            pass
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
                self._generations,
                self._shard.log,
                self._results,
                room // 8,
            )
            for heap, members in cleaning.owed():
                for made in self._results.made(heap, members):
                    self._counts["late"] += made.num_rows
                    yield made
        except Overflow as overflow:
            raise fail(budget, 8 * overflow.words, self._shard.account.owner) from overflow
        finally:
            self._shard.account.release(room)

    def _discard(self, partitions: Ints) -> None:
        """Forget all that is kept of partitions."""
        if not len(partitions):
            return
        doomed = np.zeros(self._spec.partitions, dtype=np.bool_)
        doomed[partitions] = True
        self._resident.drop(doomed, self._numbers["watermark"])
        self._happened(DISCARDED, partitions)
        self._discarded = True

    def forget(self, watermark: Micros) -> None:
        """Let go of rows that ended at or before the watermark of the inputs, unless owed."""
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
        self._generations.forget(facts[:, k.FLOOR], dirty, watermark)

    # -- versions --------------------------------------------------------------------------

    def end_version(self, watermark: Micros, *, snapshot: bool | None = None) -> None:
        """Write what is new to the log, and a snapshot: when told, or else when it is due.

        `watermark` is that of the inputs, which joins before this one hold back while they owe.
        """
        self._numbers["watermark"] = watermark
        self._seal()
        self._schedule.log(self._history.log_events(self._events))
        self._events = []
        due = self._schedule.version_ends(self._history.size) or self._discarded
        self._released = ()
        if due if snapshot is None else snapshot:
            self._generations.forget(
                self._resident.facts[:, k.FLOOR], self.dirty(), self._numbers["watermark"]
            )
            self._released = self._generations.release()
            self._history.save()
            self._schedule.take()

    def _seal(self) -> None:
        """Write rows that are not on the log and make all that was written readable."""
        self._flush()

        def sealed() -> None:
            self._generations.reserve_segment()
            info = self._shard.seal(self._lifetime)
            if info is not None:
                self._sealed = True
                self._generations.add_segment(info.ordinal)

        self._with_room(sealed)

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Come back to the end of `history`, which begins with a snapshot or with nothing."""
        if not history:
            return
        self._schedule.resume(*self._history.restore(history))
        for rows in self._history.resident_rows(self._numbers["watermark"]):
            self._take_back(rows)

    def _take_back(self, rows: LoggedRows) -> None:
        """Bring logged rows back into memory, those of generations that have not ended."""
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
        rows = rows.where(self._history.is_resident(rows))
        slots, _ = self._resident.open(rows.hi, rows.lo, rows.port)
        self._resident.link(
            slots, rows.port, rows.le, rows.re, rows.words, rows.payloads, fresh=False
        )

    @property
    def took_snapshot(self) -> bool:
        """Tell whether the version just written stands without those before it."""
        return self._schedule.taken

    @property
    def released(self) -> tuple[int, ...]:
        """Return ordinals of segments that nothing needs any more."""
        return self._released

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells: sums of what is there, counts of this version."""
        return {
            "resident_bytes": int(self._resident.facts[:, k.BYTES].sum()),
            "generations": int(self._generations.counts().sum()),
            "owing": int(self.dirty().sum()),
            "index_bytes": self._generations.bytes,
            **self._counts,
        }
