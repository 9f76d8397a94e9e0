"""Keys of groups: the 128-bit id by which state is sorted and found, and the key values.

Idea: operators know a group only by its id (id_high, id_low) and its slot. `KeyCodec` computes ids
from Arrow batches. `KeyStore` stores the values behind them by slot, in arrays of an arena, until a
result row needs them: fixed-width numbers, one bit per null and per boolean, and variable-length
bytes in one heap that is compacted when half of it is garbage.

Invariants:
    1. Two rows have equal ids exactly when Spark would put them in one group
       (`test_oracle_identities_are_equal_exactly_when_keys_are`).
    2. `take` returns the canonical values that were put last, in exactly the schema's types
       (`test_oracle_take_returns_what_was_put`).
    3. A refused `reserve` or `put` changes no value and holds no more bytes
       (`test_bounded_a_refused_reserve_changes_nothing`).
    4. After `reserve(slots, batch)`, a `put` of that batch below `slots` is not refused, whatever
       was freed in between (`test_bounded_a_reserved_batch_always_fits`).

Cost: identify reads the buffers once; a slot takes the bytes of its columns and, for each
non-empty string or binary, its bytes rounded up to 4 and 8 more.

Limits: 2**32 strings and 16 GB of their bytes per store.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Slots
from icestream.core.errors import BudgetError
from icestream.kernels import byte_heap as heaps
from icestream.kernels import hashing
from icestream.kernels.hashing import ABSENT, VALUE
from icestream.state import key_columns
from icestream.state.arena import Arena, ArenaArray
from icestream.state.budget import Refused
from icestream.state.key_columns import (
    ALL_VALUES,
    ByteArray,
    KeyColumn,
    KeyLayout,
    KeyNode,
    KeyRows,
)

Identity = npt.NDArray[np.uint64]

_NUMBERS = (KeyLayout.INTEGER, KeyLayout.FLOAT, KeyLayout.DECIMAL)
_HEAP_WORDS = 2**32
_TAIL, _GARBAGE = 0, 1
#: slots freed in one step by `trim`, so that it needs no memory of the size of the store
_FREE_AT_ONCE = 65536


class KeyCodec:
    """Equality of keys of a schema, as Spark defines it: the id of each row.

    Null equals null and nothing else, a null struct differs from a struct of nulls, NaN equals
    NaN whatever its bits, -0.0 equals 0.0, and strings are equal when their bytes are.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Use these key columns; DefinitionError, with advice, for types that cannot be keys."""
        self.schema = schema
        #: the columns and the fields of structs, each struct before its fields
        self.nodes = key_columns.layout(schema)

    def columns(self, batch: pa.RecordBatch) -> list[KeyColumn]:
        """Read the key columns of a batch in place; other columns of the batch are ignored."""
        return key_columns.read(self.nodes, batch)

    def identify(self, batch: pa.RecordBatch) -> tuple[Identity, Identity]:
        """Return (id_high, id_low) of every row; InputError if the batch has another schema."""
        id_high = np.full(batch.num_rows, hashing.START_HIGH)
        id_low = np.full(batch.num_rows, hashing.START_LOW)
        for column in self.columns(batch):
            _absorb(column, id_high, id_low)
        return id_high, id_low

    def canonical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the key columns with one kind of NaN and -0.0 as 0.0, as Spark shows keys."""
        columns = self.columns(batch)
        arrays = [column.array for column in columns]
        fields: dict[int, list[int]] = {position: [] for position in range(-1, len(columns))}
        for position in range(len(columns) - 1, -1, -1):
            column = columns[position]
            below = [arrays[inner] for inner in fields[position]]
            changed = any(arrays[i] is not columns[i].array for i in fields[position])
            if changed or column.node.kind is KeyLayout.FLOAT:
                values = key_columns.plain(column) if not changed else ALL_VALUES
                part = KeyRows(_valid(column, batch.num_rows), values)
                arrays[position] = key_columns.build(column.node, batch.num_rows, part, below)
            fields[column.node.parent].insert(0, position)
        top = [arrays[position] for position in fields[-1]]
        return key_columns.batch_of(self.schema, batch.num_rows, top)


