"""Arrow batches as rows of 64-bit words, and back.

Idea: a row is a word with its length and null bits, one or more words for every value of fixed
width, a count for every value of variable length, then the bytes of those. Structs are flattened; a
list of strings is the list of their lengths and all their bytes.
Values are copied column by column; nothing is done per row in Python.

Invariants:
1. Decoding returns the batch, with exactly its schema (`test_parity_any_batch_survives`).
2. Equal batches make equal words (`test_equal_batches_make_equal_words`).
3. The value of a fixed column is at the same word of every row (`test_words_of_a_column`).
4. Words that `fits` accepts can be traversed and decoded
   (`test_words_that_are_no_rows_do_not_fit`).

Cost: one pass per column; 8 bytes for each value, 8 for each row.

Limits: no dictionaries, maps, views, or lists of anything but plain fixed-width values and strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Bytes, Ints, Mask
from icestream.core.errors import DefinitionError
from icestream.kernels import rows as kernels

#: null bits in one word
BITS = 32
_NULLS = (1 << BITS) - 1
_LIST_UNITS = (8, 1)
_BYTE_UNITS = (1,)


@dataclass(frozen=True)
class Encoded:
    """Rows as words."""

    words: Ints
    #: where each row begins, and where the last one ends
    offsets: Ints


@dataclass
class _Node:
    """A column, or a part of one."""

    kind: pa.DataType
    #: its null bit
    bit: int
    #: words of a fixed value, 0 for others
    width: int = 0
    #: sizes of the elements of a variable value
    units: tuple[int, ...] = ()
    #: position of its words, or its count, in the fixed part
    place: int = 0
    children: list[_Node] = field(default_factory=list)

    def walk(self) -> Iterator[_Node]:
        yield self
        for child in self.children:
            yield from child.walk()


class RowCodec:
    """Turns batches of one schema into words and back."""

    def __init__(self, schema: pa.Schema) -> None:
        """Compute the layout; DefinitionError names the first column that cannot be stored."""
        self.schema = schema
        bits = iter(range(1 << 20))
        self._columns = [_node(item.name, item.type, bits) for item in schema]
        nodes = [node for column in self._columns for node in column.walk()]
        #: words before the values
        self._head = max(1, -(-len(nodes) // BITS))
        place = self._head
        for node in sorted(nodes, key=lambda each: bool(each.units)):
            node.place = place
            place += node.width or len(node.units[:1])
        #: words of a row before its bytes of variable length; of the whole row if there are none
        self.width = place
        self._variable = [node for node in nodes if node.units]
        self._nodes = nodes
        pieces = [(node.place, unit) for node in self._variable for unit in node.units]
        #: of the pieces of variable length: the word with the count, bytes of a unit
        self._pieces = np.array(pieces, dtype=np.int64).reshape(-1, 2).T.copy()
        ours = [
            node.bit
            for item, node in zip(schema, self._columns, strict=True)
            if item.name.startswith("__") and not item.nullable and node.bit < BITS
        ]
        #: null bits of columns that operators add, which are never null
        self._never = sum(1 << bit for bit in ours)
        #: whether each column is one word, without a conversion
        self._is_plain = all(node.width == 1 and node.kind.bit_width == 64 for node in nodes)

    @property
    def is_fixed(self) -> bool:
        """Return whether all rows have `width` words."""
        return not self._variable

    def place(self, name: str) -> int:
        """Return the word of a row that holds a column of fixed width."""
        number: int = self.schema.get_field_index(name)
        return self._columns[number].place

    # -- to words --------------------------------------------------------------------------

    def encode(self, batch: pa.RecordBatch) -> Encoded:
        arrays, pieces = batch.columns, list[tuple[_Node, Ints, list[tuple[Bytes, Ints]]]]()
        if self._is_plain and batch.num_rows and not any(each.null_count for each in arrays):
            fixed = self._plain_words(arrays, batch.num_rows)
        else:
            fixed = np.zeros((batch.num_rows, self.width), dtype=np.int64)
            for node, array in zip(self._columns, arrays, strict=True):
                self._put(node, array, fixed, pieces)
        if not pieces:
            fixed[:, 0] |= self.width << 32
            return Encoded(fixed.reshape(-1), self.width * np.arange(batch.num_rows + 1))
        sizes = np.full(batch.num_rows, self.width, dtype=np.int64)
        for node, counts, _ in pieces:
            for unit in node.units:
                sizes += (counts * unit + 7) >> 3
        fixed[:, 0] |= sizes << 32
        offsets = np.zeros(batch.num_rows + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        words = np.zeros(int(offsets[-1]), dtype=np.int64)
        kernels.spread_fixed(fixed, offsets[:-1], words)
        places = (offsets[:-1] + self.width) * 8
        for node, counts, parts in pieces:
            for unit, (data, begins) in zip(node.units, parts, strict=True):
                kernels.put_ragged(words.view(np.uint8), places, data, begins, counts, unit)
        return Encoded(words, offsets)

    def _plain_words(self, arrays: Sequence[pa.Array], count: int) -> Ints:
        """Return columns of single words without nulls as rows, with heads that are zero."""
        columns = np.zeros((self.width, count), dtype=np.int64)
        for node, array in zip(self._columns, arrays, strict=True):
            values = array.buffers()[1]
            columns[node.place] = np.frombuffer(values, np.int64, count, 8 * array.offset)
        return columns.T.copy()

    def _put(
        self,
        node: _Node,
        array: pa.Array,
        fixed: Ints,
        pieces: list[tuple[_Node, Ints, list[tuple[Bytes, Ints]]]],
    ) -> None:
        valid = _valid(array)
        if valid is not None:
            word, bit = divmod(node.bit, BITS)
            fixed[:, word] |= (~valid).astype(np.int64) << bit
        if node.children:
            nested = pa.types.is_struct(node.kind)
            parts_of = [array.field(n) for n in range(len(node.children))] if nested else []
            for child, part in zip(node.children, parts_of or _packed(array), strict=True):
                self._put(child, part, fixed, pieces)
        elif node.units:
            counts, parts = _elements(node, array, valid)
            fixed[:, node.place] = counts
            pieces.append((node, counts, parts))
        elif node.width:
            values = _words_of(array, node)
            if valid is not None:
                values = np.where(valid[:, None], values, 0)
            fixed[:, node.place : node.place + node.width] = values

    # -- and back --------------------------------------------------------------------------

    def fits(self, words: Ints, begins: Ints, ends: Ints) -> bool:
        """Return whether the words between places are whole rows; to check words read from files.

        Nothing else checks: rows in memory are trusted.
        """
        return bool(kernels.rows_fit(words, begins, ends, self.width, self._never, *self._pieces))

    def decode(self, words: Ints, count: int) -> pa.RecordBatch:
        """Return the `count` rows in `words` as a batch."""
        places = np.zeros(0, dtype=np.int64)
        if self.is_fixed:
            fixed = words.reshape(count, self.width)
        else:
            starts = np.empty(count, dtype=np.int64)
            kernels.row_starts(words, starts)
            fixed = np.empty((count, self.width), dtype=np.int64)
            kernels.collect_fixed(words, starts, fixed)
            places = (starts + self.width) * 8
        raw = words.view(np.uint8)
        parts: dict[int, list[Bytes]] = {}
        for node in self._variable:
            counts = np.ascontiguousarray(fixed[:, node.place])
            parts[node.place] = []
            for unit in node.units:
                out = np.empty(int(counts.sum()) * unit, dtype=np.uint8)
                kernels.take_ragged(raw, places, counts, unit, out)
                parts[node.place].append(out)
        columns = fixed.T.copy()
        has_nulls = bool((columns[: self._head] & _NULLS).any())
        if self._is_plain and not has_nulls:
            values, size = pa.py_buffer(columns), 8 * count
            arrays = [
                pa.Array.from_buffers(
                    node.kind, count, [None, values.slice(node.place * size, size)]
                )
                for node in self._columns
            ]
        else:
            arrays = [self._take(node, columns, parts, has_nulls) for node in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _take(
        self, node: _Node, columns: Ints, parts: dict[int, list[Bytes]], has_nulls: bool
    ) -> pa.Array:
        word, bit = divmod(node.bit, BITS)
        valid = (columns[word] >> bit) & 1 == 0 if has_nulls else None
        count = columns.shape[1]
        if pa.types.is_null(node.kind):
            return pa.nulls(count)
        if node.children:
            children = [self._take(child, columns, parts, has_nulls) for child in node.children]
            if not pa.types.is_struct(node.kind):
                return _unpacked(children[0], children[1], node.kind, valid)
            mask = None if valid is None or valid.all() else pa.array(~valid)
            return pa.StructArray.from_arrays(children, fields=list(node.kind), mask=mask)
        if not node.units:
            return _array_of(columns[node.place : node.place + node.width], node.kind, valid)
        wide = pa.types.is_large_list(node.kind) or str(node.kind).startswith("large_")
        offsets = np.zeros(count + 1, dtype=np.int64 if wide else np.int32)
        np.cumsum(columns[node.place], out=offsets[1:])
        buffers = [_bitmap(valid), pa.py_buffer(offsets)]
        found = parts[node.place]
        if node.units == _BYTE_UNITS:
            return pa.Array.from_buffers(node.kind, count, [*buffers, pa.py_buffer(found[0])])
        element = node.kind.value_type
        values = _array_of(found[0].view(np.int64)[None], element, found[1] == 0)
        return pa.Array.from_buffers(node.kind, count, buffers, children=[values])


def _node(name: str, kind: pa.DataType, bits: Iterator[int]) -> _Node:
    """Compute the layout of one column."""
    types = pa.types
    node = _Node(kind, next(bits))
    if types.is_struct(kind) and kind.num_fields:
        node.children = [_node(f"{name}.{item.name}", item.type, bits) for item in kind]
    elif _is_text(kind):
        node.units = _BYTE_UNITS
    elif (types.is_list(kind) or types.is_large_list(kind)) and _width(kind.value_type) == 1:
        node.units = _LIST_UNITS
    elif types.is_list(kind) and _is_text(kind.value_type):
        lengths = pa.list_(pa.int32())
        node.children = [_node(name, each, bits) for each in (lengths, pa.large_binary())]
    elif not types.is_null(kind):
        node.width = _width(kind)
        if node.width == 0:
            msg = (
                f"column {name!r} of type {kind} cannot be stored as state by group; leave it "
                "out with select(...), or cast it to numbers, strings, structs of those, or lists "
                "of numbers or strings"
            )
            raise DefinitionError(msg)
    return node


def _packed(lists: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return lists of strings as lists of lengths, -1 for null, and the bytes of each list."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int32)]).astype(np.int32)
    strings = lists.flatten()
    lengths = pc.fill_null(pc.binary_length(strings).cast(pa.int32()), -1)
    whole = pc.fill_null(strings.cast(pa.large_binary()), b"")
    _, ends, data = whole.buffers()
    bounds = np.zeros(1, dtype=np.int64)
    if len(whole):
        bounds = np.frombuffer(ends, dtype=np.int64)[whole.offset : whole.offset + len(whole) + 1]
    joined = pa.py_buffer(np.ascontiguousarray(bounds[offsets]))
    return (
        pa.ListArray.from_arrays(pa.array(offsets), lengths),
        pa.Array.from_buffers(pa.large_binary(), len(lists), [None, joined, data]),
    )


def _unpacked(lengths: pa.Array, data: pa.Array, kind: pa.DataType, valid: Mask | None) -> pa.Array:
    """Return lists of strings that were packed."""
    sizes = np.asarray(lengths.values.to_numpy(zero_copy_only=False)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0))])
    element = kind.value_type
    offsets = offsets.astype(np.int64 if _is_large(element) else np.int32)
    buffers = [_bitmap(sizes >= 0), pa.py_buffer(offsets), data.buffers()[2]]
    strings = pa.Array.from_buffers(element, len(sizes), buffers)
    outer = [_bitmap(valid), lengths.buffers()[1]]
    return pa.Array.from_buffers(kind, len(lengths), outer, children=[strings])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _width(kind: pa.DataType) -> int:
    """Return the words of a fixed value; 0 for other kinds."""
    if pa.types.is_decimal128(kind):
        return 2
    plain = pa.types.is_primitive(kind) and kind.bit_width in (1, 8, 16, 32, 64)
    return int(plain)


def _valid(array: pa.Array) -> Mask | None:
    """Return which values are not null; None if none is null."""
    if array.null_count == 0:
        return None
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


def _words_of(array: pa.Array, node: _Node) -> Ints:
    """Return fixed values as rows of words; nulls have arbitrary words."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    count = len(array)
    values = array.buffers()[1]
    if values is None:
        return np.zeros((count, node.width), dtype=np.int64)
    if node.width == 2:
        pairs = np.frombuffer(values, dtype=np.int64)
        return pairs[2 * array.offset : 2 * (array.offset + count)].reshape(count, 2)
    kind = np.dtype(f"i{array.type.bit_width // 8}")
    flat = np.frombuffer(values, dtype=kind)[array.offset : array.offset + count]
    return flat.astype(np.int64, copy=False)[:, None]


