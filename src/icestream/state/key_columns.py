"""Key columns as flat buffers: which types a key may have, and how Arrow stores each of them.

Idea: a key schema is a tree; the fields of a struct are its children. Listed from the top (each
struct before its fields) the tree is a list of `KeyNode`s, and a batch is one `KeyColumn` per node:
its Arrow array, read in place through offset and bitmap, and a mask with the state of each row: a
value, null, or absent because a struct above it is null.

Invariants:
    1. The bytes of an array under a null are never read
       (`test_bytes_under_nulls_and_beside_slices_do_not_matter`).
    2. `assemble` is the inverse of `read` (`test_oracle_take_returns_what_was_put`).

Cost: nothing is copied, except that booleans and validity become one byte per row when there are
nulls, and 32-bit floats are widened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from icestream.core.errors import DefinitionError, InputError
from icestream.kernels.hashing import VALUE, plain_floats

Flat = npt.NDArray[Any]
ByteArray = npt.NDArray[np.uint8]

#: the mask of a column all of whose rows are values
ALL_VALUES: ByteArray = np.empty(0, np.uint8)
#: decimals up to this many digits fit one 64-bit word
_SHORT_DIGITS = 18


class KeyLayout(Enum):
    """How the values of a node are stored in memory."""

    INTEGER = auto()
    FLOAT = auto()
    DECIMAL = auto()
    BOOLEAN = auto()
    BYTES = auto()
    STRUCT = auto()
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class KeyNode:
    """One column of a key, or one field of a struct in it."""

    path: str
    type: pa.DataType
    kind: KeyLayout
    #: numbers per value and their type, for numeric kinds
    dtype: np.dtype[Any]
    width: int
    #: position of the struct above in the list of nodes, -1 at the top
    parent: int
    #: position among the columns, or among the fields of the struct
    place: int


class KeyColumn(NamedTuple):
    """The rows of one node in a batch."""

    node: KeyNode
    array: pa.Array
    #: one of ABSENT, NULL, VALUE per row; empty when all are values
    mask: ByteArray


def layout(schema: pa.Schema) -> tuple[KeyNode, ...]:
    """List the nodes of key columns of a schema; DefinitionError, with advice, for other types."""
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            msg = f"the key has two columns named {name!r}; rename one of them"
            raise DefinitionError(msg)
    nodes: list[KeyNode] = []
    for place, field in enumerate(schema):
        _add(nodes, field, field.name, -1, place)
    return tuple(nodes)


def read(nodes: tuple[KeyNode, ...], batch: pa.RecordBatch) -> list[KeyColumn]:
    """Find the key columns in a batch, by name; InputError if they do not match the schema."""
    columns: list[KeyColumn] = []
    for node in nodes:
        if node.parent < 0:
            array, above = _top(node, batch), ALL_VALUES
        else:
            parent = columns[node.parent]
            array, above = parent.array.field(node.place), parent.mask
        columns.append(KeyColumn(node, array, _mask(node, array, above)))
    return columns


def integers(column: KeyColumn) -> Flat:
    """View the values of an INTEGER key column."""
    return _numbers(column.array, column.node.dtype, 1)


def decimals(column: KeyColumn) -> npt.NDArray[np.int64]:
    """View a DECIMAL key column as two words per row, the lower one first."""
    return _numbers(column.array, column.node.dtype, 2).reshape(-1, 2)


def doubles(column: KeyColumn) -> npt.NDArray[np.uint64]:
    """Return the bits of a FLOAT key column, as doubles; not yet canonical."""
    values = _numbers(column.array, column.node.dtype, 1)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        return values.astype(np.float64, copy=False).view(np.uint64)


def booleans(column: KeyColumn) -> ByteArray:
    """Return a BOOLEAN key column as one byte per row."""
    return _bits(column.array, 1)


def ragged(column: KeyColumn) -> tuple[Flat, ByteArray]:
    """View a BYTES key column as offsets, one more than rows, into bytes."""
    array, kind = column.array, offset_type(column.node)
    if len(array) == 0:
        return np.zeros(1, kind), np.empty(0, np.uint8)
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, kind, len(array) + 1, array.offset * kind.itemsize)
    if data is None or data.size == 0:
        return places, np.empty(0, np.uint8)
    return places, np.frombuffer(data, np.uint8)


def plain(column: KeyColumn) -> Flat:
    """Return the canonical values of a FLOAT key column, in its own width."""
    bits = doubles(column)
    out = np.empty(len(bits), np.uint64)
    plain_floats(bits, out)
    return out.view(np.float64).astype(column.node.dtype, copy=False)


class KeyRows(NamedTuple):
    """The rows of one node, to be assembled."""

    #: one byte per row, 1 for a value
    valid: ByteArray
    #: numbers, booleans as bytes, or offsets; nothing for structs and the null type
    values: Flat
    #: bytes that offsets point into
    data: ByteArray = ALL_VALUES


def assemble(
    nodes: tuple[KeyNode, ...], schema: pa.Schema, rows: int, parts: list[KeyRows]
) -> pa.RecordBatch:
    """Build a record batch of key columns, of exactly this schema, from one part per node."""
    below: dict[int, list[pa.Array]] = {position: [] for position in range(-1, len(nodes))}
    for position in range(len(nodes) - 1, -1, -1):
        node, fields = nodes[position], below[position][::-1]
        below[node.parent].append(build(node, rows, parts[position], fields))
    return batch_of(schema, rows, below[-1][::-1])


def build(node: KeyNode, rows: int, part: KeyRows, fields: list[pa.Array]) -> pa.Array:
    """Build the Arrow array of one key column from its part and the arrays of its fields."""
    if node.kind is KeyLayout.NOTHING:
        return pa.nulls(rows)
    buffers = [None if part.valid.all() else _packed(part.valid)]
    if node.kind is KeyLayout.STRUCT:
        return pa.Array.from_buffers(node.type, rows, buffers, children=fields)
    boolean = node.kind is KeyLayout.BOOLEAN
    buffers.append(_packed(part.values) if boolean else pa.py_buffer(part.values))
    if node.kind is KeyLayout.BYTES:
        buffers.append(pa.py_buffer(part.data))
    return pa.Array.from_buffers(node.type, rows, buffers)


def batch_of(schema: pa.Schema, rows: int, arrays: list[pa.Array]) -> pa.RecordBatch:
    """Return a batch of key columns that has the right number of rows even without columns."""
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    empty = pa.Array.from_buffers(pa.struct([]), rows, [None], children=[])
    return pa.RecordBatch.from_struct_array(empty)


def _packed(flags: ByteArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def offset_type(node: KeyNode) -> np.dtype[Any]:
    """Return the width of the offsets of a BYTES key column."""
    large = pt.is_large_string(node.type) or pt.is_large_binary(node.type)
    return np.dtype(np.int64 if large else np.int32)


def _top(node: KeyNode, batch: pa.RecordBatch) -> pa.Array:
    if batch.schema.get_field_index(node.path) < 0:
        msg = f"the key column {node.path!r} is not in the batch, which has {batch.schema.names}"
        raise InputError(msg)
    array = batch.column(node.path)
    if not _same(array.type, node.type):
        msg = f"the key column {node.path!r} is {array.type} in the batch, expected {node.type}"
        raise InputError(msg)
    return array


def _same(found: pa.DataType, expected: pa.DataType) -> bool:
    """Compare types; whether fields of a struct may be null is ignored."""
    if not (pt.is_struct(found) and pt.is_struct(expected)):
        return bool(found == expected)
    return found.num_fields == expected.num_fields and all(
        inner.name == other.name and _same(inner.type, other.type)
        for (_, inner), (_, other) in zip(_fields(found), _fields(expected), strict=True)
    )


def _mask(node: KeyNode, array: pa.Array, above: ByteArray) -> ByteArray:
    if node.kind is KeyLayout.NOTHING:
        own = np.ones(len(array), np.uint8)
    elif array.null_count == 0:
        own = np.full(len(array), VALUE, np.uint8) if above.size else ALL_VALUES
    else:
        own = _bits(array, 0) + np.uint8(1)
    if above.size:
        own *= above == VALUE
    return own


def _numbers(array: pa.Array, dtype: np.dtype[Any], width: int) -> Flat:
    data = array.buffers()[1]
    if len(array) == 0 or data is None:
        return np.zeros(len(array) * width, dtype)
    row = dtype.itemsize * width
    return np.frombuffer(data, dtype, len(array) * width, array.offset * row)


def _bits(array: pa.Array, buffer: int) -> ByteArray:
    data = array.buffers()[buffer]
    if len(array) == 0 or data is None:
        return np.zeros(len(array), np.uint8)
    first, shift = divmod(array.offset, 8)
    packed = np.frombuffer(data, np.uint8, (shift + len(array) + 7) // 8, first)
    return np.unpackbits(packed, count=shift + len(array), bitorder="little")[shift:]


_LAYOUTS: list[tuple[Callable[[pa.DataType], bool], KeyLayout, type]] = [
    (pt.is_boolean, KeyLayout.BOOLEAN, np.uint8),
    (pt.is_int8, KeyLayout.INTEGER, np.int8),
    (pt.is_int16, KeyLayout.INTEGER, np.int16),
    (pt.is_int32, KeyLayout.INTEGER, np.int32),
    (pt.is_int64, KeyLayout.INTEGER, np.int64),
    (pt.is_uint8, KeyLayout.INTEGER, np.uint8),
    (pt.is_uint16, KeyLayout.INTEGER, np.uint16),
    (pt.is_uint32, KeyLayout.INTEGER, np.uint32),
    (pt.is_uint64, KeyLayout.INTEGER, np.uint64),
    (pt.is_date32, KeyLayout.INTEGER, np.int32),
    (pt.is_time64, KeyLayout.INTEGER, np.int64),
    (pt.is_timestamp, KeyLayout.INTEGER, np.int64),
    (pt.is_duration, KeyLayout.INTEGER, np.int64),
    (pt.is_float32, KeyLayout.FLOAT, np.float32),
    (pt.is_float64, KeyLayout.FLOAT, np.float64),
    (pt.is_decimal128, KeyLayout.DECIMAL, np.int64),
    (pt.is_string, KeyLayout.BYTES, np.uint8),
    (pt.is_large_string, KeyLayout.BYTES, np.uint8),
    (pt.is_binary, KeyLayout.BYTES, np.uint8),
    (pt.is_large_binary, KeyLayout.BYTES, np.uint8),
    (pt.is_struct, KeyLayout.STRUCT, np.uint8),
    (pt.is_null, KeyLayout.NOTHING, np.uint8),
]


def _add(nodes: list[KeyNode], field: pa.Field, path: str, parent: int, place: int) -> None:
    fitting = [(kind, dtype) for test, kind, dtype in _LAYOUTS if test(field.type)]
    if not fitting or _is_variant(field.type):
        raise DefinitionError(_advice(field.type, path))
    kind, dtype = fitting[0]
    wide = kind is KeyLayout.DECIMAL and field.type.precision > _SHORT_DIGITS
    nodes.append(KeyNode(path, field.type, kind, np.dtype(dtype), 2 if wide else 1, parent, place))
    if kind is KeyLayout.STRUCT:
        position = len(nodes) - 1
        for below, inner in _fields(field.type):
            _add(nodes, inner, f"{path}.{inner.name}", position, below)


def _fields(struct: pa.DataType) -> Iterator[tuple[int, pa.Field]]:
    return ((place, struct.field(place)) for place in range(struct.num_fields))


def _is_variant(type_: pa.DataType) -> bool:
    """Return whether this is Spark's variant, which arrives as a struct with a marked field."""
    return pt.is_struct(type_) and any(
        (inner.metadata or {}).get(b"variant") == b"true" for _, inner in _fields(type_)
    )


def _advice(type_: pa.DataType, path: str) -> str:
    if pt.is_map(type_):
        remedy = f"group by one of its values, for example {path}['name'], or by to_json({path})"
    elif pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_):
        remedy = f"group by one of its elements, or by to_json({path})"
    elif pt.is_dictionary(type_):
        remedy = f"cast it to {type_.value_type}"
    elif _is_variant(type_):
        remedy = f"group by a typed part of it, for example variant_get({path}, '$.name', 'string')"
    else:
        remedy = "cast it to a number, a string, binary, a date, a timestamp or a struct of these"
    return f"the key column {path!r} has type {type_}, which cannot be a key; {remedy}"
