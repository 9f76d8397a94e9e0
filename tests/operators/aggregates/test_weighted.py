from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError, InputError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fields import Layout
from tests.fixtures.folding import folded
from tests.oracles.answers import answer as obvious

VWAP = Aggregate("weighted_avg", "x", "answer", ("y",))


def answer(values: pa.Array, weights: pa.Array, cuts: tuple[int, ...] = ()) -> Any:
    return folded(VWAP, {"x": values, "y": weights}, cuts=cuts)


def test_a_price_by_volume() -> None:
    assert answer(pa.array([10.0, 20.0]), pa.array([1, 3])) == 17.5
    prices = pa.array([Decimal("10.05"), Decimal("20.10"), None], pa.decimal128(9, 2))
    assert answer(prices, pa.array([1, 2, 100])) == Decimal("16.750000")
    assert answer(pa.array([1, 2], pa.int32()), pa.array([1, 2], pa.int32())) == pytest.approx(
        5 / 3, rel=1e-15
    )


def test_weighted_averages_without_weight_are_null() -> None:
    for weights in (pa.array([0.0, -0.0]), pa.array([1.5, -1.5]), pa.nulls(2, pa.float64())):
        assert answer(pa.array([1.0, 2.0]), weights) is None
    assert answer(pa.array([5, 6]), pa.array([2, -2])) is None
    assert answer(pa.array([Decimal(1)] * 2, pa.decimal128(5, 0)), pa.array([1, -1])) is None
    assert answer(pa.array([None, 1.0]), pa.array([1.0, None])) is None


def test_special_values_spoil_the_average_as_ieee_has_it() -> None:
    assert math.isnan(answer(pa.array([math.nan, 1.0]), pa.array([1.0, 1.0])))
    assert answer(pa.array([math.inf, 1.0]), pa.array([1.0, 1.0])) == math.inf
    assert math.isnan(answer(pa.array([math.inf, 1.0]), pa.array([0.0, 1.0])))
    assert math.isnan(answer(pa.array([5.0, 1.0]), pa.array([1.0, -math.inf])))


def test_products_of_integers_pass_sixty_four_bits() -> None:
    big = 2**62
    values = pa.array([big, -big, big - 1], pa.int64())
    weights = pa.array([2**31 - 1, 2**31 - 1, 1], pa.int32())
    assert answer(values, weights) == pytest.approx((big - 1) / (2**32 - 1), rel=1e-15)
    wide = pa.array([10**17, -(10**17), 7], pa.int64()).cast(pa.decimal128(19, 0))
    prices = wide.cast(pa.decimal128(18, 0))
    assert answer(prices, pa.array([10**9, 10**9, 1], pa.int32())) == Decimal("0.0000")
    assert answer(prices, pa.array([10**9, 10**9, -(2 * 10**9)], pa.int32())) is None


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(10**12) + 1, 10**12 - 1),
            st.none() | st.integers(-(10**9) + 1, 10**9 - 1),
        ),
        max_size=20,
    ),
    st.integers(0, 20),
)
@settings(max_examples=100)
def test_oracle_weighted_averages_of_decimals_are_exact(
    pairs: list[tuple[int | None, int | None]], cut: int
) -> None:
    kinds = {"x": pa.decimal128(12, 3), "y": pa.decimal128(9, 2)}
    values = [None if v is None else Decimal(v).scaleb(-3) for v, _ in pairs]
    weights = [None if w is None else Decimal(w).scaleb(-2) for _, w in pairs]
    events = [{"time": 0, "x": v, "y": w} for v, w in zip(values, weights, strict=True)]
    expected = obvious(VWAP, events, kinds)
    found = answer(
        pa.array(values, kinds["x"]), pa.array(weights, kinds["y"]), (min(cut, len(pairs)),)
    )
    assert found is None if expected is None else Fraction(found) == expected


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(0.001, 1e9)), min_size=1, max_size=20))
@settings(max_examples=60)
def test_oracle_weighted_averages_of_floats(pairs: list[tuple[float, float]]) -> None:
    values, weights = (pa.array([p[i] for p in pairs]) for i in (0, 1))
    events = [{"time": 0, "x": v, "y": w} for v, w in pairs]
    expected = obvious(VWAP, events, {"x": pa.float64(), "y": pa.float64()})
    assert answer(values, weights) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_types_of_results() -> None:
    def result(value: pa.DataType, weight: pa.DataType) -> pa.DataType:
        return VWAP.result_type({"x": value, "y": weight})

    assert result(pa.int64(), pa.int64()) == pa.float64()
    assert result(pa.int32(), pa.decimal128(9, 2)) == pa.float64()
    assert result(pa.decimal128(9, 2), pa.float32()) == pa.float64()
    assert result(pa.decimal128(9, 2), pa.int64()) == pa.decimal128(38, 6)
    with pytest.raises(DefinitionError, match=r"could exceed 38 digits .*'answer'\): cast"):
        result(pa.decimal128(18, 2), pa.decimal128(18, 2))
    with pytest.raises(DefinitionError, match=r"needs a number, got bool"):
        result(pa.int64(), pa.bool_())


def test_an_average_beyond_its_type_is_an_error() -> None:
    types = {"x": pa.decimal128(18, 0), "y": pa.int32()}
    layout = Layout.of(VWAP.fields(types))
    table = np.zeros((1, layout.field_words), dtype=np.int64)
    # one event; products that add up to 2**126, weights that add up to 1
    valid, products, weights = VWAP.fields(types)
    table[0, layout.place(valid)] = 1
    table[0, layout.place(products) + 1] = 2**62
    table[0, layout.place(weights)] = 1
    with pytest.raises(InputError, match="weights of both signs nearly cancel"):
        VWAP.lower(table, layout, types)
