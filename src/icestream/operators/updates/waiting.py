"""The keys of a shard that wait, with what a log needs to bring them back.

Idea: an update queue in the shard's arena, with a reader for each step that is behind it. What
arrives is folded: of several updates of a key the queue sees the first, which says since when the
key waits, and the last, which has the value; the mean gap between updates is what all of them would
have made it.

Invariants:
1. Rates are those of all updates, also of those that were folded
   (`test_parity_folded_updates_make_the_rates_of_all`).
2. A queue that was brought back serves the same keys in the same order
   (`test_oracle_a_restored_queue_goes_on_as_the_one_before`).

Cost: that of two arrivals for each key of a batch.

Limits: an update that is folded with others and is older than what its key has is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.errors import InputError
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.updates import queue as k
from icestream.kernels.updates.order import (
    FLYING,
    LACKS,
    LIST,
    SCORED,
    SETTINGS,
    SINCE,
    UNEVEN,
    WEIGHT,
    class_of,
)
from icestream.kernels.updates.restore import list_members, put_in_lists, take_cells
from icestream.kernels.updates.staleness import NONE
from icestream.operators.updates.folding import COUNT, HI, LAST, LO, Folded
from icestream.state.arena import Arena
from icestream.state.synopses.spec import Ids, Ints
from icestream.state.update_queue.cells import KeyCells
from icestream.state.update_queue.reader import Dequeued, QueueReader
from icestream.state.update_queue.sharing import SharedQueue

#: updates whose gaps are averaged
SMOOTHING = 32
#: columns of known keys in a snapshot, beside identity, last update and number of updates
GAP = "__gap"
HEFT = "__weight"
EVENNESS = "__uneven"
#: columns of keys that wait for a reader: since when, and in which of its lists
SINCE_FIRST = "__since"
PLACE = "__list"


class Waiting:
    """The update queue of one shard."""

    def __init__(
        self,
        schema: pa.Schema,
        schedule: str,
        arena: Arena,
        readers: int = 1,
        importance: str | None = None,
    ) -> None:
        """Attach to the arena's arrays, or start without keys.

        `importance` is a column of the values that says what a key's staleness counts.
        """
        self._schema = schema
        #: column of the values that says what a key's staleness counts
        self.importance = importance
        self._queue = SharedQueue(schema, arrays=arena, smoothing=SMOOTHING)
        costs = arena.header.get("cost", [0.0] * readers)
        #: one for each step, in order
        self.readers: tuple[QueueReader, ...] = tuple(
            self._queue.reader(f"reader{number}", schedule=schedule, cost=cost)
            for number, cost in enumerate(costs)
        )

    @property
    def cells(self) -> KeyCells:
        """Return keys and values."""
        return self._queue.cells

    @property
    def late(self) -> int:
        """Return how many updates were older than what their key had."""
        return self.cells.fact(k.LATE)

    def __len__(self) -> int:
        """Return how many keys wait, for one reader or several."""
        if len(self.readers) == 1:
            return len(self.readers[0])
        return len(self.waiting_slots())

    def take_in(self, updates: Folded) -> int:
        """Let updates arrive, one row for each key; return how many waiting values they replace."""
        cells, (hi, lo) = self.cells, updates.identity
        slots = cells.find(hi, lo)
        known = slots >= 0
        replaced = int((cells.column(k.WAITED_FOR)[slots[known]] != 0).sum())
        before = np.zeros(len(hi), dtype=np.int64)
        before[known] = cells.column(k.COUNT)[slots[known]]
        several = np.flatnonzero(updates.count > 1)
        rows = np.concatenate([several, np.arange(len(hi))])
        times = np.concatenate([updates.first[several], updates.last])
        order = np.argsort(times, kind="stable")
        rows = rows[order]
        self._queue.enqueue(hi[rows], lo[rows], times[order], updates.payload.take(pa.array(rows)))
        self._correct_rates(updates, several, before)
        if self.importance is not None:
            self._weigh(updates)
        return replaced

    def _weigh(self, updates: Folded) -> None:
        """Let keys count as much as their newest update says."""
        slots = self.cells.find(*updates.identity)
        newest = np.flatnonzero(self.cells.column(k.ARRIVED)[slots] == updates.last)
        weights = importances(updates, self.importance)[newest]
        hi, lo = updates.identity
        for reader in self.readers:
            reader.weigh(hi[newest], lo[newest], importance=weights)

    def forgettable(self, before: Micros) -> Ints:
        """Return the cells of keys without news since `before`, whose answers are delivered."""
        old = self.cells.idle_since(before)
        for reader in self.readers:
            old = old[reader.order.kernel.keys[old, FLYING] == NONE]
        return old

    def has(self, updates: Folded) -> npt.NDArray[np.bool_]:
        """Tell of updates that were taken in which are what somebody waits for."""
        slots = self.cells.find(*updates.identity)
        newest = self.cells.column(k.ARRIVED)[slots] == updates.last
        wanted: npt.NDArray[np.bool_] = newest & (self.cells.column(k.WAITED_FOR)[slots] != 0)
        return wanted

    def is_newer(self, updates: Folded) -> npt.NDArray[np.bool_]:
        """Tell of updates that were not taken in which are newer than all their keys had."""
        newer: npt.NDArray[np.bool_] = updates.last > self._latest(updates)
        return newer

    def is_fresh(self, updates: Folded) -> npt.NDArray[np.bool_]:
        """Tell of updates that were not taken in which are as new as all their keys had."""
        fresh: npt.NDArray[np.bool_] = updates.last >= self._latest(updates)
        return fresh

    def _latest(self, updates: Folded) -> Ints:
        """Return the time of what the keys of updates had last."""
        slots = self.cells.find(*updates.identity)
        known = slots >= 0
        known[known] = self.cells.column(k.COUNT)[slots[known]] > 0
        latest = np.full(len(slots), MINUS_INFINITY)
        latest[known] = self.cells.column(k.ARRIVED)[slots[known]]
        return latest

    def serve(self, reader: int, count: int, now: Micros) -> Dequeued:
        """Take the keys that are next for a reader."""
        return self.readers[reader].dequeue(count, now)

    def delivered(self, at: Micros) -> None:
        """Tell that all that was taken has reached the application."""
        for reader in self.readers:
            flying = reader.order.kernel.keys[: self.cells.seen, FLYING] != NONE
            reader.delivered(*self.cells.identities(np.flatnonzero(flying)), at)

    # -- log -------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return what is not told by single keys."""
        facts = self.cells.kernel.facts
        return {
            "schedule": self.readers[0].schedule,
            "first": int(facts[k.FIRST]),
            "newest": int(facts[k.NEWEST]),
            "accepted": int(facts[k.ACCEPTED]),
            "late": int(facts[k.LATE]),
            "readers": [
                {
                    "cost": reader.cost,
                    "learnt": reader.order.kernel.settings[:SETTINGS].tolist(),
                    "scored": int(reader.order.kernel.facts[SCORED]),
                }
                for reader in self.readers
            ],
        }

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Set what `facts` said."""
        kept = self.cells.kernel.facts
        kept[k.FIRST], kept[k.NEWEST] = facts["first"], facts["newest"]
        kept[k.ACCEPTED], kept[k.LATE] = facts["accepted"], facts["late"]
        for reader, learnt in zip(self.readers, facts["readers"], strict=True):
            if facts["schedule"] == reader.schedule:
                reader.order.kernel.settings[:SETTINGS] = learnt["learnt"]
                reader.order.kernel.facts[SCORED] = learnt["scored"]
            reader.cost = learnt["cost"]

    def waiting_slots(self) -> Ints:
        """Return the cells of keys that wait."""
        return np.flatnonzero(self.cells.column(k.WAITED_FOR) != 0)

    def idle_slots(self) -> Ints:
        """Return the cells of keys that are known and do not wait."""
        idle = (self.cells.column(k.WAITED_FOR) == 0) & (self.cells.column(k.COUNT) > 0)
        return np.flatnonzero(idle)

    def described(self, slots: Ints) -> list[tuple[str, Any]]:
        """Return what a snapshot says of keys beside their values, by name."""
        cells = self.cells
        hi, lo = cells.identities(slots)
        return [
            (HI, hi),
            (LO, lo),
            (LAST, cells.column(k.ARRIVED)[slots]),
            (COUNT, cells.column(k.COUNT)[slots]),
            (GAP, cells.gaps[slots]),
            (HEFT, self.readers[0].order.kernel.reals[slots, WEIGHT]),
            (EVENNESS, self.readers[0].order.kernel.reals[slots, UNEVEN]),
        ]

    def since(self, slots: Ints) -> Ints:
        """Return since when keys wait, for the reader that waits longest."""
        waits = [reader.order.kernel.keys[slots, SINCE] for reader in self.readers]
        since: Ints = np.min([np.where(each == NONE, INFINITY, each) for each in waits], axis=0)
        return since

    def in_order(self, reader: int) -> list[tuple[str, Any]]:
        """Return the keys that wait for a reader, list by list and in order."""
        order = self.readers[reader].order
        slots = np.empty(order.waiting, dtype=np.int64)
        list_members(order.kernel, slots)
        hi, lo = self.cells.identities(slots)
        rows = order.kernel.keys[slots]
        return [(HI, hi), (LO, lo), (SINCE_FIRST, rows[:, SINCE]), (PLACE, rows[:, LIST] - 1)]

    def values(self, slots: Ints) -> pa.RecordBatch:
        """Return the values of keys that wait."""
        return self.cells.values(slots)

    def bring_back(self, described: Mapping[str, Any], values: pa.RecordBatch | None) -> None:
        """Take in keys of a snapshot: some that wait, with values, or others."""
        cells, hi, lo = self.cells, described[HI], described[LO]
        if values is not None:
            self._queue.enqueue(hi, lo, described[LAST], values)
        slots = cells.register(hi, lo)
        cells.column(k.ARRIVED)[slots] = described[LAST]
        cells.column(k.COUNT)[slots] = described[COUNT]
        cells.gaps[slots] = described[GAP]
        for reader in self.readers:
            reader.order.kernel.reals[slots, WEIGHT] = described[HEFT]
            reader.order.kernel.reals[slots, UNEVEN] = described[EVENNESS]

    def put_in_order(self, reader: int, described: Mapping[str, Any], *, same: bool) -> None:
        """Let the keys of `in_order` wait for a reader as they did, and no others.

        Where the schedule is not the same, keys are put where this one has them.
        """
        order, cells = self.readers[reader].order.kernel, self.cells
        slots = cells.find(described[HI], described[LO])
        places = np.asarray(described[PLACE]) if same else self._places(reader, slots)
        waits = (slots >= 0) & (order.keys[slots, LIST] > 0)
        waits &= (places >= 0) & (places < len(order.lists))
        if not waits.all() or len(np.unique(slots)) < len(slots):
            msg = "a snapshot has keys in order that do not wait, or not in its lists"
            raise ValueError(msg)
        others = np.setdiff1d(self.waiting_slots(), slots)
        take_cells(cells.kernel, order, others, cells.newest)
        order.keys[others, FLYING] = order.keys[others, LACKS] = NONE
        order.keys[slots, SINCE] = order.keys[slots, LACKS] = described[SINCE_FIRST]
        put_in_lists(order, slots, places)

    def take_out(self, reader: int, hi: Ids, lo: Ids, now: Micros) -> None:
        """Take chosen keys out, as when they were served to a reader."""
        slots = self.cells.find(hi, lo)
        order = self.readers[reader].order.kernel
        take_cells(self.cells.kernel, order, slots[slots >= 0], now)

    def _places(self, reader: int, slots: Ints) -> Ints:
        """Return the lists in which a reader has keys."""
        order = self.readers[reader].order
        if order.schedule != "index":
            return np.zeros(len(slots), dtype=np.int64)
        gaps, weights = self.cells.gaps[slots], order.kernel.reals[slots, WEIGHT]
        pairs = zip(gaps.tolist(), weights.tolist(), strict=True)
        return np.array([class_of(gap, weight) for gap, weight in pairs], dtype=np.int64)

    # -- rates -----------------------------------------------------------------------------

    def _correct_rates(self, updates: Folded, several: Ints, before: Ints) -> None:
        """Let the mean gap of keys be what it were had all their updates come one by one."""
        cells = self.cells
        hi, lo = updates.identity
        slots = cells.find(hi[several], lo[several])
        counts = cells.column(k.COUNT)[slots]
        both = counts == before[several] + 2
        several, slots, counts = several[both], slots[both], counts[both]
        if not len(slots):
            return
        span = (updates.last - updates.first)[several].astype(np.float64)
        more = updates.count[several] - 1
        last_part = 1 / np.minimum(counts, SMOOTHING)
        after_first = (cells.gaps[slots] - span * last_part) / (1 - last_part)
        arrived = counts - 1
        averaged = np.minimum(arrived + more, np.maximum(arrived, SMOOTHING))
        kept = (arrived / averaged) * (1 - 1 / SMOOTHING) ** (arrived + more - averaged)
        mean = span / more
        cells.gaps[slots] = mean + (after_first - mean) * kept
        cells.column(k.COUNT)[slots] = counts + more - 1


def importances(updates: Folded, column: str | None) -> npt.NDArray[np.float64]:
    """Return what the keys of updates count; InputError unless all are positive."""
    values = updates.rows.column(column).cast(pa.float64())
    weights = np.asarray(values.to_numpy(zero_copy_only=False))
    if not (weights > 0).all():
        msg = (
            f"the importance of a key is a positive number; column {column!r} has "
            f"{weights[~(weights > 0)][0]}: fix it, or filter such rows out"
        )
        raise InputError(msg)
    return weights
