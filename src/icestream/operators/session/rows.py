"""Sessions in memory: sorted rows of words, each with its key.

Idea: fragments of a batch and pages of state have the same form, one such pair. Its bytes are the
length of the rows, the rows, and the keys as an Arrow stream, on the log and in a page alike. Sums
of doubles have as many digits as the rows need (`exact_rows`); merging makes room for both.

Invariants:
1. Merging keeps each row with its key (`test_merging_keeps_each_row_beside_its_key`).
2. Bytes decode to the sessions they were encoded from, also without key columns
   (`test_bytes_give_back_the_sessions_they_were_made_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ids, Ints, Mask, Table
from icestream.kernels import session as kernels
from icestream.operators.folding.columns import ARRIVAL, TIME, InputColumn
from icestream.operators.folding.exact_rows import ExactRows, concatenated, packed, unpacked
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, fold_fields, measured
from icestream.operators.session.spec import END, SESSION_FIELDS, START, SessionSpec
from icestream.plan.windows.session import Session
from icestream.state import key_columns
from icestream.state.keys import KeyCodec
from icestream.state.log.ipc import read_batch, write_table


@dataclass(frozen=True, slots=True)
class Sessions:
    """Rows sorted by (id_high, id_low, start), and their keys."""

    #: id_high, id_low, start, end, then the fields
    exact: ExactRows
    keys: pa.RecordBatch

    @property
    def rows(self) -> Table:
        return self.exact.table

    @classmethod
    def none(cls, spec: SessionSpec) -> Sessions:
        empty = [pa.array([], field.type) for field in spec.keys]
        keys = key_columns.batch_of(spec.keys, 0, empty)
        width = SESSION_FIELDS + spec.layout.field_words
        return cls(ExactRows(spec.layout, np.empty((0, width), dtype=np.int64)), keys)

    @classmethod
    def concatenated(cls, parts: Sequence[Sessions]) -> Sessions:
        if len(parts) == 1:
            return parts[0]
        rows = concatenated(*(part.exact for part in parts))
        return cls(rows, pa.concat_batches([part.keys for part in parts]))

    @classmethod
    def from_bytes(cls, payload: memoryview | bytes, rows: int, spec: SessionSpec) -> Sessions:
        """Decode what `to_bytes` wrote; the keys are views of the payload."""
        view = memoryview(payload)
        cut = 8 + int.from_bytes(view[:8], "little")
        table = unpacked(view[8:cut], spec.layout, SESSION_FIELDS)
        keys = read_batch(view[cut:])
        if not len(table) == keys.num_rows == rows:
            msg = f"{rows} sessions have {len(table)} rows and {keys.num_rows} keys"
            raise ValueError(msg)
        return cls(table.copied(), keys)

    def to_bytes(self) -> bytes:
        keys: bytes = write_table(self.keys).to_pybytes()
        rows = packed(self.exact)
        return b"".join((len(rows).to_bytes(8, "little"), rows, keys))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self.keys.nbytes)

    @property
    def id_high(self) -> Ids:
        return np.ascontiguousarray(self.rows[:, 0]).view(np.uint64)

    @property
    def ends(self) -> Ints:
        ends: Ints = self.rows[:, END]
        return ends

    @property
    def groups(self) -> int:
        if len(self) == 0:
            return 0
        return 1 + int((np.diff(self.rows[:, :2], axis=0) != 0).any(axis=1).sum())

    def between(self, first: int, last: int) -> Sessions:
        """Return the sessions from position `first` up to `last`, exclusive."""
        return Sessions(self.exact[first:last], self.keys.slice(first, last - first))

    def split_after(self, id_high: np.uint64) -> tuple[Sessions, Sessions]:
        """Return the sessions of groups up to an id_high, and the others."""
        at = int(np.searchsorted(self.id_high, id_high, side="right"))
        return self.between(0, at), self.between(at, len(self))

    def where(self, chosen: Mask) -> Sessions:
        return self if chosen.all() else self._take(np.flatnonzero(chosen))

    def sorted(self) -> Sessions:
        """Return the sessions sorted by (id_high, id_low, start); the sort is stable."""
        id_low = np.ascontiguousarray(self.rows[:, 1]).view(np.uint64)
        return self._take(_order(self.id_high, id_low, np.ascontiguousarray(self.rows[:, START])))

    def merged(self, other: Sessions) -> Sessions:
        """Return both merged; sessions of a group that touch are combined."""
        layout = self.exact.layout.widened(other.exact.layout.bounds)
        left, right = (each.exact.reshaped(layout).table for each in (self, other))
        out = np.empty((len(self) + len(other), left.shape[1]), dtype=np.int64)
        sources = np.empty(len(out), dtype=np.int64)
        places = layout.at.places + SESSION_FIELDS
        count = kernels.merge_sessions(left, right, layout.ops, places, out, sources)
        keys = pa.concat_batches([self.keys, other.keys])
        return Sessions(ExactRows(layout, out[:count]), keys.take(pa.array(sources[:count])))

    def _take(self, places: Ints) -> Sessions:
        return Sessions(self.exact[places], self.keys.take(pa.array(places)))


def united(parts: Sequence[Sessions], spec: SessionSpec) -> Sessions:
    """Return sorted rows of sessions of several runs as one run."""
    if len(parts) == 1:
        return parts[0]
    none = Sessions.none(spec)
    return Sessions.concatenated(parts).sorted().merged(none) if parts else none


def portions(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the events to fold into session rows in batches of about `size` bytes.

    A larger batch is split, smaller ones are concatenated.
    """
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        step = max(1, size * batch.num_rows // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, step):
            part = batch.slice(first, step)
            waiting.append(part)
            held += part.nbytes
            if held >= size:
                yield pa.concat_batches(waiting)
                waiting, held = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def fragments_of(tuples: pa.RecordBatch, arrivals: int, spec: SessionSpec) -> Sessions:
    """Fold events into rows of the sessions they form on their own, after `arrivals`."""
    id_high, id_low, time = (
        np.asarray(tuples.column(name).to_numpy()) for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN, TIME)
    )
    slots, heads, last = (np.empty(len(time), dtype=np.int64) for _ in range(3))
    order = _order(id_high, id_low, time)
    ends = own_ends(tuples, time, spec.session)
    count = kernels.cut_fragments(order, id_high, id_low, time, ends, slots, heads, last)
    first = heads[:count]
    columns = _columns(tuples, arrivals, spec)
    layout = measured(spec.layout, columns, 0, len(time))
    rows = np.zeros((count, SESSION_FIELDS + layout.field_words), dtype=np.int64)
    rows[:, SESSION_FIELDS:] = layout.at.identity
    rows[:, 0] = id_high[first].view(np.int64)
    rows[:, 1] = id_low[first].view(np.int64)
    rows[:, START] = time[first]
    rows[:, END] = last[:count]
    fold_fields(layout, rows, SESSION_FIELDS, slots, columns)
    keys = tuples.select(spec.keys.names).take(pa.array(first))
    return Sessions(ExactRows(layout, rows), KeyCodec(spec.keys).canonical(keys))


