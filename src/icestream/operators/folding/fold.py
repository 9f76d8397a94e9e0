"""Folds a stream of events into bounded tables of entries, with the keys of their groups.

Idea: events of one (group, pane) become one entry before they leave the task that read them.
Entries are looked up once per cell of a batch (`cells`), and fields are folded event by event. The
table has a fixed capacity; when it is full, it is returned as a run and starts again. So memory is
bounded whatever the input, and if folding does not pay off it costs only its own pass. Before sums
of doubles are folded, one pass over the values finds the digits they need (`measured`).

Invariants:
1. The merged runs equal folding all events at once (`test_oracle_runs_equal_one_big_fold`).
2. Every group of a run has its key in that run's keys (`test_keys_of_a_run_cover_its_entries`).

Cost: O(events x fields); memory `capacity * (entry width + 5) * 8` bytes and the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Table
from icestream.kernels import double_sums, field_words
from icestream.kernels import fold as kernels
from icestream.operators.folding.cells import CellFinder
from icestream.operators.folding.columns import ARRIVAL, BATCH, TIME, InputColumn
from icestream.operators.folding.exact_rows import ExactRows, reshaped
from icestream.operators.folding.fields import (
    ENTRY_FIELDS,
    ORDERED,
    ROOM_BITS,
    Field,
    Layout,
    SumExtent,
    moved_sums,
)
from icestream.state.keys import KeyCodec

#: columns that are sent with keys
ID_HIGH_COLUMN = "__hi"
ID_LOW_COLUMN = "__lo"
LAST = "__last"
_INTEGER_SUM = "sum_i64"


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Entries returned together, unsorted, with the keys of their groups."""

    panes: Ints
    entries: ExactRows
    #: id_high, id_low, latest pane and key columns, one row per group of the run
    keys: pa.Table


