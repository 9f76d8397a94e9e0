"""Tuples with time spans are in the windows that looking at every one finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError, InputError
from icestream.operators.jobs.spans import Lag, WindowSpans, assign
from icestream.plan.windows.grid import Windows
from tests.oracles.jobs import Spanning, windows_of


@given(
    length=st.integers(1, 20),
    slide=st.integers(1, 20),
    offset=st.integers(0, 19),
    spans=st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 30)), max_size=20),
    rule=st.sampled_from(["begin", "end", "overlap", "inside"]),
)
def test_oracle_windows_of_spans(
    length: int, slide: int, offset: int, spans: list[tuple[int, int]], rule: str
) -> None:
    slide = min(length, slide)
    windows = Windows(length, slide, offset % slide)
    begins = np.array([begin for begin, _ in spans], dtype=np.int64)
    ends = np.array([begin + size for begin, size in spans], dtype=np.int64)
    rows, starts = assign(windows, begins, ends, rule)  # type: ignore[arg-type]
    found = list(zip(rows.tolist(), starts.tolist(), strict=True))
    assert found == [
        (row, start)
        for row, (begin, size) in enumerate(spans)
        for start in windows_of(windows, Spanning({}, begin, begin + size), rule)
    ]


def test_a_tuple_over_a_border_is_refused_where_it_must_be_whole() -> None:
    """[7, 12) reaches over 10, [10, 20) fills a window."""
    spans = WindowSpans((Windows(10, 10),), "whole")
    rows, _, starts = spans.assign(np.array([10]), np.array([20]))
    assert (rows.tolist(), starts.tolist()) == ([0], [10])
    with pytest.raises(InputError, match="reaches over the border"):
        spans.assign(np.array([7]), np.array([12]))


def test_windows_of_one_operator_have_different_lengths() -> None:
    with pytest.raises(DefinitionError, match="different lengths"):
        WindowSpans((Windows(10, 10), Windows(10, 5)))
    with pytest.raises(DefinitionError, match="spanning must be one of"):
        WindowSpans((Windows(10, 10),), "somewhere")  # type: ignore[arg-type]


def test_windows_wait_for_the_tuples_that_may_still_come() -> None:
    lag = Lag(begin=30, end=5)
    waits = {rule: WindowSpans((Windows(10, 10),), rule).lag(lag) for rule in ("begin", "overlap")}
    assert waits == {"begin": 30, "overlap": 30}
    assert WindowSpans((Windows(10, 10),), "end").lag(lag) == 5
    assert WindowSpans((Windows(10, 10),), "inside").lag(lag) == 5