class KeyStore:
    """Values of keys by slot, in arrays `prefix.*` of an arena; attaches to existing arrays."""

    def __init__(self, codec: KeyCodec, arena: Arena, prefix: str = "key") -> None:
        """Open the arrays, empty if they are new; nothing is reserved yet."""
        self.codec = codec
        nodes = codec.nodes
        flags = len(nodes) + sum(node.kind is KeyLayout.BOOLEAN for node in nodes)
        self._owner = prefix
        #: bits of one slot: which nodes have values, then the booleans
        self._flags = arena.array(f"{prefix}.flags", np.uint8, max(1, (flags + 7) // 8))
        self._numbers = {
            position: arena.array(f"{prefix}.{position}", node.dtype, node.width)
            for position, node in enumerate(nodes)
            if node.kind in _NUMBERS
        }
        self._texts = [i for i, node in enumerate(nodes) if node.kind is KeyLayout.BYTES]
        self._starts = arena.array(f"{prefix}.starts", np.uint32, max(1, len(self._texts)))
        self._heap = arena.array(f"{prefix}.heap", np.uint32)
        #: tail and garbage of the heap, in words
        self._books = arena.array(f"{prefix}.books", np.int64)
        self._by_slot = [self._flags, *self._numbers.values()]
        if self._texts:
            self._by_slot.append(self._starts)

    @property
    def capacity(self) -> int:
        return min(array.capacity for array in self._by_slot)

    def bytes_needed(self, batch: pa.RecordBatch) -> int:
        """Heap bytes needed to put this batch, without its slots."""
        columns = self.codec.columns(batch)
        return 4 * sum(_words_needed(columns[position]) for position in self._texts)

    def reserve(self, slots: int, incoming: pa.RecordBatch | int = 0) -> None:
        """Make room for slots below `slots` and for a batch, or its heap bytes, about to be put.

        Raises `Refused` or StorageError when there is none even after compaction; then no value has
        changed and no more bytes are held.
        """
        size = incoming if isinstance(incoming, int) else self.bytes_needed(incoming)
        try:
            self._grow(slots, -(-size // 4))
        except Refused:
            if not self._garbage:
                raise
            self._compact()
            self._grow(slots, -(-size // 4))

    def put(self, slots: Slots, batch: pa.RecordBatch) -> None:
        """Store the canonical key of each row under its slot; a key stored there before is dropped.

        Needs no `reserve`, but without one it may raise `Refused` or StorageError, changing
        nothing.
        """
        if len(slots) != batch.num_rows:
            msg = f"{len(slots)} slots do not match {batch.num_rows} keys"
            raise ValueError(msg)
        if len(slots) == 0:
            return
        if int(slots.min()) < 0:
            msg = f"slot {int(slots.min())} is negative"
            raise IndexError(msg)
        columns = self.codec.columns(batch)
        words = sum(_words_needed(columns[position]) for position in self._texts)
        self.reserve(max(self.capacity, int(slots.max()) + 1), 4 * words)
        valid = [_valid(column, len(slots)) for column in columns]
        booleans = [
            key_columns.booleans(column) & flag
            for column, flag in zip(columns, valid, strict=True)
            if column.node.kind is KeyLayout.BOOLEAN
        ]
        _rows(self._flags)[slots] = _pack(valid + booleans, self._flags.width, len(slots))
        for position, array in self._numbers.items():
            array.view[slots] = _stored(columns[position])
        for place, position in enumerate(self._texts):
            column = columns[position]
            tail, garbage = heaps.scatter_bytes(
                self._cells(slots, place),
                *key_columns.ragged(column),
                column.mask,
                self._starts.view.reshape(-1),
                self._heap.view,
                self._tail,
            )
            self._books.view[:2] = tail, self._garbage + garbage
        self._compact_if_half_garbage()

    def take(self, slots: Slots) -> pa.RecordBatch:
        """Return the keys of these slots, in this order; a slot never put or freed is all nulls."""
        self._check(slots)
        nodes, rows = self.codec.nodes, len(slots)
        flags = np.unpackbits(_rows(self._flags)[slots], axis=1, bitorder="little")
        parts, next_boolean, next_text = [], len(nodes), 0
        for position, node in enumerate(nodes):
            valid = np.ascontiguousarray(flags[:, position])
            if node.kind is KeyLayout.BOOLEAN:
                parts.append(KeyRows(valid, flags[:, next_boolean]))
                next_boolean += 1
            elif node.kind is KeyLayout.BYTES:
                parts.append(self._take_bytes(node, self._cells(slots, next_text), valid))
                next_text += 1
            elif node.kind in _NUMBERS:
                parts.append(KeyRows(valid, _shown(node, self._numbers[position].view[slots])))
            else:
                parts.append(KeyRows(valid, ALL_VALUES))
        return key_columns.assemble(nodes, self.codec.schema, rows, parts)

    def free(self, slots: Slots) -> None:
        """Delete the keys of these slots; their bytes become garbage that later puts can reuse."""
        self._check(slots)
        _rows(self._flags)[slots] = 0
        if self._texts and self._books.capacity:
            starts, heap = self._starts.view.reshape(-1), self._heap.view
            for place in range(len(self._texts)):
                cells = self._cells(slots, place)
                self._books.view[_GARBAGE] += heaps.free_bytes(cells, starts, heap)
            self._compact_if_half_garbage()

    def forget(self) -> None:
        """Free all slots; those of keys without text keep their memory."""
        if self._texts:
            self.trim(0)

    def trim(self, slots: int) -> None:
        """Free the slots from `slots` on, and return all unused bytes to the account.

        Reserved room that is not used yet is returned too.
        """
        for first in range(slots, self.capacity, _FREE_AT_ONCE):
            self.free(np.arange(first, min(first + _FREE_AT_ONCE, self.capacity)))
        if self._garbage:
            self._compact()
        for array in self._by_slot:
            if array.capacity > slots:
                array.resize(slots)
        if self._heap.capacity:
            self._heap.resize(self._tail)

    @property
    def _tail(self) -> int:
        return max(heaps.FIRST, int(self._books.view[_TAIL])) if self._books.capacity else 1

    @property
    def _garbage(self) -> int:
        return int(self._books.view[_GARBAGE]) if self._books.capacity else 0

    def _grow(self, slots: int, words: int) -> None:
        targets = [(array, slots) for array in self._by_slot]
        if self._texts:
            tail = self._tail + words
            if max(tail, slots * len(self._texts)) > _HEAP_WORDS:
                msg = f"{self._owner} stores at most 16 GB of strings; use more shards"
                raise BudgetError(msg)
            targets += [(self._books, 2), (self._heap, tail)]
        grown: list[tuple[ArenaArray, int]] = []
        try:
            for array, capacity in targets:
                if array.capacity < capacity:
                    grown.append((array, array.capacity))
                    array.resize(capacity)
        except BaseException:
            for array, before in grown:
                array.resize(before)
            raise

    def _compact_if_half_garbage(self) -> None:
        if 2 * self._garbage > self._tail:
            self._compact()

    def _compact(self) -> None:
        starts = self._starts.view.reshape(-1)
        tail = heaps.compact_bytes(starts, self._heap.view, self._tail)
        self._books.view[:2] = tail, 0

    def _cells(self, slots: Slots, place: int) -> Slots:
        return slots * np.int64(len(self._texts)) + np.int64(place)

    def _check(self, slots: Slots) -> None:
        if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < self.capacity:
            msg = f"slots must be in 0..{self.capacity - 1}; got {slots.min()}..{slots.max()}"
            raise IndexError(msg)

    def _take_bytes(self, node: KeyNode, cells: Slots, valid: ByteArray) -> KeyRows:
        starts, heap = self._starts.view.reshape(-1), self._heap.view
        offsets = np.zeros(len(cells) + 1, np.int64)
        heaps.measure_bytes(cells, starts, heap, offsets)
        kind = key_columns.offset_type(node)
        if offsets[-1] > np.iinfo(kind).max:
            msg = f"{len(cells)} keys hold {offsets[-1]} bytes of {node.path}; take fewer at once"
            raise ValueError(msg)
        data = np.empty(int(offsets[-1]), np.uint8)
        heaps.gather_bytes(cells, starts, heap, offsets, data)
        return KeyRows(valid, offsets.astype(kind, copy=False), data)


def _absorb(column: KeyColumn, id_high: Identity, id_low: Identity) -> None:
    kind, mask = column.node.kind, column.mask
    if kind is KeyLayout.INTEGER:
        hashing.absorb_words(key_columns.integers(column), mask, id_high, id_low)
    elif kind is KeyLayout.BOOLEAN:
        hashing.absorb_words(key_columns.booleans(column), mask, id_high, id_low)
    elif kind is KeyLayout.FLOAT:
        hashing.absorb_floats(key_columns.doubles(column), mask, id_high, id_low)
    elif kind is KeyLayout.BYTES:
        hashing.absorb_bytes(*key_columns.ragged(column), mask, id_high, id_low)
    elif kind is KeyLayout.DECIMAL:
        lower, upper = np.ascontiguousarray(key_columns.decimals(column).T)
        hashing.absorb_words(lower, mask, id_high, id_low)
        if column.node.width == 2:
            hashing.absorb_words(upper, _values_only(mask), id_high, id_low)
    else:
        hashing.absorb_marks(mask, id_high, id_low)


def _values_only(mask: ByteArray) -> ByteArray:
    """Return a mask for the second word of a value: absent wherever there is no value."""
    return np.where(mask == VALUE, VALUE, ABSENT).astype(np.uint8) if mask.size else ALL_VALUES


def _valid(column: KeyColumn, rows: int) -> ByteArray:
    mask = column.mask
    return (mask == VALUE).view(np.uint8) if mask.size else np.ones(rows, np.uint8)


def _words_needed(column: KeyColumn) -> int:
    return int(heaps.words_needed(key_columns.ragged(column)[0], column.mask))


def _stored(column: KeyColumn) -> npt.NDArray[Any]:
    """Return the numbers of a column as stored: zero where there is no value."""
    values: npt.NDArray[Any]
    if column.node.kind is KeyLayout.DECIMAL:
        values = key_columns.decimals(column)
        values = values if column.node.width == 2 else values[:, 0]
    elif column.node.kind is KeyLayout.FLOAT:
        values = key_columns.plain(column)
    else:
        values = key_columns.integers(column)
    if column.mask.size:
        present = column.mask == VALUE
        values = np.where(present if values.ndim == 1 else present[:, None], values, 0)
    return values


def _shown(node: KeyNode, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return stored numbers in Arrow's layout: short decimals get their sign word back."""
    if node.kind is KeyLayout.DECIMAL and node.width == 1:
        return np.stack([stored, stored >> 63], axis=1)
    return stored


def _rows(array: ArenaArray) -> npt.NDArray[Any]:
    return array.view.reshape(-1, array.width)


def _pack(flags: list[ByteArray], width: int, rows: int) -> ByteArray:
    """Pack one byte per flag and row into `width` bytes per row."""
    packed = np.zeros((rows, width), np.uint8)
    for position, flag in enumerate(flags):
        packed[:, position >> 3] |= flag << np.uint8(position & 7)
    return packed


@lru_cache(maxsize=256)
def codec_of(schema: pa.Schema) -> KeyCodec:
    """Return the codec of key columns, the same one for equal schemas."""
    return KeyCodec(schema)


def identified(payload: pa.RecordBatch, keys: tuple[str, ...]) -> tuple[Ids, Ids]:
    """Return (id_high, id_low) of each row, the identity of some columns of its payload."""
    chosen = payload.select(list(keys))
    return codec_of(chosen.schema).identify(chosen)
