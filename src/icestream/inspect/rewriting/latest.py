"""Rewrites waiting values as updates.

Idea: the queue of a shard is restored. A row that differs from the waiting value arrives as an
update of its key, at the time in the row; a dropped key leaves the queue as if it had been served.
Both are logged as a version of the query would log them.

Invariants:
1. A restarted query serves the given values, and no others
   (`test_oracle_rewritten_values_are_those_that_are_served`).
2. An edit counts as an update: it cannot be older than the newest update of its key
   (`test_an_edited_value_is_not_older_than_what_its_key_had`).

Limits: how long a key has waited, and how often it was updated, follow from the updates and are not
read from the rows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask
from icestream.core.clock import SystemClock
from icestream.core.errors import InputError
from icestream.inspect.access.edited_rows import EditedRows
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.rewriting.changes import Rewriter, ShardRewrite, differing
from icestream.kernels.queue.staleness import NONE
from icestream.operators.latest.coalescing import (
    ID_HIGH_COLUMN,
    ID_LOW_COLUMN,
    LAST,
    NewestUpdates,
    joined,
)
from icestream.operators.latest.pre_queue import PreQueueOperator
from icestream.operators.latest.serving_log import ServingLog
from icestream.operators.latest.waiting_keys import SINCE_FIRST, WaitingKeys
from icestream.plan import state_schema
from icestream.state.identities import places_among
from icestream.state.rows import RowCodec
from icestream.state.snapshot_schedule import SnapshotSchedule

#: column with the time of a row's value
LAST_UPDATE = "__last_update"
_ROWS_AT_ONCE = 16_384


class WaitingRewriter(Rewriter):
    """Writes the waiting values."""

    def __init__(self, schema: state_schema.UpdateSchema, given: EditedRows, *, keep: bool) -> None:
        """Write the given rows; keys without a row keep waiting or are dropped."""
        super().__init__(given, keep=keep)
        self._schema = schema
        self._codec = RowCodec(schema.payload)

    def change(self, source: ScratchShard) -> ShardRewrite | None:
        """Enqueue edited values, and drop keys without a row."""
        schema, space, now = self._schema, source.space, SystemClock().now()
        front = None if schema.front is None else PreQueueOperator(schema.front, space)
        waiting = WaitingKeys(schema.payload, "inplace", space.arena, space.account, schema.readers)
        log = ServingLog(space, waiting, schema.payload, front)
        log.restore(source.history, now)
        there = _There(waiting, self._codec, schema.readers)
        updates = self._updates(source.shard, there, waiting)
        gone = there.none if self._keep else there.unnamed(*self._given.groups(source.shard))
        groups = int(gone.sum())
        if not groups and updates is None:
            return None
        if updates is not None:
            waiting.take_in(updates)
            groups += updates.rows.num_rows
        served = there.of_readers(gone)
        for reader, (id_high, id_low) in enumerate(served):
            waiting.take_out(reader, id_high, id_low, now)
        # no snapshot: what rows do not contain, such as turns, is unknown here
        SnapshotSchedule(space.arena.header).resume(0, 0)
        log.write(updates, served)
        given = 0 if updates is None else updates.rows.num_rows
        return ShardRewrite(groups, given, waits=given > 0)

    def _updates(self, shard: int, there: _There, waiting: WaitingKeys) -> NewestUpdates | None:
        """Return the rows of a shard that differ from the waiting values; InputError if invalid."""
        id_high, id_low = self._given.groups(shard)
        owners, rows = self._given.rows_of(id_high, id_low)
        if len(owners) > len(id_high):
            key = rows.select(self._schema.keys).slice(_second(owners), 1).to_pylist()[0]
            msg = f"two rows have the key {key}, but only its newest value waits"
            raise InputError(msg)
        last = np.asarray(rows.column(LAST_UPDATE).to_numpy())
        payload = rows.select(self._schema.payload.names)
        differ = np.flatnonzero(there.differ(id_high, id_low, last, payload))
        if not len(differ):
            return None
        id_high, id_low, last = id_high[differ], id_low[differ], last[differ]
        payload = payload.take(pa.array(differ))
        updates = NewestUpdates.of(
            id_high, id_low, last, last, np.ones(len(id_high), dtype=np.int64), payload
        )
        stale = np.flatnonzero(~waiting.is_fresh(updates))
        if len(stale):
            key = payload.select(self._schema.keys).slice(int(stale[0]), 1).to_pylist()[0]
            at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(last[stale[0]]))
            msg = (
                f"the value of {key} is of {at.isoformat()}, but its key had a newer update. "
                f"Leave {LAST_UPDATE} as exported, or set a later time"
            )
            raise InputError(msg)
        return updates


class _There:
    """The waiting keys, in memory while a shard is rewritten."""

    def __init__(self, waiting: WaitingKeys, codec: RowCodec, readers: int) -> None:
        self._codec = codec
        parts, values = [], []
        for rows, payload in waiting.portions(_ROWS_AT_ONCE, waiting=True):
            assert payload is not None
            parts.append({**dict(waiting.described(rows)), **dict(waiting.ordered(rows))})
            values.append(payload)
        self._values = joined(values) if values else None
        names = [
            ID_HIGH_COLUMN,
            ID_LOW_COLUMN,
            LAST,
            *(f"{SINCE_FIRST}{reader}" for reader in range(readers)),
        ]
        columns = [np.concatenate([each[name] for each in parts]) for name in names if parts]
        empty = np.empty(0, dtype=np.uint64)
        self._id_high: Ids = columns[0] if columns else empty
        self._id_low: Ids = columns[1] if columns else empty
        self._last: Ints = columns[2] if columns else empty.view(np.int64)
        #: since when each key waits for each reader, NONE if it does not
        self._since = columns[3:] or [empty.view(np.int64)] * readers

    def differ(self, id_high: Ids, id_low: Ids, last: Ints, payload: pa.RecordBatch) -> Mask:
        """Return which values differ from the waiting ones."""
        places = places_among(id_high, id_low, self._id_high, self._id_low)
        other = places < 0
        same = np.flatnonzero(~other)
        other[same] = self._last[places[same]] != last[same]
        if len(same) and self._values is not None:
            here = self._values.take(pa.array(places[same]))
            given = self._codec.encode(payload.take(pa.array(same)))
            known = self._codec.encode(here)
            other[same] |= differing(known.words, known.offsets, given.words, given.offsets)
        return other

    @property
    def none(self) -> Mask:
        return np.zeros(len(self._id_high), dtype=np.bool_)

    def unnamed(self, id_high: Ids, id_low: Ids) -> Mask:
        """Return which keys are not among those given."""
        chosen: Mask = places_among(self._id_high, self._id_low, id_high, id_low) < 0
        return chosen

    def of_readers(self, chosen: Mask) -> list[tuple[Ids, Ids]]:
        """Return, for each reader, those of the chosen keys that wait for it."""
        each = [np.flatnonzero(chosen & (since != NONE)) for since in self._since]
        return [(self._id_high[mine], self._id_low[mine]) for mine in each]


def _second(owners: Ints) -> int:
    """Return the first row whose owner already has a row."""
    return int(np.flatnonzero(np.diff(owners) == 0)[0]) + 1
