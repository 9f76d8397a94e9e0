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
6. If not all keys fit, all are served (`test_every_part_of_the_keys_of_windows_is_served`).
7. Correctly signed nonsense in a snapshot is reported as damage, never an endless loop
   (`test_signed_nonsense_in_any_state_is_an_error_of_ours`).

Cost: waiting tuples, with 24 bytes each; a version logs its tuples. If not all keys fit, a version
visits all parts of them (`window_parts`).

Limits: the tuples of one key must fit into the memory of a shard, and so must a batch if there is a
tree before the windows (`window_batch`). Of a key's tuples with the same time the last counts,
unless a window that has the first was served before it came. Tuples older than the key's latest, or
than the watermark if the key is known, are dropped and counted as outdated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from icestream.core.clock import Clock
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.bad_rows import BadRows
from icestream.operators.latest.coalescing import NewestUpdates, identity_of, joined
from icestream.operators.latest.pacing import Pace, ServingTime
from icestream.operators.latest.pre_queue import PreQueueNode, PreQueueOperator
from icestream.operators.latest.report import ServingReport, combined_report
from icestream.operators.latest.rowwise import UpdateFilter
from icestream.operators.latest.saved_arrays import parts_of, records_of
from icestream.operators.latest.serving_log import CHANGED, RECORD_ROWS
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.update_operator import UpdateInputs
from icestream.operators.latest.update_stream import UpdateStream
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.operators.latest.window_batch import Tuples, WindowBatch, WindowInput
from icestream.operators.latest.window_parts import WindowParts
from icestream.operators.protocol import Emitted, PastVersion, Shard
from icestream.state.identities import IdRange
from icestream.state.log.format import SegmentInfo
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.queue.pages import PagePool
from icestream.state.queue.windows.spec import UpdateWindows
from icestream.state.snapshot_schedule import SnapshotSchedule
from icestream.state.versions.commits import BASE

#: kinds of records: tuples as they arrived, counts as JSON, arrays of the queue, other arrays, the
#: state of the tree before the windows
TUPLES, CALLS, QUEUE, OTHERS, BEFORE = range(5)
#: limits of calls: tuples and answers
Calls = list[tuple[int, int]]


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
    #: keys without updates since then are dropped
    forget: Micros = MINUS_INFINITY


