"""`consolidate`: partial results of a key are merged into complete windows.

Idea: partials are appended to the stored ones, each with the span that it covers. A *tiling* lists,
for every window, the spans that fill it: partials, or smaller windows that were computed before and
are stored like partials. When windows are complete, those of all keys are computed kind by kind,
with one call of the user's function for each kind.

    20 min = 10 + 10     [0                 )
    10 min = 5 + 5       [0       )[10      )
     5 min = 5 x 1       [0  )[5  )[10 )[15 )
    partials             |||||||||||||||||||||

Invariants:
1. A window is the merge of all partials in it, whatever the tiling and the batches
   (`test_oracle_configurations`).
2. A window is emitted once (`test_oracle_configurations`).
3. Spans that no window needs any more expire
   (`test_bounded_partials_leave_when_nothing_needs_them`).

Cost: partials are appended without a read; a key is read when one of its windows is complete.

References: Madsen, Zhou, Su (2016), sections 4.2 and 6.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Slots, slice_bounds
from icestream.core.errors import InputError
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.core.units import format_interval
from icestream.operators.jobs.batches import TupleBatch
from icestream.operators.jobs.compute import END, EXPIRY, START
from icestream.operators.jobs.folding import MergeFunction
from icestream.operators.jobs.spans import assign, named
from icestream.operators.lifetimes.changes import (
    LE,
    RE,
    LifetimeOperator,
    changes_of,
    column_of,
    one_each,
    payload_of,
    taken,
)
from icestream.operators.lifetimes.rows_by_group import RowsByGroup, first_rows, located, woken
from icestream.plan.windows.grid import Windows
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

EMITTED_UNTIL = "__told"
_SPAN = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in (START, END, EXPIRY)])
_PARTIALS, _KEY = 0, 1


@dataclass(frozen=True)
class SpanTiling:
    """How the windows of one kind are composed: the spans that fill each of them."""

    window: Windows
    #: length and place of each tile; the window that starts at offset + i * slide uses entry
    #: i modulo the number of entries
    tiles: tuple[tuple[tuple[Micros, Micros], ...], ...]
    #: False for windows that are only tiles of others
    wanted: bool = True

    def uses(self, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Return which spans are tiles, and the start of the window that each is part of."""
        rows, starts = assign(self.window, begins, ends, "inside")
        turn = (starts - self.window.offset) // self.window.slide % len(self.tiles)
        lengths, places = (ends - begins)[rows], begins[rows] - starts
        fits = np.zeros(len(rows), dtype=np.bool_)
        for number, tiles in enumerate(self.tiles):
            for length in {length for length, _ in tiles}:
                allowed = np.array(sorted(place for each, place in tiles if each == length))
                at = np.minimum(np.searchsorted(allowed, places), len(allowed) - 1)
                fits |= (turn == number) & (lengths == length) & (allowed[at] == places)
        return rows[fits], starts[fits]

    def __str__(self) -> str:
        ways = dict.fromkeys(" + ".join(_counted(tiles)) for tiles in self.tiles)
        return f"{named(self.window)} = {', in turn '.join(ways)}"


class _Held(NamedTuple):
    """Partials and windows composed of them."""

    owners: Ints
    begins: Ints
    ends: Ints
    values: pa.RecordBatch


