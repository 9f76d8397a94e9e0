"""Arithmetic over arrays."""

from __future__ import annotations

import math
import operator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.sql.expressions import arithmetic

EXACT = {
    "add_checked": operator.add,
    "subtract_checked": operator.sub,
    "multiply_checked": operator.mul,
}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_overflow_is_null_before_it_is_an_error(kind: pa.DataType, name: str) -> None:
    bound = 2 ** (kind.bit_width - 1)
    edges = [-bound, -bound + 1, -2, -1, 0, 1, 2, bound - 2, bound - 1, None]
    pairs = [(a, b) for a in edges for b in edges]
    a, b = (pa.array(side, kind) for side in zip(*pairs, strict=True))
    results = [None if x is None or y is None else EXACT[name](x, y) for x, y in pairs]
    wanted = [None if r is None or not -bound <= r < bound else r for r in results]
    assert arithmetic.whole(name)(a, b).to_pylist() == wanted


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-5, 5)), min_size=1))
def test_quotients_and_rests_are_cut_towards_zero(pairs: list[tuple[int, int]]) -> None:
    a, b = (pa.array(side, pa.int64()) for side in zip(*pairs, strict=True))
    quotients = [None if y == 0 else int(x / y) for x, y in pairs]
    rests = [None if y == 0 else int(math.fmod(x, y)) for x, y in pairs]
    assert arithmetic.whole_quotient(a, b).to_pylist() == quotients
    assert arithmetic.remainder(a, b).to_pylist() == rests


def test_the_one_quotient_out_of_range_is_null() -> None:
    least = pa.array([-(2**63), -(2**63)])
    ones = pa.array([-1, 1])
    assert arithmetic.whole_quotient(least, ones).to_pylist() == [None, -(2**63)]
    assert arithmetic.remainder(least, ones).to_pylist() == [0, 0]


@pytest.mark.parametrize(
    ("value", "places", "rounded"),
    [
        (2.5, 0, 3.0), (-2.5, 0, -3.0), (0.49999999999999994, 0, 0.0), (1.005, 2, 1.01),
        (2.675, 2, 2.68), (1.0049999999999997, 2, 1.0), (15.0, -1, 20.0), (1e300, 2, 1e300),
        (math.inf, 1, math.inf), (0.285, 2, 0.29), (4503599627370497.5, 0, 4503599627370498.0),
    ],
)  # fmt: skip
def test_doubles_are_rounded_as_their_text_would_be(
    value: float, places: int, rounded: float
) -> None:
    assert arithmetic.round_floats(pa.array([value, None]), places).to_pylist() == [rounded, None]


@given(st.floats(-1e9, 1e9), st.integers(0, 5))
def test_parity_rounding_doubles_and_rounding_their_text(value: float, places: int) -> None:
    from decimal import ROUND_HALF_UP, Decimal

    wanted = float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))
    assert arithmetic.round_floats(pa.array([value]), places)[0].as_py() == wanted


def test_powers_of_one_to_no_number_are_no_number() -> None:
    found = arithmetic.power(np.array([1.0, -1.0, 2.0]), np.array([math.nan, math.inf, 3.0]))
    assert np.isnan(found[:2]).all()
    assert found[2] == 8
