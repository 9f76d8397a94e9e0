from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.operators.grid import strides
from icestream.plan.windows.grid import Grid, Sliding


def step_by_step(course: Sliding, panes: list[int], start: int, watermark: int) -> Iterator[int]:
    """Yield the starts of windows one by one, each the next that holds a pane."""
    while True:
        first = next((pane for pane in panes if pane >= start), None)
        if first is None:
            return
        step = course.next(start, MINUS_INFINITY, first)
        if course.grid.instant(step.end) > watermark:
            return
        yield step.start
        start = step.leave


@given(
    panes=st.sets(st.integers(-60, 60), max_size=12),
    reach=st.integers(1, 9),
    slide=st.integers(1, 9),
    phase=st.integers(-3, 3),
    skipped=st.one_of(st.none(), st.integers(-12, 12)),
    watermark=st.one_of(st.sampled_from([MINUS_INFINITY, INFINITY]), st.integers(-600, 700)),
    at_once=st.integers(1, 20),
)
def test_parity_windows_of_panes_beside_going_step_by_step(
    panes: set[int],
    reach: int,
    slide: int,
    phase: int,
    skipped: int | None,
    watermark: int,
    at_once: int,
) -> None:
    slide = min(reach, slide)
    course = Sliding(Grid(10, 3), reach, slide, phase)
    start = MINUS_INFINITY if skipped is None else skipped * slide + phase
    ordered = sorted(panes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strides, "AT_ONCE", at_once)
        array = np.array(ordered, dtype=np.int64)
        parts = [part.tolist() for part in strides.starts_of(course, array, start, watermark)]
    assert all(0 < len(part) <= at_once for part in parts)
    expected = list(step_by_step(course, ordered, start, watermark))
    assert [each for part in parts for each in part] == expected