class Consolidate(LifetimeOperator):
    """Windows by key, composed of partial results."""

    def __init__(
        self,
        merge: MergeFunction,
        keys: pa.Schema,
        values: pa.Schema,
        tilings: tuple[SpanTiling, ...],
        given: frozenset[Micros],
        lag: Micros = 0,
    ) -> None:
        """Merge values by key; partials have the given lengths.

        A tiling must follow those it uses; windows are complete `lag` after their end.
        """
        self._merge = merge
        self._keys = keys
        self._values = values
        self._tilings = tilings
        self._lag = lag
        self._given = given
        used = {length for each in tilings for tiles in each.tiles for length, _ in tiles}
        #: lengths of windows that are tiles of others
        self._reused = used - given
        self.result = pa.schema([*keys, *merge.result])
        self.synopses = (
            Synopsis("partials", pa.schema([*_SPAN, *values]), expiry=EXPIRY),
            Synopsis(
                "key", pa.schema([pa.field(EMITTED_UNTIL, pa.int64(), nullable=False), *keys])
            ),
        )

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Store partials; nothing is read."""
        if changes.num_rows == 0:
            return
        changes = one_each(changes)
        begins, ends = column_of(changes, LE), column_of(changes, RE)
        self._refuse_unknown(begins, ends)
        slots = located(changes, groups)
        payload = payload_of(changes)
        needed = self._last_use(begins, ends)
        used = np.flatnonzero(needed > MINUS_INFINITY)
        if len(used):
            values = taken(payload.select(self._values.names), used)
            groups.append(_PARTIALS, slots[used], self._rows(begins, ends, needed, used, values))
            touched = RowsByGroup(slots[used])
            rows, owners = touched.within(touched.distinct)
            heads = used[rows[first_rows(owners, len(touched.distinct))]]
            groups.append(
                _KEY, touched.distinct, self._emitted_until(payload, heads, MINUS_INFINITY)
            )
            groups.remind(touched.distinct, np.full(len(touched.distinct), watermark))
        yield from ()

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        complete = max(watermark, MINUS_INFINITY + self._lag) - self._lag
        for portion in woken(groups, watermark):
            found, key = groups.read(_PARTIALS, portion), groups.read(_KEY, portion)
            emitted_until = np.full(len(portion), MINUS_INFINITY)
            np.maximum.at(emitted_until, key.owners, column_of(key.rows, EMITTED_UNTIL))
            held = _Held(
                found.owners,
                column_of(found.rows, START),
                column_of(found.rows, END),
                pa.RecordBatch.from_arrays(
                    found.rows.select(self._values.names).columns, schema=self._values
                ),
            )
            firsts = first_rows(key.owners, len(portion))
            keys = taken(key.rows.select(self._keys.names), firsts)
            for tiling in self._tilings:
                made = self._made(tiling, held, emitted_until, complete, keys)
                if made is None:
                    continue
                if tiling.wanted:
                    id_high, id_low = groups.identities(portion[made.owners])
                    columns = [*taken(keys, made.owners).columns, *made.values.columns]
                    rows = pa.RecordBatch.from_arrays(columns, schema=self.result)
                    yield changes_of(rows, made.begins, made.ends, 1, id_high, id_low)
                if tiling.window.range in self._reused:
                    held = self._kept(groups, portion, held, made)
            self._wait(groups, portion, held, keys, complete)

    # -- windows -----------------------------------------------------------------------------

    def _made(
        self,
        tiling: SpanTiling,
        held: _Held,
        emitted_until: Ints,
        complete: Micros,
        keys: pa.RecordBatch,
    ) -> _Held | None:
        """Compute the windows of one kind that became complete."""
        rows, starts = tiling.uses(held.begins, held.ends)
        ends = starts + tiling.window.range
        due = (ends <= complete) & (ends > emitted_until[held.owners[rows]])
        rows, starts = rows[due], starts[due]
        if not len(rows):
            return None
        order = np.lexsort((held.begins[rows], starts, held.owners[rows]))
        rows, starts = rows[order], starts[order]
        owners = held.owners[rows]
        bounds = slice_bounds(owners, starts)
        heads = bounds[:-1]
        partials = TupleBatch(
            taken(held.values, rows),
            bounds,
            taken(keys, owners[heads]),
            held.begins[rows],
            held.ends[rows],
            starts[heads],
            starts[heads] + tiling.window.range,
        )
        merged = self._merge(partials)
        return _Held(owners[heads], partials.begins, partials.ends, merged)

    def _kept(self, groups: Groups, portion: Slots, held: _Held, made: _Held) -> _Held:
        """Store windows that are tiles of others."""
        needed = self._last_use(made.begins, made.ends)
        used = np.flatnonzero(needed > MINUS_INFINITY)
        values = pa.RecordBatch.from_arrays(made.values.columns, schema=self._values)
        rows = self._rows(made.begins, made.ends, needed, used, taken(values, used))
        groups.append(_PARTIALS, portion[made.owners[used]], rows)
        return _Held(
            np.concatenate([held.owners, made.owners]),
            np.concatenate([held.begins, made.begins]),
            np.concatenate([held.ends, made.ends]),
            pa.concat_batches([held.values, values]),
        )

    def _wait(
        self, groups: Groups, portion: Slots, held: _Held, keys: pa.RecordBatch, complete: Micros
    ) -> None:
        """Record what was emitted, and wake each key when its next window is complete."""
        due = np.full(len(portion), INFINITY)
        for tiling in self._tilings:
            rows, starts = tiling.uses(held.begins, held.ends)
            ends = starts + tiling.window.range
            later = ends > complete
            np.minimum.at(due, held.owners[rows[later]], ends[later] + self._lag)
        groups.remind(portion, due)
        waits = np.flatnonzero(due < INFINITY)
        groups.rewrite(_KEY, portion, GroupRows(waits, self._emitted_until(keys, waits, complete)))
        gone = np.flatnonzero(due == INFINITY)
        if len(gone):
            none = GroupRows(
                np.empty(0, dtype=np.int64),
                pa.RecordBatch.from_pylist([], schema=self.synopses[_PARTIALS].schema),
            )
            groups.rewrite(_PARTIALS, portion[gone], none)

    def _last_use(self, begins: Ints, ends: Ints) -> Ints:
        """Return when each span expires: when the last window that it is a tile of is emitted."""
        needed = np.full(len(begins), MINUS_INFINITY)
        for tiling in self._tilings:
            rows, starts = tiling.uses(begins, ends)
            np.maximum.at(needed, rows, starts + tiling.window.range + self._lag)
        return needed

    # -- rows ----------------------------------------------------------------------------------

    def _rows(
        self, begins: Ints, ends: Ints, needed: Ints, used: Ints, values: pa.RecordBatch
    ) -> pa.RecordBatch:
        span = [pa.array(each[used]) for each in (begins, ends, needed)]
        return pa.RecordBatch.from_arrays(
            [*span, *values.columns], schema=self.synopses[_PARTIALS].schema
        )

    def _emitted_until(
        self, rows: pa.RecordBatch, at: Ints, emitted_until: Micros
    ) -> pa.RecordBatch:
        keys = taken(rows.select(self._keys.names), at).columns
        column = pa.array(np.full(len(at), emitted_until))
        return pa.RecordBatch.from_arrays([column, *keys], schema=self.synopses[_KEY].schema)

    def _refuse_unknown(self, begins: Ints, ends: Ints) -> None:
        lengths = np.unique(ends - begins)
        unknown = [each for each in lengths.tolist() if each not in self._given]
        if unknown:
            msg = (
                f"{self._merge.name} got a partial of {format_interval(unknown[0])}; it expects "
                f"{', '.join(format_interval(each) for each in sorted(self._given))}: do not "
                "change ts1 and ts2 of partials"
            )
            raise InputError(msg)


def _counted(tiles: tuple[tuple[Micros, Micros], ...]) -> list[str]:
    counts: dict[Micros, int] = {}
    for length, _ in tiles:
        counts[length] = counts.get(length, 0) + 1
    return [f"{count} x {format_interval(length)}" for length, count in counts.items()]
