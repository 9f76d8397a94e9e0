"""`python -m examples advertising`: users, bots and ads, generated and shown live.

Idea: a thread writes impressions, clicks and searches into files while a local Spark runs one query
over them: who is a bot, which keywords predict clicks on which ad, and how likely scored users
    click
which ad. Some users are scored whenever an ad is shown to them. At the end everything is computed
once more from all events, by the offline model, and must be the same.

Invariants:
1. The results shown at the end follow from the events
   (`test_oracle_the_demo_ends_with_what_the_offline_model_says`).
2. A difference is reported, and no file is left behind unless requested
   (`test_a_difference_is_reported_and_no_file_is_left_behind`).

Limits: the number of users is chosen so that the stream is about eight hours long.

References: ICE, section III-B.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console, RenderableType

import icestream as ice
from examples.advertising.answers import AnswerTotals, checked
from examples.advertising.display import (
    AdvertisingStatus,
    ad_table,
    live_page,
    plain_line,
    score_table,
    summary_table,
)
from examples.advertising.generator import IMPRESSION, SPARK_SCHEMA, AdEvents
from examples.advertising.offline import Rules
from examples.advertising.query import Targeting
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_interval, parse_bytes, parse_interval
from icestream.demo.replay import Replay
from icestream.demo.results import ResultFiles
from icestream.demo.running import DemoQuery, demo_folder, demo_session, follow, wide_console

#: events of a user in eight hours
_EVENTS_PER_USER = 10
_FEWEST_USERS = 200
#: event time of a file, in seconds, and files per batch
_SECONDS = 600
_FILES_PER_BATCH = 3
#: ads and scores at the end
_SHOWN_ADS, _SHOWN_SCORES = 20, 8


def demo(
    *,
    events: int = 200_000,
    memory: str = "128 MB",
    window: str = "6 hours",
    refresh: str = "1 hour",
    ads: int = 20,
    keywords: int = 100,
    asking: int = 50,
    seed: int = 1,
    keep: Path | None = None,
    ui: bool = False,
    console: Console | None = None,
) -> int:
    """Run the demo and show it.

    Args:
        events: how many events to generate and process.
        memory: the budget of the query's state.
        window: how long clicks and searches count.
        refresh: how often the model changes, in event time.
        ads: how many ads there are.
        keywords: how many keywords there are.
        asking: one in this many users is scored, whenever an ad is shown to them.
        seed: seed of the generated users.
        keep: a new or empty folder for events, results and checkpoint; None for a temporary one.
        ui: whether to show the queries on a local page, too.
        console: where to show it.

    Returns:
        The exit code of the command: 0, or 1 if the offline model does not agree.
    """
    began = time.monotonic()
    console = console or wide_console()
    _refuse_nonsense(events, asking)
    parse_bytes(memory)
    rules, every = Rules(window=parse_interval(window)), parse_interval(refresh)
    users = max(_FEWEST_USERS, events // _EVENTS_PER_USER)
    stream = AdEvents(users=users, ads=ads, keywords=keywords, seed=seed)
    planted = {ad: set(row) for ad, row in enumerate(stream.keywords_of_ads().tolist(), 1)}
    status = AdvertisingStatus(
        events, format_interval(rules.window), format_interval(every), planted
    )
    with ExitStack() as ending:
        home = ending.enter_context(demo_folder(keep, console if ui else None))
        (home / "events").mkdir()
        replay = Replay(stream, home / "events", events, seconds=_SECONDS)
        replay.start()
        ending.callback(replay.stop)
        told = f"{events:,} events of {users:,} users, {len(stream.bot_users()):,} of them bots"
        console.print(f"Starting Spark; generating {told}.", highlight=False)
        spark = demo_session(ending)
        query = _start(spark, home, rules, every, asking=asking, memory=memory)
        ending.callback(query.stop)
        view = _View(query, replay, status, home, began)
        follow([query], replay, view, console)
        console.print("Computing the same offline.", highlight=False)
        verdict = checked(view.told, pq.read_table(home / "events"), rules, every)
    status.elapsed = time.monotonic() - began
    console.print(plain_line(status), soft_wrap=True, highlight=False)
    console.print()
    if status.weights:
        console.print(ad_table(status, most=_SHOWN_ADS))
        console.print()
    if status.latest:
        console.print(score_table(status, most=_SHOWN_SCORES))
        console.print()
    console.print(summary_table(status, verdict, kept=str(keep) if keep else None))
    for each in verdict.wrong:
        console.print(f"differs from the offline model: {each}", highlight=False)
    return 1 if verdict.wrong else 0


def _refuse_nonsense(events: int, asking: int) -> None:
    """Raise for invalid arguments."""
    if events < 1:
        msg = f"the demo needs at least 1 event; got {events}"
        raise DefinitionError(msg)
    if asking < 1:
        msg = f"asking must be at least 1 (one in this many users is scored); got {asking}"
        raise DefinitionError(msg)


def _start(
    spark: SparkSession, home: Path, rules: Rules, refresh: Micros, *, asking: int, memory: str
) -> DemoQuery:
    """Start the query over the files in `events`."""
    frame = (
        spark.readStream.schema(SPARK_SCHEMA)
        .option("maxFilesPerTrigger", _FILES_PER_BATCH)
        .parquet(str(home / "events"))
    )
    events = ice.stream(frame, time="time").events()
    asked = events.where(f"stream = {IMPRESSION} AND user % {asking} = 0")
    targeting = Targeting(events, rules, asked.select("user", "time AS at"), refresh)
    return (
        targeting.told.writeStream.outputMode("changes")
        .format("parquet")
        .option("path", str(home / "results"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .memory(memory)
        .start()
    )


class _View:
    """The view of the running query."""

    def __init__(
        self, query: DemoQuery, replay: Replay, status: AdvertisingStatus, home: Path, began: float
    ) -> None:
        """Start empty."""
        self._query = query
        self._replay = replay
        self._status = status
        self._files = ResultFiles(home / "results")
        self._began = began
        self._started = time.monotonic()
        self.told = AnswerTotals()

    def look(self) -> None:
        """Update from the progress of the query, and from new results after a batch."""
        now = time.monotonic()
        status, progress = self._status, self._status.progress
        status.elapsed = now - self._began
        status.written = self._replay.written
        reports = self._query.recentProgress
        if not progress.absorb(reports):
            return
        progress.running = now - self._started
        cold = reports[-1]["icestream"]["coldState"]
        status.left, status.returned, status.cold = (
            cold[name] for name in ("left", "returned", "indexed")
        )
        for table in self._files.new():
            self.told.take(table)
        self._tell_news()

    def _tell_news(self) -> None:
        """Show the results at the time of the last request."""
        status, requests = self._status, self.told.requests()
        if not requests:
            return
        instant = requests[-1][0]
        status.bots, status.weights = self.told.bots(instant), self.told.weights(instant)
        status.caught |= status.bots
        status.latest = [
            (asked, user, self.told.scores(user, asked))
            for asked, user in reversed(requests[-_SHOWN_SCORES:])
        ]

    def page(self) -> RenderableType:
        """Draw the page."""
        return live_page(self._status)

    def line(self) -> str:
        """Return the line."""
        return plain_line(self._status)
