from __future__ import annotations

import datetime as dt
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icestream.core.errors import BudgetError, DefinitionError, InputError
from icestream.state import keys
from icestream.state.arena import Arena
from icestream.state.budget import Account, Budget, Refused
from icestream.state.keys import KeyCodec, KeyStore

UTC = dt.UTC
PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
EPOCH = dt.datetime(1970, 1, 1)


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.integers(max(low, -2), 2), st.sampled_from([low, high]))


TEXTS = st.one_of(st.text("ab\0", max_size=3), st.text(max_size=20))
BLOBS = st.one_of(st.binary(max_size=3), st.binary(max_size=20))
DAYS = st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 3))
MOMENTS = st.sampled_from([EPOCH, dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime.max])
FLOATS = st.sampled_from([0.0, -0.0, float("nan"), float("-inf"), 1.5, -1.5, 2.0**-149])
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int8(), integers(8, True)),
    (pa.int16(), integers(16, True)),
    (pa.int32(), integers(32, True)),
    (pa.int64(), integers(64, True)),
    (pa.uint8(), integers(8, False)),
    (pa.uint16(), integers(16, False)),
    (pa.uint32(), integers(32, False)),
    (pa.uint64(), integers(64, False)),
    (pa.float32(), FLOATS),
    (pa.float64(), FLOATS),
    (pa.decimal128(9, 2), st.decimals(-2, 2, places=2)),
    (pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    (pa.decimal128(38, 6), st.sampled_from([Decimal(0), Decimal(-1), Decimal(2**90)])),
    (pa.date32(), DAYS),
    (pa.time64("us"), st.sampled_from([dt.time(0), dt.time(23, 59, 59, 999999)])),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us", tz="UTC"), MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
    (pa.duration("us"), st.sampled_from([dt.timedelta(0), dt.timedelta(-1), dt.timedelta(9, 9)])),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), BLOBS),
    (pa.large_binary(), BLOBS),
    (pa.null(), st.none()),
]


def struct_of(
    inner: st.SearchStrategy[tuple[Any, Any]],
) -> st.SearchStrategy[tuple[Any, Any]]:
    def make(fields: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        names = [f"f{i}" for i in range(len(fields))]
        kinds = [pa.field(name, kind) for name, (kind, _) in zip(names, fields, strict=True)]
        values = {name: st.none() | v for name, (_, v) in zip(names, fields, strict=True)}
        return pa.struct(kinds), st.fixed_dictionaries(values)

    return st.lists(inner, max_size=3).map(make)


COLUMNS = st.recursive(st.sampled_from(LEAVES), struct_of, max_leaves=4)


@st.composite
def batches(draw: st.DrawFn, min_rows: int = 0) -> pa.RecordBatch:
    """Draw columns of any types, with nulls, each cut out of a longer array."""
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=3))
    rows = draw(st.integers(min_rows, 12))
    arrays = []
    for kind, values in columns:
        cells = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        before, after = (draw(st.lists(st.none() | values, max_size=size)) for size in (9, 2))
        arrays.append(pa.array(before + cells + after, kind).slice(len(before), rows))
    fields = [pa.field(f"c{i}", kind) for i, (kind, _) in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def plain(value: object) -> object:
    """Say what Spark groups by, as a hashable Python value."""
    if isinstance(value, dict):
        return tuple(plain(inner) for inner in value.values())
    if isinstance(value, float):
        return "nan" if value != value else ("float", value + 0.0)
    return value


def exact(value: object) -> object:
    """Tell apart what `==` does not: the bits of floats."""
    if isinstance(value, dict):
        return tuple(exact(inner) for inner in value.values())
    return struct.pack("<d", value) if isinstance(value, float) else value


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in batch.to_pylist()]


