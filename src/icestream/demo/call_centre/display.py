"""What the demo shows: a live page on a terminal, lines elsewhere, and a summary at the end.

Idea: `CallCenterStatus` is plain data, filled from the query's progress reports; the functions here
only turn a `CallCenterStatus` into text, so they can be tested without a query.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_bytes, format_interval, parse_interval
from icestream.demo.call_centre.kpis import ALL, DEMO, WHOLE, busiest, by_calls, group_name
from icestream.demo.progress import (
    Progress,
    bar,
    bars,
    events_bar,
    show_phases,
    show_speed,
    show_time,
    show_watermark,
)


@dataclass(slots=True)
class CallCenterStatus(Progress):
    """The progress of the demo."""

    #: total events of the demo, and the event time they cover
    events: int
    begin: Micros
    until: Micros
    #: range and slide of the window, as the user wrote them
    window: str
    slide: str
    grouping: str
    #: events in complete files
    written: int = 0
    #: seconds since the demo was started
    elapsed: float = 0.0
    #: the newest window: its end, and a row per group
    window_end: Micros = MINUS_INFINITY
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: how workers were killed, in one line
    story: str = ""
    #: seconds that Spark's own windows took for a minute of events
    spark_seconds: float | None = None


def _event_time(status: CallCenterStatus) -> Micros:
    """Return the event time that the query has reached, from the part of processed events."""
    done = status.processed / status.events
    return status.begin + round((status.until - status.begin) * done)


def live_page(status: CallCenterStatus) -> RenderableType:
    """Return the display of the call centres, which is redrawn while the query runs."""
    grid = bars()
    span = status.until - status.begin
    covered = _event_time(status)
    grid.add_row(
        "event time",
        bar(covered - status.begin, span),
        f"{show_time(covered)}, {(covered - status.begin) / 3.6e9:.1f} of {span / 3.6e9:.1f} h",
    )
    grid.add_row("events", *events_bar(status, status.events, status.written))
    grid.add_row(
        "memory",
        bar(status.memory, status.budget or 1),
        f"{format_bytes(status.memory)} of {format_bytes(status.budget)} budget",
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    speed = f"{show_speed(status.speed)}, last batch {show_speed(status.batch_speed)}"
    facts.add_row("speed", speed)
    facts.add_row(f"batch {status.batches}", show_phases(status))
    facts.add_row("log on disk", f"{format_bytes(status.log)}, {status.groups:,} groups")
    facts.add_row("watermark", f"{show_watermark(status)}, {status.late:,} events arrived too late")
    facts.add_row("results", f"{status.result_rows:,} rows")
    if status.story:
        facts.add_row("killed", status.story)
    title = f"Icestream: a day in 20 call centres, {status.elapsed:.0f} s"
    panel = Panel(Group(grid, Text(), facts), title=title, title_align="left")
    return Group(panel, kpi_table(status, most=10)) if status.rows else panel


def plain_line(status: CallCenterStatus) -> str:
    """Return the display of a status as a line, for output that is not a terminal."""
    return (
        f"{status.elapsed:5.0f} s  event time {show_time(_event_time(status))}  "
        f"events {status.processed:,} of {status.events:,}  {show_speed(status.speed)}  "
        f"memory {format_bytes(status.memory)} of {format_bytes(status.budget)}  "
        f"log {format_bytes(status.log)}  late {status.late:,}  results {status.result_rows:,} rows"
    )


def kpi_table(status: CallCenterStatus, *, most: int) -> Table:
    """Return the display of the newest window's key figures, for groups with the most calls."""
    full = status.window_end - parse_interval(status.window) >= status.begin
    title = f"The {status.window} up to {show_time(status.window_end)} UTC"
    if not full:
        seen = format_interval(max(0, status.window_end - status.begin))
        title += f" (the stream began {seen} before)"
    table = Table(title=title, title_justify="left", title_style="bold")
    rows = figure_rows(status, most)
    for place, name in enumerate(rows[0] if rows else ()):
        # the columns of all figures are as narrow as their words
        narrow = name.replace(" ", "\n") if status.grouping == ALL else name
        table.add_column(
            narrow, justify="right" if place else "left", no_wrap=place == 0, overflow="fold"
        )
    for row in rows:
        table.add_row(*row.values())
    if status.grouping == ALL:
        table.box, table.padding = SIMPLE_HEAD, 0
        table.caption = (
            "144 figures: sum, count and average of 6 times by 8 keys; counts once for a key"
        )
    elif len(status.rows) > most:
        table.caption = f"and {len(status.rows) - most:,} more with fewer calls"
    return table


def figure_rows(status: CallCenterStatus, most: int) -> list[dict[str, str]]:
    """Return the key figures of the newest window for a display, as rows of texts.

    A row is a group, one of those with the most calls; with all groupings, a figure of the busiest
    group of each key.
    """
    if status.grouping == ALL:
        groups = busiest(status.rows)
        return [
            {
                "busiest of each key": figure.title,
                **{
                    group_name(key, row[key]): figure.show(row[figure.column])
                    for key, row in groups.items()
                },
            }
            for figure in WHOLE
            if groups
        ]
    name = "service" if status.grouping == "serviceId" else status.grouping
    return [
        {
            name: group_name(status.grouping, row[status.grouping]),
            **{figure.title: figure.show(row[figure.column]) for figure in DEMO},
        }
        for row in by_calls(status.rows, most)
    ]


def summary_table(status: CallCenterStatus, *, kept: str | None) -> Table:
    """Return the display of a run's summary: events, time, memory and disk."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    hours = (status.until - status.begin) / 3.6e9
    table.add_row("events", f"{status.processed:,}, {hours:.1f} hours of event time")
    table.add_row("speed", f"{show_speed(status.speed)}, in {status.batches:,} batches")
    every = f"a window of {status.window} every {status.slide}"
    table.add_row("result rows", f"{status.result_rows:,}: {every}, {status.groups:,} groups")
    budget = f"{format_bytes(status.peak)} at most, budget {format_bytes(status.budget)}"
    table.add_row("memory", budget)
    table.add_row("state on disk", format_bytes(status.log))
    table.add_row("late events", f"{status.late:,}")
    table.add_row("time", f"{status.elapsed:.1f} s, {status.running:.1f} s of it in the query")
    if status.story:
        table.add_row("killed", status.story)
    if status.spark_seconds is not None:
        minute = status.running / (hours * 60)
        spark = f"{status.spark_seconds:.1f} s for one minute of these events"
        table.add_row("Spark's window()", f"{spark}; Icestream took {minute:.3f} s a minute")
    if kept:
        table.add_row("kept in", kept)
    return table
