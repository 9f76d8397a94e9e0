"""The waiting keys of a shard, with what the log needs to restore them.

Idea: an update queue in the shard's arena, with a reader for each step behind it. Arriving updates
are folded: of several updates of a key the queue gets the first, which determines since when the
key waits, and the last, which has the value and stands for those after the first.

Invariants:
1. Rates are those of all updates, including folded ones
   (`test_parity_folded_updates_make_the_rates_of_all`).
2. A restored queue serves the same keys in the same order
   (`test_oracle_a_restored_queue_goes_on_as_the_one_before`).

Cost: that of two arrivals for each key of a batch.

Limits: an update that is folded with others and is older than what its key has is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.queue import queue as k
from icestream.kernels.queue.order import (
    APPLICATION_STALENESS,
    FLYING,
    FRONT,
    INPUT,
    LACKS,
    QUEUE_STALENESS,
    READER_WORDS,
    SINCE,
    TURN,
    WAITING,
)
from icestream.kernels.queue.restore import take_cells
from icestream.kernels.queue.staleness import FROM, NONE
from icestream.operators.latest.coalescing import (
    COUNT,
    ID_HIGH_COLUMN,
    ID_LOW_COLUMN,
    LAST,
    ORIGIN,
    NewestUpdates,
)
from icestream.operators.latest.pacing import Pace
from icestream.state.arena import Arena
from icestream.state.budget import Account
from icestream.state.identities import distinct, identities
from icestream.state.queue.cells import KeyCells
from icestream.state.queue.cold_keys import ColdKeys
from icestream.state.queue.eviction import KeyEviction
from icestream.state.queue.reader import Dequeued, QueueReader

#: number of updates whose gaps are averaged
SMOOTHING = 32
#: columns of known keys in a snapshot, after identity, last update and number of updates
GAP = "__gap"
NEWEST_INPUT = "__input"
#: columns of waiting keys, for each reader: since when (NONE if not), and its turn
SINCE_FIRST = "__since"
TURNS = "__turn"


class WaitingKeys:
    """The update queue of one shard."""

    def __init__(
        self,
        schema: pa.Schema,
        schedule: str,
        arena: Arena,
        account: Account,
        readers: int = 1,
    ) -> None:
        """Attach to the arena's arrays, or start without keys.

        `account` holds the work buffers; its budget limits how many keys are in memory.
        """
        self._schema = schema
        self.cells = KeyCells(schema, arrays=arena, smoothing=SMOOTHING)
        costs = arena.header.get("cost", [0.0] * readers)
        #: one reader for each step, in order
        self.readers: tuple[QueueReader, ...] = tuple(
            QueueReader(self.cells, f"reader{number}", schedule=schedule, cost=cost)
            for number, cost in enumerate(costs)
        )
        # the input of a key's newest update is part of what it is in memory
        loads = ORIGIN in schema.names
        self._eviction = KeyEviction(self.cells, self.readers, arena, account, loads=loads)
        self._header = arena.header
        #: cost of each step, as learnt from its calls
        self.paces = [Pace(list(sums)) for sums in arena.header.get("pace", ())]
        self.paces = self.paces or [Pace() for _ in self.readers]

    @property
    def cold(self) -> ColdKeys:
        return self._eviction.cold

    @property
    def keys(self) -> int:
        return self.cells.keys + len(self.cold)

    @property
    def late(self) -> int:
        """Return how many updates were older than what their key had."""
        return self.cells.fact(k.LATE)

    def __len__(self) -> int:
        if len(self.readers) == 1:
            return len(self.readers[0])
        here = int(np.count_nonzero(self.cells.column(k.WAITED_FOR)))
        return here + self.cold.waiting

    def take_in(self, updates: NewestUpdates) -> int:
        """Add updates, one row for each key; return how many waiting values they replace."""
        eviction, (id_high, id_low) = self._eviction, updates.identity
        before = self.cells.fact(k.SUPERSEDED)
        several = np.flatnonzero(updates.count > 1)
        rows = np.concatenate([several, np.arange(len(id_high))])
        times = np.concatenate([updates.first[several], updates.last])
        folded = np.zeros((len(rows), 2), dtype=np.int64)
        folded[len(several) + several, 0] = updates.count[several] - 1
        folded[len(several) + several, 1] = (updates.last - updates.first)[several]
        # a restored queue takes the same updates in another order of rows
        order = np.lexsort((folded[:, 0], id_low[rows], id_high[rows], times))
        rows = rows[order]
        times, folded, payload = times[order], folded[order], updates.payload
        for piece in eviction.affordable(len(rows), payload.nbytes // max(1, len(id_high))):
            some = rows[piece]
            values = payload.take(pa.array(some))
            eviction.enqueue(id_high[some], id_low[some], times[piece], values, folded[piece])
        if ORIGIN in updates.rows.schema.names:
            inputs = np.asarray(updates.rows.column(ORIGIN).to_numpy())
            for piece in eviction.pieces(len(id_high)):
                eviction.admit(id_high[piece], id_low[piece])
                slots = self.cells.find(id_high[piece], id_low[piece])
                newest = self.cells.column(k.ARRIVED)[slots] == updates.last[piece]
                self._words(0)[slots[newest], INPUT] = inputs[piece][newest]
        return self.cells.fact(k.SUPERSEDED) - before

    def forget(self, before: Micros) -> None:
        """Drop keys without updates since `before` whose answers are delivered."""
        old = self.cells.idle_since(before)
        for reader in self.readers:
            old = old[reader.order.kernel.keys[old, FLYING] == NONE]
        for number, reader in enumerate(self.readers):
            self.cold.keep_staleness(number, reader.order.kernel.keys[old])
        self.cells.drop(old)
        self.cold.forget(before)

    def is_fresh(self, updates: NewestUpdates) -> npt.NDArray[np.bool_]:
        """Return which updates, not added yet, are at least as new as all of their key."""
        known = self._eviction.look(*updates.identity)
        latest = np.where(known[:, k.COUNT] > 0, known[:, k.ARRIVED], MINUS_INFINITY)
        fresh: npt.NDArray[np.bool_] = updates.last >= latest
        return fresh

    def is_trusted(self, updates: NewestUpdates, ranks: Ints) -> npt.NDArray[np.bool_]:
        """Return which updates are newer than all of their key, or as new and trusted as much."""
        known = self._eviction.look(*updates.identity)
        latest = np.where(known[:, k.COUNT] > 0, known[:, k.ARRIVED], MINUS_INFINITY)
        theirs = ranks[known[:, k.CELL_WORDS + INPUT]]
        ours = ranks[np.asarray(updates.rows.column(ORIGIN).to_numpy())]
        trusted: npt.NDArray[np.bool_] = (updates.last > latest) | (
            (updates.last == latest) & (ours <= theirs)
        )
        return trusted

    def _words(self, reader: int) -> Ints:
        words: Ints = self.readers[reader].order.kernel.keys
        return words

    def serve(self, reader: int, count: int, now: Micros) -> Dequeued:
        """Take the next keys of a reader out of the queue."""
        return self._eviction.dequeue(reader, count, now)

    def read(self, reader: int, count: int) -> Dequeued:
        """Return the next keys of a reader that are in memory; they go on waiting."""
        return self._eviction.read(reader, count)

    def delivered(self, at: Micros) -> None:
        """Record that all keys taken so far have reached the application."""
        self._eviction.delivered(at)

    def learn_costs(self) -> None:
        """Let the orders of the next version use the costs learnt in this one."""
        for reader, pace in zip(self.readers, self.paces, strict=True):
            reader.cost = sum(pace.cost)
        self._header["cost"] = [reader.cost for reader in self.readers]
        self._header["pace"] = [pace.sums for pace in self.paces]

    # -- log -------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return the state that does not belong to single keys."""
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
                    "pace": pace.sums,
                    "turns": [int(reader.order.kernel.facts[FRONT]), int(facts[k.NEXT_TURN])],
                }
                for reader, pace in zip(self.readers, self.paces, strict=True)
            ],
        }

    @staticmethod
    def together(parents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the facts of several queues as those of one."""
        busy = [each for each in parents if each["accepted"]] or parents
        return {
            **busy[0],
            "first": min(each["first"] for each in busy),
            "newest": max(each["newest"] for each in busy),
            "accepted": sum(each["accepted"] for each in busy),
            "late": sum(each["late"] for each in parents),
            "readers": [
                {**alike[0], "turns": [min(fronts), max(backs)]}
                for alike in zip(*(each["readers"] for each in busy), strict=True)
                for fronts, backs in [zip(*(each["turns"] for each in alike), strict=True)]
            ],
        }

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Restore what `facts` returned."""
        kept = self.cells.kernel.facts
        kept[k.FIRST], kept[k.NEWEST] = facts["first"], facts["newest"]
        kept[k.ACCEPTED], kept[k.LATE] = facts["accepted"], facts["late"]
        for reader, pace, learnt in zip(self.readers, self.paces, facts["readers"], strict=True):
            front, back = learnt["turns"]
            turns = reader.order.kernel.facts
            turns[FRONT] = min(front, turns[FRONT])
            kept[k.NEXT_TURN] = max(back, kept[k.NEXT_TURN])
            reader.cost = learnt["cost"]
            pace.sums[:] = learnt["pace"]

    def portions(self, size: int, *, waiting: bool) -> Iterator[tuple[Ints, pa.RecordBatch | None]]:
        """Yield rows of all waiting keys, with their values, or of all others, some at a time."""
        return self._eviction.portions(size, waiting=waiting)

    def described(self, rows: Ints) -> list[tuple[str, Any]]:
        """Return the columns of keys in a snapshot, without their values, by name."""
        id_high, id_low = identities(rows)
        return [
            (ID_HIGH_COLUMN, id_high),
            (ID_LOW_COLUMN, id_low),
            (LAST, rows[:, k.ARRIVED]),
            (COUNT, rows[:, k.COUNT]),
            (GAP, np.ascontiguousarray(rows[:, k.GAP]).view(np.float64)),
            *self._inputs(rows),
        ]

    def _inputs(self, rows: Ints) -> list[tuple[str, Any]]:
        """Return the column with the input of the newest update of keys, if there are several."""
        if ORIGIN not in self._schema.names:
            return []
        return [(NEWEST_INPUT, rows[:, k.CELL_WORDS + INPUT])]

    def ordered(self, rows: Ints) -> list[tuple[str, Any]]:
        """Return the columns of a snapshot with the order in which keys wait, by name."""
        columns = []
        for reader in range(len(self.readers)):
            keys = self.cold.of_reader(rows, reader)
            words = ((SINCE_FIRST, keys[:, SINCE]), (TURNS, keys[:, TURN]))
            columns += [(f"{name}{reader}", column) for name, column in words]
        return columns

    def since(self, rows: Ints) -> Ints:
        """Return since when keys wait, for the reader that waits longest."""
        readers = range(len(self.readers))
        waits = [self.cold.of_reader(rows, reader)[:, SINCE] for reader in readers]
        since: Ints = np.min([np.where(each == NONE, INFINITY, each) for each in waits], axis=0)
        return since

    def bring_back(self, described: Mapping[str, Any], values: pa.RecordBatch | None) -> None:
        """Load keys of a snapshot: either waiting keys, with values and their turns, or others."""
        for piece in self._eviction.pieces(len(described[ID_HIGH_COLUMN])):
            some = {name: column[piece] for name, column in described.items()}
            part = None if values is None else values.slice(piece.start, len(some[ID_HIGH_COLUMN]))
            self._bring_back(some, part)

    def _bring_back(self, described: Mapping[str, Any], values: pa.RecordBatch | None) -> None:
        id_high, id_low = described[ID_HIGH_COLUMN], described[ID_LOW_COLUMN]
        repeated = len(distinct(id_high, id_low)[0]) < len(id_high)
        if repeated or (self._eviction.look(id_high, id_low)[:, k.COUNT] > 0).any():
            msg = "a snapshot has a key twice"
            raise ValueError(msg)
        rows = np.zeros((len(id_high), self.cold.width), dtype=np.int64)
        rows[:, k.ID_HIGH], rows[:, k.ID_LOW] = id_high.view(np.int64), id_low.view(np.int64)
        rows[:, k.ARRIVED], rows[:, k.COUNT] = described[LAST], described[COUNT]
        rows[:, k.GAP] = described[GAP].view(np.int64)
        offsets = words = np.zeros(1, dtype=np.int64)
        if values is not None:
            encoded = self.cells.codec.encode(values)
            words, offsets = encoded.words, encoded.offsets
            rows[:, k.SIZE] = np.diff(offsets)
        for number in range(len(self.readers)):
            first = k.CELL_WORDS + number * READER_WORDS
            keys = self._row_of(number, described, is_waiting=values is not None)
            rows[:, first : first + READER_WORDS] = keys
            rows[:, k.WAITED_FOR] |= (keys[:, SINCE] != NONE).astype(np.int64) << number
        if values is not None and not (rows[:, k.WAITED_FOR] != 0).all():
            msg = "a snapshot has values of keys that do not wait"
            raise ValueError(msg)
        self._eviction.make_room(len(rows))
        self._eviction.install(rows, words, offsets)

    def _row_of(self, number: int, described: Mapping[str, Any], *, is_waiting: bool) -> Ints:
        """Return the words of a snapshot's keys for a reader, and count those that wait."""
        reader = self.readers[number].order
        keys = np.zeros((len(described[ID_HIGH_COLUMN]), READER_WORDS), dtype=np.int64)
        keys[:, [SINCE, LACKS, FLYING]] = NONE
        keys[:, INPUT] = described.get(NEWEST_INPUT, 0)
        if is_waiting:
            since = described[f"{SINCE_FIRST}{number}"]
            keys[:, SINCE] = keys[:, LACKS] = since
            keys[:, TURN] = described[f"{TURNS}{number}"]
            reader.kernel.facts[WAITING] += int((since != NONE).sum())
            if reader.began == MINUS_INFINITY:
                k.begin_measuring(reader.kernel, self.cells.seen, self.cells.newest)
        keys[:, [QUEUE_STALENESS + FROM, APPLICATION_STALENESS + FROM]] = reader.began
        return keys

    def take_out(self, reader: int, id_high: Ids, id_low: Ids, now: Micros) -> None:
        """Remove chosen keys, as if they were served to a reader."""
        for piece in self._eviction.pieces(len(id_high)):
            self._eviction.admit(id_high[piece], id_low[piece])
            slots = self.cells.find(id_high[piece], id_low[piece])
            order = self.readers[reader].order.kernel
            take_cells(self.cells.kernel, order, slots[slots >= 0], now)

    def clean(self) -> None:
        """Remove outdated data from files, at the end of a version."""
        self.cold.clean()