class EntryTable:
    """Folds events into at most `capacity` entries at a time."""

    def __init__(
        self, layout: Layout, codec: KeyCodec, capacity: int, *, partial: bool = False
    ) -> None:
        """Create an empty table for events, or for rows that are `partial` aggregates already."""
        self._partial = partial
        places = 1 << max(4, (2 * capacity - 1).bit_length())
        self._layout = layout
        self._codec = codec
        #: words that the table may have
        self._room = capacity * layout.typical.entry_width
        self._entries = np.empty((capacity, layout.entry_width), dtype=np.int64)
        self._panes = np.empty(capacity, dtype=np.int64)
        self._index = np.zeros(places, dtype=np.int32)
        self._key_index = np.zeros(places, dtype=np.int32)
        self._seen = np.empty((capacity, 2), dtype=np.uint64)
        self._last = np.empty(capacity, dtype=np.int64)
        self._keys: list[pa.RecordBatch] = []
        self._used = 0
        self._groups = 0

    @staticmethod
    def row_bytes(layout: Layout) -> int:
        """Return the bytes one entry takes in a table, without its key."""
        return 8 * (layout.typical.entry_width + 5)

    def fold(
        self, groupings: Iterable[pa.RecordBatch], panes: Ints, columns: Mapping[str, InputColumn]
    ) -> Iterator[EntryRun]:
        """Fold a batch of events, by the keys of each grouping; yield a run when the table is full.

        `columns` has the inputs, and where the layout needs the order `TIME` and `ARRIVAL`; `BATCH`
        too where arrivals are counted anew in every batch.
        """
        if len(panes) == 0:
            return
        if not self._partial:
            yield from self._widened(measured(self._layout, columns, 0, len(panes)))
        finder = CellFinder(panes)
        sums = None if self._partial else _integer_sums(self._layout, columns)
        for keys in groupings:
            yield from self._fold(keys, panes, finder, sums, columns)

    def _fold(
        self,
        keys: pa.RecordBatch,
        panes: Ints,
        finder: CellFinder,
        sums: tuple[Ints, Table] | None,
        columns: Mapping[str, InputColumn],
    ) -> Iterator[EntryRun]:
        rows, first, codes = len(panes), 0, finder.codes(keys)
        while first < rows:
            cells = finder.since(first, codes)
            their_keys, their_panes = cells.one_each(keys, panes)
            id_high, id_low = self._codec.identify(their_keys)
            numbers = np.empty(len(id_high), dtype=np.int64)
            opened = np.empty(len(id_high), dtype=np.int64)
            done, self._used, listed = kernels.assign_entries(
                id_high,
                id_low,
                their_panes,
                0,
                self._index,
                self._entries,
                self._panes,
                self._used,
                self._layout.entry_identity,
                numbers,
                opened,
            )
            self._note_keys(id_high, id_low, their_panes, opened[:listed], their_keys)
            last = cells.reached(done)
            slots = cells.entries(numbers, last)
            sizes = cells.sizes if last == rows else None
            layout, entries = self._layout, self._entries
            for field, place in zip(layout.fixed, layout.places.tolist(), strict=False):
                if sizes is not None and self._counts_all(field, columns):
                    valid = kernels.ALL_VALID
                    kernels.fold_sum_i64(entries, place, numbers, sizes, valid, 0, len(sizes))
                elif self._partial:
                    _fold_partial(field, place, entries, slots, columns, first, last)
                elif field.kind != _INTEGER_SUM:
                    fold_field(field, place, entries, slots, columns, first, last)
            if sums is not None:
                kernels.fold_sums_i64(entries, sums[0], slots, sums[1], first, last)
            fold_sums(layout, entries, ENTRY_FIELDS, slots, columns, first, last)
            first = last
            if first < rows:
                yield self.take()

    def _widened(self, layout: Layout) -> Iterator[EntryRun]:
        """Give the entries a layout that has room for more; yield those that do not fit then."""
        if layout.at is not self._layout.at:
            capacity = max(min(16, len(self._panes)), self._room // layout.entry_width)
            if self._used > capacity:
                yield self.take()
            entries = np.empty((min(capacity, len(self._panes)), layout.entry_width), np.int64)
            held = self._entries[: self._used]
            entries[: self._used] = reshaped(held, self._layout, layout, ENTRY_FIELDS)
            self._entries = entries
        self._layout = layout

    def _counts_all(self, field: Field, columns: Mapping[str, InputColumn]) -> bool:
        """Return whether a field counts every event of the batch."""
        if self._partial:
            return False
        return field.kind == "rows" or (
            field.kind == "valid" and not any(columns[name].valid.size for name in field.columns)
        )

    def take(self) -> EntryRun:
        """Return what was folded so far and start again."""
        run = EntryRun(
            self._panes[: self._used].copy(),
            ExactRows(self._layout, self._entries[: self._used].copy()),
            identified(
                pa.Table.from_batches(self._keys, self._codec.schema),
                self._seen[: self._groups],
                self._last[: self._groups].copy(),
            ),
        )
        self._index[:] = 0
        self._key_index[:] = 0
        self._keys = []
        self._used = self._groups = 0
        return run

    def _note_keys(
        self, id_high: Ids, id_low: Ids, panes: Ints, opened: Ints, keys: pa.RecordBatch
    ) -> None:
        fresh = np.empty(len(opened), dtype=np.int64)
        self._groups, found = kernels.new_keys(
            id_high,
            id_low,
            panes,
            opened,
            len(opened),
            self._key_index,
            self._seen,
            self._last,
            self._groups,
            fresh,
        )
        if found:
            self._keys.append(self._codec.canonical(keys.take(pa.array(fresh[:found]))))


def _integer_sums(layout: Layout, columns: Mapping[str, InputColumn]) -> tuple[Ints, Table] | None:
    """Return the words of all sums of integers, and what each event adds to them."""
    found = {
        place: columns[field.columns[0]].numbers
        for field, place in zip(layout.fixed, layout.places.tolist(), strict=False)
        if field.kind == _INTEGER_SUM
    }
    if not found:
        return None
    values = np.empty((len(next(iter(found.values()))), len(found)), dtype=np.int64)
    for number, column in enumerate(found.values()):
        values[:, number] = column
    return np.array([*found]), values


def identity_schema(keys: pa.Schema) -> pa.Schema:
    """Return the schema of the keys of a fold, with identity and latest pane."""
    return pa.schema(
        [(ID_HIGH_COLUMN, pa.uint64()), (ID_LOW_COLUMN, pa.uint64()), (LAST, pa.int64()), *keys]
    )


def identified(keys: pa.Table, ids: Ids, last: Ints) -> pa.Table:
    """Add identity and latest pane of each folded group to its key."""
    columns = [pa.array(ids[:, 0]), pa.array(ids[:, 1]), pa.array(last), *keys.columns]
    return pa.Table.from_arrays(columns, schema=identity_schema(keys.schema))


def fold_field(
    field: Field,
    place: int,
    entries: Table,
    slots: Ints,
    columns: Mapping[str, InputColumn],
    first: int,
    last: int,
) -> None:
    """Fold one field of fixed size of the events from `first` to `last` into rows of a table."""
    slots, count = slots[first:last], last - first
    inputs = [columns[name] for name in field.columns]
    valid = all_valid(inputs, first, last)

    def fold(kernel: Callable[..., None], *values: npt.NDArray[Any]) -> None:
        kernel(entries, place, slots, *(each[first:last] for each in values), valid, 0, count)

    if field.kind in ORDERED:
        rows, counts = _choice_rows(field, columns, first, last)
        kernels.fold_least(entries, place, slots, rows, counts, 0, count)
    elif field.kind in ("rows", "valid"):
        fold(kernels.fold_count)
    elif field.kind == _INTEGER_SUM:
        fold(kernels.fold_sum_i64, inputs[0].integers)
    elif field.kind == "sum_i128":
        fold(kernels.fold_sum_i128, *inputs[0].pair)
    elif field.kind == "products_i128":
        fold(kernels.fold_products_i128, *inputs[0].pair, *inputs[1].pair)
    elif field.kind == "min":
        fold(kernels.fold_min, inputs[0].ordered)
    else:
        fold(kernels.fold_max, inputs[0].ordered)


def fold_fields(
    layout: Layout,
    table: Table,
    fields_at: int,
    slots: Ints,
    columns: Mapping[str, InputColumn],
) -> None:
    """Fold all fields of events into the rows `slots` of a table, fields from a word on."""
    for field, place in zip(layout.fixed, layout.at.places.tolist(), strict=False):
        fold_field(field, fields_at + place, table, slots, columns, 0, len(slots))
    fold_sums(layout, table, fields_at, slots, columns, 0, len(slots))


def measured(
    layout: Layout,
    columns: Mapping[str, InputColumn],
    first: int,
    last: int,
    copies: int = (1 << ROOM_BITS) - 1,
) -> Layout:
    """Return a layout with room to fold so many of the given events into sums."""
    extents = []
    for field in layout.sums:
        x, y, valid = factors(field, columns, first, last)
        low, high, specials = (
            double_sums.sum_extent(x, valid)
            if y is None
            else double_sums.product_extent(x, y, valid)
        )
        extents.append(SumExtent(int(low), int(high), bool(specials)).with_room(copies))
    return layout.widened(extents)


def fold_sums(
    layout: Layout,
    table: Table,
    fields_at: int,
    slots: Ints,
    columns: Mapping[str, InputColumn],
    first: int,
    last: int,
) -> None:
    """Fold the sums of doubles of events into the rows `slots` of a table that has room for them.

    The fields begin with word `fields_at` of a row.
    """
    mine = slots[first:last]
    for field, of in zip(layout.sums, moved_sums(layout.at.sums_at, fields_at), strict=True):
        x, y, valid = factors(field, columns, first, last)
        if y is None:
            double_sums.add_doubles(table, of, mine, x, valid)
        else:
            double_sums.add_products(table, of, mine, x, y, valid)


def factors(
    field: Field, columns: Mapping[str, InputColumn], first: int, last: int
) -> tuple[Ints, Ints | None, Mask]:
    """Return what a fold adds up: bits of doubles, their factors, and which events count."""
    inputs = [columns[name] for name in field.columns]
    x, *others = (each.floats[first:last].view(np.int64) for each in inputs)
    valid = all_valid(inputs, first, last)
    if field.kind == "sum_f64":
        return x, None, valid
    return x, x if field.kind == "squares_f64" else others[0], valid


def all_valid(inputs: Sequence[InputColumn], first: int, last: int) -> Mask:
    """Return the mask of events to fold in which no input is null."""
    masks = [column.valid[first:last] for column in inputs if column.valid.size]
    if not masks:
        return kernels.ALL_VALID
    return masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)


