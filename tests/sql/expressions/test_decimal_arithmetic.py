"""Exact decimal arithmetic over arrays."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.sql.expressions import decimal_arithmetic as decimals

EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
WIDE = pa.decimal128(38, 10)


def _values(precision: int, scale: int) -> Any:
    bound = 10**precision - 1
    whole = st.integers(-bound, bound)
    return st.lists(st.none() | whole.map(lambda n: EXACT.scaleb(Decimal(n), -scale)), min_size=4)


def _rounded(value: Decimal, kind: pa.Decimal128Type) -> Decimal | None:
    result = EXACT.quantize(value, Decimal(1).scaleb(-kind.scale))
    return result if abs(EXACT.scaleb(result, kind.scale)) < 10**kind.precision else None


@given(_values(38, 18), _values(18, 4))
def test_operators_are_exact_and_rounded_once(one: list[Any], other: list[Any]) -> None:
    size = min(len(one), len(other))
    a = pa.array(one, pa.decimal128(38, 18))[:size]
    b = pa.array(other, pa.decimal128(18, 4))[:size]
    for function, exact in (
        (decimals.add, EXACT.add),
        (decimals.multiply, EXACT.multiply),
        (decimals.divide, EXACT.divide),
    ):
        wanted = [
            None
            if x is None or y is None or (function is decimals.divide and y == 0)
            else _rounded(exact(x, y), WIDE)
            for x, y in zip(one[:size], other[:size], strict=True)
        ]
        assert function(a, b, WIDE).to_pylist() == wanted


@pytest.mark.parametrize("precision", [9, 18, 19, 38])
def test_parity_unscaled_and_packed_are_inverse_on_slices(precision: int) -> None:
    kind = pa.decimal128(precision, 2)
    top = EXACT.scaleb(Decimal(10**precision - 1), -2)
    array = pa.array([None, top, EXACT.minus(top), Decimal("0.01"), None, Decimal("-0.01")], kind)
    for part in (array, array[1:], array[2:4], array[:0], array[:1]):
        again = decimals.packed(decimals.unscaled(part), decimals.valid(part), kind)
        assert again.equals(part)


def test_decimals_that_do_not_fit_are_null() -> None:
    big = pa.array([Decimal(10**37), Decimal(1)], pa.decimal128(38, 0))
    assert decimals.multiply(big, big, pa.decimal128(38, 0)).to_pylist() == [
        None,
        Decimal(1),
    ]
    assert decimals.cast(big, pa.decimal128(5, 2)).to_pylist() == [None, Decimal("1.00")]
    assert decimals.truncated(big, pa.int64()).to_pylist() == [None, 1]
    zero = pa.array([Decimal(0), Decimal(2)], pa.decimal128(3, 0))
    assert decimals.divide(big, zero, pa.decimal128(5, 1)).to_pylist() == [
        None,
        Decimal("0.5"),
    ]
    assert decimals.remainder(zero, zero, pa.decimal128(3, 0)).to_pylist() == [
        None,
        Decimal(0),
    ]


def test_text_of_digits_becomes_a_decimal_of_any_size() -> None:
    kind = pa.decimal128(5, 2)
    digits = pa.array(["12345", "12345", "5", "0", "9" * 76, "1"])
    exponent = np.array([-2, -3, -3, 900, -75, 10**9])
    found = decimals.from_digits(digits, exponent, np.ones(6, bool), kind)
    wanted = [Decimal("123.45"), Decimal("12.35"), Decimal("0.01"), Decimal(0), Decimal(10), None]
    assert found.to_pylist() == wanted
