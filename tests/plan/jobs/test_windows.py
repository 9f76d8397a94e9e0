"""Windows of a job are filled exactly, at the cost that is counted."""

from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.plan.grid.cost import KeyCounts
from icestream.plan.jobs.windows import JobStatistics, chosen_windows, tilings_of
from icestream.plan.windows.grid import Windows

MINUTE = 60_000_000
ONE_KEY = KeyCounts(((1, 1.0),))


def minutes(length: int, every: int | None = None) -> Windows:
    return Windows(length * MINUTE, (every or length) * MINUTE)


def test_86_partials_are_merged_in_an_hour_where_240_are_without_composition() -> None:
    """Windows of 5, 10, 15 and 20 minutes over partials of one minute."""
    windows = [minutes(length) for length in (5, 10, 15, 20)]
    _, rows = tilings_of(windows, (minutes(1),), ONE_KEY)
    _, plain = tilings_of(windows, (minutes(1),), ONE_KEY, composable=False)
    assert round(rows * 3600) == 86
    assert round(plain * 3600) == 240


def test_tiles_fill_every_window_without_gaps() -> None:
    windows = [minutes(5), minutes(10), minutes(15), minutes(30, 10)]
    tilings, _ = tilings_of(windows, (minutes(1),), ONE_KEY)
    known = {MINUTE}
    assert {each.window for each in tilings} == set(windows)
    for tiling in tilings:
        for tiles in tiling.tiles:
            at = 0
            for length, place in tiles:
                assert length in known
                assert place == at
                at += length
            assert at == tiling.window.range
        known.add(tiling.window.range)


def test_windows_that_are_given_are_taken_as_they_are() -> None:
    given = (minutes(10), minutes(30))
    tilings, _ = tilings_of([minutes(30), minutes(60)], given, ONE_KEY)
    assert [each.tiles for each in tilings] == [
        (((30 * MINUTE, 0),),),
        (((30 * MINUTE, 0), (30 * MINUTE, 30 * MINUTE)),),
    ]


def test_sharing_is_chosen_where_it_costs_less() -> None:
    """Many tuples of few keys share partials; few tuples of many keys do not."""
    windows = [minutes(5), minutes(10)]
    many = JobStatistics(1000.0, KeyCounts(((1, 10.0),)))
    few = JobStatistics(1.0, KeyCounts(((1, 10_000.0),)))
    assert chosen_windows(windows, many).folded == (minutes(5),)
    assert chosen_windows(windows, few).folded == tuple(windows)
    assert chosen_windows([minutes(5)], many).folded == (minutes(5),)
    assert chosen_windows(windows, few, sharing="partials").folded == (minutes(5),)
    assert chosen_windows(windows, many, sharing="each").folded == tuple(windows)
    assert chosen_windows(windows, many, divisible=False).folded == tuple(windows)


def test_what_cannot_be_filled_or_chosen_is_refused() -> None:
    with pytest.raises(DefinitionError, match="cannot be filled"):
        tilings_of([minutes(5)], (minutes(2),), ONE_KEY)
    with pytest.raises(DefinitionError, match="sharing must be one of"):
        chosen_windows([minutes(5)], JobStatistics(), sharing="maybe")
    with pytest.raises(DefinitionError, match="cannot be shared"):
        chosen_windows([minutes(5)], JobStatistics(), sharing="partials", divisible=False)
