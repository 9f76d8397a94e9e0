"""What windows are, and what they cost."""

from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.state.queue.windows.spec import UpdateWindows


def test_oracle_cost_of_windows_lies_between_its_bounds() -> None:
    for size in range(1, 12):
        for slide in range(1, size + 1):
            windows = UpdateWindows(size, slide)
            least, most = windows.cost_bounds(2)
            costs = []
            for opened in range(1, windows.overlap + 1):
                starts = [number * slide for number in range(opened)]
                # every tuple of the first window, once for each window it is in
                plain = 2 * sum(sum(t >= start for start in starts) for t in range(size))
                costs.append(plain)
            assert (min(costs), max(costs)) == (least, most)


def printed_bound(windows: UpdateWindows) -> float:
    """The most that a window costs, as it was printed, with tuples that cost 1."""
    return (windows.overlap + 1) * (windows.size - windows.overlap / 2 * windows.slide)


def test_the_printed_bound_fails_where_the_slide_does_not_divide_the_size() -> None:
    assert UpdateWindows(3, 2).cost_bounds(1) == (3, 4)
    assert printed_bound(UpdateWindows(3, 2)) == 3
    for size in range(1, 12):
        for slide in (each for each in range(1, size + 1) if size % each == 0):
            windows = UpdateWindows(size, slide)
            assert printed_bound(windows) == windows.cost_bounds(1)[1]


@pytest.mark.parametrize(
    ("size", "slide", "semantics", "reported"),
    [(0, 1, "lazy", ">= 1"), (2, 3, "lazy", "between windows"), (2, 1, "keen", "'lazy' or")],
)
def test_windows_that_mean_nothing_are_refused(
    size: int, slide: int, semantics: str, reported: str
) -> None:
    with pytest.raises(DefinitionError, match=reported):
        UpdateWindows(size, slide, semantics)  # type: ignore[arg-type]
