from __future__ import annotations

from dataclasses import replace

from icestream.plan.explain import estimate_and_log, explained
from icestream.plan.grid.cost import KeyCounts, WindowStatistics
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Windows
from icestream.testing.sources import SECOND
from tests.fixtures.plans import window_plan

MINUTE = 60 * SECOND


def measured(*points: tuple[int, float]) -> WindowStatistics:
    return WindowStatistics(
        rate=100.0, tuple_bytes=40, keys=KeyCounts(points), entry_bytes=40, group_bytes=60
    )


def minutes_of(*lengths: int, store: str = "auto") -> Plan:
    alone = window_plan("1 minute", store=store)
    (view,) = alone.views
    windows = [Windows(length * MINUTE, length * MINUTE) for length in lengths]
    return replace(alone, views=tuple(replace(view, windows=each) for each in windows))


def test_windows_made_of_windows_are_told_where_the_stream_was_measured() -> None:
    plan, steady = minutes_of(1, 5, 10, 15, 20), measured((MINUTE, 10.0))
    assert "computed from" not in explained(plan)
    reported = explained(plan, steady)
    assert "20 minutes: computed from 2 x 10 minutes" in reported
    assert "15 minutes: computed from 1 x 10 minutes + 1 x 5 minutes; in turn with" in reported
    # 146 + 18 rows kept for others, of ten groups each
    assert "1,640 rows an hour, 3,000 with each window computed from panes" in reported


def test_windows_are_told_to_be_made_of_panes_where_that_is_as_good() -> None:
    ever_new = measured((MINUTE, 10.0), (2 * MINUTE, 20.0))
    assert "computed from" not in explained(minutes_of(1, 5, 10), ever_new)
    steady = measured((MINUTE, 10.0))
    assert "computed from" not in explained(minutes_of(5), steady)
    assert "computed from" not in explained(minutes_of(1, 5, 10, store="tuples"), steady)


def test_events_are_told_to_be_kept_once_for_all_windows_that_move_with_them() -> None:
    alone = window_plan(windows=Frame(range=MINUTE))
    (view,) = alone.views
    longer = replace(view, windows=Frame(range=5 * MINUTE))
    assert "once for" not in explained(alone)
    reported = explained(replace(alone, views=(view, longer)))
    assert (
        "on the log for queries 0, 1  events, in the order of time, once for 2 windows" in reported
    )


def test_the_estimate_is_reported_beside_what_was_logged() -> None:
    reported = {"store": "panes", "estimatedLogBytes": 4 << 20, "logBytes": 3 << 20}
    assert estimate_and_log({**reported, "logToEstimate": 0.75}) == (
        "log of panes: estimated 4.0 MB, logged 3.0 MB (0.75 times the estimate)"
    )
    early = estimate_and_log({**reported, "logToEstimate": None})
    assert early is not None
    assert early.endswith("(the longest window is not full yet)")
    assert estimate_and_log({"store": "panes", "estimatedLogBytes": None}) is None
    assert estimate_and_log({}) is None
