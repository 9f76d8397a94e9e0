from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import CheckpointError
from icestream.kernels.field_words import merge_field, unmerge_field
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.aggregates.protocol import MergedFields
from icestream.operators.folding.columns import InputColumn
from icestream.operators.folding.exact_rows import (
    ExactRows,
    alike,
    concatenated,
    packed,
    unpacked,
)
from icestream.operators.folding.fields import Layout
from icestream.operators.lifetimes.lift import ExactFold
from tests.oracles.kernels.double_sums import nearest_reference

TYPES = {"x": pa.float64(), "y": pa.float64(), "n": pa.int64()}
FUNCTIONS = [
    Aggregate("sum", "x", "sum"),
    Aggregate("avg", "x", "avg"),
    Aggregate("sum", "n", "whole"),
    Aggregate("var_pop", "x", "var"),
    Aggregate("covar_samp", "x", "covar", ("y",)),
    Aggregate("weighted_avg", "x", "weighted", ("y",)),
]
FOLD = ExactFold(Layout.of(field for each in FUNCTIONS for field in each.fields(TYPES)))
VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e36, 1e18, 1.0, -1.0, 1e308, 5e-324, 0.1]),
)
EVENTS = st.lists(st.tuples(VALUES, VALUES), max_size=5)
Pair = tuple[float, float]


def folded(pairs: list[Pair]) -> ExactRows:
    columns = {
        "x": InputColumn(pa.array([x for x, _ in pairs], pa.float64())),
        "y": InputColumn(pa.array([y for _, y in pairs], pa.float64())),
        "n": InputColumn(pa.array(range(len(pairs)), pa.int64())),
    }
    return FOLD.folded(columns, len(pairs), 1)


def survived(rows: ExactRows) -> ExactRows:
    """Store rows in both ways and load them again."""
    rows = unpacked(packed(rows), FOLD.layout, 0)
    batch = pa.RecordBatch.from_arrays(FOLD.stored(rows), schema=FOLD.schema)
    return FOLD.loaded(batch.columns)


def answers(rows: ExactRows) -> dict[str, list[float | None]]:
    merged = MergedFields(rows.table, rows.layout)
    return {each.alias: each.answers(merged, TYPES).to_pylist() for each in FUNCTIONS}


@given(EVENTS, EVENTS)
def test_oracle_rows_keep_their_sums_in_any_layout(first: list[Pair], second: list[Pair]) -> None:
    both = concatenated(survived(folded(first)), folded(second))
    again = survived(both)
    wide, _ = alike(again, folded([(1e300, 1e-300)]))
    together = folded([*first, *second])
    # numbers count the events of each part
    for column in ("sum", "avg", "var", "weighted"):
        for rows in (both, again, wide):
            np.testing.assert_array_equal(
                np.array(answers(rows)[column], dtype=np.float64),
                np.array(answers(together)[column], dtype=np.float64),
            )


@given(EVENTS, st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=5))
def test_oracle_exact_fields_are_rounded_once(gone: list[Pair], left: list[Pair]) -> None:
    rows, taken = alike(folded([*gone, *left]), folded(gone))
    ops, places = rows.layout.at.ops.tolist(), rows.layout.at.places.tolist()
    for op, place in zip(ops, places, strict=True):
        for row in range(1, len(rows)):
            merge_field(rows.table, 0, place, rows.table, row, place, op)
        for row in range(len(taken)):
            unmerge_field(rows.table, 0, place, taken.table, row, place, op)
    found = {name: column[0] for name, column in answers(survived(rows[:1])).items()}
    x, y = ([Fraction(pair[at]) for pair in left] for at in range(2))
    n, products = len(left), sum(a * b for a, b in zip(x, y, strict=True))
    assert found["sum"] == nearest_reference(sum(x, Fraction(0)))
    assert found["avg"] == nearest_reference(sum(x) / Fraction(n))
    squares = sum(a * a for a in x)
    assert found["var"] == nearest_reference((squares - sum(x) * sum(x) / Fraction(n)) / n)
    if n > 1:
        spread = products - sum(x) * sum(y) / Fraction(n)
        assert found["covar"] == nearest_reference(Fraction(spread) / (n - 1))
    expected = nearest_reference(Fraction(products) / sum(y)) if sum(y) else None
    assert found["weighted"] == expected


def test_equal_sums_are_stored_alike() -> None:
    rows, taken = alike(folded([(0.1, 1.0), (1e300, 1.0)]), folded([(1e300, 1.0)]))
    for op, place in zip(rows.layout.at.ops.tolist(), rows.layout.at.places.tolist(), strict=True):
        merge_field(rows.table, 0, place, rows.table, 1, place, op)
        unmerge_field(rows.table, 0, place, taken.table, 0, place, op)
    again = folded([(0.1, 1.0)])
    assert FOLD.stored(rows[:1])[-1] == FOLD.stored(again)[-1]
    # of tables, digits that are zero in all rows are not stored
    assert len(packed(rows[:1])) == len(packed(again)) < len(packed(rows[1:]))


def test_bytes_that_are_no_table_are_refused() -> None:
    payload = bytes(packed(folded([(0.1, 1.0), (1e9, 2.0)])))
    wrong = np.frombuffer(payload, dtype=np.int64).copy()
    wrong[0] ^= 1 << 30
    for each in (payload[:-8], payload[:16], wrong.tobytes()):
        with pytest.raises(CheckpointError, match="damaged"):
            unpacked(each, FOLD.layout, 0)


def test_damaged_sums_are_refused() -> None:
    *columns, sums = FOLD.stored(folded([(0.1, 1.0)]))
    with pytest.raises(CheckpointError, match="damaged"):
        FOLD.loaded([*columns, pa.array([sums[0].as_py()[:-1]])])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, math.inf], math.inf),
        ([-math.inf, 1e308, 1e308], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 2.0], math.nan),
    ],
)
def test_infinities_and_nan_are_the_result_while_there_are_any(
    values: list[float], expected: float
) -> None:
    rows = survived(folded([(value, 1.0) for value in values]))
    for op, place in zip(rows.layout.at.ops.tolist(), rows.layout.at.places.tolist(), strict=True):
        for row in range(1, len(values)):
            merge_field(rows.table, 0, place, rows.table, row, place, op)
    found = answers(rows[:1])
    assert repr((found["sum"][0], found["avg"][0])) == repr((expected, expected))
    assert math.isnan(found["var"][0] or 0.0)


def test_tables_of_like_values_have_two_digits() -> None:
    dice = np.random.default_rng(3)
    prices = np.round(dice.lognormal(3.0, 1.0, 500), 2).tolist()
    rows = folded([(price, 1.0) for price in prices])
    assert rows.layout.with_room(10**6).at.sums_at[0].tolist()[1:3] == [33, 2]
