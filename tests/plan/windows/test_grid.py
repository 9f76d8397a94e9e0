from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.plan.windows.grid import Cumulative, Grid, Sliding, Windows
from tests.oracles.grid import windows_of

lengths = st.integers(1, 60)
instants = st.integers(-500, 500)


def starts_of(windows: Windows, time: int) -> list[int]:
    """List the windows that hold an instant by looking at every start there is."""
    around = range(time - windows.range - windows.slide, time + windows.slide + 1)
    return [
        start
        for start in around
        if (start - windows.offset) % windows.slide == 0 and start <= time < start + windows.range
    ]


@given(lengths, lengths, st.integers(-59, 59), st.integers(60, 120), instants)
def test_oracle_windows_of_an_instant(
    reach: int, slide: int, offset: int, finer: int, time: int
) -> None:
    assume(slide <= reach and abs(offset) < slide)
    windows = Windows(reach, slide, offset)
    grid = Grid.of([windows, Windows(finer, finer, offset)])
    course = windows.on(grid)
    pane = int(grid.panes_of(np.array([time]))[0])
    assert grid.instant(pane) <= time < grid.instant(pane + 1)
    expected = starts_of(windows, time)
    assert grid.instant(course.first_end(pane)) == expected[0] + reach
    assert grid.instant(course.last_end(pane)) == expected[-1] + reach


@given(lengths, lengths, st.integers(-59, 59), instants)
def test_oracle_first_window_that_is_open(
    reach: int, slide: int, offset: int, watermark: int
) -> None:
    assume(slide <= reach and abs(offset) < slide)
    windows = Windows(reach, slide, offset)
    start = windows.late_before(watermark)
    assert (start - offset) % slide == 0
    assert start + reach > watermark >= start + reach - slide


def test_panes_are_the_greatest_common_divisor_of_range_and_slide() -> None:
    # panes     0 1 2 3 4 5
    # windows   [0 . .)
    #               [2 . .)
    windows = Windows(range=15, slide=10)
    course = windows.on(Grid.of([windows]))
    assert course == Sliding(Grid(5), range=3, slide=2)
    assert (course.first_end(2), course.first_end(3), course.last_end(1)) == (3, 5, 3)


def test_panes_are_shared_by_windows_with_other_offsets() -> None:
    grid = Grid.of([Windows(60, 30), Windows(40, 20, 5)])
    assert grid == Grid(5)
    assert Windows(40, 20, 5).on(grid) == Sliding(grid, 8, 4, 1)


def every_window(windows: Windows | Cumulative, panes: set[int]) -> list[tuple[int, int]]:
    """List the windows that hold a pane of one microsecond, by end, by looking at each."""
    held = {each for pane in panes for each in windows_of(windows, pane)}
    return sorted(held, key=lambda window: window[1])


@given(
    st.sampled_from([Windows(6, 2), Windows(7, 3, 1), Windows(4, 4, -1), Cumulative(9, 3, 2)]),
    st.sets(st.integers(-40, 40), min_size=1, max_size=8),
)
def test_oracle_a_course_emits_every_window_with_events(
    windows: Windows | Cumulative, panes: set[int]
) -> None:
    course = windows.on(Grid(1))
    start = done = -1000
    found = []
    while ahead := [pane for pane in panes if pane >= start]:
        step = course.next(start, done, min(ahead))
        found.append((step.start, step.end))
        start, done = max(start, step.leave), step.end
    assert found == every_window(windows, panes)


@pytest.mark.parametrize(("size", "step", "what"), [(10, 3, "multiple"), (9, 0, "positive")])
def test_cumulative_windows_that_cannot_be_are_refused(size: int, step: int, what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        Cumulative(size, step)


@pytest.mark.parametrize(
    ("reach", "slide", "offset", "what"),
    [
        (0, 1, 0, "range must be positive"),
        (5, 0, 0, "slide must be positive"),
        (5, 6, 0, "slide further than its range"),
        (10, 5, 5, "offset must be shorter than its slide"),
        (10, 5, -5, "offset must be shorter than its slide"),
    ],
)
def test_windows_that_cannot_be_are_refused(reach: int, slide: int, offset: int, what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        Windows(reach, slide, offset)
