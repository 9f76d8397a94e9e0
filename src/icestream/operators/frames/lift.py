"""Raw events as tuples, and the keys of their groups.

Idea: each event is folded alone, into its own entry; a frame needs only the entry, the identity of
its group and its time. Sums of doubles need the doubles; a null counts as 0.0. Keys are stored once
per group.

Invariant: one tuple per event, in the order of the events
(`test_lifting_keeps_every_event_and_its_order`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Table
from icestream.core.times import INFINITY, Micros
from icestream.kernels.fold import new_keys
from icestream.operators.folding.columns import ARRIVAL, TIME, InputColumn
from icestream.operators.folding.exact_rows import replace_extents
from icestream.operators.folding.fold import (
    ID_HIGH_COLUMN,
    ID_LOW_COLUMN,
    factors,
    fold_field,
    identified,
)
from icestream.operators.frames.layout import TupleLayout
from icestream.operators.grid.partitions import Partition
from icestream.state.keys import KeyCodec

#: bytes of a group of a batch besides its key: identity and latest time
GROUP_BYTES = 24


def in_time(batch: pa.RecordBatch, watermark: Micros) -> pa.RecordBatch:
    """Return the events that are lifted into frames: not behind the watermark."""
    times = np.asarray(batch.column(TIME).to_numpy())
    return batch if not (times < watermark).any() else batch.filter(pa.array(times >= watermark))


def pieces(
    batches: Iterable[pa.RecordBatch], watermark: Micros, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the events that are lifted into frames, at most `rows` at a time."""
    for batch in batches:
        for first in range(0, batch.num_rows, rows):
            piece = in_time(batch.slice(first, rows), watermark)
            if piece.num_rows:
                yield piece


def bounded_slices(
    batches: Iterable[pa.RecordBatch], earliest: Ints, time: str, rows: int
) -> Iterator[tuple[pa.RecordBatch, Micros]]:
    """Yield events to lift into tuples, at most `rows` at a time, with a time none later is before.

    `earliest` are the earliest times of the batches.
    """
    following = np.append(np.minimum.accumulate(earliest[::-1])[::-1], INFINITY).tolist()
    for number, batch in enumerate(batches):
        times = np.asarray(batch.column(time).to_numpy())
        for first in range(0, len(times), rows):
            rest = times[first + rows :]
            bound = following[number + 1]
            yield batch.slice(first, rows), min(bound, int(rest.min())) if len(rest) else bound


class Lifter:
    """Converts events to tuples."""

    def __init__(self, layout: TupleLayout, codec: KeyCodec) -> None:
        self._layout = layout
        self._codec = codec

    def lift(self, batch: pa.RecordBatch, arrived: int) -> Table:
        """Return one tuple per event; `arrived` is the number of earlier events."""
        rows, layout = batch.num_rows, self._layout
        columns = {name: InputColumn(batch.column(name)) for name in batch.schema.names}
        if ARRIVAL not in columns:
            columns[ARRIVAL] = InputColumn(pa.array(np.arange(arrived, arrived + rows)))
        slots = np.arange(rows)
        tuples = np.zeros((rows, layout.tuple_width), dtype=np.int64)
        nothing = replace_extents(layout).entry_identity
        tuples[:, : len(nothing)] = nothing
        for field in layout.fixed:
            fold_field(field, layout.in_tuple[field], tuples, slots, columns, 0, rows)
        for field in layout.sums:
            x, y, valid = factors(field, columns, 0, rows)
            doubles = [x] if y is None or y is x else [x, y]
            for place, each in enumerate(doubles, layout.in_tuple[field]):
                tuples[:, place] = np.where(valid, each, 0) if valid.size else each
        tuples[:, 0] = _ids(batch, ID_HIGH_COLUMN).view(np.int64)
        tuples[:, 1] = _ids(batch, ID_LOW_COLUMN).view(np.int64)
        tuples[:, -1] = batch.column(TIME).to_numpy()
        return tuples

    def groups(self, batch: pa.RecordBatch, partition: Partition | None = None) -> pa.Table:
        """Return the keys of all groups or those inside a partition, with identity, latest time."""
        id_high, id_low = _ids(batch, ID_HIGH_COLUMN), _ids(batch, ID_LOW_COLUMN)
        times = np.asarray(batch.column(TIME).to_numpy())
        inside = np.arange(len(times))
        if partition is not None and not partition.whole:
            inside = np.flatnonzero(partition.holds(id_high))
        ids, last, fresh = distinct_groups(id_high, id_low, times, inside)
        keys = self._codec.canonical(batch.take(pa.array(fresh)))
        return identified(pa.Table.from_batches([keys]), ids, last)


class ArrivedGroups:
    """The groups of a batch with their keys and latest times, as long as they are few."""

    def __init__(self, codec: KeyCodec, rows: int, limit: int) -> None:
        """Start without groups.

        Args:
            codec: how keys are stored.
            rows: the most events of a piece.
            limit: bytes of all groups, beyond which they are many.
        """
        self._codec = codec
        self._limit = limit
        most = limit // GROUP_BYTES + rows
        self._index = np.zeros(1 << max(4, (2 * most).bit_length()), dtype=np.int32)
        self._seen = np.empty((most, 2), dtype=np.uint64)
        self._last, self._fresh = np.empty(most, dtype=np.int64), np.empty(rows, dtype=np.int64)
        self._used = self._key_bytes = 0
        self._keys: list[pa.RecordBatch] = []

    def add(self, piece: pa.RecordBatch) -> bool:
        """Add the groups of a piece of the batch; return whether all groups are still few."""
        id_high, id_low = _ids(piece, ID_HIGH_COLUMN), _ids(piece, ID_LOW_COLUMN)
        times = np.asarray(piece.column(TIME).to_numpy())
        known = self._index, self._seen, self._last
        self._used, found = new_keys(
            id_high, id_low, times, np.arange(len(times)), len(times), *known, self._used,
            self._fresh,
        )  # fmt: skip
        if found:
            self._keys.append(self._codec.canonical(piece.take(pa.array(self._fresh[:found]))))
            self._key_bytes += self._keys[-1].nbytes
        return self._used * GROUP_BYTES + self._key_bytes <= self._limit

    def table(self) -> pa.Table:
        """Return the keys of all groups, with identity and latest time."""
        keys = pa.Table.from_batches(self._keys, self._codec.schema).combine_chunks()
        return identified(keys, self._seen[: self._used], self._last[: self._used])


def distinct_groups(id_high: Ids, id_low: Ids, times: Ints, chosen: Ints) -> tuple[Ids, Ints, Ints]:
    """Return ids, latest times and first events of the groups of some events of frames."""
    count = len(chosen)
    index = np.zeros(1 << max(4, (2 * count).bit_length()), dtype=np.int32)
    seen = np.empty((count, 2), dtype=np.uint64)
    last, fresh = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    used, _ = new_keys(id_high, id_low, times, chosen, count, index, seen, last, 0, fresh)
    return seen[:used], last[:used], fresh[:used]


def _ids(batch: pa.RecordBatch, name: str) -> Ids:
    return np.ascontiguousarray(batch.column(name).to_numpy())