def _elements(
    node: _Node, array: pa.Array, valid: Mask | None
) -> tuple[Ints, list[tuple[Bytes, Ints]]]:
    """Return the number of elements of each value, and bytes and start of each unit."""
    buffers = array.buffers()
    count = len(array)
    wide = np.int64 if _is_large(array.type) or pa.types.is_large_list(array.type) else np.int32
    if count == 0 or buffers[1] is None:
        none = np.zeros(count, dtype=np.int64)
        return none, [(np.zeros(0, dtype=np.uint8), none) for _ in node.units]
    offsets = np.frombuffer(buffers[1], dtype=wide)[array.offset : array.offset + count + 1]
    begins = offsets[:-1].astype(np.int64)
    counts = np.diff(offsets).astype(np.int64)
    if valid is not None:
        counts[~valid] = 0
    if node.units == _BYTE_UNITS:
        empty = buffers[2] is None
        data = np.zeros(0, dtype=np.uint8) if empty else np.frombuffer(buffers[2], dtype=np.uint8)
        return counts, [(data, begins)]
    first, last = int(offsets[0]), int(offsets[-1])
    child = array.values.slice(first, last - first)
    there = _valid(child)
    words = _words_of(child, _Node(child.type, 0, width=1))[:, 0]
    missing = np.zeros(len(child), dtype=np.uint8)
    if there is not None:
        words = np.where(there, words, 0)
        missing[~there] = 1
    begins -= first
    return counts, [(np.ascontiguousarray(words).view(np.uint8), begins), (missing, begins)]


def _array_of(words: Ints, kind: pa.DataType, valid: Mask | None) -> pa.Array:
    """Return columns of words as an array of a fixed-width type; wide values are not copied."""
    values: npt.NDArray[Any] = words[0]
    if len(words) == 2:
        values = np.ascontiguousarray(words.T)
    elif kind.bit_width == 1:
        values = np.packbits(values != 0, bitorder="little")
    elif kind.bit_width < 64:
        values = values.astype(f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, words.shape[1], [_bitmap(valid), pa.py_buffer(values)])


def _bitmap(valid: Mask | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
