from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream.core.arrays import Ints, Table
from icestream.kernels import double_sum_bytes, double_sums
from icestream.kernels import double_sum_results as results
from icestream.kernels.fold import ALL_VALID
from tests.oracles.kernels.double_sums import (
    digits_reference,
    nearest_reference,
    number_reference,
)

FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1.0, -1.0, 1e308, -1e308, 5e-324, 2.0**-1022, 0.0, -0.0, 0.1, 2.0**63]),
    st.floats(-1e6, 1e6),
)
#: all digits of sums of 2**40 doubles or products
WIDE = np.array([0, 0, double_sums.DIGITS, double_sums.DIGITS])
WIDTH = double_sums.DIGITS + double_sums.SPECIALS


def beside(number: int) -> Ints:
    """Describe the n-th of some sums that lie one behind the other in a row."""
    shift = number * WIDTH
    return np.array([shift, 0, double_sums.DIGITS, shift + double_sums.DIGITS])


def bits_of(values: Sequence[float]) -> Ints:
    return np.array(values, dtype=np.float64).view(np.int64)


def sums_of(columns: Sequence[Sequence[float]]) -> Table:
    """A row for each column, with the digits of its sum."""
    table = np.zeros((len(columns), WIDTH), dtype=np.int64)
    for row, values in enumerate(columns):
        slots = np.full(len(values), row)
        double_sums.add_doubles(table, WIDE, slots, bits_of(values), ALL_VALID)
    return table


@given(st.lists(FLOATS, max_size=8), st.lists(FLOATS, max_size=8))
@example([1e36, 1e18, 1.0, 1.0, 1.0], [1e36, 1e18])
@example([2.0**63, -(2.0**63), -(2.0**63)], [2.0**-1, -(2.0**127)])
def test_oracle_digits_hold_the_exact_sum(added: list[float], taken: list[float]) -> None:
    table = sums_of([added, taken, taken])
    exact = sum(map(Fraction, added)) - sum(map(Fraction, taken))
    double_sums.take_digits(table, 0, 0, table, 1, 0, double_sums.DIGITS)
    assert table[0].tolist() == digits_reference(exact)
    double_sums.negate_digits(table, 1, 0, double_sums.DIGITS)
    assert number_reference(table[1]) == -number_reference(table[2])
    double_sums.add_digits(table, 1, 0, table, 2, 0, double_sums.DIGITS)
    assert not table[1].any()


@pytest.mark.parametrize("seed", range(40))
def test_oracle_digits_next_to_their_limits(seed: int) -> None:
    dice = np.random.default_rng(seed)
    edges = np.array([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1])
    table = np.zeros((6, WIDTH), dtype=np.int64)
    table[:, 10:14] = dice.choice(edges, (6, 4))
    numbers = [number_reference(row) for row in table]
    double_sums.add_digits(table, 0, 0, table, 1, 0, double_sums.DIGITS)
    double_sums.take_digits(table, 2, 0, table, 3, 0, double_sums.DIGITS)
    double_sums.negate_digits(table, 4, 0, double_sums.DIGITS)
    value = float(np.ldexp(dice.choice([-1.0, 1.0, -(2.0**53) + 1]), 640 + 64 - double_sums.ORIGIN))
    double_sums.add_doubles(table, WIDE, np.array([5]), bits_of([value]), ALL_VALID)
    assert table[0].tolist() == digits_reference(numbers[0] + numbers[1])
    assert table[2].tolist() == digits_reference(numbers[2] - numbers[3])
    assert table[4].tolist() == digits_reference(-numbers[4])
    assert table[5].tolist() == digits_reference(numbers[5] + Fraction(value))


@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=6))
@example([(5e-324, 5e-324), (1e308, -1e308)])
def test_oracle_products_are_added_up_exactly(pairs: list[tuple[float, float]]) -> None:
    table = np.zeros((1, WIDTH), dtype=np.int64)
    x, y = (bits_of([pair[at] for pair in pairs]) for at in range(2))
    double_sums.add_products(table, WIDE, np.zeros(len(x), dtype=np.int64), x, y, ALL_VALID)
    assert table[0].tolist() == digits_reference(sum(Fraction(a) * Fraction(b) for a, b in pairs))


