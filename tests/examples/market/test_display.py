from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from examples.market.display import (
    MarketStatus,
    deviation,
    live_page,
    plain_line,
    stock_table,
    summary_table,
)
from examples.market.generator import BEGIN
from icestream.demo.progress import Progress

MINUTE = 60_000_000


def stock(symbol: str, volume: int, last: float, vwap: float) -> dict[str, Any]:
    return {"symbol": symbol, "trades": 10, "volume": volume, "last_price": last, "vwap": vwap}


def answer(vwap: float) -> dict[str, Any]:
    return {"time": BEGIN + 63 * MINUTE, "vwap": vwap}


@pytest.fixture
def status() -> MarketStatus:
    queries = {
        "every trade": Progress(processed=500_000, running=4.0, result_rows=499_900, batches=2),
        "every 1 second": Progress(processed=750_000, running=5.0, budget=64 << 20, memory=3 << 20),
    }
    return MarketStatus(1_000_000, BEGIN, BEGIN + 65 * MINUTE, "1 hour", queries)


def text(shown: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def cells(shown: str, symbol: str) -> list[str]:
    line = next(line for line in shown.splitlines() if symbol in line)
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_oracle_the_table_shows_how_far_prices_are_off(status: MarketStatus) -> None:
    status.window_end = BEGIN + 64 * MINUTE
    status.rows = [stock("LOW", 1_000, 9.9, 10.0), stock("HIGH", 2_000, 1_030.0, 1_000.0)]
    status.latest = {"HIGH": answer(1_000.5)}
    assert deviation(status.rows[0]) == pytest.approx(-0.01)
    shown = text(stock_table(status, most=5))
    assert "The 1 hour up to 2026-01-01 01:04:00 UTC" in shown
    assert cells(shown, "HIGH") == [
        "HIGH",
        "10",
        "2,000",
        "1,030.00",
        "1,000.0000",
        "+3.00%",
        "1,000.5000",
    ]
    assert cells(shown, "LOW")[-2:] == ["-1.00%", ""]
    assert shown.index("HIGH") < shown.index("LOW")


def test_the_stocks_that_are_left_out_are_counted(status: MarketStatus) -> None:
    status.window_end = BEGIN + 64 * MINUTE
    status.rows = [stock(f"S{number}", number + 1, 1.0, 1.0) for number in range(9)]
    shown = text(stock_table(status, most=2))
    assert "S8" in shown
    assert "S0" not in shown
    assert "and 7 more" in shown


def test_a_window_that_is_not_full_says_so(status: MarketStatus) -> None:
    status.window_end = BEGIN + 2 * MINUTE
    status.rows = [stock("ONE", 1, 1.0, 1.0)]
    title = " ".join(text(stock_table(status, most=5)).split("┏")[0].split())
    assert title.endswith("00:02:00 UTC (the stream began 2 minutes before)")


def test_answers_to_trades_alone_are_a_table_too(status: MarketStatus) -> None:
    status.latest = {"ONE": answer(12.34567)}
    shown = text(stock_table(status, most=5))
    assert cells(shown, "ONE") == ["ONE", "12.3457", "2026-01-01 01:03:00"]


def test_the_page_shows_every_query(status: MarketStatus) -> None:
    before = text(live_page(status))
    assert "none yet" in before
    status.latest = {"ONE": answer(1.0)}
    page = text(live_page(status))
    for part in ("every trade", "every 1 second", "500,000 of 1,000,000", "ONE"):
        assert part in page, part
    assert "3.0 MB of 64.0 MB budget" in page


def test_the_line_shows_the_same_without_a_terminal(status: MarketStatus) -> None:
    line = plain_line(status)
    assert "every trade: 500,000 of 1,000,000 trades, 0.12 M events/s, 499,900 rows" in line
    assert "every 1 second: 750,000 of 1,000,000 trades" in line


def test_the_summary_reports_what_it_took(status: MarketStatus) -> None:
    status.written, status.elapsed = 1_000_000, 14.5
    shown = text(summary_table(status, kept="/data/kept"))
    assert cells(shown, "every trade")[1:3] == ["499,900", "0.12 M events/s"]
    for part in ("1,000,000, 1.08 hours", "14.5 s, 5.0 s of it", "64.0 MB for each", "/data/kept"):
        assert part in shown, part
