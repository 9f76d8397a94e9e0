"""Rows of words in which sums of doubles have as many digits as the values of a table need.

Idea: a sum of doubles is a fixed-point number (`kernels.fixed_point`), exact and with an inverse.
How many digits it takes belongs to the table, not to the query: before values are added to each
other, their tables are given a common shape with room for the result. Most tables need two digits;
one that holds 1e300 and 1e-300 needs 33, and only as long as it exists. Stored rows have the
significant bytes of all their sums in one column, and columns for all other fields.

    row     words of other fields | digits of each sum | NaN, infinities of each sum that has any
    stored  __w0 __w1 ...         | __sums: bytes

Invariants:
1. Rows keep their values when they are reshaped, stored and loaded
   (`test_oracle_rows_keep_their_sums_in_any_shape`).
2. Equal rows are stored as equal bytes (`test_equal_sums_are_stored_alike`).

Cost: a copy of the table where its shape changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Table
from icestream.core.errors import CheckpointError
from icestream.kernels import field_words as words
from icestream.kernels import fixed_point as fixed
from icestream.operators.folding.columns import InputColumn
from icestream.operators.folding.fields import ENTRY_FIELDS, Field, Layout
from icestream.operators.folding.fold import all_valid, fold_field

Rows = Ints | Mask | slice


class SumExtent(NamedTuple):
    """Between which bits the values of a sum lie, and whether some are infinite or NaN."""

    low: int = 64 * fixed.DIGITS
    high: int = 0
    has_specials: bool = False

    def joined(self, other: SumExtent) -> SumExtent:
        """Return the extent of both."""
        specials = self.has_specials or other.has_specials
        return SumExtent(min(self.low, other.low), max(self.high, other.high), specials)

    def with_room(self, copies: int) -> SumExtent:
        """Return the extent of any sum of so many values."""
        if self.low >= self.high:
            return self
        return self._replace(high=self.high + copies.bit_length())

    @property
    def digits(self) -> tuple[int, int]:
        """Return the first digit, and how many there are with one bit for the sign."""
        if self.low >= self.high:
            return 0, 0
        first = self.low >> 6
        return first, ((self.high + 1) >> 6) + 1 - first


class RowPlaces(NamedTuple):
    """Where the words of a row lie."""

    #: for each sum of doubles: place, first digit, digits, and place of the specials or -1
    sums_at: Table
    #: words of a row
    width: int
    #: the operations that merge rows, and the first word of each
    ops: Ints
    places: Ints
    #: those of them that can be taken back
    sums: tuple[Ints, Ints]
    #: the row into which nothing was merged
    identity: Ints


@lru_cache(maxsize=256)
def _places_of(layout: Layout, spans: tuple[tuple[int, int, bool], ...]) -> RowPlaces:
    """Lay out the words of a row: first digit, digits and specials of each sum are given."""
    sums_at, at = [], layout.field_words
    ops, places = layout.ops.tolist(), (layout.places - ENTRY_FIELDS).tolist()
    for first, count, has_specials in spans:
        specials = at + count if has_specials else -1
        sums_at.append((at, first, count, specials))
        ops.append(words.ADD_FIXED + count)
        places.append(at)
        at += count
        if has_specials:
            ops += [words.ADD_I64] * fixed.SPECIALS
            places += range(at, at + fixed.SPECIALS)
            at += fixed.SPECIALS
    all_ops, all_places = (np.array(each, dtype=np.int64) for each in (ops, places))
    adds = np.array([words.is_invertible(op) for op in ops], dtype=np.bool_)
    identity = np.zeros(at, dtype=np.int64)
    identity[: layout.field_words] = layout.entry_identity[ENTRY_FIELDS:]
    described = np.array(sums_at, dtype=np.int64).reshape(-1, 4)
    sums = all_ops[adds], all_places[adds]
    return RowPlaces(described, at, all_ops, all_places, sums, identity)


@dataclass(frozen=True)
class RowShape:
    """Which fields the rows of a table have, and how wide its sums are."""

    #: fields of fixed width, the number of events first
    layout: Layout
    #: sums of doubles, and the extents of their values
    of_doubles: tuple[Field, ...]
    extents: tuple[SumExtent, ...]

    @cached_property
    def at(self) -> RowPlaces:
        """Return where the words of a row lie."""
        return _places_of(
            self.layout, tuple((*each.digits, each.has_specials) for each in self.extents)
        )

    def with_room(self, copies: int) -> RowShape:
        """Return a shape for any sums of so many rows."""
        extents = tuple(each.with_room(copies) for each in self.extents)
        return RowShape(self.layout, self.of_doubles, extents)

    def joined(self, other: RowShape) -> RowShape:
        """Return a shape for the rows of both."""
        pairs = zip(self.extents, other.extents, strict=True)
        return RowShape(self.layout, self.of_doubles, tuple(a.joined(b) for a, b in pairs))


@dataclass(frozen=True, slots=True)
class ExactRows:
    """A table of rows and its shape."""

    shape: RowShape
    table: Table

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.table)

    def __getitem__(self, rows: Rows) -> ExactRows:
        """Return some rows; indices and masks copy them."""
        return ExactRows(self.shape, self.table[rows])

    @property
    def counts(self) -> Ints:
        """Return the number of events of each row."""
        return self.table[:, 0]

    def copied(self) -> ExactRows:
        """Return the same rows in a table of their own."""
        return ExactRows(self.shape, self.table.copy())

    def reshaped(self, shape: RowShape) -> ExactRows:
        """Return the rows in a shape that has room for them."""
        if shape.at is self.shape.at:
            return ExactRows(shape, self.table)
        table = np.zeros((len(self.table), shape.at.width), dtype=np.int64)
        table[:, : shape.layout.field_words] = self.table[:, : shape.layout.field_words]
        for old, new in zip(
            *(each.at.sums_at.tolist() for each in (self.shape, shape)), strict=True
        ):
            if count := old[fixed.COUNT]:
                at = new[fixed.PLACE] + old[fixed.FIRST] - new[fixed.FIRST]
                table[:, at : at + count] = self.table[:, old[0] : old[0] + count]
            if (at := old[fixed.SPECIALS_AT]) >= 0:
                to = new[fixed.SPECIALS_AT]
                table[:, to : to + fixed.SPECIALS] = self.table[:, at : at + fixed.SPECIALS]
        return ExactRows(shape, table)


def alike(first: ExactRows, second: ExactRows) -> tuple[ExactRows, ExactRows]:
    """Return both in a shape in which any of their rows may be added and subtracted."""
    shape = first.shape.joined(second.shape).with_room(len(first) + len(second))
    return first.reshaped(shape), second.reshaped(shape)


def concatenated(first: ExactRows, second: ExactRows) -> ExactRows:
    """Return the rows of both."""
    shape = first.shape.joined(second.shape)
    tables = [each.reshaped(shape).table for each in (first, second)]
    return ExactRows(shape, np.concatenate(tables))


def copies_of(counts: Ints) -> int:
    """Return how many events there are at most if each of some is there `counts` times."""
    return len(counts) * int(np.abs(counts).max(initial=1))


class ExactFold:
    """Folds single events into rows, and stores rows as columns."""

    def __init__(self, layout: Layout) -> None:
        """Divide the fields of a layout into sums of doubles and others."""
        self.layout = Layout(tuple(each for each in layout.fields if each.op != words.ADD_DD))
        self.sums = tuple(each for each in layout.fields if each.op == words.ADD_DD)
        names = [f"__w{n}" for n in range(self.layout.field_words)]
        stored = [pa.field(name, pa.int64(), nullable=False) for name in names]
        if self.sums:
            stored.append(pa.field("__sums", pa.binary(), nullable=False))
        #: columns of stored rows
        self.schema = pa.schema(stored)

    @property
    def nothing(self) -> ExactRows:
        """Return no rows."""
        return ExactRows(self._shape(()), np.empty((0, self.layout.field_words), dtype=np.int64))

    def zeros(self, rows: int) -> ExactRows:
        """Return rows of zeros."""
        return ExactRows(self._shape(()), np.zeros((rows, self.layout.field_words), dtype=np.int64))

    def folded(self, columns: Mapping[str, InputColumn], rows: int, copies: int) -> ExactRows:
        """Return a row for each event, with room to add up so many of them."""
        layout = self.layout
        entries = np.tile(layout.entry_identity, (rows, 1))
        slots = np.arange(rows)
        for field, place in zip(layout.fields, layout.places.tolist(), strict=True):
            fold_field(field, place, entries, slots, columns, 0, rows)
        inputs = [_inputs(field, columns) for field in self.sums]
        extents = []
        for x, y, valid in inputs:
            low, high, specials = (
                fixed.sum_extent(x, valid) if y is None else fixed.product_extent(x, y, valid)
            )
            extents.append(SumExtent(int(low), int(high), bool(specials)).with_room(copies))
        shape = self._shape(extents)
        table = np.zeros((rows, shape.at.width), dtype=np.int64)
        table[:, : layout.field_words] = entries[:, ENTRY_FIELDS:]
        for of, (x, y, valid) in zip(shape.at.sums_at, inputs, strict=True):
            if y is None:
                fixed.fold_doubles(table, of, slots, x, valid)
            else:
                fixed.fold_products(table, of, slots, x, y, valid)
        return ExactRows(shape, table)

    def stored(self, rows: ExactRows) -> list[pa.Array]:
        """Return rows as columns to store."""
        count = self.layout.field_words
        columns = [pa.array(np.ascontiguousarray(each)) for each in rows.table[:, :count].T]
        if self.sums:
            sizes = np.empty(len(rows), dtype=np.int64)
            bounds = np.empty((len(rows), 2 * len(self.sums)), dtype=np.int64)
            fixed.measure_sums(rows.table, rows.shape.at.sums_at, bounds, sizes)
            offsets = np.zeros(len(rows) + 1, dtype=np.int64)
            np.cumsum(sizes, out=offsets[1:])
            raw = np.empty(int(offsets[-1]), dtype=np.uint8)
            fixed.encode_sums(rows.table, rows.shape.at.sums_at, bounds, offsets[:-1], raw)
            buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw)]
            columns.append(pa.Array.from_buffers(pa.binary(), len(rows), buffers))
        return columns

    def loaded(self, columns: Sequence[pa.Array], copies: int = 1) -> ExactRows:
        """Return the rows that columns store, with room to add up so many of each."""
        words_of = [column.to_numpy() for column in columns[: self.layout.field_words]]
        rows = len(columns[0])
        raw, begins = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64)
        extents = np.tile(np.array(SumExtent(), dtype=np.int64), (len(self.sums), 1))
        if self.sums and rows:
            raw, bounds = _raw_bytes(columns[-1])
            begins = bounds[:-1]
            if not fixed.encoded_extents(raw, begins, bounds[1:], extents):
                msg = "stored sums of doubles are damaged: restore the checkpoint from a copy"
                raise CheckpointError(msg)
        shape = self._shape(
            [
                SumExtent(low, high, bool(specials)).with_room(copies)
                for low, high, specials in extents.tolist()
            ]
        )
        table = np.zeros((rows, shape.at.width), dtype=np.int64)
        for place, column in enumerate(words_of):
            table[:, place] = column
        if self.sums and rows:
            fixed.decode_sums(raw, begins, shape.at.sums_at, table)
        return ExactRows(shape, table)

    def _shape(self, extents: Sequence[SumExtent]) -> RowShape:
        return RowShape(self.layout, self.sums, tuple(extents) or (SumExtent(),) * len(self.sums))


def _inputs(field: Field, columns: Mapping[str, InputColumn]) -> tuple[Ints, Ints | None, Mask]:
    """Return the bits of the doubles that a sum adds up, their factors, and which events count."""
    inputs = [columns[name] for name in field.columns]
    x, *others = (each.floats.view(np.int64) for each in inputs)
    valid = all_valid(inputs, 0, len(x))
    if field.kind == "sum_f64":
        return x, None, valid
    return x, x if field.kind == "squares_f64" else others[0], valid


def _raw_bytes(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the bytes of a binary column, where each value begins, and the end of the last."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, dtype=np.uint8), bounds.astype(np.int64)
