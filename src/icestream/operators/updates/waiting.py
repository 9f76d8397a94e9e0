"""The keys of a shard that wait, with what a log needs to bring them back.

Idea: an update queue in the shard's arena. What arrives is folded: of several updates of a key the
queue sees the first, which says since when the key waits, and the last, which has the value; the
mean gap between updates is what all of them would have made it.

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

from icestream.core.times import Micros
from icestream.kernels import update_queue as k
from icestream.kernels.update_queue_order import FLYING, LIST, SCORED, SETTINGS, SINCE, class_of
from icestream.kernels.update_queue_staleness import NONE
from icestream.kernels.update_restore import list_members, put_in_lists, take_cells
from icestream.operators.updates.folding import COUNT, HI, LAST, LO, Folded
from icestream.state.arena import Arena
from icestream.state.synopses.spec import Ids, Ints
from icestream.state.update_queue.queue import UpdateQueue
from icestream.state.update_queue.reader import Dequeued

#: updates whose gaps are averaged
SMOOTHING = 32
#: columns of known keys in a snapshot, beside identity, last update and number of updates
GAP = "__gap"
SINCE_FIRST = "__since"
PLACE = "__list"


class Waiting:
    """The update queue of one shard."""

    def __init__(self, schema: pa.Schema, schedule: str, arena: Arena) -> None:
        """Attach to the arena's arrays, or start without keys."""
        self._schema = schema
        cost = arena.header.get("cost", 0)
        self.queue = UpdateQueue(
            schema, schedule=schedule, arrays=arena, cost=cost, smoothing=SMOOTHING
        )

    def __len__(self) -> int:
        """Return how many keys wait."""
        return len(self.queue)

    def take_in(self, updates: Folded) -> int:
        """Let updates arrive, one row for each key; return how many waiting values they replace."""
        cells, (hi, lo) = self.queue.cells, updates.identity
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
        self.queue.enqueue(hi[rows], lo[rows], times[order], updates.payload.take(pa.array(rows)))
        self._correct_rates(updates, several, before)
        return replaced

    def has(self, updates: Folded) -> npt.NDArray[np.bool_]:
        """Tell of updates that were taken in whether they are the newest of their keys."""
        slots = self.queue.cells.find(*updates.identity)
        newest: npt.NDArray[np.bool_] = self.queue.cells.column(k.ARRIVED)[slots] == updates.last
        return newest

    def serve(self, count: int, now: Micros) -> Dequeued:
        """Take the keys that are next."""
        return self.queue.dequeue(count, now)

    def delivered(self, at: Micros) -> None:
        """Tell that all that was taken has reached the application."""
        flying = self.queue.order.kernel.keys[: self.queue.cells.seen, FLYING] != NONE
        hi, lo = self.queue.cells.identities(np.flatnonzero(flying))
        self.queue.delivered(hi, lo, at)

    # -- log -------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return what is not told by single keys."""
        facts = self.queue.cells.kernel.facts
        return {
            "schedule": self.queue.schedule,
            "cost": self.queue.cost,
            "first": int(facts[k.FIRST]),
            "newest": int(facts[k.NEWEST]),
            "accepted": int(facts[k.ACCEPTED]),
            "late": int(facts[k.LATE]),
            "learnt": self.queue.order.kernel.settings[:SETTINGS].tolist(),
            "scored": int(self.queue.order.kernel.facts[SCORED]),
        }

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Set what `facts` said."""
        kept = self.queue.cells.kernel.facts
        kept[k.FIRST], kept[k.NEWEST] = facts["first"], facts["newest"]
        kept[k.ACCEPTED], kept[k.LATE] = facts["accepted"], facts["late"]
        reader = self.queue.order.kernel
        if facts["schedule"] == self.queue.schedule:
            reader.settings[:SETTINGS] = facts["learnt"]
            reader.facts[SCORED] = facts["scored"]
        self.queue.cost = facts["cost"]

    def waiting_slots(self) -> Ints:
        """Return the cells of keys that wait, list by list and in order."""
        slots = np.empty(len(self), dtype=np.int64)
        list_members(self.queue.order.kernel, slots)
        return slots

    def idle_slots(self) -> Ints:
        """Return the cells of keys that are known and do not wait."""
        cells = self.queue.cells
        idle = (cells.column(k.WAITED_FOR) == 0) & (cells.column(k.COUNT) > 0)
        return np.flatnonzero(idle)

    def described(self, slots: Ints) -> list[tuple[str, Any]]:
        """Return what a snapshot says of keys beside their values, by name."""
        cells, reader = self.queue.cells, self.queue.order.kernel
        hi, lo = cells.identities(slots)
        return [
            (HI, hi),
            (LO, lo),
            (LAST, cells.column(k.ARRIVED)[slots]),
            (COUNT, cells.column(k.COUNT)[slots]),
            (GAP, cells.gaps[slots]),
            (SINCE_FIRST, reader.keys[slots, SINCE]),
            (PLACE, reader.keys[slots, LIST] - 1),
        ]

    def values(self, slots: Ints) -> pa.RecordBatch:
        """Return the values of keys that wait."""
        return self.queue.cells.values(slots)

    def bring_back(self, described: Mapping[str, Any], values: pa.RecordBatch | None) -> None:
        """Take in keys of a snapshot: some that wait, in order and with values, or others."""
        cells, hi, lo = self.queue.cells, described[HI], described[LO]
        if values is not None:
            self.queue.enqueue(hi, lo, described[SINCE_FIRST], values)
        slots = cells.register(hi, lo)
        cells.column(k.ARRIVED)[slots] = described[LAST]
        cells.column(k.COUNT)[slots] = described[COUNT]
        cells.gaps[slots] = described[GAP]
        if values is not None:
            put_in_lists(self.queue.order.kernel, slots, np.asarray(described[PLACE]))

    def take_out(self, hi: Ids, lo: Ids, now: Micros) -> None:
        """Take chosen keys out, as when they were served."""
        slots = self.queue.cells.find(hi, lo)
        take_cells(self.queue.cells.kernel, self.queue.order.kernel, slots[slots >= 0], now)

    def rearranged(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return what another schedule said of keys as this one would."""
        if self.queue.schedule == "index":
            places = [class_of(float(gap), 1.0) for gap in described[GAP]]
        else:
            places = [0] * len(described[GAP])
        return {**described, PLACE: np.array(places, dtype=np.int64)}

    # -- rates -----------------------------------------------------------------------------

    def _correct_rates(self, updates: Folded, several: Ints, before: Ints) -> None:
        """Let the mean gap of keys be what it were had all their updates come one by one."""
        cells = self.queue.cells
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
