"""The output of the recommender demo: a live page on a terminal, lines elsewhere, and a summary.

Idea: `RecommenderStatus` is plain data; everything here turns a `RecommenderStatus` into text and
touches nothing else, so it is tested without a query.

Invariants:
1. Ratings and requests have separate speeds
   (`test_oracle_ratings_and_requests_have_speeds_of_their_own`).
2. The table shows the latest answers, best items first
   (`test_oracle_the_table_shows_answers_best_first`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.recommender.answers import Answer, Request
from examples.shared.live_page import memory_bar, waiting_line
from icestream.core.units import format_bytes
from icestream.demo.progress import (
    Progress,
    bars,
    events_bar,
    show_phases,
    show_time,
    show_watermark,
)

#: items of an answer that fit into the table
_ITEMS = 4


@dataclass(slots=True)
class RecommenderStatus:
    """The progress of the demo."""

    #: total ratings and requests of the demo
    ratings: int
    requests: int
    #: how long a rating counts, as the user wrote it
    window: str
    progress: Progress = field(default_factory=Progress)
    #: ratings and requests processed
    rated: int = 0
    asked: int = 0
    #: events in complete files
    written: int = 0
    #: seconds since the demo was started
    elapsed: float = 0.0
    #: how often a group was evicted and read back
    left: int = 0
    returned: int = 0
    #: the answers to the last requests, latest first
    latest: list[tuple[Request, Answer]] = field(default_factory=list)

    @property
    def events(self) -> int:
        """Return the number of events of the demo."""
        return self.ratings + self.requests


@dataclass(frozen=True, slots=True)
class RecommendationVerdict:
    """The verdict of the offline model on some answers."""

    checked: int
    #: of these, answers to standing requests
    standing: int
    #: items in the answers that were checked
    items: int
    #: descriptions of the differences
    wrong: tuple[str, ...]


def show_rate(count: int, seconds: float, what: str) -> str:
    """Format a rate: `1,234 ratings/s`."""
    return f"{count / seconds if seconds > 0 else 0:,.0f} {what}/s"


def _speeds(status: RecommenderStatus) -> str:
    running = status.progress.running
    ratings, requests = (
        show_rate(count, running, what)
        for count, what in ((status.rated, "ratings"), (status.asked, "requests"))
    )
    return f"{ratings}, {requests}"


def live_page(status: RecommenderStatus) -> RenderableType:
    """Draw the page that is refreshed while the query runs."""
    progress = status.progress
    grid = bars()
    grid.add_row("events", *events_bar(progress, status.events, status.written))
    grid.add_row("memory", *memory_bar(progress))
    grid.add_row(
        "groups",
        f"{progress.groups:,}",
        f"left memory {status.left:,} times, came back {status.returned:,} times",
    )
    grid.add_row("speed", _speeds(status), f"{progress.result_rows:,} result rows")
    grid.add_row("watermark", show_watermark(progress), show_phases(progress))
    title = f"Icestream: recommendations, {status.elapsed:.0f} s"
    parts: list[RenderableType] = [Panel(grid, title=title, title_align="left")]
    if status.latest:
        parts += [Text(), answer_table(status, most=10)]
    return Group(*parts)


def plain_line(status: RecommenderStatus) -> str:
    """Return the status as a line, for output that is not a terminal."""
    progress = status.progress
    if not progress.processed:
        return waiting_line(status.elapsed, status.written, status.events)
    return (
        f"{status.elapsed:5.0f} s  {progress.processed:,} of {status.events:,} events, "
        f"{_speeds(status)}, memory {format_bytes(progress.memory)} of "
        f"{format_bytes(progress.budget)}, log {format_bytes(progress.log)}, "
        f"{progress.groups:,} groups, {status.left:,} times cold, {status.returned:,} back"
    )


def answer_table(status: RecommenderStatus, *, most: int) -> Table:
    """Draw the answers to the last requests."""
    title = f"Latest recommendations, of the ratings of {status.window}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("user", justify="right")
    table.add_column("asked, UTC", no_wrap=True)
    table.add_column("items, with the rating they will get", no_wrap=True)
    for request, answer in status.latest[:most]:
        items = "  ".join(f"{each.item} ({each.score:.2f})" for each in answer[:_ITEMS])
        more = f"  and {len(answer) - _ITEMS} more" if len(answer) > _ITEMS else ""
        table.add_row(str(request.user), show_time(request.asked), items + more)
    return table


def summary_table(
    status: RecommenderStatus, verdict: RecommendationVerdict, *, kept: str | None
) -> RenderableType:
    """Draw the cost of the run, and whether the answers are right."""
    progress = status.progress
    facts = Table(title="What it took", title_justify="left", title_style="bold", show_header=False)
    facts.add_column(style="bold")
    facts.add_column()
    facts.add_row("ratings", f"{status.rated:,}, each alive for {status.window}")
    facts.add_row("requests", f"{status.asked:,}")
    facts.add_row("speed", _speeds(status))
    facts.add_row("result rows", f"{progress.result_rows:,} in {progress.batches:,} batches")
    facts.add_row(
        "memory at most", f"{format_bytes(progress.peak)} of {format_bytes(progress.budget)}"
    )
    facts.add_row("state on disk", format_bytes(progress.log))
    facts.add_row(
        "cold groups", f"left memory {status.left:,} times, came back {status.returned:,} times"
    )
    facts.add_row("time", f"{status.elapsed:.1f} s, {progress.running:.1f} s of it in the query")
    right = verdict.checked - len(verdict.wrong)
    facts.add_row(
        "checked",
        f"{right} of {verdict.checked} answers with {verdict.items} items are those of the model "
        f"computed from all ratings; {verdict.standing} of them are to standing requests",
    )
    if kept:
        facts.add_row("kept in", kept)
    return facts
