"""Rows of words in which sums of doubles have as many digits as the values of a table need.

Idea: a sum of doubles is a fixed-point number (`kernels.double_sums`), exact and with an inverse.
How many digits it takes belongs to the table, not to the query: before values are added to each
other, their tables are given a common layout with room for the result. Most tables need two digits;
one that holds 1e300 and 1e-300 needs 33, and only as long as it exists. Rows of different kinds
have other words around their fields; conversions leave these alone.

Stored tables describe themselves, and digits that are zero in all of their rows are left out:

    table    [low, high, first digit, digits, specials] of each sum, one word | rows
    column   significant bytes of all sums of a row, where rows are stored as columns

Invariants:
1. Rows keep their values when they get another layout, are stored and loaded
   (`test_oracle_rows_keep_their_sums_in_any_layout`).
2. Equal rows are stored as equal bytes (`test_equal_sums_are_stored_alike`).
3. Bytes that are no table are refused (`test_bytes_that_are_no_table_are_refused`).

Cost: a copy of the table where its layout changes; tables without sums of doubles are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Table
from icestream.core.errors import CheckpointError
from icestream.kernels import double_sum_bytes, double_sums
from icestream.operators.folding.fields import Layout, Span, SumExtent, moved_sums

Rows = Ints | Mask | slice

_DAMAGED = "stored sums of doubles are damaged: restore the checkpoint from a copy"
#: bits of the word that describes a stored sum: of each extent, of each number of digits
_EXTENT_BITS, _DIGIT_BITS = 13, 8


@dataclass(frozen=True, slots=True)
class ExactRows:
    """A table of rows that end with fields, and the layout of these."""

    layout: Layout
    table: Table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: Rows) -> ExactRows:
        """Return some rows; indices and masks copy them."""
        return ExactRows(self.layout, self.table[rows])

    @property
    def fields_at(self) -> int:
        """Return the number of words before the fields."""
        return int(self.table.shape[1]) - self.layout.field_words

    @property
    def counts(self) -> Ints:
        return self.table[:, self.fields_at]

    def copied(self) -> ExactRows:
        """Return the same rows in a table of their own."""
        return ExactRows(self.layout, self.table.copy())

    def reshaped(self, layout: Layout) -> ExactRows:
        """Return the rows in a layout that has room for them."""
        return ExactRows(layout, reshaped(self.table, self.layout, layout, self.fields_at))


def reshaped(table: Table, old: Layout, new: Layout, fields_at: int) -> Table:
    """Return rows in another layout of the same fields; words around the fields stay."""
    if new.at is old.at:
        return table
    return _moved(table, *(moved_sums(each.at.sums_at, fields_at) for each in (old, new)))


def _moved(table: Table, old: Table, new: Table, *, trim: bool = False) -> Table:
    """Return rows with sums where `new` describes them, given where `old` ones are.

    Digits that only one of both has are zero; only with `trim` may the old ones have more.
    """
    copied, has_room = _copies(old.tobytes(), new.tobytes(), table.shape[1])
    if not (trim or has_room):
        msg = "sums of doubles do not fit into the layout of the rows they are added to"
        raise AssertionError(msg)
    out = np.zeros((len(table), copied[-1][1].stop), dtype=np.int64)
    for source, target in copied:
        out[:, target] = table[:, source]
    return out


@lru_cache(maxsize=1024)
def _copies(old: bytes, new: bytes, width: int) -> tuple[list[tuple[slice, slice]], bool]:
    """Return which words of rows go where, and whether all of them have a place."""
    found, has_room = [], True
    done = new_done = 0
    sums = (np.frombuffer(each, dtype=np.int64).reshape(-1, 4).tolist() for each in (old, new))
    for (at, first, count, specials), (to, new_first, new_count, new_specials) in zip(
        *sums, strict=True
    ):
        found.append((slice(done, at), slice(new_done, to)))
        low, high = max(first, new_first), min(first + count, new_first + new_count)
        if low < high:
            own, target = at - first, to - new_first
            found.append((slice(own + low, own + high), slice(target + low, target + high)))
        has_room &= count == 0 or (low, high) == (first, first + count)
        done, new_done = at + count, to + new_count
        if specials >= 0 and new_specials >= 0:
            ends = specials + double_sums.SPECIALS, new_specials + double_sums.SPECIALS
            found.append((slice(specials, ends[0]), slice(new_specials, ends[1])))
        has_room &= specials < 0 or new_specials >= 0
        done += double_sums.SPECIALS * (specials >= 0)
        new_done += double_sums.SPECIALS * (new_specials >= 0)
    found.append((slice(done, width), slice(new_done, new_done + width - done)))
    return found, has_room


def _ends(sums_at: Table) -> Ints:
    """Return the word after those of each sum."""
    specials = sums_at[:, double_sums.SPECIALS_AT]
    digits = sums_at[:, double_sums.PLACE] + sums_at[:, double_sums.COUNT]
    return np.where(specials < 0, digits, specials + double_sums.SPECIALS)


def alike(first: ExactRows, second: ExactRows) -> tuple[ExactRows, ExactRows]:
    """Return both in a layout in which any of their rows may be added and subtracted."""
    layout = first.layout.widened(second.layout.bounds).with_room(len(first) + len(second))
    return first.reshaped(layout), second.reshaped(layout)


def concatenated(*parts: ExactRows) -> ExactRows:
    """Return the rows of all parts, of which there is at least one."""
    layout = reduce(lambda wide, part: wide.widened(part.layout.bounds), parts, parts[0].layout)
    tables = [each.reshaped(layout).table for each in parts]
    return ExactRows(layout, tables[0] if len(tables) == 1 else np.concatenate(tables))


def copies_of(counts: Ints) -> int:
    """Return how many events exact rows have at most if each of some is there `counts` times."""
    return len(counts) * int(np.abs(counts).max(initial=1))


# -- tables as bytes ---------------------------------------------------------------------------


def packed(rows: ExactRows) -> memoryview:
    """Return exact rows as bytes."""
    return packed_at(
        rows.table, moved_sums(rows.layout.at.sums_at, rows.fields_at), rows.layout.bounds
    )


def packed_at(table: Table, sums_at: Table, bounds: Sequence[SumExtent]) -> memoryview:
    """Return any table of exact rows as bytes, given where its sums are and their extents."""
    if len(sums_at) == 0:
        return np.ascontiguousarray(table).reshape(-1).view(np.uint8).data
    spans = tuple(_span(table, *of) for of in sums_at.tolist())
    head = [_described(*pair) for pair in zip(bounds, spans, strict=True)]
    body = _moved(table, sums_at, _spanning(sums_at.tobytes(), spans), trim=True)
    return np.concatenate([np.array(head, dtype=np.int64), body.reshape(-1)]).view(np.uint8).data


def _span(table: Table, at: int, first: int, count: int, specials: int) -> Span:
    """Return the digits of a sum that are not zero in all rows, and whether it has specials."""
    begin, end = 0, count
    while begin < end and not table[:, at + begin].any():
        begin += 1
    while begin < end and not table[:, at + end - 1].any():
        end -= 1
    there = table[:, specials : specials + double_sums.SPECIALS]
    return (first + begin, end - begin, specials >= 0 and bool(there.any()))


@lru_cache(maxsize=1024)
def _spanning(described: bytes, spans: tuple[Span, ...]) -> Table:
    """Return where sums are in rows that have other digits and are alike otherwise."""
    sums_at = np.frombuffer(described, dtype=np.int64).reshape(-1, 4)
    out = sums_at.copy()
    more = 0
    for of, end, (first, count, has_specials) in zip(
        out, _ends(sums_at).tolist(), spans, strict=True
    ):
        place = int(of[double_sums.PLACE]) + more
        of[:] = place, first, count, place + count if has_specials else -1
        more = place + count + double_sums.SPECIALS * has_specials - end
    return out


def _described(extent: SumExtent, span: Span) -> int:
    """Return extent and span of a stored sum as one word."""
    first, count, specials = span
    word = extent.low | extent.high << _EXTENT_BITS
    word |= (first | count << _DIGIT_BITS) << 2 * _EXTENT_BITS
    return word | int(specials) << (2 * _EXTENT_BITS + 2 * _DIGIT_BITS)


@lru_cache(maxsize=256)
def _read_head(head: tuple[int, ...]) -> tuple[tuple[SumExtent, ...], tuple[Span, ...]]:
    """Return the extents of stored sums, and their spans."""
    extents, spans = [], []
    for word in head:
        low, high = (word >> at & (1 << _EXTENT_BITS) - 1 for at in (0, _EXTENT_BITS))
        rest = word >> 2 * _EXTENT_BITS
        first, count = (rest >> at & (1 << _DIGIT_BITS) - 1 for at in (0, _DIGIT_BITS))
        specials = rest >> 2 * _DIGIT_BITS
        extent = SumExtent(low, high, bool(specials))
        begin, digits = extent.digits
        if specials not in (0, 1) or not (
            count == 0 or (begin <= first and first + count <= begin + digits <= double_sums.DIGITS)
        ):
            raise CheckpointError(_DAMAGED)
        extents.append(extent)
        spans.append((first, count, bool(specials)))
    return tuple(extents), tuple(spans)


def unpacked(
    payload: memoryview | bytes, layout: Layout, fields_at: int, into: Layout | None = None
) -> ExactRows:
    """Return the exact rows that bytes hold, in their own layout or in one with room for it.

    `layout` has the fields; rows have `fields_at` words before these.
    """
    target = stored_layout(payload, layout) if into is None else into
    width = fields_at + target.field_words
    table = unpacked_at(payload, moved_sums(target.at.sums_at, fields_at), width)
    return ExactRows(target, table)


def unpacked_at(
    payload: memoryview | bytes, sums_at: Table, width: int, rows: int | None = None
) -> Table:
    """Return any table that bytes hold, in rows that have their sums where they are described.

    If the number of rows is given, they may lack words behind the sums.
    """
    data = np.frombuffer(payload, dtype=np.int64)
    count = len(sums_at)
    if count == 0:
        return data.reshape(-1 if rows is None else rows, -1 if rows is not None else width)
    _, spans = _read_head(_head(payload, count))
    stored = _spanning(sums_at.tobytes(), spans)
    own = width + int(_ends(stored)[-1] - _ends(sums_at)[-1])
    if rows is not None:
        own = (len(data) - count) // max(rows, 1)
    if own == 0 or (len(data) - count) % own:
        raise CheckpointError(_DAMAGED)
    return _moved(data[count:].reshape(-1, own), stored, sums_at)


def stored_layout(payload: memoryview | bytes, layout: Layout) -> Layout:
    """Return the layout of the exact rows that bytes hold."""
    if not layout.sums and type(layout) is Layout:
        return layout
    return replace_extents(layout).widened(_read_head(_head(payload, len(layout.sums)))[0])


def _head(payload: memoryview | bytes, sums: int) -> tuple[int, ...]:
    """Return the words that describe the sums of a stored table."""
    if len(payload) < 8 * sums or len(payload) % 8:
        raise CheckpointError(_DAMAGED)
    return tuple(np.frombuffer(payload[: 8 * sums], dtype=np.int64).tolist())


def replace_extents(layout: Layout, extents: Sequence[SumExtent] = ()) -> Layout:
    """Return a plain layout of exact rows: the same fields with other extents."""
    return Layout(layout.fields, tuple(extents))


# -- sums as a column of bytes -----------------------------------------------------------------


def sums_column(rows: ExactRows) -> pa.Array:
    """Return the sums of doubles of each row as bytes."""
    count = len(rows)
    described = moved_sums(rows.layout.at.sums_at, rows.fields_at)
    sizes = np.empty(count, dtype=np.int64)
    bounds = np.empty((count, 2 * len(rows.layout.sums)), dtype=np.int64)
    double_sum_bytes.measure_sums(rows.table, described, bounds, sizes)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    raw = np.empty(int(offsets[-1]), dtype=np.uint8)
    double_sum_bytes.encode_sums(rows.table, described, bounds, offsets[:-1], raw)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def rows_with_sums(words: Table, column: pa.Array, layout: Layout, copies: int = 1) -> ExactRows:
    """Return rows, given their other words and the bytes of their sums.

    They have room to add up so many copies of each.
    """
    none = replace_extents(layout)
    extents = np.tile(np.array(SumExtent(), dtype=np.int64), (len(none.sums), 1))
    raw, bounds = _raw_bytes(column)
    if not double_sum_bytes.encoded_extents(raw, bounds[:-1], bounds[1:], extents):
        raise CheckpointError(_DAMAGED)
    found = [
        SumExtent(low, high, bool(specials)).with_room(copies)
        for low, high, specials in extents.tolist()
    ]
    wide = replace_extents(layout, found)
    fields_at = words.shape[1] - none.field_words
    table = np.zeros((len(words), fields_at + wide.field_words), dtype=np.int64)
    table[:, : words.shape[1]] = words
    double_sum_bytes.decode_sums(raw, bounds[:-1], moved_sums(wide.at.sums_at, fields_at), table)
    return ExactRows(wide, table)


def _raw_bytes(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the bytes of a binary column, where each value begins, and the end of the last."""
    if len(column) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, dtype=np.uint8), bounds.astype(np.int64)