class WindowServingOperator:
    """Serves the windows of one shard."""

    def __init__(self, spec: WindowServing, shard: Shard) -> None:
        """Attach to the shard; its state is opened with the first batch, or when it is restored."""
        self._spec = spec
        self._shard = shard
        self._header: dict[str, Any] = shard.arena.header
        self._parts = WindowParts(shard, partial(spec.windowed.operator, spec.schedule))
        self._filters = spec.windowed.filters()
        self._pre_queue = None if spec.front is None else PreQueueOperator(spec.front, shard)
        #: cost of tuples in the windows, and of answers in the step
        self._paces = [Pace(list(sums)) for sums in self._header.get("pace", ())]
        self._paces = self._paces or [Pace(), Pace()]
        self._snapshots = SnapshotSchedule(self._header)
        self._segments: list[int] = self._header.setdefault("changed", [])
        self._batch: WindowBatch | None = None
        #: rows of the batch that were too late for the tree before the windows
        self._late = 0
        self._report = ServingReport()
        self.released: tuple[int, ...] = ()

    @property
    def parts(self) -> WindowParts:
        return self._parts

    @property
    def front(self) -> PreQueueOperator | None:
        """Return the tree before the windows, for inspection."""
        return self._pre_queue

    # -- a version -------------------------------------------------------------------------

    def on_batch(self, inputs: UpdateInputs) -> None:
        """Open the tuples of the batch."""

        def read() -> Iterator[Tuples]:
            for each in map(NewestUpdates, inputs.newest.tuples()):
                yield each.identity[0], each.payload

        if self._pre_queue is None:
            batch = self._opened(read)
            self._batch = None if batch.is_empty else batch
            return
        late = self._pre_queue.late
        parts = [NewestUpdates(batch).rows for batch in inputs.newest.tuples()]
        if parts:
            updates = NewestUpdates(joined(parts))
            self._shard.account.reserve(2 * updates.rows.nbytes)
            updates = updates.take(np.argsort(updates.last, kind="stable"))
            self._batch = self._opened(lambda: [(updates.identity[0], updates.payload)])
        self._late = self._pre_queue.late - late

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Serve each part of the keys until its time is used, then write the log."""
        reports, calls = [ServingReport(outdated=self._late)], dict[IdRange, Calls]()
        ended, forgot, divided, before = 0, False, False, self._spec.forget
        time, parts, batch = self._spec.time, self._parts, self._batch
        share, spent = time.share(self._paces), time.spent
        left = parts.in_turn()
        while left:
            ids = left.pop()
            parts.open(ids)
            mine = None if batch is None else batch.of(ids)
            if batch is not None and (mine is None or parts.is_large(mine)):
                left += parts.divide(ids)
                divided = True
                continue
            by_watermark, outdated = self._enter(mine)
            mine = None
            if batch is not None:
                batch.close()
            ended += by_watermark
            rest = (
                INFINITY if share == INFINITY else (share - time.spent + spent) // (1 + len(left))
            )
            yield from self._serve(calls.setdefault(ids, []), rest)
            reports.append(replace(self._closed(), outdated=outdated))
            forgot |= before != MINUS_INFINITY and parts.forget(before)
            parts.close(ids)
        if self._pre_queue is not None:
            if forgot:
                self._pre_queue.forget(before)
            self._pre_queue.save()
        is_small = batch is None or batch.is_held
        merged = is_small and not divided and parts.merge()
        self._header["pace"] = [pace.sums for pace in self._paces]
        self._write(calls, ended, anew=divided or merged or forgot)
        self._report = replace(
            combined_report(reports), serving=sum(each.serving for each in reports)
        )

    def _opened(self, read: Callable[[], Iterable[Tuples]]) -> WindowBatch:
        """Open the tuples of a version, after the tree in front of the windows."""
        by, tree = self._spec.windowed, self._pre_queue
        stream = UpdateStream(by.schema, by.keys, by.time)
        rows = None if tree is None else tree.rows
        return WindowBatch(read, stream, by.by, self._shard.account, rows)

    def _enter(self, arrived: WindowInput | None) -> tuple[int, int]:
        """Let tuples enter a part; return how many windows the watermark ends, and late tuples."""
        at, late = self._spec.delivered, self._parts.windows.facts["late"]
        self._parts.staleness.delivered(self._spec.clock.now() if at is None else at)
        if arrived is not None:
            self._take(arrived)
        ended = self._parts.windows.advance(self._spec.watermark)
        return ended, self._parts.windows.facts["late"] - late

    def _take(self, arrived: WindowInput) -> None:
        if len(arrived):
            self._parts.staleness.begins(int(arrived.times.min()))
            self._parts.windows.enqueue(arrived.rows, arrived.times)

    def _closed(self) -> ServingReport:
        """Return the report about the part in memory."""
        answers, queue = self._parts.staleness.close(self._spec.clock.now())
        facts = self._parts.windows.facts
        return replace(
            self._report,
            waiting=facts["waiting"] + facts["ready"],
            keys=self._parts.windows.keys,
            ends=self._parts.windows.next_end,
            stale=answers.whole,
            lately=answers.lately,
            queued=queue.whole,
            queued_lately=queue.lately,
        )

    def _serve(self, calls: Calls, share: Micros) -> Iterator[Emitted]:
        clock, windows, time = self._spec.clock, self._parts.windows, self._spec.time
        began = clock.monotonic()
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
            self._parts.staleness.committed(windows.committed, now)
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
        self._report = ServingReport(
            served=rows,
            calls=len(calls),
            serving=took,
            tuples=windows.processed - processed,
            each=took / (windows.processed - processed) if windows.processed > processed else 0.0,
        )

    # -- log -------------------------------------------------------------------------------

    def _write(self, calls: Mapping[IdRange, Calls], ended: int, *, anew: bool) -> None:
        """Write what the version did; from time to time, and if keys were dropped, a snapshot."""
        if self._snapshots.version_ends(self._parts.size) or anew:
            self._write_snapshot()
            self._snapshots.take()
            self.released = tuple(self._segments)
            self._segments.clear()
            return
        if self._batch is None and not any(calls.values()) and not ended:
            return
        segment = self._shard.segment(CHANGED)
        for part in () if self._batch is None else self._batch.records(RECORD_ROWS):
            segment.append(write_table(part), synopsis=TUPLES, rows=part.num_rows)
        told = {
            "watermark": self._spec.watermark,
            "parts": [calls[ids] for ids in self._parts.ranges],
            "pace": [each.sums for each in self._paces],
        }
        segment.append(json.dumps(told).encode(), synopsis=CALLS)
        info = self._shard.seal(CHANGED)
        if info is not None:
            self._segments.append(info.ordinal)
            self._snapshots.log(info.bytes)

    def _write_snapshot(self) -> None:
        segment = self._shard.segment(BASE)
        pace = {"pace": np.array([pace.sums for pace in self._paces])}
        for ids in self._parts.each():
            queue, others = self._parts.contents()
            for kind, state in ((QUEUE, queue), (OTHERS, {**others, **pace})):
                for payload in records_of(state, ids):
                    segment.append(payload, synopsis=kind)
        for payload in () if self._pre_queue is None else self._pre_queue.records():
            segment.append(payload, synopsis=BEFORE)
        self._shard.seal(BASE)

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
                self._replay(info)
                self._segments.append(info.ordinal)
                logged += info.bytes
        based = bool(history) and any(lifetime == BASE for lifetime, _ in history[0].segments)
        self._snapshots.resume(len(history) - based, logged)

    def _load(self, snapshots: Sequence[dict[int, list[bytes]]], keeps: IdRange | None) -> None:
        """Load a snapshot, or those of several parents for the keys in a range."""
        parents = []
        for each in snapshots:
            queues, others = (parts_of(each[kind]) for kind in (QUEUE, OTHERS))
            parents += [(ids, queues[ids], others[ids]) for ids in queues]
        self._parts.restore(parents, keeps)
        self._recall(parents[0][2]["pace"].tolist())
        if self._pre_queue is not None:
            self._pre_queue.take_over([each[BEFORE] for each in snapshots], keeps)

    def _replay(self, info: SegmentInfo) -> None:
        keys, by_key = self._spec.windowed.keys, self._pre_queue is None
        with closing(self._shard.reader(info)) as reader:
            markers = reader.directory["marker"]
            is_tuples = reader.directory["synopsis"] == TUPLES

            def read() -> Iterator[Tuples]:
                for record in reader.read_many(markers[is_tuples]):
                    rows = read_batch(bytes(record.payload))
                    everyone = np.zeros(rows.num_rows, dtype=np.uint64)
                    yield identity_of(rows, keys)[0] if by_key else everyone, rows

            (told,) = (
                json.loads(bytes(each.payload)) for each in reader.read_many(markers[~is_tuples])
            )
            arrived = self._opened(read) if is_tuples.any() else None
            # before there were parts, calls were those of all keys
            parts = told.get("parts") or [told["calls"]]
            for ids, mine in zip(self._parts.ranges, parts, strict=True):
                self._parts.open(ids)
                if arrived is not None:
                    self._take(arrived.every(ids))
                    arrived.close()
                self._parts.windows.advance(told["watermark"])
                self._parts.staleness.delivered(None)
                for count, most in mine:
                    self._parts.windows.serve(count, most)
                self._parts.close(ids)
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
            "groups": self._report.keys,
            "partitions": len(self._parts.ranges),
            "updates": self._report.to_json(),
        }
