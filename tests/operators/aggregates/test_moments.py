from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from icestream.operators.aggregates.aggregate import Aggregate
from tests.fixtures.folding import folded
from tests.oracles.answers import answer as obvious

MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
PAIRS = ("covar_pop", "covar_samp", "corr")

#: values whose squares and products neither overflow nor vanish
numbers = st.integers(-(2**40), 2**40).map(lambda n: n / 1024)
odd = st.sampled_from([None, math.nan, math.inf, -math.inf, -0.0, 0.0])


def answer(function: str, *columns: pa.Array, cuts: tuple[int, ...] = ()) -> Any:
    names = ["x", "y"][: len(columns)]
    aggregate = Aggregate(function, "x", "answer", tuple(names[1:]))
    return folded(aggregate, dict(zip(names, columns, strict=True)), cuts=cuts)


@pytest.mark.parametrize("function", MOMENTS)
def test_moments_far_from_zero_keep_their_digits(function: str) -> None:
    values = [1e9 + 0.25, 1e9 + 0.5, 1e9 + 0.75]
    spread = 0.125 / (2 if function.endswith("samp") else 3)
    expected = math.sqrt(spread) if function.startswith("stddev") else spread
    assert answer(function, pa.array(values)) == pytest.approx(expected, rel=1e-12)


def test_covariances_far_from_zero_keep_their_digits() -> None:
    x = pa.array([1e9 + 0.25, 1e9 + 0.5, 1e9 + 0.75])
    y = pa.array([-1e9 - 0.25, -1e9 - 0.5, -1e9 - 1.25])
    assert answer("covar_pop", x, y) == pytest.approx(-0.25 / 3, rel=1e-9)
    assert answer("covar_samp", x, y) == pytest.approx(-0.125, rel=1e-9)
    assert answer("corr", x, y) == pytest.approx(-0.25 / math.sqrt(0.125 * 13 / 24), rel=1e-9)


@pytest.mark.parametrize("value", [0.1, -1e9 / 3, 1e100 / 7, 1e-100 / 3])
@pytest.mark.parametrize("count", [2, 10, 5000])
def test_equal_values_have_no_spread(value: float, count: int) -> None:
    equal = pa.array([value] * count)
    growing = pa.array([0.1 * n for n in range(count)])
    for function in MOMENTS:
        assert answer(function, equal) == 0.0
    assert answer("covar_pop", equal, growing) == 0.0
    assert answer("corr", equal, growing) is None
    assert answer("corr", growing, equal) is None


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_moments_of_special_values_are_not_a_number(special: float) -> None:
    values = pa.array([1.0, special])
    assert math.isnan(answer("var_pop", values))
    assert math.isnan(answer("stddev_samp", values))
    for function in PAIRS:
        assert math.isnan(answer(function, values, pa.array([1.0, 2.0])))
        assert math.isnan(answer(function, pa.array([3.0, 3.0]), values))


def test_moments_of_one_value() -> None:
    assert answer("var_pop", pa.array([5.0])) == 0.0
    assert answer("var_samp", pa.array([5.0])) is None
    assert answer("stddev_samp", pa.array([5.0, None])) is None
    one = (pa.array([5.0, 1.0]), pa.array([7.0, None]))
    assert [answer(function, *one) for function in PAIRS] == [0.0, None, None]


def test_pairs_with_a_null_count_nothing() -> None:
    x = pa.array([1.0, 2.0, None, 9.0, 4.0])
    y = pa.array([1.0, 3.0, 100.0, None, 2.0])
    whole = (pa.array([1.0, 2.0, 4.0]), pa.array([1.0, 3.0, 2.0]))
    for function in PAIRS:
        assert answer(function, x, y) == answer(function, *whole)


@pytest.mark.parametrize("function", PAIRS)
@given(
    pairs=st.lists(st.tuples(numbers | odd, numbers | odd), min_size=1, max_size=30),
    cut=st.integers(0, 30),
)
@settings(max_examples=80)
def test_oracle_covariances_beside_fractions(
    function: str, pairs: list[tuple[float | None, float | None]], cut: int
) -> None:
    columns = {name: pa.array([p[i] for p in pairs], pa.float64()) for i, name in enumerate("xy")}
    aggregate = Aggregate(function, "x", "answer", ("y",))
    events = [{"time": 0, "x": x, "y": y} for x, y in pairs]
    expected = obvious(aggregate, events, {name: pa.float64() for name in "xy"})
    found = folded(aggregate, columns, cuts=[min(cut, len(pairs))])
    if expected is None or found is None:
        assert found is expected
    else:
        sizes = [abs(v) for pair in pairs for v in pair if v is not None and math.isfinite(v)]
        scale = 1.0 if function == "corr" else max(sizes, default=1.0) ** 2
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-20 * scale, nan_ok=True)


@given(st.lists(numbers, min_size=3, max_size=20), numbers, numbers)
@settings(max_examples=60)
def test_values_on_a_line_correlate_wholly(values: list[float], slope: float, at: float) -> None:
    line = [slope * value + at for value in values]
    assume(len(set(values)) > 1 and len(set(line)) == len(set(values)) and abs(slope) > 1e-3)
    expected = math.copysign(1.0, slope)
    found = answer("corr", pa.array(values), pa.array(line))
    assert abs(found) <= 1.0
    assert found == pytest.approx(expected, abs=1e-4)