def _choice_rows(
    field: Field, columns: Mapping[str, InputColumn], first: int, last: int
) -> tuple[Table, Mask]:
    """Return the words that a choice compares, and which events it chooses from."""
    value = columns[field.columns[0]]
    time = columns[TIME].integers[first:last]
    arrival = columns[ARRIVAL].integers[first:last]
    batches = columns.get(BATCH)
    batch = np.zeros_like(time) if batches is None else batches.integers[first:last]
    words = value.ordered[first:last]
    there = value.valid[first:last]
    if field.kind.startswith("last"):
        time, batch, arrival = ~time, ~batch, ~arrival
    arrival = 2 * arrival
    if there.size:
        arrival, words = arrival + ~there, np.where(there, words, 0)
    if field.kind in ("first", "last"):
        return np.stack([time, batch, arrival, words], axis=1), kernels.ALL_VALID
    if field.kind in ("first_valid", "last_valid"):
        return np.stack([time, batch, arrival, words], axis=1), there
    ordering = columns[field.others[0]]
    rank = ordering.ranked[first:last]
    if field.kind == "most_by":
        rank = ~rank
    return np.stack([rank, time, batch, arrival, words], axis=1), ordering.valid[first:last]


def partial_name(field: Field, part: int = 0) -> str:
    """Return the name of a column with folded partial aggregates of a field."""
    return f"{field.kind}_{field.column or 'events'}_{part}"


