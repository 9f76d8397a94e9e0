from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.kernels.field_words import (
    ADD_FIXED,
    ADD_I64,
    ADD_I128,
    LEAST_3,
    LEAST_4,
    MAX,
    MIN,
    WORDS,
    combine_sorted,
    merge_field,
    op_words,
    unmerge_field,
)
from tests.oracles.kernels.field_words import combine_sorted_reference, merge_words_reference

#: id_high, id_low, then one field of every operation
OPS = np.array([ADD_I64, ADD_I128, MIN, MAX, ADD_FIXED + 2, LEAST_3, LEAST_4])
PLACES = np.array([2, 3, 5, 6, 7, 9, 12])
WIDTH = 16

words = st.integers(-(2**63), 2**63 - 1)
#: few, so that the words after them decide
ranks = st.sampled_from((-(2**63), -1, 0, 2**63 - 1))


@st.composite
def rows(draw: st.DrawFn) -> list[int]:
    """Draw a row; few identities, so that rows meet, whose upper bits often agree."""
    id_high = draw(st.sampled_from((0, 1, 2, -1, -2, 2**62, 2**62 + 1)))
    id_low = draw(st.sampled_from((0, -1, 7)))
    numbers = [draw(words) for _ in range(7)]
    choices = [draw(ranks) for _ in range(7)]
    return [id_high, id_low, *numbers, *choices]


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


@pytest.mark.parametrize("op", [ADD_I64, ADD_I128, ADD_FIXED + 2])
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