def identities(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    id_high, id_low = KeyCodec(batch.schema).identify(batch)
    assert id_high.dtype == id_low.dtype == np.uint64
    return list(zip(id_high.tolist(), id_low.tolist(), strict=True))


def one(kind: pa.DataType, values: list[Any] | npt.NDArray[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["k"])


def store(codec: KeyCodec, folder: Path, total: int = 1 << 30) -> tuple[KeyStore, Arena, Account]:
    account = Budget(total).account("keys")
    arena = Arena.create(str(folder), account)
    return KeyStore(codec, arena), arena, account


@settings(max_examples=300, deadline=None)
@given(batches())
def test_oracle_identities_are_equal_exactly_when_keys_are(batch: pa.RecordBatch) -> None:
    groups: dict[Any, set[tuple[int, int]]] = {}
    for row, identity in zip(rows_of(batch), identities(batch), strict=True):
        groups.setdefault(tuple(plain(value) for value in row), set()).add(identity)
    assert all(len(found) == 1 for found in groups.values())
    assert len(set.union(set(), *groups.values())) == len(groups)


#: computed once; checkpoints depend on them, so they never change
GOLDEN: list[tuple[pa.DataType, Any, int, int]] = [
    (pa.int64(), 0, 0xE9E0033E3BADAF36, 0x72DEE428A469F6FD),
    (pa.int64(), 1, 0x820477342D9C40C0, 0xBDBA506D8C22CA60),
    (pa.int64(), -1, 0x29ABBD84E8A2A2C0, 0x950EEA8001AF9644),
    (pa.int64(), 2**63 - 1, 0xA03718D87FB99F3B, 0x6504E3D2635D580F),
    (pa.int64(), None, 0xF05A5797DE275BD1, 0x7BC2656470EDC395),
    (pa.float64(), 0.0, 0xE9E0033E3BADAF36, 0x72DEE428A469F6FD),
    (pa.float64(), 1.5, 0x72B9EA044BDE8436, 0xE23882E641D1091B),
    (pa.float64(), float("nan"), 0x29F5080CADA621C6, 0x9132074D7E1EA757),
    (pa.float32(), 1.5, 0x72B9EA044BDE8436, 0xE23882E641D1091B),
    (pa.decimal128(9, 2), Decimal("1.25"), 0x2EAB0606F259F24E, 0xBDA227A7C5F9EB87),
    (pa.decimal128(38, 0), Decimal(10**37), 0x2917D9FA14853010, 0x7C1F5AE8AD429A5B),
    (pa.decimal128(38, 0), Decimal(-1), 0x501EAFEB78AE3E09, 0x7D33D60FEAFE6524),
    (pa.date32(), dt.date(2020, 1, 2), 0x82A9634CAB059309, 0xFEF9D840F106E5E8),
    (pa.timestamp("us"), dt.datetime(2020, 1, 2), 0xE026C627467A9724, 0x8503CE37B0D8ABF2),
    (pa.bool_(), True, 0x820477342D9C40C0, 0xBDBA506D8C22CA60),
    (pa.string(), "", 0xE9E0033E3BADAF36, 0x72DEE428A469F6FD),
    (pa.string(), "a", 0x74D5DF3E26D6AB0E, 0x844742CD4194E4CB),
    (pa.string(), "hello world", 0x236EBDA2B4AF62AC, 0x8A629C58AA5443AD),
    (pa.string(), "sixteen bytes!!!", 0xDBDFDED34ABB906C, 0xC7638264FA3352B4),
    (pa.binary(), b"\0", 0x6A9A55DF53E94F74, 0x452C1DBA02B94F06),
    (pa.null(), None, 0xF05A5797DE275BD1, 0x7BC2656470EDC395),
    (PAIR, None, 0xF05A5797DE275BD1, 0x7BC2656470EDC395),
    (PAIR, {"a": None, "b": None}, 0x82012CF5573C879C, 0x4943F132717A2CBD),
    (PAIR, {"a": 1, "b": "x"}, 0x77C35283F4FE4408, 0x8A54E60EC6BA23D7),
]


@pytest.mark.parametrize(("kind", "value", "id_high", "id_low"), GOLDEN, ids=str)
def test_golden_identities(kind: pa.DataType, value: object, id_high: int, id_low: int) -> None:
    assert identities(one(kind, [value])) == [(id_high, id_low)]


def test_columns_are_combined_in_order() -> None:
    first = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "b"])
    second = pa.RecordBatch.from_arrays([pa.array([2]), pa.array([1])], names=["a", "b"])
    assert identities(first) != identities(second)


def test_strings_do_not_run_into_each_other() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["ab", "a", "", "abc"]), pa.array(["c", "bc", "abc", ""])], names=["a", "b"]
    )
    assert len(set(identities(batch))) == 4


def test_a_null_struct_is_not_a_struct_of_nulls() -> None:
    kind = pa.struct([("x", pa.struct([("y", pa.int32())]))])
    assert len(set(identities(one(kind, [None, {"x": None}, {"x": {"y": None}}])))) == 3


def test_every_nan_is_the_same_and_zero_has_no_sign() -> None:
    bits = np.array([0x7FF8 << 48, 0xFFF8 << 48, (0x7FF0 << 48) + 1, 0, 1 << 63], np.uint64)
    batch = one(pa.float64(), bits.view(np.float64))
    found = identities(batch)
    assert found[0] == found[1] == found[2] != found[3] == found[4]
    narrow = np.array([0x7FC00000, 0xFF800001, 0, 1 << 31], np.uint32).view(np.float32)
    assert identities(one(pa.float32(), narrow)) == [found[i] for i in (0, 0, 3, 3)]
    plain_batch = KeyCodec(batch.schema).canonical(batch)
    assert plain_batch.column(0).to_numpy().view(np.uint64).tolist() == [0x7FF8 << 48] * 3 + [0] * 2


