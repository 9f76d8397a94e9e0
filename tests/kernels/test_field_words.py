from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.kernels.field_words import (
    ADD_DD,
    ADD_I64,
    ADD_I128,
    INVERTIBLE,
    LEAST_3,
    LEAST_4,
    MAX,
    MIN,
    WORDS,
    combine_sorted,
    dd_add,
    merge_field,
    op_words,
    unmerge_field,
)
from tests.oracles.kernels.field_words import combine_sorted_reference, merge_words_reference

#: id_high, id_low, then one field of every operation
OPS = np.array([ADD_I64, ADD_I128, MIN, MAX, ADD_DD, LEAST_3, LEAST_4])
PLACES = np.array([2, 3, 5, 6, 7, 9, 12])
WIDTH = 16

words = st.integers(-(2**63), 2**63 - 1)
#: few, so that the words after them decide
ranks = st.sampled_from((-(2**63), -1, 0, 2**63 - 1))
amounts = st.integers(-(2**40), 2**40).map(lambda n: n / 1024)


@st.composite
def rows(draw: st.DrawFn) -> list[int]:
    """Draw a row; few identities, so that rows meet, whose upper bits often agree."""
    id_high = draw(st.sampled_from((0, 1, 2, -1, -2, 2**62, 2**62 + 1)))
    id_low = draw(st.sampled_from((0, -1, 7)))
    numbers = [draw(words) for _ in range(5)]
    amount = np.array([draw(amounts), 0.0]).view(np.int64).tolist()
    choices = [draw(ranks) for _ in range(7)]
    return [id_high, id_low, *numbers, *amount, *choices]


def table(drawn: list[list[int]]) -> npt.NDArray[np.int64]:
    return np.array(drawn, dtype=np.int64).reshape(-1, WIDTH)


def combined(
    panes: npt.NDArray[np.int64], source: npt.NDArray[np.int64]
) -> list[tuple[int, list[int]]]:
    order = np.lexsort((source[:, 0].view(np.uint64) >> np.uint64(60), panes))
    out, out_panes = np.empty_like(source), np.empty_like(panes)
    count = combine_sorted(order, panes, source, OPS, PLACES, out, out_panes)
    return list(zip(out_panes[:count].tolist(), out[:count].tolist(), strict=True))


@given(st.lists(st.tuples(st.integers(-2, 2), rows()), max_size=40))
@settings(max_examples=60)
def test_parity_combine_sorted(drawn: list[tuple[int, list[int]]]) -> None:
    panes = np.array([pane for pane, _ in drawn], dtype=np.int64)
    source = table([row for _, row in drawn])
    assert combined(panes, source) == combine_sorted_reference(panes, source, OPS, PLACES)


@given(st.lists(rows(), min_size=1, max_size=12))
@settings(max_examples=60)
def test_parity_combining_rows_in_any_grouping(drawn: list[list[int]]) -> None:
    whole = [[0, 0, *row[2:]] for row in drawn]
    panes = np.zeros(len(whole), dtype=np.int64)
    at_once = combined(panes, table(whole))
    middle = len(whole) // 2
    halves = [
        row
        for part in (whole[middle:], whole[:middle])
        if part
        for _, row in combined(np.zeros(len(part), dtype=np.int64), table(part))
    ]
    in_parts = combined(np.zeros(len(halves), dtype=np.int64), table(halves))
    assert at_once == in_parts


@pytest.mark.parametrize("op", sorted(INVERTIBLE))
@given(a=st.tuples(words, words), b=st.tuples(words, words))
@settings(max_examples=100)
def test_parity_taking_back_undoes_merging(op: int, a: tuple[int, int], b: tuple[int, int]) -> None:
    target, source = np.array([a]), np.array([b])
    expected = list(a)
    merge_field(target, 0, 0, source, 0, 0, op)
    merge_words_reference(expected, list(b), 0, op)
    width = 1 if op == ADD_I64 else 2
    assert target[0, :width].tolist() == expected[:width]
    unmerge_field(target, 0, 0, source, 0, 0, op)
    assert target[0].tolist() == list(a)


def test_parity_op_words() -> None:
    assert {op: op_words(op) for op in WORDS} == WORDS


@given(st.lists(st.floats(-1e100, 1e100, allow_subnormal=False), max_size=50))
@settings(max_examples=100)
def test_parity_double_double_sums_beside_exact_sums(values: list[float]) -> None:
    high, low = 0.0, 0.0
    for value in values:
        high, low = dd_add(high, low, value, 0.0)
    exact = sum(map(Fraction, values), Fraction(0))
    scale = sum(map(abs, map(Fraction, values)), Fraction(0))
    assert abs(Fraction(high) + Fraction(low) - exact) <= scale * Fraction(2) ** -98
    assert high == high + low


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.inf, 1.0], math.inf),
        ([1.0, -math.inf, 5.0], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.inf, -math.inf, math.inf], math.nan),
        ([1.0, math.nan, math.inf], math.nan),
        ([1e308, 1e308], math.inf),
        ([-0.0, -0.0], 0.0),
    ],
)
def test_double_double_sums_follow_ieee_for_infinities_and_nan(
    values: list[float], expected: float
) -> None:
    high, low = 0.0, 0.0
    for value in values:
        high, low = dd_add(high, low, value, 0.0)
    assert math.isnan(high) if math.isnan(expected) else high == expected
    assert low == 0.0
