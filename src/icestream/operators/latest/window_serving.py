"""Windows under update semantics in one shard: the newest window of every key, whole, in time.

Idea: the tuples of a batch enter the window queue in time order. Then tuples of windows that are
committed to are processed, slice by slice, until the time of the batch is used, and the answers of
windows go through the step. Windows end when their key has a later tuple, or when the watermark
passes them. A slice ends with as many answers as there is time for: the step costs by answers. All
state is arrays of the arena. The queue is deterministic, so a version logs its tuples, watermark
and the limits of each call; a snapshot has the contents of the queue, without addresses.

Invariants:
1. Every answer is over all tuples of its key in its window, also over restarts at any batch
   (`test_oracle_windows_are_whole_over_restarts`).
2. A restored queue continues like the original (the same test: rows are equal).
3. Serving keeps within its time whatever the tuples per window
   (`test_bounded_windows_that_end_together_are_served_within_the_time`).
4. A key that is updated once gets its answers (`test_windows_end_by_the_watermark`).
5. Keys that are forgotten make room for others, and all their windows were answered
   (`test_bounded_windows_forget_keys_without_updates`).
6. Correctly signed nonsense in a snapshot is reported as damage, never an endless loop
   (`test_signed_nonsense_in_any_state_is_an_error_of_ours`).

Cost: waiting tuples, with 24 bytes each; a version logs its tuples.

Limits: all keys that are not forgotten must fit into the shard's memory, as must the tuples of
waiting windows. Of a key's tuples with the same time the last counts, unless a window that has the
first was served before it came. Tuples older than the key's latest, or than the watermark if the
key is known, are dropped and counted as outdated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from icestream.core.clock import Clock
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels.queue.windows import zones as z
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.bad_rows import BadRows
from icestream.operators.latest.coalescing import NewestUpdates, joined
from icestream.operators.latest.pacing import Pace, ServingTime
from icestream.operators.latest.pre_queue import PreQueueNode, PreQueueOperator
from icestream.operators.latest.report import ServingReport
from icestream.operators.latest.rowwise import UpdateFilter
from icestream.operators.latest.saved_arrays import SavedArrays, State, records_of, state_of
from icestream.operators.latest.serving_log import CHANGED, RECORD_ROWS
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.update_operator import UpdateInputs
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.operators.latest.window_staleness_totals import WindowStalenessTotals
from icestream.operators.protocol import Emitted, PastVersion, Shard
from icestream.state.identities import IdRange
from icestream.state.log.format import SegmentInfo
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.queue.pages import PagePool
from icestream.state.queue.windows.snapshot import bring_back, content_of, taken_over
from icestream.state.queue.windows.spec import UpdateWindows
from icestream.state.snapshot_schedule import SnapshotSchedule
from icestream.state.versions.commits import BASE

#: kinds of records: tuples as they arrived, counts as JSON, arrays of the queue, other arrays, the
#: state of the tree before the windows
TUPLES, CALLS, QUEUE, OTHERS, BEFORE = range(5)
#: least number of keys that are worth a snapshot without them
LEAST_FORGOTTEN = 128


@dataclass(frozen=True)
class WindowedBy:
    """The definition of windows over an update stream."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    windows: UpdateWindows
    aggregates: tuple[Aggregate, ...]
    #: group-by columns, the key or more
    by: tuple[str, ...]
    #: SQL conditions that answers must meet to be delivered
    having: tuple[str, ...] = ()
    zone: str = "UTC"

    def filters(self) -> list[UpdateFilter]:
        """Return the filters of answers; DefinitionError if the definition is invalid."""
        result = self.operator("inplace").result
        return [UpdateFilter(result, each, zone=self.zone) for each in self.having]

    def operator(self, schedule: str, pool: PagePool | None = None) -> WindowedUpdates:
        """Return the operator; DefinitionError if the definition is invalid."""
        order: Literal["inplace", "fifo"] = "fifo" if schedule == "fifo" else "inplace"
        return WindowedUpdates(
            self.schema,
            keys=self.keys,
            time=self.time,
            windows=self.windows,
            aggregates=self.aggregates,
            by=self.by,
            schedule=order,
            pool=pool,
        )