def test_bytes_under_nulls_and_beside_slices_do_not_matter() -> None:
    bitmap = pa.py_buffer(bytes([0b0101]))
    inner = pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(np.array([1, 2, 3, 4]))])
    kind = pa.struct([("x", pa.int64())])
    dirty = pa.Array.from_buffers(kind, 4, [bitmap], children=[inner])
    batch = pa.RecordBatch.from_arrays([dirty], names=["k"])
    assert identities(batch) == identities(one(kind, [{"x": 1}, None, {"x": 3}, None]))
    assert identities(batch.slice(1, 2)) == identities(one(kind, [None, {"x": 3}]))
    offsets = pa.py_buffer(np.array([0, 1, 3, 4, 6], np.int32))
    text = pa.Array.from_buffers(pa.string(), 4, [bitmap, offsets, pa.py_buffer(b"abbcdd")])
    words = pa.RecordBatch.from_arrays([text], names=["k"])
    assert identities(words) == identities(one(pa.string(), ["a", None, "c", None]))
    assert identities(words.slice(1, 2)) == identities(one(pa.string(), [None, "c"]))


def test_the_width_of_an_integer_does_not_change_its_identity() -> None:
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.date32()]
    assert len({tuple(identities(one(kind, [5]))) for kind in kinds}) == 1
    assert identities(one(pa.int8(), [-5])) == identities(one(pa.int64(), [-5]))


def test_a_key_without_columns_is_one_group(tmp_path: Path) -> None:
    codec = KeyCodec(pa.schema([]))
    batch = one(pa.int64(), [1, 2, 3])
    id_high, id_low = codec.identify(batch)
    assert len(set(id_high.tolist())) == len(set(id_low.tolist())) == 1
    assert codec.canonical(batch).num_rows == 3
    keep, _, _ = store(codec, tmp_path)
    keep.put(np.arange(3), batch)
    taken = keep.take(np.array([2, 0]))
    assert (taken.num_rows, taken.num_columns) == (2, 0)


def test_key_columns_are_found_by_name_among_others() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([9]), pa.array(["x"]), pa.array([1])], names=["extra", "b", "a"]
    )
    codec = KeyCodec(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    id_high, id_low = codec.identify(batch)
    expected = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["x"])], names=["a", "b"])
    assert list(zip(id_high.tolist(), id_low.tolist(), strict=True)) == identities(expected)
    assert codec.canonical(batch).equals(expected)


def test_a_batch_of_other_types_is_an_input_error() -> None:
    codec = KeyCodec(pa.schema([("k", pa.int64())]))
    with pytest.raises(InputError, match="'k' is string in the batch, expected int64"):
        codec.identify(one(pa.string(), ["x"]))
    with pytest.raises(InputError, match="'k' is not in the batch"):
        codec.identify(pa.RecordBatch.from_arrays([pa.array([1])], names=["other"]))


def test_whether_a_field_may_be_null_is_not_part_of_its_type() -> None:
    strict = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    loose = pa.struct([("x", pa.int64())])
    batch = one(strict, [{"x": 1}])
    id_high, _ = KeyCodec(pa.schema([("k", loose)])).identify(batch)
    assert id_high[0] == identities(batch)[0][0]


VARIANT = pa.struct(
    [
        pa.field("value", pa.binary()),
        pa.field("metadata", pa.binary(), metadata={"variant": "true"}),
    ]
)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.map_(pa.string(), pa.int64()), r"k\['name'\]"),
        (pa.list_(pa.int64()), "elements"),
        (pa.struct([("inner", pa.large_list(pa.int64()))]), r"k\.inner.*elements"),
        (pa.dictionary(pa.int32(), pa.string()), "cast it to string"),
        (VARIANT, "variant_get"),
        (pa.month_day_nano_interval(), "cast it"),
        (pa.float16(), "cast it"),
    ],
    ids=str,
)
def test_types_that_cannot_be_keys_are_refused_with_advice(kind: pa.DataType, advice: str) -> None:
    with pytest.raises(DefinitionError, match=advice):
        KeyCodec(pa.schema([("k", kind)]))


def test_two_key_columns_of_one_name_are_refused() -> None:
    with pytest.raises(DefinitionError, match="two columns named 'k'"):
        KeyCodec(pa.schema([("k", pa.int64()), ("k", pa.string())]))


