"""`compute`: tuples build the state of their key and window; complete windows are sent on.

Idea: the state of a key has one row for each open window. A chunk of tuples is sorted by key,
window and time, which makes the tuples of each state one range; the user's function is called once
for all ranges. A key wakes when the first of its windows is complete.

Invariants:
1. The emitted state is the fold of all tuples of its key and window, whatever the batches
   (`test_oracle_configurations`).
2. A window is emitted once and then not stored any more
   (`test_bounded_told_windows_leave_the_state`).
3. An eager fold answers every tuple once, with the lifetime of the tuple
   (`test_oracle_configurations`).

Cost: a sort of each chunk unless it is in order, a read and a write of the open windows of each key
in it, one call of the function.

Limits: tuples of a key in different chunks are folded in the order of the chunks.

References: Madsen, Zhou, Su (2016), section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots, slice_bounds
from icestream.core.times import INFINITY, Micros
from icestream.kernels.window_runs import window_runs
from icestream.operators.bad_rows import ROW_ERRORS, BadRows, Made
from icestream.operators.dataflow.sorted_changes import order_in_runs
from icestream.operators.jobs.batches import TupleBatch
from icestream.operators.jobs.folding import FoldFunction
from icestream.operators.jobs.spans import WindowSpans
from icestream.operators.lifetimes.changes import (
    LE,
    RE,
    LifetimeOperator,
    changes_of,
    column_of,
    identities_of,
    one_each,
    payload_of,
    taken,
)
from icestream.operators.lifetimes.rows_by_group import woken
from icestream.plan.windows.grid import Windows
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

START = "__start"
END = "__end"
EXPIRY = "__expiry"


@dataclass(frozen=True)
class _Run:
    """The tuples of one chunk, sorted, with a range for each key and window."""

    #: position in the chunk of each tuple, None if the chunk is in order already
    rows: Ints | None
    #: the first tuple of each range, and the number of tuples
    bounds: Ints
    #: key, kind and start of the window of each range
    slots: Slots
    kinds: Ints
    starts: Ints

    def where(self, mine: Mask) -> _Run:
        if mine.all():
            return self
        sizes = np.diff(self.bounds)
        chosen = np.flatnonzero(np.repeat(mine, sizes))
        rows = chosen if self.rows is None else self.rows[chosen]
        bounds = np.concatenate([[0], np.cumsum(sizes[mine])])
        return _Run(rows, bounds, self.slots[mine], self.kinds[mine], self.starts[mine])


class Compute(LifetimeOperator):
    """State by key and window."""

    takes_by_time = True

    def __init__(
        self,
        fold: FoldFunction,
        keys: pa.Schema,
        payload: pa.Schema,
        spans: WindowSpans | None,
        lag: Micros = 0,
    ) -> None:
        """Fold tuples of a payload; windows are complete `lag` after their end."""
        self._fold = fold
        self._keys = keys
        self._spans = spans
        self._lag = lag
        self._grid = _grid_of(spans)
        #: window length of each kind, kinds sorted by length, and the unit of window starts
        windows = () if spans is None else spans.windows
        self._lengths = np.array([each.range for each in windows] or [INFINITY])
        self._by_length = np.argsort(self._lengths)
        self._unit = _unit_of(windows)
        span = [pa.field(name, pa.int64(), nullable=False) for name in (START, END, EXPIRY)]
        expiry = EXPIRY if spans is not None else None
        state = Synopsis("state", pa.schema([*span, *keys, *fold.state]), expiry=expiry)
        self.synopses = (state,)
        if not fold.eager:
            self.result = pa.schema([*keys, *fold.state])
        elif fold.answers is None:
            self.result = payload
        else:
            self.result = pa.schema([*keys, *fold.answers])

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, _watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Fold tuples into the state of their keys and windows."""
        if changes.num_rows:
            yield from self._tried(one_each(changes), groups)

    def _tried(self, changes: pa.RecordBatch, groups: Groups) -> Made:
        try:
            run = self._sorted(changes, groups)
        except ROW_ERRORS as error:
            yield from self._divided(changes, groups, error)
            return
        distinct = np.unique(run.slots)
        for portion in groups.portions(distinct):
            mine = np.ones(len(run.slots), dtype=np.bool_)
            if len(portion) < len(distinct):
                mine = np.isin(run.slots, portion)
            yield from self._folded(changes, run.where(mine), portion, groups)

    def _folded(self, changes: pa.RecordBatch, run: _Run, portion: Slots, groups: Groups) -> Made:
        """Yield what the function makes of tuples of some keys, and those on which it fails."""
        try:
            made = list(self._fold_portion(changes, run, portion, groups))
        except ROW_ERRORS as error:
            mine = changes if run.rows is None else changes.take(pa.array(np.unique(run.rows)))
            yield from self._divided(mine, groups, error)
        else:
            yield from made

    def _divided(self, changes: pa.RecordBatch, groups: Groups, error: Exception) -> Made:
        """Try halves of tuples again after a failure; a single one is refused."""
        single = changes.num_rows == 1
        yield BadRows(self._fold.name, error, changes if single else None)
        half = changes.num_rows // 2
        for some in () if single else (changes.slice(0, half), changes.slice(half)):
            yield from self._tried(some, groups)

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        if self._spans is None:
            return
        for portion in woken(groups, watermark):
            held = groups.read(0, portion)
            expiry = column_of(held.rows, EXPIRY)
            done = expiry <= watermark
            left = np.flatnonzero(~done)
            self._write(groups, portion, held.owners[left], taken(held.rows, left))
            finished = np.flatnonzero(done)
            if len(finished) and not self._fold.eager:
                rows = taken(held.rows, finished)
                id_high, id_low = groups.identities(portion[held.owners[finished]])
                yield _tuples(rows, self.result, id_high, id_low)

    # -- a chunk -----------------------------------------------------------------------------

    def _sorted(self, changes: pa.RecordBatch, groups: Groups) -> _Run:
        """Sort a chunk by key, window and time."""
        id_high, id_low = identities_of(changes)
        ts1, ts2 = column_of(changes, LE), column_of(changes, RE)
        run = self._as_it_lies(id_high, id_low, ts1, groups)
        if run is not None:
            return run
        slots = _located(groups, id_high, id_low)
        if self._spans is None:
            rows, kinds, starts = np.arange(len(ts1)), _zeros(len(ts1)), _zeros(len(ts1))
        else:
            rows, kinds, starts = self._spans.assign(ts1, ts2)
        slots, times = slots[rows], ts1[rows]
        if not _in_order(slots, (kinds, starts, times)):
            order = self._order(slots, kinds, starts, times)
            rows, slots, kinds, starts = rows[order], slots[order], kinds[order], starts[order]
        bounds = slice_bounds(slots, kinds, starts)
        heads = bounds[:-1]
        return _Run(rows, bounds, slots[heads], kinds[heads], starts[heads])

    def _as_it_lies(self, id_high: Ids, id_low: Ids, times: Ints, groups: Groups) -> _Run | None:
        """Return the ranges of a chunk that is in order, or None if it is not or may not be."""
        if self._grid is None:
            return None
        heads, starts = (np.empty(len(times), dtype=np.int64) for _ in range(2))
        count = window_runs(id_high, id_low, times, *self._grid, heads, starts)
        if count < 0:
            return None
        heads, starts = heads[:count], starts[:count]
        slots = groups.locate(id_high[heads], id_low[heads])
        if not _are_together(slots):
            return None
        return _Run(None, np.append(heads, len(times)), slots, _zeros(count), starts)

    def _order(self, slots: Slots, kinds: Ints, starts: Ints, times: Ints) -> Ints:
        """Return the order by key, window and time; adjacent keys keep their order."""
        keys = slots
        if _are_together(slots):
            sizes = np.diff(slice_bounds(slots))
            keys = np.repeat(np.arange(len(sizes)), sizes)
        first, count = int(starts.min()), len(self._lengths)
        places = (int(starts.max()) - first) // self._unit + 1
        if (int(keys.max()) + 1) * count * places >= 1 << 62:
            return np.lexsort((times, starts, kinds, keys))
        windows = (keys * count + kinds) * places + (starts - first) // self._unit
        return order_in_runs(windows, times)

    def _fold_portion(
        self,
        changes: pa.RecordBatch,
        run: _Run,
        portion: Slots,
        groups: Groups,
    ) -> Iterator[pa.RecordBatch]:
        """Fold the ranges of some keys; their open windows are read and written together."""
        owners = np.searchsorted(portion, run.slots)
        starts, ends = run.starts, run.starts + self._lengths[run.kinds]
        held = groups.read(0, portion)
        matched = self._matched(held, owners, run.kinds, starts)
        ordered = changes if run.rows is None else taken(changes, run.rows)
        events = payload_of(ordered)
        keys = events.select(self._keys.names).take(pa.array(run.bounds[:-1]))
        keys = pa.RecordBatch.from_arrays(keys.columns, schema=self._keys)
        ts1, ts2 = (column_of(ordered, name) for name in (LE, RE))
        tuples = TupleBatch(events, run.bounds, keys, ts1, ts2, starts, ends)
        state, answers, origins = self._fold(self._old(held, matched), tuples)
        expiry = np.minimum(ends, INFINITY - self._lag) + self._lag
        span = [pa.array(each) for each in (starts, ends, expiry)]
        fresh = pa.RecordBatch.from_arrays(
            [*span, *keys.columns, *state.columns], schema=self.synopses[0].schema
        )
        kept = np.ones(len(held.owners), dtype=np.bool_)
        kept[matched[matched >= 0]] = False
        left = np.flatnonzero(kept)
        both = pa.concat_batches([fresh, taken(held.rows, left)])
        of_each = np.concatenate([owners, held.owners[left]])
        order = np.argsort(of_each, kind="stable")
        self._write(groups, portion, of_each[order], taken(both, order))
        if self._fold.eager:
            yield self._answered(ordered, tuples, answers, origins)

    def _matched(self, held: GroupRows, owners: Ints, kinds: Ints, starts: Ints) -> Ints:
        """Return the stored row of each range, or -1 if there is none."""
        if not len(held.owners):
            return np.full(len(owners), -1, dtype=np.int64)
        theirs, ends = column_of(held.rows, START), column_of(held.rows, END)
        their_kinds = np.searchsorted(self._lengths[self._by_length], ends - theirs)
        low = int(min(theirs.min(), starts.min()))
        wide = int(max(theirs.max(), starts.max())) - low + 1
        unit = self._unit
        wide = wide // unit + 2
        count = len(self._lengths)
        known = (held.owners * count + self._by_length[their_kinds]) * wide + (theirs - low) // unit
        asked = (owners * count + kinds) * wide + (starts - low) // unit
        order = np.argsort(known, kind="stable")
        at = np.minimum(np.searchsorted(known[order], asked), len(known) - 1)
        return np.where(known[order][at] == asked, order[at], -1)

    def _old(self, held: GroupRows, matched: Ints) -> pa.RecordBatch:
        """Return the state of each range before its tuples."""
        initial = self._fold.start(1)
        state = held.rows.select(self._fold.state.names)
        both = pa.concat_batches(
            [pa.RecordBatch.from_arrays(state.columns, schema=self._fold.state), initial]
        )
        return taken(both, np.where(matched >= 0, matched, len(held.owners)))

    def _write(self, groups: Groups, portion: Slots, owners: Ints, rows: pa.RecordBatch) -> None:
        groups.rewrite(0, portion, GroupRows(owners, rows))
        if self._spans is not None:
            due = np.full(len(portion), INFINITY)
            np.minimum.at(due, owners, column_of(rows, EXPIRY))
            groups.remind(portion, due)

    def _answered(
        self,
        ordered: pa.RecordBatch,
        tuples: TupleBatch,
        answers: pa.RecordBatch | None,
        origins: Ints,
    ) -> pa.RecordBatch:
        """Return the answers to tuples, or the tuples themselves, in input order."""
        if answers is None:
            return ordered
        keys = taken(tuples.keys, tuples.group[origins])
        values = pa.RecordBatch.from_arrays([*keys.columns, *answers.columns], schema=self.result)
        id_high, id_low = (each[origins] for each in identities_of(ordered))
        return changes_of(values, tuples.ts1[origins], tuples.ts2[origins], 1, id_high, id_low)