def own_ends(events: pa.RecordBatch, times: Ints, session: Session) -> Ints:
    """Return the ends of the sessions that events are alone; of one in none, its own time."""
    if session.gap is not None:
        return times + session.gap
    ends = events.column(session.until).cast(pa.int64())
    found: Ints = pc.max_element_wise(ends, pa.array(times)).to_numpy()
    return found


def _columns(tuples: pa.RecordBatch, arrivals: int, spec: SessionSpec) -> Mapping[str, InputColumn]:
    columns = {
        name: InputColumn(tuples.column(name))
        for name in spec.inputs.names
        if name != spec.session.until
    }
    if spec.layout.needs_order:
        columns[TIME] = InputColumn(tuples.column(TIME))
        columns[ARRIVAL] = InputColumn(pa.array(np.arange(arrivals, arrivals + tuples.num_rows)))
    return columns


def _order(id_high: Ids, id_low: Ids, start: Ints) -> Ints:
    """Return the stable order by (id_high, id_low, start).

    An `id_high` is nearly unique to a group and its rows mostly arrive in time order: often one
    sort is enough, otherwise two.
    """
    order = np.argsort(id_high, kind="stable")
    if not _is_sorted(id_high[order], id_low[order], start[order]):
        by_start = np.argsort(start, kind="stable")
        order = by_start[np.argsort(id_high[by_start], kind="stable")]
        if not _is_sorted(id_high[order], id_low[order], start[order]):
            return np.lexsort((start, id_low, id_high))
    return order


def _is_sorted(id_high: Ids, id_low: Ids, start: Ints) -> bool:
    """Return whether rows sorted by id_high are sorted by (id_high, id_low, start)."""
    same_id_high = id_high[1:] == id_high[:-1]
    behind = (id_low[1:] == id_low[:-1]) & (start[1:] < start[:-1])
    return not (same_id_high & (behind | (id_low[1:] < id_low[:-1]))).any()