def test_a_codec_survives_pickling() -> None:
    batch = one(pa.string(), ["x", None])
    codec = pickle.loads(pickle.dumps(KeyCodec(batch.schema)))
    np.testing.assert_array_equal(codec.identify(batch), KeyCodec(batch.schema).identify(batch))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches(min_rows=1), st.data())
def test_oracle_take_returns_what_was_put(
    tmp_path: Path, batch: pa.RecordBatch, data: st.DataObject
) -> None:
    codec = KeyCodec(batch.schema)
    keep, arena, account = store(codec, tmp_path)
    truth: dict[int, tuple[Any, ...]] = {}
    rows = rows_of(codec.canonical(batch))
    nothing = tuple(None for _ in batch.schema.names)
    for _ in range(data.draw(st.integers(1, 5))):
        order = data.draw(st.permutations(range(12)))
        picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
        slots = np.array(order[: len(picked)], np.int64)
        keep.put(slots, batch.take(pa.array(picked, pa.int64())))
        truth.update({s: rows[row] for s, row in zip(slots.tolist(), picked, strict=True)})
        freed = np.array([s for s in order[6:] if s < keep.capacity], np.int64)
        keep.free(freed)
        truth = {s: row for s, row in truth.items() if s not in freed.tolist()}
        if data.draw(st.booleans()):
            keep.trim(12)
        if data.draw(st.booleans()):
            arena.release("named")
            claimed = Arena.claim(str(tmp_path), "named", account)
            assert claimed is not None
            arena, keep = claimed, KeyStore(codec, claimed)
        assert arena.bytes == account.held
        asked = np.array([s for s in order if s < keep.capacity], np.int64)
        taken = keep.take(asked)
        taken.validate(full=True)
        assert taken.schema.equals(batch.schema, check_metadata=True)
        expected = [truth.get(s, nothing) for s in asked.tolist()]
        assert [[exact(v) for v in r] for r in rows_of(taken)] == [
            [exact(v) for v in r] for r in expected
        ]
        id_high, _ = codec.identify(taken)
        again, _ = codec.identify(pa.RecordBatch.from_pylist(taken.to_pylist(), batch.schema))
        assert id_high.tolist() == again.tolist()
    arena.discard()