@given(st.lists(st.lists(FLOATS, max_size=5), min_size=1, max_size=4), st.integers(1, 2**62))
@example([[1.0, 2.0**-53], [1.0, 2.0**-53, 2.0**-1074], [-1e308, -1e308], [5e-324]], 3)
@example([[5e-324, 5e-324, 5e-324]], 2)
def test_oracle_results_are_the_nearest_doubles(columns: list[list[float]], count: int) -> None:
    table = sums_of(columns)
    numbers = [number_reference(row) for row in table]
    out = np.empty(len(columns))
    results.nearest_sums(table, WIDE, out)
    assert out.tolist() == [nearest_reference(each) for each in numbers]
    results.nearest_means(table, WIDE, np.full(len(columns), count), out)
    assert out.tolist() == [nearest_reference(each / count) for each in numbers]
    pairs = np.concatenate([table, np.roll(table, 1, axis=0)], axis=1)
    results.nearest_ratios(pairs, WIDE, beside(1), out)
    expected = [
        nearest_reference(a / b) if b else math.nan
        for a, b in zip(numbers, [numbers[-1], *numbers[:-1]], strict=True)
    ]
    np.testing.assert_array_equal(out, expected)


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=6))
@example([(1e9 + 0.25, -3.0), (1e9 - 0.25, 1e-9), (1e9, 0.0)])
@example([(1e200, -1e200), (-1e200, 1e200)])
@example([(0.1, 0.1), (0.1, 0.1), (0.1, 0.1)])
def test_oracle_spreads_are_rounded_once(pairs: list[tuple[float, float]]) -> None:
    x, y = (bits_of([pair[at] for pair in pairs]) for at in range(2))
    table = np.zeros((1, 3 * WIDTH), dtype=np.int64)
    places = [beside(number) for number in range(3)]
    zeros, out = np.zeros(len(x), dtype=np.int64), np.empty(1)
    double_sums.add_doubles(table, places[0], zeros, x, ALL_VALID)
    double_sums.add_doubles(table, places[1], zeros, y, ALL_VALID)
    double_sums.add_products(table, places[2], zeros, x, y, ALL_VALID)
    n = len(pairs)
    a, b = ([Fraction(pair[at]) for pair in pairs] for at in range(2))
    exact = Fraction(sum(u * v for u, v in zip(a, b, strict=True)) - sum(a) * sum(b) / n)
    for divisor in (n, max(1, n - 1)):
        counts, divisors = np.array([n]), np.array([divisor])
        results.nearest_spreads(table, places[2], places[0], places[1], counts, divisors, out)
        assert out[0] == nearest_reference(exact / divisor)


@given(st.lists(st.lists(FLOATS, max_size=4), min_size=1, max_size=4), st.integers(0, 3))
@example([[-1.0], [2.0**63], [-(2.0**63)], [-128.0], [128.0], []], 0)
def test_oracle_numbers_survive_their_bytes(columns: list[list[float]], nans: int) -> None:
    table = sums_of([[*values, *[math.nan] * nans] for values in columns])
    sums = WIDE[None, :]
    sizes = np.empty(len(columns), dtype=np.int64)
    bounds = np.empty((len(columns), 2), dtype=np.int64)
    double_sum_bytes.measure_sums(table, sums, bounds, sizes)
    begins = np.cumsum(sizes) - sizes
    raw = np.zeros(int(sizes.sum()), dtype=np.uint8)
    double_sum_bytes.encode_sums(table, sums, bounds, begins, raw)
    extents = np.empty((1, 3), dtype=np.int64)
    assert double_sum_bytes.encoded_extents(raw, begins, begins + sizes, extents)
    low, high, specials = extents[0].tolist()
    assert specials == (nans > 0)
    first = min(low, high) // 64
    count = (high + 1) // 64 + 1 - first
    narrow = np.array([[0, first, count, count]])
    found = np.zeros((len(columns), count + double_sums.SPECIALS), dtype=np.int64)
    double_sum_bytes.decode_sums(raw, begins, narrow, found)
    expected = np.zeros_like(table)
    expected[:, first : first + count] = found[:, :count]
    expected[:, double_sums.DIGITS :] = found[:, count:]
    assert expected.tolist() == table.tolist()