def _fold_partial(
    field: Field,
    place: int,
    entries: Table,
    slots: Ints,
    columns: Mapping[str, InputColumn],
    first: int,
    last: int,
) -> None:
    column = columns[partial_name(field)]
    valid = column.valid
    if field.op == field_words.ADD_I64:
        kernels.fold_sum_i64(entries, place, slots, column.integers, valid, first, last)
    elif field.op == field_words.ADD_I128:
        low, high = _joined(column.integers, columns[partial_name(field, 1)].integers)
        kernels.fold_sum_i128(entries, place, slots, low, high, valid, first, last)
    elif field.op == field_words.MIN:
        values = _signed_zeros(field, columns, -0.0, 0.0).ordered
        kernels.fold_min(entries, place, slots, values, valid, first, last)
    else:
        values = _signed_zeros(field, columns, 0.0, -0.0).ordered
        kernels.fold_max(entries, place, slots, values, valid, first, last)


def _signed_zeros(
    field: Field, columns: Mapping[str, InputColumn], present: float, absent: float
) -> InputColumn:
    """Return extremes whose zeros have their sign: one where there is a flag for it, or another."""
    column = columns[partial_name(field)]
    flags = columns.get(partial_name(field, 1))
    if flags is None:
        return column
    zeros = np.where(flags.integers == 1, present, absent)
    return InputColumn(pa.array(np.where(column.floats == 0, zeros, column.floats)))


def _joined(low32: Ints, high32: Ints) -> tuple[Ints, Ints]:
    """Return the 128-bit words of `high32 * 2**32 + low32`."""
    low = (high32 << 32) + low32
    carry = (low.view(np.uint64) < low32.view(np.uint64)).astype(np.int64)
    return low, (high32 >> 32) + carry
