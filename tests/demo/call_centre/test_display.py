from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console, RenderableType

from icestream.demo.call_centre.display import (
    CallCenterStatus,
    kpi_table,
    live_page,
    plain_line,
    summary_table,
)
from icestream.demo.call_centre.generator import BEGIN
from icestream.demo.call_centre.kpis import ALL, GROUPINGS, WHOLE

HOUR = 3_600_000_000
Report = Callable[..., dict[str, Any]]


def kpi(service: int, calls: int) -> dict[str, Any]:
    return {
        "serviceId": service,
        "calls": calls,
        "avg_wait": 41.26,
        "max_wait": 1915,
        "avg_busy": 207.4,
        "sum_busy": 3600 * 5432,
        "avg_wrap_up": 24.44,
    }


@pytest.fixture
def status() -> CallCenterStatus:
    return CallCenterStatus(
        12_000_000, BEGIN, BEGIN + 26 * HOUR, "24 hours", "10 seconds", "serviceId"
    )


def text(shown: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def test_all_144_figures_are_shown_of_the_busiest_group_of_each_key(
    status: CallCenterStatus,
) -> None:
    def row(key: str, value: int, calls: int) -> dict[str, Any]:
        times = {figure.column: 7_200 for figure in WHOLE}
        return {**dict.fromkeys(GROUPINGS), **times, key: value, "calls": calls}

    status.grouping = ALL
    columns = [figure.column for figure in WHOLE]
    status.rows = [row(key, 10 * place + 1, 5_000 + place) for place, key in enumerate(GROUPINGS)]
    status.rows += [
        row("serviceId", 2, 4_999),
        {**dict.fromkeys([*GROUPINGS, *columns]), "calls": 0},
    ]
    status.window_end = BEGIN + 25 * HOUR
    lines = text(kpi_table(status, most=10)).splitlines()
    assert any("agentId" in line for line in lines)
    assert any("Roaming" in line for line in lines)
    assert not any("Technical" in line for line in lines)
    (calls,) = (line for line in lines if "calls" in line)
    assert calls.split()[1:] == [f"5,00{place}" for place in range(8)]
    for figure in WHOLE[1:]:
        (line,) = (line for line in lines if f"{figure.title} " in line)
        assert line.split()[3:] == ["7200.0" if figure.function == "avg" else "2"] * 8
    assert len(WHOLE) * len(GROUPINGS) == 104


def test_before_the_first_batch_there_is_a_page_too(status: CallCenterStatus) -> None:
    assert "0 of 12,000,000" in text(live_page(status))
    assert "none yet" in text(live_page(status))
    assert "0 events/s" in plain_line(status)


def test_the_page_shows_progress_memory_and_figures(
    status: CallCenterStatus, report: Report
) -> None:
    status.absorb([report(0, 6_000_000)])
    status.running = 4.0
    status.window_end = BEGIN + 13 * HOUR
    status.rows = [kpi(1, 3_000_000), kpi(2, 1_234_567)]
    page = text(live_page(status))
    for part in (
        "2026-01-01 13:00:00, 13.0 of 26.0 h",
        "6,000,000 of 12,000,000",
        "3.0 MB of 64.0 MB budget",
        "1.50 M events/s",
        "ingest 410 ms  component 150 ms  commit 9 ms  sink 88 ms",
        "20.0 MB",
        "2 events arrived too late",
        "8,640 rows",
        "Billing",
    ):
        assert part in page, part


def test_the_line_shows_the_same_without_a_terminal(
    status: CallCenterStatus, report: Report
) -> None:
    status.absorb([report(0, 6_000_000)])
    status.running, status.elapsed = 4.0, 9.0
    assert plain_line(status) == (
        "    9 s  event time 2026-01-01 13:00:00  events 6,000,000 of 12,000,000  "
        "1.50 M events/s  memory 3.0 MB of 64.0 MB  log 20.0 MB  late 2  results 8,640 rows"
    )


def test_the_figures_are_a_readable_table(status: CallCenterStatus) -> None:
    status.window_end = BEGIN + 26 * HOUR
    status.rows = [kpi(2, 1_234_567), kpi(1, 3_000_000), kpi(3, 10)]
    shown = text(kpi_table(status, most=2))
    lines = shown.splitlines()
    assert lines[0].strip() == "The 24 hours up to 2026-01-02 02:00:00 UTC"
    assert "longest wait" in shown
    billing = next(line for line in lines if "Billing" in line)
    cells = [cell.strip() for cell in billing.split("│")[1:-1]]
    assert cells == [
        "Billing",
        "3,000,000",
        "41.3 s",
        "31:55 min",
        "3:27 min",
        "5,432 h",
        "24.4 s",
    ]
    assert shown.index("Billing") < shown.index("Technical support")
    assert "Orders" not in shown
    assert "and 1 more with fewer calls" in shown


def test_a_window_that_is_not_full_says_so(status: CallCenterStatus) -> None:
    status.window_end = BEGIN + 2 * HOUR
    status.rows = [kpi(1, 10)]
    assert "the stream began 2 hours before" in text(kpi_table(status, most=5))


def test_the_summary_reports_what_it_took(status: CallCenterStatus, report: Report) -> None:
    status.absorb([report(0, 12_000_000)])
    status.running, status.elapsed = 8.0, 14.5
    shown = text(summary_table(status, kept="/data/kept"))
    for part in (
        "12,000,000, 26.0 hours of event time",
        "1.50 M events/s, in 1 batches",
        "8,640: a window of 24 hours every 10 seconds, 24 groups",
        "3.0 MB at most, budget 64.0 MB",
        "20.0 MB",
        "14.5 s, 8.0 s of it in the query",
        "/data/kept",
    ):
        assert part in shown, part