@pytest.mark.parametrize("damage", ["", "ff", "0100", "00f8ff", "00000000", "000040"])
def test_bytes_that_are_no_sums_are_refused(damage: str) -> None:
    raw = np.frombuffer(bytes.fromhex(damage), dtype=np.uint8)
    extents = np.empty((1, 3), dtype=np.int64)
    assert not double_sum_bytes.encoded_extents(raw, np.array([0]), np.array([len(raw)]), extents)


def test_the_worked_example_of_the_format() -> None:
    table, raw = sums_of([[-12.5]]), np.zeros(5, dtype=np.uint8)
    bounds, sizes = np.empty((1, 2), dtype=np.int64), np.empty(1, dtype=np.int64)
    double_sum_bytes.measure_sums(table, WIDE[None, :], bounds, sizes)
    double_sum_bytes.encode_sums(table, WIDE[None, :], bounds, np.array([0]), raw)
    assert bytes(raw).hex() == "0f110080f3"


def test_numbers_of_few_bits_take_few_bytes() -> None:
    table = sums_of([[0.0], [1.0], [-1.0], [12.5], [1e300], [0.1], [1.0, 2.0**200]])
    sizes = np.empty(len(table), dtype=np.int64)
    bounds = np.empty((len(table), 2), dtype=np.int64)
    double_sum_bytes.measure_sums(table, WIDE[None, :], bounds, sizes)
    assert (sizes - double_sum_bytes.HEAD_BYTES).tolist() == [0, 1, 1, 2, 7, 7, 26]


def test_oracle_quotients_next_to_a_tie_are_rounded_right() -> None:
    # half of an odd number of 54 bits, and a bit far below that decides
    odd = [float(2**53 + 2 * n) for n in range(8)]
    tiny = [0.0, 2.0**-60, -(2.0**-60), 2.0**-900]
    table = sums_of([[value, 1.0, low] for value in odd for low in tiny])
    out = np.empty(len(table))
    for count in (1, 2, 3, 2**40, 2**52 + 1, 2**60):
        results.nearest_means(table, WIDE, np.full(len(table), count), out)
        assert out.tolist() == [nearest_reference(number_reference(row) / count) for row in table]


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=8))
def test_extents_cover_all_values(pairs: list[tuple[float, float]]) -> None:
    x, y = (bits_of([pair[at] for pair in pairs]) for at in range(2))
    for low, high, found in (
        (*double_sums.sum_extent(x, ALL_VALID)[:2], [a for a, _ in pairs]),
        (
            *double_sums.product_extent(x, y, ALL_VALID)[:2],
            [Fraction(a) * Fraction(b) for a, b in pairs],
        ),
    ):
        units = [Fraction(each) * 2**double_sums.ORIGIN for each in found]
        assert all(unit % Fraction(2) ** min(low, high) == 0 for unit in units)
        assert all(abs(unit) < 2**high for unit in units if unit)


@pytest.mark.parametrize(
    ("x", "y", "which"),
    [
        (math.nan, 1.0, 0),
        (math.inf, 0.0, 0),
        (-0.0, -math.inf, 0),
        (math.inf, 2.0, 1),
        (-math.inf, -math.inf, 1),
        (3.0, -math.inf, 2),
    ],
)
def test_products_that_are_not_numbers_are_counted(x: float, y: float, which: int) -> None:
    table = np.zeros((1, WIDTH), dtype=np.int64)
    double_sums.add_products(table, WIDE, np.array([0]), bits_of([x]), bits_of([y]), ALL_VALID)
    assert np.flatnonzero(table[0]).tolist() == [double_sums.DIGITS + which]
    assert double_sums.product_extent(bits_of([x]), bits_of([y]), ALL_VALID)[2]
