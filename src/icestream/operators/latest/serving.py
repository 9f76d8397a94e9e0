"""Update streams in one shard: take the updates, serve while there is time, keep the rest.

Idea: the updates of a batch enter the queue. Keys are then served in the order of the schedule, a
slice of many keys at a time, until the shard's part of the task's time is used. Several steps over
one stream share the queue: each is served in its own order, and they take turns in the available
time. Keys that still wait stay in the arena and on the log.

Invariants:
1. The newest value of every key is served in the end, to every step, also after a restart at any
   batch (`test_oracle_every_keys_newest_value_is_served`,
   `test_oracle_steps_share_a_queue_as_if_it_were_their_own`).
2. Keys are served in the order of the schedule (`test_oracle_keys_are_served_in_schedule_order`).

Cost: the batch of a shard, folded to one row for each key, is in memory once, next to the queue.

Limits: the batch of a shard must fit into its memory, keys need not; a BudgetError lists what uses
the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids
from icestream.core.clock import Clock
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.bad_rows import BadRows
from icestream.operators.latest.coalescing import (
    NewestUpdates,
    UpdateCoalescer,
    folded,
    joined,
    newest,
)
from icestream.operators.latest.pacing import ServingTime
from icestream.operators.latest.pre_queue import PreQueueNode, PreQueueOperator
from icestream.operators.latest.report import ServingReport
from icestream.operators.latest.serving_ahead import (
    MOST_KEYS,
    SPARE_TIME,
    ServedAhead,
    ShardAhead,
    served_ahead,
)
from icestream.operators.latest.serving_log import LIFETIMES, RECORD_ROWS, ServingLog
from icestream.operators.latest.staleness_totals import ReaderStaleness
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.update_operator import AppendOperator, UpdateInputs
from icestream.operators.latest.waiting_keys import WaitingKeys
from icestream.operators.protocol import Emitted, Inputs, PastVersion, Shard
from icestream.state.budget import Refused
from icestream.state.identities import numbered

#: memory with which a batch of a shard can be taken in and served, in multiples of its bytes
BATCH = 4
#: file beside the arena's arrays with what is served between two versions
_AHEAD = "ahead"


@dataclass(frozen=True)
class Serving:
    """What a shard needs to run a version."""

    #: columns of the waiting values
    payload: pa.Schema
    #: the steps, by number of the view
    steps: Mapping[int, UpdateStep]
    schedule: str
    #: time for serving, shared with the other shards of the task
    time: ServingTime
    #: when the rows of the previous version reached the application; None if unknown
    delivered: Micros | None
    clock: Clock
    #: keys without updates since then are dropped
    forget: Micros = MINUS_INFINITY
    #: whether every update is processed, not only the newest
    whole: bool = False
    #: trust rank of each input of a union, 0 is most
    ranks: tuple[int, ...] | None = None
    #: the tree whose rows are the updates
    front: PreQueueNode | None = None
    #: how long keys may be served after the version, until the next one begins; 0 for not at all
    ahead: Micros = 0


class ServingOperator:
    """Serves the keys of one shard."""

    def __init__(self, spec: Serving, shard: Shard, every: AppendOperator | None = None) -> None:
        """Attach to the shard; `every` has steps over all events, which run first."""
        self._spec = spec
        self._every = every
        self._shard = shard
        self._waiting = WaitingKeys(
            spec.payload,
            spec.schedule,
            shard.arena,
            shard.account,
            len(spec.steps),
        )
        self._pre_queue = None if spec.front is None else PreQueueOperator(spec.front, shard)
        self._log = ServingLog(shard, self._waiting, spec.payload, self._pre_queue)
        self._staleness = [
            ReaderStaleness(shard.arena, reader, f"books{number}", self._waiting.cold)
            for number, reader in enumerate(self._waiting.readers)
        ]
        self._batch: NewestUpdates | None = None
        self._batch_bytes = 0
        #: updates of the batch that newer ones in it superseded, if all are processed
        self._older: pa.RecordBatch | None = None
        #: rows that a join before the queue took
        self._taken: pa.RecordBatch | None = None
        self._report = ServingReport()
        #: what was served before this version began, for each step
        self._ahead: list[ServedAhead] = []
        #: microseconds of the task's time that passed before its keys were served
        self._waited: Micros = 0
        #: microseconds of the task's time for this shard
        self._share: Micros = INFINITY

    @property
    def waiting(self) -> WaitingKeys:
        return self._waiting

    @property
    def front(self) -> PreQueueOperator | None:
        """Return the tree before the queue, for inspection."""
        return self._pre_queue

    # -- a version -------------------------------------------------------------------------

    def on_batch(self, inputs: UpdateInputs) -> None:
        """Let the updates of the batch enter the queue."""
        if self._every is not None:
            self._every.on_batch(inputs)
        with self._advising():
            self._take_in(inputs.newest)

    @contextmanager
    def _advising(self) -> Iterator[None]:
        """Let a refusal ask for what a batch needs in the end, not only for what was refused."""
        try:
            yield
        except Refused as refused:
            more = BATCH * self._batch_bytes - self._shard.account.budget.total + refused.free
            raise Refused(refused.owner, max(refused.needed, more), refused.free) from refused

    def _reserve(self, size: int) -> None:
        """Reserve the memory of the batch."""
        self._batch_bytes = size
        self._shard.account.reserve(size)

    def _take_in(self, inputs: Inputs) -> None:
        at = self._spec.delivered
        self._waiting.delivered(self._spec.clock.now() if at is None else at)
        self._take_ahead()
        if self._spec.whole:
            self._hold(inputs)
            return
        outdated = self._waiting.late
        found, rows, dropped = self._matches(inputs) if self._pre_queue else self._newest(inputs)
        self._batch = found
        replaced = 0
        if found is not None:
            self._reserve(found.rows.nbytes)
            replaced = self._waiting.take_in(found)
            replaced += rows - found.rows.num_rows
        dropped += self._waiting.late - outdated
        self._report = ServingReport(superseded=replaced, outdated=dropped)

    def _take_ahead(self) -> None:
        """Take out the keys that were served since the previous version."""
        self._ahead = [ServedAhead(self._waiting.read(n, 0)) for n in range(len(self._spec.steps))]
        clock, time = self._spec.clock, self._spec.time
        began = clock.monotonic()
        results = served_ahead(self._shard.arena.path(_AHEAD))
        # it waits for a slice that is being served
        self._waited = SPARE_TIME.waited() + int(1e6 * (clock.monotonic() - began))
        time.spent += self._waited
        for reader, found in enumerate(results):
            if found.is_next(self._waiting.read(reader, found.count)):
                self._ahead[reader] = found
                self._waiting.serve(reader, found.count, self._spec.clock.now())
                self._waiting.paces[reader].adopt(found.pace)
                if found.count:
                    time.served.add(reader)

    def _offer_ahead(self) -> None:
        """Let the next keys be served until the next version begins."""
        left = min(self._spec.ahead, SPARE_TIME.expected)
        keys = []
        for reader, pace in enumerate(self._waiting.paces):
            call, each = pace.cost
            most = min(MOST_KEYS, int(2 * (left - call) / max(each, 1.0))) if left > call else 0
            keys.append(self._waiting.read(reader, most))
        if any(map(len, keys)):
            steps, paces = list(self._spec.steps.values()), self._waiting.paces
            path, clock = self._shard.arena.path(_AHEAD), self._spec.clock.monotonic
            SPARE_TIME.offer(ShardAhead(path, keys, steps, paces, clock))

    def _hold(self, inputs: Inputs) -> None:
        """Separate the newest update of each key from earlier ones; all are processed."""
        parts = list(inputs.tuples())
        if not parts:
            return
        updates = NewestUpdates(joined(parts))
        self._reserve(2 * updates.rows.nbytes)
        order = np.argsort(updates.last, kind="stable")
        fresh = order[self._waiting.is_fresh(updates)[order]]
        self._report = ServingReport(outdated=updates.rows.num_rows - len(fresh))
        if len(fresh):
            updates = updates.take(fresh)
            self._batch = folded(updates)
            chosen, _, _ = newest(*updates.identity, updates.last)
            older = np.setdiff1d(np.arange(len(fresh)), chosen)
            self._older = updates.take(older).payload if len(older) else None

    def _newest(self, inputs: Inputs) -> tuple[NewestUpdates | None, int, int]:
        """Return the newest rows of keys, how many rows they summarise, and how many were late."""
        ranks = None if self._spec.ranks is None else np.array(self._spec.ranks, dtype=np.int64)
        folder, rows = UpdateCoalescer(ranks), 0
        for batch in inputs.tuples():
            folder.take(NewestUpdates(batch))
            rows += batch.num_rows
        found = folder.finish()
        if found is None or ranks is None:
            return found, rows, 0
        young = np.flatnonzero(self._waiting.is_trusted(found, ranks))
        dropped = found.rows.num_rows - len(young)
        return (found.take(young) if len(young) else None), rows - dropped, dropped

    def _matches(self, inputs: Inputs) -> tuple[NewestUpdates | None, int, int]:
        """Return the newest matches of keys, how many they summarise, and how many were late."""
        parts = [NewestUpdates(batch).payload for batch in inputs.tuples()]
        if not parts or self._pre_queue is None:
            return None, 0, 0
        late = self._pre_queue.late
        self._taken = joined(parts)
        self._reserve(2 * self._taken.nbytes)
        found = self._pre_queue.take(self._taken)
        return found, 0 if found is None else found.rows.num_rows, self._pre_queue.late - late

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Serve until the time of the batch is used, then write the log."""
        if self._every is not None:
            yield from self._every.on_watermark(watermark)
        for view, found in zip(self._spec.steps, self._ahead, strict=True):
            for made in found.made:
                yield view, made
        served: list[list[tuple[Ids, Ids]]] = [[] for _ in self._spec.steps]
        if self._spec.whole:
            with self._advising():
                yield from self._serve_all(served)
        else:
            self._share = self._spec.time.share(self._waiting.paces)
            with self._advising():
                yield from self._serve(served)
        self._waiting.learn_costs()
        forgot = self._forget()
        keys = [_joined(each) for each in served]
        ahead = [found.identities for found in self._ahead]
        self._log.write(self._batch, keys, self._taken, forgot, ahead)
        self._waiting.clean()
        if self._pre_queue is not None:
            self._pre_queue.save()
        now = self._spec.clock.now()
        report = replace(
            self._report,
            waiting=len(self._waiting),
            keys=self._waiting.keys,
            served=self._report.served + sum(each.count for each in self._ahead),
            calls=self._report.calls + sum(each.calls for each in self._ahead),
            serving=self._report.serving + self._waited,
        )
        for staleness in self._staleness:
            application, queue = staleness.close(now)
            report = replace(
                report,
                stale=report.stale.plus(application.whole),
                lately=report.lately.plus(application.lately),
                queued=report.queued.plus(queue.whole),
                queued_lately=report.queued_lately.plus(queue.lately),
            )
        self._report = report
        self._offer_ahead()

    def _forget(self) -> Micros:
        """Drop keys without updates for long; return since when."""
        known, before = self._waiting.keys, self._spec.forget
        if before == MINUS_INFINITY or not known:
            return MINUS_INFINITY
        self._waiting.forget(before)
        dropped = known - self._waiting.keys
        for staleness in self._staleness:
            staleness.forget(dropped)
        if dropped and self._pre_queue is not None:
            self._pre_queue.forget(before)
        return before if dropped else MINUS_INFINITY

    def _serve_all(self, served: list[list[tuple[Ids, Ids]]]) -> Iterator[Emitted]:
        """Process what waited, then every update of the batch, however long it takes."""
        yield from self._serve(served)
        waited = self._report
        began = self._spec.clock.monotonic()
        if self._older is not None:
            for view, step in self._spec.steps.items():
                for first in range(0, self._older.num_rows, RECORD_ROWS):
                    rows = self._older.slice(first, RECORD_ROWS)
                    for made in step.served(rows.select(step.payload.names)):
                        yield view, made
        took = int(1e6 * (self._spec.clock.monotonic() - began))
        if self._batch is not None:
            self._waiting.take_in(self._batch)
            yield from self._serve(served)
        older = 0 if self._older is None else self._older.num_rows
        more = self._report if self._batch is not None else ServingReport()
        self._report = replace(
            waited,
            served=waited.served + more.served + older * len(self._spec.steps),
            calls=waited.calls + more.calls,
            serving=waited.serving + more.serving + took,
        )

    def _serve(self, served: list[list[tuple[Ids, Ids]]]) -> Iterator[Emitted]:
        """Let the steps take turns, a slice each, until the time is used."""
        clock, time = self._spec.clock, self._spec.time
        began = clock.monotonic()
        before = sum(len(id_high) for each in served for id_high, _ in each)
        views, steps = zip(*self._spec.steps.items(), strict=True)
        made: list[list[pa.RecordBatch]] = [[] for _ in steps]
        calls = [0] * len(steps)
        turns = [reader for reader in range(len(steps)) if len(self._waiting.readers[reader])]
        while turns:
            for reader in list(turns):
                started = clock.monotonic()
                left = int(self._share - 1e6 * (started - began))
                pace = self._waiting.paces[reader]
                count = pace.slice(left // len(turns), first=reader not in time.served)
                if not count:
                    turns.remove(reader)
                    continue
                taken = self._waiting.serve(reader, count, clock.now())
                step = steps[reader]
                for each in step.served(taken.rows.select(step.payload.names)):
                    if isinstance(each, BadRows):
                        yield views[reader], each
                    else:
                        made[reader].append(each)
                pace.learn(len(taken), 1e6 * (clock.monotonic() - started))
                served[reader].append((taken.id_high, taken.id_low))
                calls[reader] += 1
                time.served.add(reader)
                if not len(self._waiting.readers[reader]):
                    turns.remove(reader)
                if sum(each.num_rows for each in made[reader]) >= RECORD_ROWS:
                    yield views[reader], joined(made[reader])
                    made[reader] = []
        for view, rows in zip(views, made, strict=True):
            if any(each.num_rows for each in rows):
                yield view, joined(rows)
        took = int(1e6 * (clock.monotonic() - began))
        time.spent += took
        keys = sum(len(id_high) for each in served for id_high, _ in each) - before
        self._report = replace(self._report, served=keys, calls=sum(calls), serving=took)

    def restore(self, history: Sequence[PastVersion]) -> None:
        # of an older version
        served_ahead(self._shard.arena.path(_AHEAD))
        self._log.restore(history, self._spec.clock.now())

    # -- reports ---------------------------------------------------------------------------

    @property
    def took_snapshot(self) -> bool:
        return self._log.took_snapshot

    @property
    def released(self) -> tuple[int, ...]:
        """Return the ordinals of segments that a snapshot has replaced."""
        return self._log.released

    @property
    def statistics(self) -> dict[str, Any]:
        report = self._report
        if self._every is not None:
            more = self._every.report
            report = replace(
                report,
                served=report.served + more.served,
                calls=report.calls + more.calls,
                serving=report.serving + more.serving,
            )
        return {"groups": self._waiting.keys, "partitions": 1, "updates": report.to_json()}


def _joined(parts: Sequence[tuple[Ids, Ids]]) -> tuple[Ids, Ids]:
    """Return the distinct keys that were served, slice after slice."""
    if not parts:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    id_high, id_low = (np.concatenate(part) for part in zip(*parts, strict=True))
    _, first = numbered(id_high, id_low)
    return id_high[first], id_low[first]


__all__ = ["LIFETIMES", "Serving", "ServingOperator"]
