"""The output of the advertising demo: a live page on a terminal, lines elsewhere, and a summary.

Idea: `AdvertisingStatus` is plain data; everything here turns an `AdvertisingStatus` into text and
touches nothing else, so it is tested without a query.

Invariants:
1. The table shows the best keywords of each ad, and marks the planted ones
   (`test_oracle_the_table_shows_what_speaks_most_for_an_ad`).
2. Scores are shown best first (`test_oracle_scores_are_shown_best_first`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from math import exp

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.advertising.answers import AdVerdict, Scores, Weights
from examples.advertising.query import BIAS
from examples.shared.live_page import memory_bar, waiting_line
from icestream.core.times import Micros
from icestream.core.units import format_bytes
from icestream.demo.progress import (
    Progress,
    bars,
    events_bar,
    show_speed,
    show_time,
    show_watermark,
)

#: keywords of an ad, and ads of a score, that a table has room for
_KEYWORDS, _ADS = 5, 4
#: bots that are listed
_BOTS = 10


@dataclass(slots=True)
class AdvertisingStatus:
    """The progress of the demo."""

    #: total events of the demo
    events: int
    #: how long acts count and how often the model changes, as the user wrote it
    window: str
    refresh: str
    #: keywords that were planted, by ad
    planted: Mapping[int, Set[int]]
    progress: Progress = field(default_factory=Progress)
    #: events in complete files
    written: int = 0
    #: seconds since the demo was started
    elapsed: float = 0.0
    #: how often a group was evicted and read back, and groups on disk only
    left: int = 0
    returned: int = 0
    cold: int = 0
    #: now: users that are bots, and the model
    bots: Set[int] = frozenset()
    weights: Weights = field(default_factory=dict)
    #: users who were ever bots
    caught: set[int] = field(default_factory=set)
    #: the last results: time, user, and scores
    latest: list[tuple[Micros, int, Scores]] = field(default_factory=list)


def live_page(status: AdvertisingStatus) -> RenderableType:
    """Draw the page that is refreshed while the query runs."""
    query = status.progress
    grid = bars()
    grid.add_row("events", *events_bar(query, status.events, status.written))
    grid.add_row("memory", *memory_bar(query))
    grid.add_row("groups", _groups(status), _moves(status))
    grid.add_row("speed", show_speed(query.speed), f"watermark {show_watermark(query)}")
    grid.add_row("bots", f"{len(status.bots):,} now", f"{len(status.caught):,} found so far")
    title = f"Icestream: behavioural targeting, {status.elapsed:.0f} s"
    parts: list[RenderableType] = [Panel(grid, title=title, title_align="left")]
    if status.weights:
        parts += [Text(), ad_table(status, most=8)]
    if status.latest:
        parts += [Text(), score_table(status, most=5)]
    return Group(*parts)


def plain_line(status: AdvertisingStatus) -> str:
    """Return the status as a line, for output that is not a terminal."""
    query = status.progress
    if not query.processed:
        return waiting_line(status.elapsed, status.written, status.events)
    return (
        f"{status.elapsed:5.0f} s  {query.processed:,} of {status.events:,} events, "
        f"{show_speed(query.speed)}, {len(status.caught):,} bots found, "
        f"{len(status.weights):,} weights, memory {format_bytes(query.memory)} of "
        f"{format_bytes(query.budget)}, groups: {_groups(status)}, "
        f"log {format_bytes(query.log)}"
    )


def ad_table(status: AdvertisingStatus, *, most: int) -> Table:
    """Draw the keywords of each ad with the highest z scores."""
    table = Table(title="What speaks for an ad", title_justify="left", title_style="bold")
    table.add_column("ad", justify="right")
    table.add_column("clicked", justify="right")
    table.add_column("kept", justify="right")
    table.add_column("keywords and their z, * planted")
    ads = sorted(ad for ad, keyword in status.weights if keyword == BIAS)
    for ad in ads[:most]:
        own = {key: w for (of, key), w in status.weights.items() if of == ad and key != BIAS}
        best = sorted(own.items(), key=lambda each: (-each[1].z, each[0]))[:_KEYWORDS]
        planted = status.planted.get(ad, frozenset())
        shown = "  ".join(
            f"{keyword}{'*' if keyword in planted else ''} {weight.z:.1f}"
            for keyword, weight in best
        )
        prior = 1 / (1 + exp(-status.weights[ad, BIAS].weight))
        table.add_row(f"{ad}", f"{prior:.1%}", f"{len(own)}", shown)
    if len(ads) > most:
        table.caption = f"and {len(ads) - most:,} more"
    return table


def score_table(status: AdvertisingStatus, *, most: int) -> Table:
    """Draw the last scores: the ads that a user would most likely click."""
    table = Table(title="Who would click what", title_justify="left", title_style="bold")
    table.add_column("asked, UTC", no_wrap=True)
    table.add_column("user", justify="right")
    table.add_column("ads, most likely first")
    for asked, user, scores in status.latest[:most]:
        best = sorted(scores.items(), key=lambda each: (-each[1], each[0]))[:_ADS]
        shown = "  ".join(f"{ad}: {probability:.1%}" for ad, probability in best)
        table.add_row(show_time(asked), f"{user}", shown)
    return table


def summary_table(
    status: AdvertisingStatus, verdict: AdVerdict, *, kept: str | None
) -> RenderableType:
    """Draw the findings, the cost of the run, and the verdict of the offline model."""
    query = status.progress
    table = Table(title="What it took", title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("events", f"{query.processed:,}, {query.late:,} of them too late")
    named = ", ".join(map(str, sorted(status.caught)[:_BOTS]))
    more = ", ..." if len(status.caught) > _BOTS else ""
    table.add_row("bots found", f"{len(status.caught):,}: {named}{more}")
    table.add_row("window", f"{status.window}; the model changes every {status.refresh}")
    table.add_row(
        "time", f"{status.elapsed:.1f} s, {query.running:.1f} s of it in {query.batches:,} batches"
    )
    table.add_row("speed", show_speed(query.speed))
    table.add_row(
        "memory", f"{format_bytes(query.peak)} at most of {format_bytes(query.budget)} budget"
    )
    table.add_row("groups", f"{_groups(status)}; {_moves(status)}")
    table.add_row("state on disk", format_bytes(query.log))
    agrees = "agrees" if not verdict.wrong else f"finds {len(verdict.wrong):,} mistakes"
    table.add_row(
        "offline model",
        f"{agrees}: {verdict.numbers:,} numbers at {verdict.instants:,} instants and in "
        f"{verdict.answers:,} answers",
    )
    if kept:
        table.add_row("kept in", kept)
    return table


def _groups(status: AdvertisingStatus) -> str:
    return f"{status.progress.groups:,} in memory, {status.cold:,} on disk only"


def _moves(status: AdvertisingStatus) -> str:
    return f"left memory {status.left:,} times, came back {status.returned:,} times"