@pytest.mark.sample(10)
@pytest.mark.parametrize(("kind", "values"), LEAVES, ids=[str(kind) for kind, _ in LEAVES])
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_oracle_each_type_alone_and_in_a_struct(
    tmp_path: Path, kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    cells = data.draw(st.lists(st.none() | values, min_size=1, max_size=30))
    inside = data.draw(st.lists(st.booleans(), min_size=len(cells), max_size=len(cells)))
    rows = [{"x": cell} if flag else None for cell, flag in zip(cells, inside, strict=True)]
    for batch in (one(kind, cells), one(pa.struct([("x", kind)]), rows)):
        groups = {
            (plain(row[0]), found)
            for row, found in zip(rows_of(batch), identities(batch), strict=True)
        }
        assert len(groups) == len({key for key, _ in groups}) == len({found for _, found in groups})
        codec = KeyCodec(batch.schema)
        keep, arena, _ = store(codec, tmp_path)
        slots = np.array(data.draw(st.permutations(range(len(cells)))), np.int64)
        keep.put(slots, batch)
        taken, expected = rows_of(keep.take(slots)), rows_of(codec.canonical(batch))
        assert [exact(row[0]) for row in taken] == [exact(row[0]) for row in expected]
        assert [plain(row[0]) for row in expected] == [plain(row[0]) for row in rows_of(batch)]
        arena.discard()


def test_keys_are_kept_in_canonical_form(tmp_path: Path) -> None:
    for folder, kind in (("double", pa.float64()), ("float", pa.float32())):
        batch = one(pa.struct([("x", kind)]), [{"x": -0.0}, {"x": float("nan")}, None])
        keep, _, _ = store(KeyCodec(batch.schema), tmp_path / folder)
        keep.put(np.arange(3), batch)
        zero, nan, null = rows_of(keep.take(np.arange(3)))
        assert exact(zero[0]) == exact({"x": 0.0})
        assert exact(nan[0]) == (struct.pack("<Q", 0x7FF8 << 48),)
        assert null == (None,)


def texts(count: int, size: int) -> pa.RecordBatch:
    return one(pa.string(), [f"{i:0{size}d}" for i in range(count)])


def test_a_slot_put_again_gives_up_its_bytes(tmp_path: Path) -> None:
    batch = texts(100, 100)
    keep, _, account = store(KeyCodec(batch.schema), tmp_path)
    for _ in range(50):
        keep.put(np.arange(100), batch)
    assert account.held < 10 * keep.bytes_needed(batch)
    assert keep.take(np.arange(100)).equals(batch)


def test_bounded_a_refused_reserve_changes_nothing(tmp_path: Path) -> None:
    batch = texts(100, 30)
    keep, arena, account = store(KeyCodec(batch.schema), tmp_path, total=40_000)
    keep.put(np.arange(100), batch)
    held = account.held
    calls: list[Callable[[], None]] = [
        lambda: keep.reserve(100_000, 0),
        lambda: keep.reserve(100, 50_000),
        lambda: keep.put(np.arange(100, 200), texts(100, 400)),
        lambda: keep.put(np.array([90_000]), texts(1, 1)),
    ]
    for call in calls:
        with pytest.raises(Refused):
            call()
        assert account.held == arena.bytes == held
        assert keep.take(np.arange(100)).equals(batch)


@pytest.mark.parametrize("pages", range(1, 7))
def test_bounded_a_reserve_refused_halfway_gives_back_what_it_grew(
    tmp_path: Path, pages: int
) -> None:
    """A first key of these columns needs seven pages: five by slot, the books and the heap."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int8()), ("c", pa.string()), ("d", pa.int16())])
    batch = pa.RecordBatch.from_pylist([{"a": 1, "b": 2, "c": "x", "d": 3}], schema)
    keep, arena, account = store(KeyCodec(schema), tmp_path, total=pages * 4096)
    with pytest.raises(Refused):
        keep.put(np.array([0]), batch)
    assert account.held == arena.bytes == keep.capacity == 0


def test_bounded_a_refused_growth_reuses_garbage(tmp_path: Path) -> None:
    keep, _, account = store(KeyCodec(texts(1, 1).schema), tmp_path, total=40_000)
    keep.put(np.arange(200), texts(200, 100))
    keep.free(np.arange(0, 90))
    more = texts(80, 120)
    keep.put(np.arange(80), more)
    assert account.budget.peak <= 40_000
    assert keep.take(np.arange(80)).equals(more)
    assert keep.take(np.arange(90, 200)).equals(texts(200, 100).slice(90))


def test_bounded_a_reserved_batch_always_fits(tmp_path: Path) -> None:
    keep, _, account = store(KeyCodec(texts(1, 1).schema), tmp_path, total=100_000)
    keep.put(np.arange(200), texts(200, 100))
    batch = texts(300, 100)
    keep.reserve(500, batch)
    rest = account.budget.account("rest")
    rest.reserve(account.budget.free)
    keep.free(np.arange(0, 200))
    keep.put(np.arange(200, 500), batch)
    assert keep.take(np.arange(200, 500)).equals(batch)


def test_trim_gives_back_what_freed_keys_held(tmp_path: Path) -> None:
    keep, arena, account = store(KeyCodec(texts(1, 1).schema), tmp_path)
    keep.put(np.arange(20_000), texts(20_000, 40))
    full = account.held
    keep.free(np.arange(500, 10_000))
    keep.trim(1_000)
    assert account.held == arena.bytes < full / 15
    assert keep.take(np.arange(500)).equals(texts(20_000, 40).slice(0, 500))
    keep.reserve(20_000)
    assert keep.take(np.arange(500, 20_000)).column(0).null_count == 19_500


def test_slots_outside_the_store_are_index_errors(tmp_path: Path) -> None:
    keep, _, _ = store(KeyCodec(texts(1, 1).schema), tmp_path)
    keep.put(np.arange(3), texts(3, 1))
    for slots in (np.array([-1]), np.array([keep.capacity])):
        with pytest.raises(IndexError):
            keep.take(slots)
        with pytest.raises(IndexError):
            keep.free(slots)
    with pytest.raises(IndexError):
        keep.put(np.array([-1]), texts(1, 1))
    with pytest.raises(ValueError, match="do not match"):
        keep.put(np.arange(2), texts(1, 1))


def test_a_heap_past_its_limit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_HEAP_WORDS", 1000)
    keep, _, account = store(KeyCodec(texts(1, 1).schema), tmp_path)
    with pytest.raises(BudgetError, match="more shards"):
        keep.put(np.arange(100), texts(100, 100))
    assert account.held == 0


def test_bytes_per_key_are_as_documented(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())])
    keep, _, _ = store(KeyCodec(schema), tmp_path)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3]), pa.array(["12345", "", None]), pa.array([True, None, False])],
        schema=schema,
    )
    assert keep.bytes_needed(batch) == 8 + 8
