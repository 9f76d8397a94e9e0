"""`python -m examples recommender`: ratings, requests and recommendations, live on this machine.

Idea: a thread writes ratings and requests into files while a local Spark runs one query over them,
in mode `changes`: a plain request gets one answer, a standing request a new answer with every
rating that changes it. At the end some answers are compared with a model computed from all ratings.

Invariants:
1. The demo ends with answers that agree with the offline model, or reports differences and fails
   (`test_oracle_the_demo_ends_with_right_answers`).

Cost: pairs of a user's ratings, so quadratic in the ratings of a user that are alive; hence the
window.

Limits: the first three quarters of the ratings come before the first request.

References: ICE, section III-A.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from rich.console import Console, RenderableType

import icestream as ice
from examples.recommender.answers import Recommendations, Request, wrong
from examples.recommender.display import (
    RecommendationVerdict,
    RecommenderStatus,
    answer_table,
    live_page,
    plain_line,
    summary_table,
)
from examples.recommender.generator import Ratings
from examples.recommender.offline import SimilarityModel
from examples.recommender.query import recommendations
from examples.recommender.ratings import read_table
from examples.recommender.workload import (
    DEREGISTER,
    EVENT_SPARK_SCHEMA,
    RATING,
    REGISTER,
    REQUEST,
    RatingWorkload,
)
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_interval, parse_bytes, parse_interval
from icestream.demo.replay import EventFile, Replay
from icestream.demo.results import ResultFiles
from icestream.demo.running import DemoQuery, demo_folder, demo_session, follow, wide_console

#: users, items and days of the ratings that are generated, for each rating
_USERS, _ITEMS = 1 / 3, 1 / 6
_DAYS = 60
#: ratings before the first request
_WARM_UP = 3 / 4
_EVENTS_PER_FILE = 1_000
#: answers to compare at the end, to requests and to standing ones, and to show
_CHECKED, _STANDING = 40, 20
_SHOWN = 12


def demo(
    *,
    ratings: Path | None = None,
    count: int = 12_000,
    memory: str = "256 MB",
    window: str = "14 days",
    items: int = 10,
    requests: int = 1,
    standing: float = 0.001,
    seed: int = 1,
    keep: Path | None = None,
    ui: bool = False,
    console: Console | None = None,
) -> int:
    """Run the demo and show it.

    Args:
        ratings: a file of ratings as MovieLens publishes them; they are generated if None.
        count: how many ratings to use, the first ones of a file.
        memory: the budget of the query's state.
        window: how long a rating counts.
        items: maximum number of items in an answer.
        requests: requests for each rating, after the first three quarters of the ratings.
        standing: share of the requests that open or close a standing one.
        seed: seed of the ratings and requests.
        keep: a new or empty folder for events, results and checkpoint; None for a temporary one.
        ui: whether to show the queries on a local page, too.
        console: where to show it.

    Returns:
        The exit code of the command: 0, or 1 if the offline model does not agree with the answers.
    """
    began = time.monotonic()
    console = console or wide_console()
    parse_bytes(memory)
    lifetime = parse_interval(window)
    known = _ratings(ratings, count, seed)
    workload = RatingWorkload(
        known,
        int(known.num_rows * _WARM_UP),
        requests=requests,
        standing=standing,
        seed=seed,
    )
    stream = _Stream(workload)
    status = RecommenderStatus(
        known.num_rows, stream.events - known.num_rows, format_interval(lifetime)
    )
    with ExitStack() as ending:
        home = ending.enter_context(demo_folder(keep, console if ui else None))
        (home / "events").mkdir()
        replay = Replay(stream, home / "events", stream.events, seconds=1)
        replay.start()
        ending.callback(replay.stop)
        told = f"{known.num_rows:,} ratings and {status.requests:,} requests"
        console.print(f"Starting Spark; {told}; a rating counts for {window}.", highlight=False)
        spark = demo_session(ending)
        query = _start(spark, home, memory=memory, window=window, items=items)
        ending.callback(query.stop)
        view = _View(query, replay, status, stream, home, began)
        follow([query], replay, view, console)
        verdict = _checked(stream.table, view.answers, lifetime, items)
    status.elapsed = time.monotonic() - began
    console.print(plain_line(status), soft_wrap=True, highlight=False)
    console.print()
    if status.latest:
        console.print(answer_table(status, most=_SHOWN))
        console.print()
    console.print(summary_table(status, verdict, kept=str(keep) if keep else None))
    for each in verdict.wrong:
        console.print(f"differs from the offline model: {each}", highlight=False)
    return 1 if verdict.wrong else 0


def _ratings(path: Path | None, count: int, seed: int) -> pa.Table:
    """Read or generate ratings."""
    if count < 4:
        msg = f"the demo needs at least 4 ratings; got {count}"
        raise DefinitionError(msg)
    if path is not None:
        return read_table(path).slice(0, count)
    users, items = max(2, round(count * _USERS)), max(2, round(count * _ITEMS))
    span = _DAYS * parse_interval("1 day")
    return Ratings(users=users, items=items, ratings=count, seed=seed, span=span).table()


def _start(spark: SparkSession, home: Path, *, memory: str, window: str, items: int) -> DemoQuery:
    """Start the query over the files in `events`."""
    frame = (
        spark.readStream.schema(EVENT_SPARK_SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(home / "events"))
    )
    events = ice.stream(frame, time="time").events()
    return (
        recommendations(events, k=items, window=window)
        .writeStream.outputMode("changes")
        .format("parquet")
        .option("path", str(home / "results"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .memory(memory)
        .start()
    )


class _Stream:
    """The events of a workload, as a replay writes them."""

    def __init__(self, workload: RatingWorkload) -> None:
        """Generate all events once, to have them at the end."""
        self._workload = workload
        self.table = workload.table()
        self.events = self.table.num_rows
        self._times = self.table.column("time").cast(pa.int64()).to_numpy()
        self._rated = np.cumsum(self.table.column("stream").to_numpy() == RATING)

    @property
    def begin(self) -> Micros:
        """Return the event time at which it begins."""
        return self.time_of(0)

    def time_of(self, event: int) -> Micros:
        """Return the time of an event by its number."""
        return int(self._times[event])

    def write(self, folder: Path, events: int, *, seconds: int) -> Iterator[EventFile]:
        """Write all events, some in each file; `seconds` is not used."""
        del events, seconds
        return self._workload.write(folder, rows=_EVENTS_PER_FILE)

    def ratings_among(self, events: int) -> int:
        """Return how many of the first events are ratings."""
        return int(self._rated[events - 1]) if events else 0


class _View:
    """The view of the running query."""

    def __init__(
        self,
        query: DemoQuery,
        replay: Replay,
        status: RecommenderStatus,
        stream: _Stream,
        home: Path,
        began: float,
    ) -> None:
        """Start empty."""
        self._query = query
        self._replay = replay
        self._status = status
        self._stream = stream
        self._files = ResultFiles(home / "results")
        self.answers = Recommendations()
        self._began = began
        self._started = time.monotonic()

    def look(self) -> None:
        """Update from the progress of the query, and from the newest answers after a batch."""
        now = time.monotonic()
        status, progress = self._status, self._status.progress
        status.elapsed = now - self._began
        status.written = self._replay.written
        reports = self._query.recentProgress
        if progress.absorb(reports):
            progress.running = now - self._started
            cold = reports[-1]["icestream"]["coldState"]
            status.left, status.returned = cold["left"], cold["returned"]
            status.rated = self._stream.ratings_among(progress.processed)
            status.asked = progress.processed - status.rated
        for table in self._files.new():
            self.answers.take(table)
        if progress.processed:
            now = self._stream.time_of(progress.processed - 1)
            status.latest = self.answers.latest(now, _SHOWN)

    def page(self) -> RenderableType:
        """Draw the page."""
        return live_page(self._status)

    def line(self) -> str:
        """Return the line."""
        return plain_line(self._status)


def _checked(
    events: pa.Table, answers: Recommendations, window: Micros, k: int
) -> RecommendationVerdict:
    """Compare some answers, from first to last, with the model of the ratings at their times."""
    of = events.column("stream")
    ratings = events.filter(pc.equal(of, RATING)).select(["time", "user", "item", "rating"])
    asked, standing = _asked(events), _standing(events)
    found, items = [], 0
    for request, instant in [*asked, *standing]:
        answer = answers.of(request, instant)
        items += len(answer)
        found.append(wrong(answer, SimilarityModel.at(ratings, instant, window), request.user, k))
    wrong_ones = tuple(each for each in found if each is not None)
    return RecommendationVerdict(len(found), len(standing), items, wrong_ones)


def _asked(events: pa.Table) -> list[tuple[Request, Micros]]:
    """Choose some plain requests, each with its time."""
    users, times = _columns(events.filter(pc.equal(events.column("stream"), REQUEST)))
    chosen = np.unique(np.linspace(0, len(users) - 1, min(_CHECKED, len(users))).astype(np.int64))
    return [(Request(users[each], times[each]), times[each]) for each in chosen.tolist()]


def _standing(events: pa.Table) -> list[tuple[Request, Micros]]:
    """Choose some standing requests, each with the last time at which it is open."""
    of, last = events.column("stream"), _columns(events)[1][-1]
    opened = zip(*_columns(events.filter(pc.equal(of, REGISTER))), strict=True)
    ends = dict.fromkeys((Request(user, time) for user, time in opened), last)
    closing = events.filter(pc.equal(of, DEREGISTER))
    since = closing.column("since").cast(pa.int64()).to_pylist()
    for user, end, start in zip(*_columns(closing), since, strict=True):
        ends[Request(user, start)] = end - 1
    return list(ends.items())[-_STANDING:]


def _columns(events: pa.Table) -> tuple[list[int], list[Micros]]:
    """Return the users and times of events."""
    return events.column("user").to_pylist(), events.column("time").cast(pa.int64()).to_pylist()
