from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.panes import Windows

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


@given(lengths, lengths, st.integers(-59, 59), instants)
def test_oracle_windows_of_an_instant(reach: int, slide: int, offset: int, time: int) -> None:
    assume(slide <= reach and abs(offset) < slide)
    windows = Windows(reach, slide, offset)
    pane = int(windows.panes_of(np.array([time]))[0])
    assert windows.instant(pane) <= time < windows.instant(pane + 1)
    expected = starts_of(windows, time)
    assert windows.instant(windows.first_start(pane)) == expected[0]
    assert windows.instant(windows.last_end(pane)) == expected[-1] + reach


@given(lengths, lengths, st.integers(-59, 59), instants)
def test_oracle_first_window_that_is_open(
    reach: int, slide: int, offset: int, watermark: int
) -> None:
    assume(slide <= reach and abs(offset) < slide)
    windows = Windows(reach, slide, offset)
    start = windows.instant(windows.first_open(watermark))
    assert (start - offset) % slide == 0
    assert start + reach > watermark >= start + reach - slide


def test_panes_are_the_greatest_common_divisor_of_range_and_slide() -> None:
    # panes     0 1 2 3 4 5
    # windows   [0 . .)
    #               [2 . .)
    windows = Windows(range=15, slide=10)
    assert (windows.pane, windows.range_panes, windows.slide_panes) == (5, 3, 2)
    assert windows.first_start(2) == 0
    assert windows.first_start(3) == 2
    assert windows.last_end(1) == 3


@pytest.mark.parametrize(
    ("reach", "slide", "offset", "what"),
    [
        (0, 1, 0, "range must be positive"),
        (5, 0, 0, "slide must be positive"),
        (5, 6, 0, "slide further than it reaches"),
        (10, 5, 5, "offset must be shorter than its slide"),
        (10, 5, -5, "offset must be shorter than its slide"),
    ],
)
def test_windows_that_cannot_be_are_refused(reach: int, slide: int, offset: int, what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        Windows(reach, slide, offset)
