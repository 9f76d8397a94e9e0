from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.columns import ARRIVAL, TIME, InputColumn
from icestream.operators.folding.exact_rows import ExactRows, alike, concatenated
from icestream.operators.folding.fields import Field, Layout
from icestream.operators.folding.fold import (
    ID_HIGH_COLUMN,
    ID_LOW_COLUMN,
    LAST,
    EntryRun,
    EntryTable,
    partial_name,
)
from icestream.operators.folding.sorted_runs import sorted_run
from icestream.state.keys import KeyCodec
from icestream.testing.sources import StreamShape, random_column
from tests.fixtures.plans import EVERY_INPUT, every_aggregate

KEYS = pa.schema([("name", pa.string()), ("number", pa.float64())])
TYPES = {field.name: field.type for field in EVERY_INPUT}
LAYOUT = Layout.of(f for a in every_aggregate(EVERY_INPUT) for f in a.fields(TYPES))


def fold_all(
    seed: int, events: int, batches: int, capacity: int
) -> tuple[list[EntryRun], pa.RecordBatch, npt.NDArray[np.int64]]:
    dice = np.random.default_rng(seed)
    shape = StreamShape(nulls=0.2, specials=0.05)
    names = pa.array([f"n{i}" for i in dice.integers(0, 5, events)], mask=dice.random(events) < 0.1)
    numbers = pa.array(dice.choice([0.0, -0.0, math.nan, 1.5], events))
    keys = pa.RecordBatch.from_arrays([names, numbers], schema=KEYS)
    panes = dice.integers(-2, 3, events)
    columns = {f.name: random_column(f.type, events, shape, dice) for f in EVERY_INPUT}
    columns[TIME] = pa.array(dice.integers(0, 9, events))
    columns[ARRIVAL] = pa.array(range(events), pa.int64())
    table = EntryTable(LAYOUT, KeyCodec(KEYS), capacity)
    runs: list[EntryRun] = []
    step = -(-events // batches)
    for at in range(0, events, step):
        part = {name: InputColumn(values.slice(at, step)) for name, values in columns.items()}
        runs.extend(table.fold([keys.slice(at, step)], panes[at : at + step].copy(), part))
    runs.append(table.take())
    return runs, keys, panes


def merged(runs: list[EntryRun]) -> tuple[list[int], ExactRows]:
    rows = concatenated(*(run.entries for run in runs))
    numbers = np.concatenate([run.panes for run in runs])
    panes, entries = sorted_run(numbers, rows.table, rows.layout)
    return panes.tolist(), ExactRows(rows.layout, entries)


@given(st.integers(0, 1000), st.integers(1, 150), st.integers(1, 4), st.sampled_from((1, 3, 17)))
@settings(max_examples=25)
def test_oracle_runs_equal_one_big_fold(
    seed: int, events: int, batches: int, capacity: int
) -> None:
    runs, _, _ = fold_all(seed, events, batches, capacity)
    whole, _, _ = fold_all(seed, events, 1, 1000)
    assert len(whole) == 1
    assert all(len(run.panes) <= capacity for run in runs)
    panes, entries = merged(runs)
    expected_panes, expected = merged(whole)
    assert panes == expected_panes
    a, b = alike(entries, expected)
    assert (a.table == b.table).all()


@given(st.integers(0, 1000), st.sampled_from((1, 4, 50)))
@settings(max_examples=20)
def test_keys_of_a_run_cover_its_entries(seed: int, capacity: int) -> None:
    runs, _, _ = fold_all(seed, 80, 3, capacity)
    codec = KeyCodec(KEYS)
    for run in runs:
        latest: dict[tuple[int, int], int] = {}
        ids = run.entries.table[:, :2].copy().view(np.uint64).tolist()
        for (id_high, id_low), pane in zip(ids, run.panes.tolist(), strict=True):
            latest[id_high, id_low] = max(latest.get((id_high, id_low), pane), pane)
        columns = [
            run.keys.column(name).to_pylist() for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST)
        ]
        assert {
            (id_high, id_low): last for id_high, id_low, last in zip(*columns, strict=True)
        } == latest
        for batch in run.keys.to_batches():
            id_high, id_low = codec.identify(batch)
            assert id_high.tolist() == batch.column(ID_HIGH_COLUMN).to_pylist()
            assert id_low.tolist() == batch.column(ID_LOW_COLUMN).to_pylist()


def test_keys_come_out_as_spark_shows_them() -> None:
    runs, _, _ = fold_all(3, 100, 2, 1000)
    numbers = runs[0].keys.column("number").to_pylist()
    assert all(math.copysign(1.0, number) > 0 for number in numbers if number == 0.0)


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.int32()])
@pytest.mark.parametrize("zeros", [(), (0.0, -0.0), (0.0,), (-0.0,)])
def test_oracle_partial_rows_fold_to_what_their_events_fold_to(
    kind: pa.DataType, zeros: tuple[float, ...]
) -> None:
    functions = ("min", "max") if pa.types.is_floating(kind) else ("sum", "avg", "min", "max")
    aggregates = [Aggregate(function, "x", function) for function in functions]
    layout = Layout.of(f for each in aggregates for f in each.fields({"x": kind}))
    dice = np.random.default_rng(2)
    values = random_column(kind, 60, StreamShape(nulls=0.2), dice)
    if zeros:
        values = pa.array(dice.choice(zeros, 60), mask=dice.random(60) < 0.2).cast(kind)
    rows = [values.slice(at, 6) for at in range(0, 60, 6)]
    codec = KeyCodec(pa.schema([]))

    def none(count: int) -> pa.RecordBatch:
        empty = pa.StructArray.from_buffers(pa.struct([]), count, [None])
        return pa.RecordBatch.from_struct_array(empty)

    whole = EntryTable(layout, codec, 4)
    list(whole.fold([none(60)], np.zeros(60, np.int64), {"x": InputColumn(values)}))
    partial = EntryTable(layout, codec, 4, partial=True)
    columns = {
        partial_name(field, part): InputColumn(
            pa.array([_partial(field, part, row) for row in rows])
        )
        for field in layout.fields
        for part in range(_parts(field, kind))
    }
    list(partial.fold([none(10)], np.zeros(10, np.int64), columns))
    tables = [table.take().entries.table[:, 2:] for table in (whole, partial)]
    for aggregate in aggregates:
        a, b = (aggregate.lower(table, layout, {"x": kind})[0].as_py() for table in tables)
        assert repr(a) == repr(b), aggregate.function


def _parts(field: Field, kind: pa.DataType) -> int:
    """Return how many columns Spark sends for a field."""
    zeros = field.kind in ("min", "max") and pa.types.is_floating(kind)
    return 2 if zeros or field.kind == "sum_i128" else 1


def _partial(field: Field, part: int, row: pa.Array) -> Any:
    """Return what Spark sends for a field of several events."""
    values = [v for v in row.to_pylist() if v is not None]
    if field.kind == "rows":
        return len(row)
    if field.kind == "valid":
        return len(values)
    if not values:
        return None
    if field.kind in ("min", "max"):
        if part:
            sign = -1.0 if field.kind == "min" else 1.0
            return any(v == 0 and math.copysign(1.0, v) == sign for v in values)
        return min(values) if field.kind == "min" else max(values)
    if field.kind == "sum_i128":
        return sum(v & 0xFFFFFFFF for v in values) if part == 0 else sum(v >> 32 for v in values)
    return math.fsum(map(float, values)) if field.kind == "sum_f64" else sum(values)