def _tuples(rows: pa.RecordBatch, result: pa.Schema, id_high: Ids, id_low: Ids) -> pa.RecordBatch:
    """Return the state of complete windows as tuples."""
    values = pa.RecordBatch.from_arrays(rows.select(result.names).columns, schema=result)
    return changes_of(values, column_of(rows, START), column_of(rows, END), 1, id_high, id_low)


def _located(groups: Groups, id_high: Ids, id_low: Ids) -> Slots:
    """Return the slot of each row; neighbours of one group are looked up once."""
    bounds = slice_bounds(id_high, id_low)
    heads = bounds[:-1]
    return np.repeat(groups.locate(id_high[heads], id_low[heads]), np.diff(bounds))


def _in_order(slots: Slots, columns: tuple[Ints, ...]) -> bool:
    """Return whether the rows of each slot are adjacent and sorted by `columns`."""
    if not _are_together(slots):
        return False
    heads = slice_bounds(slots)[:-1]
    undecided = np.ones(max(0, len(slots) - 1), dtype=np.bool_)
    undecided[heads[1:] - 1] = False
    for column in columns:
        before, after = column[:-1], column[1:]
        if (undecided & (before > after)).any():
            return False
        undecided &= before == after
    return True


def _are_together(slots: Slots) -> bool:
    """Return whether all rows of each slot are adjacent."""
    heads = slice_bounds(slots)[:-1]
    return len(np.unique(slots[heads])) == len(heads)


def _grid_of(spans: WindowSpans | None) -> tuple[Micros, Micros] | None:
    """Return length and offset of windows if each tuple is in exactly one, where it begins.

    Length 0 means one window for all time; None if tuples may be in several or belong elsewhere.
    """
    if spans is None:
        return 0, 0
    window = spans.windows[0]
    if spans.overlaps or spans.spanning != "begin":
        return None
    return window.range, window.offset


def _unit_of(windows: Sequence[Windows]) -> int:
    """Return the greatest unit of which all distances between window starts are multiples."""
    if not windows:
        return 1
    origin = windows[0].offset
    steps = [part for each in windows for part in (each.slide, each.offset - origin)]
    return int(np.gcd.reduce(steps))


def _zeros(count: int) -> Ints:
    return np.zeros(count, dtype=np.int64)
