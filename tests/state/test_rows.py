"""Batches as words and back."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.state.rows import RowCodec

_INTS = st.integers(-(2**63), 2**63 - 1)
_INSTANTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
_TEXT = st.text(max_size=20)

#: every kind of column, with values for it
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), _INTS),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))),
    (pa.timestamp("us"), _INSTANTS),
    (pa.timestamp("us", "UTC"), _INSTANTS.map(lambda each: each.replace(tzinfo=datetime.UTC))),
    (pa.decimal128(20, 3), st.integers(-(10**18), 10**18).map(lambda n: decimal.Decimal(n) / 1000)),
    (pa.string(), _TEXT),
    (pa.large_string(), _TEXT),
    (pa.binary(), st.binary(max_size=20)),
    (pa.list_(pa.int64()), st.lists(st.none() | _INTS, max_size=5)),
    (pa.large_list(pa.float32()), st.lists(st.floats(width=32, allow_nan=False), max_size=5)),
    (pa.list_(pa.bool_()), st.lists(st.none() | st.booleans(), max_size=9)),
    (pa.list_(pa.string()), st.lists(st.none() | _TEXT, max_size=4)),
    (pa.list_(pa.large_binary()), st.lists(st.none() | st.binary(max_size=9), max_size=4)),
    (
        pa.struct([("x", pa.int16()), ("y", pa.struct([("z", pa.string())]))]),
        st.fixed_dictionaries(
            {
                "x": st.none() | st.integers(-9, 9),
                "y": st.none() | st.fixed_dictionaries({"z": st.none() | _TEXT}),
            }
        ),
    ),
    (pa.null(), st.none()),
]


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Draw a batch of any columns, perhaps cut out of a larger one."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=0, max_size=6))
    count = draw(st.integers(0, 12))
    arrays = []
    for kind, values in kinds:
        cells = st.lists(st.none() | values, min_size=count, max_size=count)
        arrays.append(pa.array(draw(cells), kind))
    schema = pa.schema([(f"c{number}", kind) for number, (kind, _) in enumerate(kinds)])
    batch = (
        pa.RecordBatch.from_arrays(arrays, schema=schema) if kinds else pa.record_batch([], schema)
    )
    first = draw(st.integers(0, batch.num_rows))
    return batch.slice(first, draw(st.integers(0, batch.num_rows - first)))


@settings(max_examples=150, deadline=None)
@given(batches())
def test_parity_any_batch_survives(batch: pa.RecordBatch) -> None:
    codec = RowCodec(batch.schema)
    encoded = codec.encode(batch)
    assert encoded.offsets[-1] == len(encoded.words)
    back = codec.decode(encoded.words, batch.num_rows)
    back.validate(full=True)
    assert back.schema == batch.schema
    assert back.to_pylist() == batch.to_pylist()


@settings(max_examples=50, deadline=None)
@given(batches())
def test_equal_batches_make_equal_words(batch: pa.RecordBatch) -> None:
    codec = RowCodec(batch.schema)
    again = pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema)
    if batch.num_columns:
        assert codec.encode(batch).words.tolist() == codec.encode(again).words.tolist()


def test_words_that_are_no_rows_do_not_fit() -> None:
    codec = RowCodec(pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int8()))]))
    rows = [{"n": 1, "s": "ab", "l": [1, None]}, {"n": 2, "s": None, "l": []}]
    encoded = codec.encode(pa.RecordBatch.from_pylist(rows, schema=codec.schema))
    begins, ends = encoded.offsets[:-1], encoded.offsets[1:]
    assert codec.fits(encoded.words, begins, ends)
    assert codec.fits(encoded.words, begins[:1], ends[-1:])
    assert not codec.fits(encoded.words, begins, ends - 1)
    for place, wrong in [(0, 0), (0, -1), (0, 1 << 62), (2, -1), (2, 9), (3, 2**62), (3, 0)]:
        words = encoded.words.copy()
        words[place] = wrong
        assert not codec.fits(words, begins, ends), (place, wrong)


def test_nulls_where_operators_never_have_any_do_not_fit() -> None:
    ours = [pa.field("__le", pa.int64(), nullable=False), pa.field("__w0", pa.int64())]
    codec = RowCodec(pa.schema([*ours, pa.field("x", pa.int64(), nullable=False)]))
    columns = [pa.array([n], pa.int64()) for n in range(3)]
    encoded = codec.encode(pa.RecordBatch.from_arrays(columns, schema=codec.schema))
    for bit, fits in enumerate((False, True, True)):
        words = encoded.words.copy()
        words[0] |= 1 << bit
        assert codec.fits(words, encoded.offsets[:-1], encoded.offsets[1:]) == fits


def test_words_of_a_column() -> None:
    schema = pa.schema([("name", pa.string()), ("until", pa.int64()), ("x", pa.float64())])
    batch = pa.record_batch([["a", None, "long enough"], [7, 8, 9], [0.5, None, 1.5]], schema)
    codec = RowCodec(schema)
    encoded = codec.encode(batch)
    assert encoded.words[encoded.offsets[:-1] + codec.place("until")].tolist() == [7, 8, 9]
    assert not codec.is_fixed


def test_many_columns_have_more_words_for_nulls() -> None:
    schema = pa.schema([(f"c{n}", pa.int64()) for n in range(70)])
    rows = [{f"c{n}": None if n % 3 else n for n in range(70)}, {f"c{n}": n for n in range(70)}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    codec = RowCodec(schema)
    assert codec.decode(codec.encode(batch).words, 2).equals(batch)


def test_parity_columns_of_one_word_make_the_words_of_other_columns() -> None:
    kinds = [pa.int64(), pa.float64(), pa.timestamp("us", "UTC")]
    schema = pa.schema([(f"c{n}", kind) for n, kind in enumerate(kinds)])
    arrays = [pa.array([-1, 2, 3, 4]).cast(kind) for kind in kinds]
    plain = pa.record_batch(arrays, schema).slice(1, 2)
    codec = RowCodec(schema)
    with_null = pa.record_batch([pa.array([*a.to_pylist(), None], a.type) for a in arrays], schema)
    encoded = codec.encode(plain)
    width = codec.width
    assert encoded.words.tolist() == codec.encode(with_null).words[width : 3 * width].tolist()
    assert codec.decode(encoded.words, 2).equals(plain)


def test_nan_and_minus_zero_keep_their_bits() -> None:
    schema = pa.schema([("x", pa.float64())])
    batch = pa.record_batch([pa.array([float("nan"), -0.0])], schema)
    codec = RowCodec(schema)
    back = codec.decode(codec.encode(batch).words, 2).column(0).to_numpy()
    assert back.view(np.int64).tolist() == batch.column(0).to_numpy().view(np.int64).tolist()


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.decimal128(20, 3)),
        pa.map_(pa.string(), pa.int64()),
        pa.struct([("deep", pa.list_(pa.list_(pa.int64())))]),
    ],
)
def test_what_cannot_be_kept_is_named(kind: pa.DataType) -> None:
    with pytest.raises(DefinitionError, match="'odd"):
        RowCodec(pa.schema([("odd", kind)]))
