from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.research.window_blocks.exact_sums import (
    ROW,
    WIDE,
    WIDE_SUM,
    add_product,
    average,
    is_plain,
    wide_rows_free,
)
from tests.oracles.kernels.exact_sums import average_reference

Words = npt.NDArray[np.uint64]
Product = tuple[float, int]

prices = st.floats(1, 1_000)
#: beside usual prices, values at the edges of what a row takes and far beyond
values = st.one_of(
    prices,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from((0.0, -0.0, 2.0**-62, 2.0**-63, 2.0**66, math.nextafter(2.0**66, 0), 5e-324)),
    st.sampled_from((1.7976931348623157e308, -1.7976931348623157e308, 1e300, 1e-300)),
)
weights = st.one_of(st.integers(1, 10_000), st.integers(-(2**31), 2**31 - 1))
products = st.lists(st.tuples(values, weights), min_size=1, max_size=12)


def bits(value: float) -> np.uint64:
    return np.uint64(struct.unpack("<Q", struct.pack("<d", value))[0])


class Sums:
    """One row with wide rows beside it."""

    def __init__(self) -> None:
        self.row = np.zeros(ROW, np.uint64)
        self.wide = np.zeros(2 * WIDE, np.uint64)

    def add(self, product: Product, taken: bool = False) -> None:
        add_product(self.row, 0, self.wide, bits(product[0]), np.int64(product[1]), taken)

    @property
    def average(self) -> float:
        return average(self.row, 0, self.wide, np.zeros(WIDE, np.uint64))

    @property
    def sum(self) -> Fraction:
        """What the words say, in plain numbers."""
        total = Fraction(_signed(self.row[:4]), 2**114)
        if self.row[5]:
            first = (int(self.row[5]) - 1) * WIDE
            total += Fraction(_signed(self.wide[first : first + WIDE_SUM]), 2**1074)
        return total


def _signed(words: Words) -> int:
    return int.from_bytes(words.tobytes(), "little", signed=True)


def same(found: float, wanted: float) -> bool:
    return found == wanted or (math.isnan(found) and math.isnan(wanted))


@given(products, st.randoms(use_true_random=False))
def test_oracle_sums_hold_exactly_what_is_left(drawn: list[Product], dice: object) -> None:
    sums, left = Sums(), list(drawn)
    for product in drawn:
        sums.add(product)
    while left:
        assert sums.sum == sum(Fraction(value) * weight for value, weight in left)
        gone = left.pop(dice.randrange(len(left)))  # type: ignore[attr-defined]
        sums.add(gone, taken=True)
    assert not sums.row.any()
    assert wide_rows_free(sums.wide) == 2


@given(products)
@settings(max_examples=400)
@example([(1.0, 3), (2.0, 3), (3.0, 1)])
@example([(5e-324, 1), (0.0, 1)])
@example([(1.7976931348623157e308, 2**31 - 1), (1.7976931348623157e308, -(2**31) + 2)])
def test_parity_averages_are_the_nearest_double(drawn: list[Product]) -> None:
    sums = Sums()
    for product in drawn:
        sums.add(product)
    assert same(sums.average, average_reference(drawn))


@given(st.integers(2**52, 2**53 - 1), st.integers(-60, 12), st.sampled_from((-1, 0, 1)))
def test_averages_halfway_between_two_doubles_go_to_the_even_one(
    mantissa: int, exponent: int, nudge: int
) -> None:
    # (2m + 1) / 2 lies between m and m + 1, and a tiny value beside it tips the scales
    sums, half = Sums(), float(2**exponent)
    drawn = [(mantissa * half, 1), ((mantissa + 1) * half, 1), (nudge * 2.0**-62, 1), (0.0, -1)]
    for product in drawn:
        sums.add(product)
    assert sums.average == average_reference(drawn)


def test_a_huge_value_leaves_no_trace() -> None:
    sums = Sums()
    sums.add((0.1, 7))
    for huge in (1e300, -3e17, 2.0**65):
        sums.add((huge, 2**31 - 1))
        sums.add((0.3, 1))
        sums.add((huge, 2**31 - 1), taken=True)
        sums.add((0.3, 1), taken=True)
    assert sums.average == 0.1
    assert not sums.row[5]


def test_millions_of_values_do_not_drift() -> None:
    sums, dice = Sums(), np.random.default_rng(3)
    drawn = [(float(value), 3) for value in dice.uniform(0, 1e6, 2_000)]
    sums.add((0.7, 11))
    for _ in range(20):
        for product in drawn:
            sums.add(product)
        for product in drawn:
            sums.add(product, taken=True)
    assert sums.average == 0.7


@pytest.mark.parametrize(
    ("odd", "wanted"),
    [
        ([(math.inf, 2)], math.inf),
        ([(-math.inf, 2)], -math.inf),
        ([(math.inf, -2)], -math.inf),
        ([(math.inf, 0)], math.nan),
        ([(math.nan, 1)], math.nan),
        ([(math.inf, 1), (-math.inf, 1)], math.nan),
    ],
)
def test_infinities_and_nan_are_forgotten_when_they_leave(
    odd: list[Product], wanted: float
) -> None:
    sums = Sums()
    sums.add((2.5, 100))
    for product in odd:
        sums.add(product)
    assert same(sums.average, wanted)
    assert same(sums.average, average_reference([(2.5, 100), *odd]))
    for product in odd:
        sums.add(product, taken=True)
    assert sums.average == 2.5


def test_weights_that_add_up_to_nothing_have_no_average() -> None:
    sums = Sums()
    assert math.isnan(sums.average)
    sums.add((2.0, 3))
    sums.add((4.0, -3))
    assert math.isnan(sums.average)


@given(st.floats())
def test_a_row_takes_values_between_its_bits(value: float) -> None:
    plain = value == 0 or 2.0**-62 <= abs(value) < 2.0**66
    assert is_plain(bits(value)) == plain
