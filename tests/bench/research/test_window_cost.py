from __future__ import annotations

from dataclasses import replace

import pytest

from bench.research.window_cost import (
    RowWindows,
    SeparateAggregates,
    estimate_rows,
    estimate_separate,
)
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_interval
from icestream.plan.grid.cost import KeyCounts, WindowStatistics, estimate
from icestream.plan.windows.grid import Windows

DAY = parse_interval("24 hours")
SLIDE = parse_interval("10 seconds")
#: the call centre as printed: 8 groupings with 1,000 groups per pane and 10,000 per day each
CALLS = WindowStatistics(
    rate=1000,
    tuple_bytes=94,
    keys=KeyCounts(((SLIDE, 8 * 1000), (DAY, 8 * 10_000))),
    entry_bytes=72,
    group_bytes=80,
)


def test_the_account_per_aggregate_of_a_query_set_is_the_printed_one() -> None:
    separate = SeparateAggregates(aggregates=104, groupings=8)
    found = estimate_separate([Windows(DAY, SLIDE)], CALLS, separate)
    assert found["panes"].total == 104 * (1000 * (16 + 8640 * 20) + 10_000 * 16)
    assert found["tuples"].total == 86_400_000 * 94 + 104 * 10_000 * 16
    assert found["panes"].total > found["tuples"].total


def test_windows_of_no_rows_are_refused() -> None:
    with pytest.raises(DefinitionError, match="at least one row"):
        RowWindows(10, 0)


def test_windows_of_rows_do_not_depend_on_the_rate() -> None:
    stats = replace(CALLS, keys=KeyCounts(((100, 50), (10_000, 400))))
    slow, fast = (
        estimate_rows([RowWindows(10_000, 100)], replace(stats, rate=rate)) for rate in (1, 1e6)
    )
    assert slow.panes.space == fast.panes.space
    assert slow.tuples.space == fast.tuples.space
    assert slow.tuples.space.log == 10_000 * 94
    assert slow.panes.space.log == 50 * 100 * 72
    assert slow.pane == "a pane is 100 events of 94 bytes or 50 entries of 72 bytes"
    assert fast.tuples.traffic.requests == pytest.approx(1e6 * slow.tuples.traffic.requests)
    assert fast.panes.traffic.requests == pytest.approx(1e6 * slow.panes.traffic.requests)


def test_time_and_rows_agree_where_a_window_holds_as_many_events() -> None:
    second = parse_interval("1 second")
    stats = replace(CALLS, rate=100)
    timed = estimate(
        [Windows(60 * second, second)],
        replace(stats, keys=KeyCounts(((second, 50), (60 * second, 400)))),
    )
    counted = estimate_rows(
        [RowWindows(6000, 100)], replace(stats, keys=KeyCounts(((100, 50), (6000, 400))))
    )
    assert timed == counted