@dataclass(frozen=True)
class WindowServing:
    """What a shard needs to run a version."""

    windowed: WindowedBy
    step: UpdateStep
    schedule: str
    #: time for serving, shared with the other shards of the task
    time: ServingTime
    clock: Clock
    #: the tree whose rows enter the windows
    front: PreQueueNode | None = None
    #: when the rows of the previous version reached the application; None if unknown
    delivered: Micros | None = None
    #: the watermark after the batch: windows that end before it are full
    watermark: Micros = MINUS_INFINITY
    #: after how long without updates keys are forgotten; None: never
    forget: Micros | None = None


class WindowServingOperator:
    """Serves the windows of one shard."""

    def __init__(self, spec: WindowServing, shard: Shard) -> None:
        """Attach to the shard; its state is opened with the first batch, or when it is restored."""
        self._spec = spec
        self._shard = shard
        self._header: dict[str, Any] = shard.arena.header
        self._kept = SavedArrays(shard.arena, shard.account)
        self._filters = spec.windowed.filters()
        self._pre_queue = None if spec.front is None else PreQueueOperator(spec.front, shard)
        self._core: tuple[WindowedUpdates, WindowStalenessTotals] | None = None
        #: cost of tuples in the windows, and of answers in the step
        self._paces = [Pace(list(sums)) for sums in self._header.get("pace", ())]
        self._paces = self._paces or [Pace(), Pace()]
        self._snapshots = SnapshotSchedule(self._header)
        self._segments: list[int] = self._header.setdefault("changed", [])
        self._batch: pa.RecordBatch | None = None
        #: windows that the watermark of this version ended
        self._ended = 0
        self._report = ServingReport()
        self.released: tuple[int, ...] = ()

    @property
    def _windows(self) -> WindowedUpdates:
        """Return the operator over the arena's arrays."""
        return self._opened[0]

    @property
    def _staleness(self) -> WindowStalenessTotals:
        return self._opened[1]

    @property
    def _opened(self) -> tuple[WindowedUpdates, WindowStalenessTotals]:
        if self._core is None:
            self._core = self._open(self._kept.load())
        return self._core

    def _open(self, known: State | None) -> tuple[WindowedUpdates, WindowStalenessTotals]:
        pool = PagePool(self._shard.arena, name="windows.pool")
        windows = self._spec.windowed.operator(self._spec.schedule, pool)
        if known is not None:
            windows.recall(known)
        return windows, WindowStalenessTotals(self._shard.arena, windows.queue)

    @property
    def windows(self) -> WindowedUpdates:
        return self._windows

    @property
    def front(self) -> PreQueueOperator | None:
        """Return the tree before the windows, for inspection."""
        return self._pre_queue

    # -- a version -------------------------------------------------------------------------

    def on_batch(self, inputs: UpdateInputs) -> None:
        """Let the tuples of the batch enter the queue, in time order."""
        at = self._spec.delivered
        self._staleness.delivered(self._spec.clock.now() if at is None else at)
        parts = [NewestUpdates(batch).rows for batch in inputs.newest.tuples()]
        late = self._late
        if parts:
            updates = NewestUpdates(joined(parts))
            self._shard.account.reserve(2 * updates.rows.nbytes)
            order = np.argsort(updates.last, kind="stable")
            self._batch = updates.take(order).payload
            self._take(self._batch)
        self._ended = self._windows.advance(self._spec.watermark)
        self._report = ServingReport(outdated=self._late - late)

    @property
    def _late(self) -> int:
        """Return how many tuples were late, here or in the tree before."""
        front = 0 if self._pre_queue is None else self._pre_queue.late
        return self._windows.facts["late"] + front

    def _take(self, rows: pa.RecordBatch) -> None:
        if self._pre_queue is not None:
            rows = self._pre_queue.rows(rows)
        times = np.asarray(rows.column(self._spec.windowed.time).cast(pa.int64()).to_numpy())
        if len(times):
            self._staleness.begins(int(times.min()))
        self._windows.enqueue(rows, times)

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Serve until the time of the batch is used, then write the log."""
        calls: list[tuple[int, int]] = []
        yield from self._serve(calls)
        answers, queue = self._staleness.close(self._spec.clock.now())
        self._report = replace(
            self._report,
            stale=answers.whole,
            lately=answers.lately,
            queued=queue.whole,
            queued_lately=queue.lately,
        )
        self._header["pace"] = [pace.sums for pace in self._paces]
        forgot = self._forget()
        self._kept.save(self._windows.state())
        if self._pre_queue is not None:
            self._pre_queue.save()
        self._write(calls, forgot=forgot)
        facts = self._windows.facts
        self._report = replace(self._report, waiting=facts["waiting"] + facts["ready"])

    def _forget(self) -> bool:
        """Drop keys without updates for long, once they are half of all; return whether."""
        table, length = self._windows.queue.table, self._spec.forget
        if length is None or not len(table):
            return False
        # a time from the future says nothing about the other keys
        before = min(int(table[:, z.LAST].max()), self._spec.clock.now()) - length
        found = self._windows.without(before, LEAST_FORGOTTEN)
        if found is None:
            return False
        keys, state = found
        arrays = self._windows.queue.arrays
        content = taken_over([content_of(arrays)], keys.kept)
        staleness = self._staleness.taken_over([self._staleness.state()], keys)
        arrays.clear()
        bring_back(arrays, content)
        self._core = self._open(state)
        self._staleness.recall(staleness)
        if self._pre_queue is not None:
            self._pre_queue.forget(before)
        return True

    def _serve(self, calls: list[tuple[int, int]]) -> Iterator[Emitted]:
        clock, windows, time = self._spec.clock, self._windows, self._spec.time
        began, share = clock.monotonic(), time.share()
        by_tuples, by_answers = self._paces
        made: list[pa.RecordBatch] = []
        rows, processed = 0, windows.processed
        while True:
            started = clock.monotonic()
            left = int(share - 1e6 * (started - began))
            first = not time.served
            count, most = (pace.slice(left, first=first) for pace in self._paces)
            before, now = windows.processed, clock.now()
            answers = windows.serve(count, most) if count and most else None
            if answers is None or windows.processed == before:
                break
            calls.append((count, most))
            time.served.add(0)
            self._staleness.committed(windows.committed, now)
            for each in self._filters:
                answers = each.on_batch([answers])
            served = clock.monotonic()
            by_tuples.learn(windows.processed - before, 1e6 * (served - started))
            if answers.num_rows:
                for result in self._spec.step.served(answers):
                    if isinstance(result, BadRows):
                        yield 0, result
                    else:
                        made.append(result)
                rows += answers.num_rows
                by_answers.learn(answers.num_rows, 1e6 * (clock.monotonic() - served))
            if sum(each.num_rows for each in made) >= RECORD_ROWS:
                yield 0, joined(made)
                made = []
        if any(each.num_rows for each in made):
            yield 0, joined(made)
        took = int(1e6 * (clock.monotonic() - began))
        time.spent += took
        self._report = replace(
            self._report,
            served=rows,
            calls=len(calls),
            serving=took,
            tuples=windows.processed - processed,
            each=took / (windows.processed - processed) if windows.processed > processed else 0.0,
        )

    # -- log -------------------------------------------------------------------------------

    def _write(self, calls: Sequence[tuple[int, int]], *, forgot: bool) -> None:
        """Write what the version did; from time to time, and if keys were dropped, a snapshot."""
        if self._snapshots.version_ends(self._size) or forgot:
            others = {
                **self._windows.state(),
                **self._staleness.state(),
                "pace": np.array([pace.sums for pace in self._paces]),
            }
            queue = content_of(self._windows.queue.arrays)
            before = () if self._pre_queue is None else self._pre_queue.records()
            kinds = (QUEUE, records_of(queue)), (OTHERS, records_of(others)), (BEFORE, before)
            for kind, payloads in kinds:
                for payload in payloads:
                    self._shard.segment(BASE).append(payload, synopsis=kind)
            self._shard.seal(BASE)
            self._snapshots.take()
            self.released = tuple(self._segments)
            self._segments.clear()
            return
        if self._batch is None and not calls and not self._ended:
            return
        segment = self._shard.segment(CHANGED)
        rows = 0 if self._batch is None else self._batch.num_rows
        for first in range(0, rows, RECORD_ROWS):
            assert self._batch is not None
            part = self._batch.slice(first, RECORD_ROWS)
            segment.append(write_table(part), synopsis=TUPLES, rows=part.num_rows)
        pace = [each.sums for each in self._paces]
        told = {"watermark": self._spec.watermark, "calls": calls, "pace": pace}
        segment.append(json.dumps(told).encode(), synopsis=CALLS)
        info = self._shard.seal(CHANGED)
        if info is not None:
            self._segments.append(info.ordinal)
            self._snapshots.log(info.bytes)

    @property
    def _size(self) -> int:
        """Return the approximate size of a snapshot in bytes."""
        queue = self._windows.queue
        return int(queue.table.nbytes + queue.arrays.zone_bytes)

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Load the snapshot, then replay each later version."""
        logged = 0
        for past in history:
            bases = [self._records(info) for lifetime, info in past.segments if lifetime == BASE]
            if bases:
                self._load(bases, past.keeps)
            for lifetime, info in past.segments:
                if lifetime == BASE:
                    continue
                self._replay(self._records(info))
                self._segments.append(info.ordinal)
                logged += info.bytes
        based = bool(history) and any(lifetime == BASE for lifetime, _ in history[0].segments)
        self._snapshots.resume(len(history) - based, logged)

    def _load(self, snapshots: Sequence[dict[int, list[bytes]]], keeps: IdRange | None) -> None:
        """Load a snapshot, or those of several parents for the keys in a range."""
        queues, others = ([state_of(each[kind]) for each in snapshots] for kind in (QUEUE, OTHERS))
        queue, other = queues[0], others[0]
        if keeps is not None:
            keys = self._windows.kept_keys(others, keeps)
            queue = dict(taken_over(queues, keys.kept))
            staleness = self._staleness.taken_over(others, keys)
            windows = self._windows.taken_over(others, keys, keeps)
            other = {**windows, **staleness, "pace": other["pace"]}
        bring_back(self._windows.queue.arrays, queue)
        self._windows.recall(other)
        self._staleness.recall(other)
        self._recall(other["pace"].tolist())
        if self._pre_queue is not None:
            self._pre_queue.take_over([each[BEFORE] for each in snapshots], keeps)

    def _replay(self, found: dict[int, list[bytes]]) -> None:
        parts = [read_batch(payload) for payload in found[TUPLES]]
        if parts:
            self._take(joined(parts))
        for payload in found[CALLS]:
            told = json.loads(payload)
            self._windows.advance(told["watermark"])
            self._staleness.delivered(None)
            for count, most in told["calls"]:
                self._windows.serve(count, most)
            self._recall(told["pace"])

    def _recall(self, learnt: Sequence[Sequence[float]]) -> None:
        for pace, sums in zip(self._paces, learnt, strict=True):
            pace.sums[:] = sums

    def _records(self, info: SegmentInfo) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {kind: [] for kind in range(BEFORE + 1)}
        with closing(self._shard.reader(info)) as reader:
            for record in reader.read_many(reader.directory["marker"]):
                found[record.synopsis].append(bytes(record.payload))
        return found

    # -- reports ---------------------------------------------------------------------------

    @property
    def took_snapshot(self) -> bool:
        return self._snapshots.taken

    @property
    def statistics(self) -> dict[str, Any]:
        return {
            "groups": self._windows.keys,
            "partitions": 1,
            "updates": replace(self._report, keys=self._windows.keys).to_json(),
        }
