"""The output of the market demo: a live page on a terminal, lines elsewhere, and a summary.

Idea: `MarketStatus` is plain data; everything here turns a `MarketStatus` into text and touches
nothing else, so it is tested without a query.

Invariants:
1. A stock's deviation is that of its last price from its average price
   (`test_oracle_the_table_shows_how_far_prices_are_off`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.shared.live_page import memory_bar
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_bytes, format_interval, parse_interval
from icestream.demo.progress import (
    Progress,
    bar,
    bars,
    show_phases,
    show_speed,
    show_time,
    show_watermark,
)


@dataclass(slots=True)
class MarketStatus:
    """The progress of the demo."""

    #: total trades of the demo, and the event time they cover
    events: int
    begin: Micros
    until: Micros
    #: range of the window, as the user wrote it
    window: str
    #: by the frequency of a query's results: "every trade", "every 1 second"
    queries: dict[str, Progress]
    #: trades in complete files
    written: int = 0
    #: seconds since the demo was started
    elapsed: float = 0.0
    #: the newest window of the query with a slide: its end, and a row per symbol
    window_end: Micros = MINUS_INFINITY
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: the result for the last trade of each symbol
    latest: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def show_count(value: float) -> str:
    """Format a count: `1,234,567`."""
    return f"{int(value):,}"


def show_price(value: float) -> str:
    """Format a price: `1,234.50`."""
    return f"{value:,.2f}"


def show_average(value: float) -> str:
    """Format an average price: `34.4127`."""
    return f"{value:,.4f}"


def deviation(row: Mapping[str, Any]) -> float:
    """Return the relative deviation of the last price from the average price."""
    return float(row["last_price"] / row["vwap"] - 1)


def _by_turnover(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the stocks with the highest turnover, in descending order."""
    return sorted(rows, key=lambda row: row["vwap"] * row["volume"], reverse=True)[:most]


def live_page(status: MarketStatus) -> RenderableType:
    """Draw the page that is refreshed while the queries run."""
    grid = bars()
    for every, query in status.queries.items():
        grid.add_row(
            every,
            bar(query.processed, status.events),
            f"{query.processed:,} of {status.events:,} trades ({status.written:,} generated)",
        )
        grid.add_row("", *memory_bar(query))
        speed = f"{show_speed(query.speed)}, {query.result_rows:,} rows"
        grid.add_row("", speed, show_phases(query))
        grid.add_row("", f"watermark {show_watermark(query)}", f"{query.late:,} came too late")
        grid.add_row()
    title = f"Icestream: a market of 100 stocks, {status.elapsed:.0f} s"
    parts: list[RenderableType] = [Panel(grid, title=title, title_align="left")]
    if status.rows or status.latest:
        parts += [Text(), stock_table(status, most=12)]
    return Group(*parts)


def plain_line(status: MarketStatus) -> str:
    """Return the status as a line, for output that is not a terminal."""
    parts = [f"{status.elapsed:5.0f} s"]
    parts += [
        f"{every}: {query.processed:,} of {status.events:,} trades, "
        f"{show_speed(query.speed)}, {query.result_rows:,} rows, "
        f"memory {format_bytes(query.memory)} of {format_bytes(query.budget)}, "
        f"log {format_bytes(query.log)}"
        for every, query in status.queries.items()
    ]
    return "  ".join(parts)


def stock_table(status: MarketStatus, *, most: int) -> Table:
    """Draw the newest figures of the stocks that are traded most."""
    return _window_table(status, most) if status.rows else _latest_table(status, most)


def _window_table(status: MarketStatus, most: int) -> Table:
    title = f"The {status.window} up to {show_time(status.window_end)} UTC"
    if status.window_end - parse_interval(status.window) < status.begin:
        seen = format_interval(max(0, status.window_end - status.begin))
        title += f" (the stream began {seen} before)"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("symbol", no_wrap=True)
    for heading in ("trades", "volume", "last price", "VWAP", "deviation"):
        table.add_column(heading, justify="right")
    if status.latest:
        table.add_column("VWAP at its last trade", justify="right")
    for row in _by_turnover(status.rows, most):
        off = deviation(row)
        cells: list[RenderableType] = [
            row["symbol"],
            show_count(row["trades"]),
            show_count(row["volume"]),
            show_price(row["last_price"]),
            show_average(row["vwap"]),
            Text(f"{off:+.2%}", style="green" if off >= 0 else "red"),
        ]
        if status.latest:
            answer = status.latest.get(row["symbol"])
            cells.append("" if answer is None else show_average(answer["vwap"]))
        table.add_row(*cells)
    _tell_hidden(table, len(status.rows) - most)
    return table


def _latest_table(status: MarketStatus, most: int) -> Table:
    """Draw the results for the last trades: they have no common window."""
    title = f"The {status.window} up to the last trade of each stock"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("symbol", no_wrap=True)
    table.add_column("VWAP", justify="right")
    table.add_column("last trade, UTC", justify="right")
    for symbol, row in sorted(status.latest.items())[:most]:
        table.add_row(symbol, show_average(row["vwap"]), show_time(row["time"]))
    _tell_hidden(table, len(status.latest) - most)
    return table


def _tell_hidden(table: Table, hidden: int) -> None:
    if hidden > 0:
        table.caption = f"and {hidden:,} more"


def summary_table(status: MarketStatus, *, kept: str | None) -> RenderableType:
    """Draw the cost of the run: trades, time, memory and disk of each query."""
    table = Table(title="What it took", title_justify="left", title_style="bold")
    table.add_column("results", no_wrap=True)
    for heading in ("rows", "speed", "batches", "late", "memory at most", "state on disk"):
        table.add_column(heading, justify="right", no_wrap=True)
    for every, query in status.queries.items():
        table.add_row(
            every,
            f"{query.result_rows:,}",
            show_speed(query.speed),
            f"{query.batches:,}",
            f"{query.late:,}",
            format_bytes(query.peak),
            format_bytes(query.log),
        )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    hours = (status.until - status.begin) / 3.6e9
    facts.add_row("trades", f"{status.written:,}, {hours:.2f} hours of event time")
    facts.add_row("window", status.window)
    budget = max((query.budget for query in status.queries.values()), default=0)
    facts.add_row("budget", f"{format_bytes(budget)} for each query")
    running = max((query.running for query in status.queries.values()), default=0.0)
    facts.add_row("time", f"{status.elapsed:.1f} s, {running:.1f} s of it in the queries")
    if kept:
        facts.add_row("kept in", kept)
    return Group(table, facts)
