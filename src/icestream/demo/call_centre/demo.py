"""`icestream demo`: a day in the call centres, generated, queried and shown on this machine.

Idea: a thread writes the stream to files while a local Spark runs the query over them; the main
thread follows the query's progress and the newest window, and ends with a summary of the run.

Invariants:
1. The figures at the end are those of the events
   (`test_oracle_the_demo_ends_with_the_figures_of_the_last_window`).

Limits: by default the events are spread over 13/12 of the window, so that full windows slide for a
while at the end; `rate=1000, events=90_000_000` is the load of the paper.

References: Shared SlideM, section 5.2 and appendix A.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console, RenderableType

import icestream as ice
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_bytes, parse_interval
from icestream.dashboard.query_list import BOARD_ROWS
from icestream.dashboard.server import shared_page
from icestream.demo.call_centre.display import (
    CallCenterStatus,
    figure_rows,
    kpi_table,
    live_page,
    plain_line,
    summary_table,
)
from icestream.demo.call_centre.generator import AgentInteractions
from icestream.demo.call_centre.kpis import ALL, GROUPINGS, shown_figures
from icestream.demo.call_centre.schema import SPARK_SCHEMA
from icestream.demo.call_centre.spark_window import seconds_of_spark
from icestream.demo.killing import KilledQuery
from icestream.demo.replay import Replay
from icestream.demo.results import NewestWindow
from icestream.demo.running import DemoQuery, demo_folder, demo_session, follow, wide_console

_SLACK = "2 seconds"
#: target numbers of files and of events per batch, when replaying at full speed
_FILES = 200
_EVENTS_PER_BATCH = 1_000_000


def demo(
    *,
    events: int = 12_000_000,
    memory: str = "64 MB",
    fast_forward: float | None = None,
    window: str = "24 hours",
    slide: str = "10 seconds",
    rate: int | None = None,
    by: str = "serviceId",
    seed: int = 1,
    keep: Path | None = None,
    kill: bool = False,
    spark_window: bool = False,
    ui: bool = False,
    console: Console | None = None,
) -> int:
    """Run the demo of the call centres and show it; options are those of `icestream demo`.

    Returns:
        The exit code of the command: 0.
    """
    began = time.monotonic()
    console = console or wide_console()
    _refuse_nonsense(events, fast_forward, by)
    parse_bytes(memory)
    if rate is None:
        rate = max(1, events * 1_000_000 // (parse_interval(window) * 13 // 12))
    stream = AgentInteractions(rate=rate, seed=seed, disorder=parse_interval(_SLACK))
    until = stream.begin + events * 1_000_000 // rate
    status = CallCenterStatus(events, stream.begin, until, window, slide, by)
    seconds = _file_seconds(status, fast_forward)
    files = max(1, round(_EVENTS_PER_BATCH / (seconds * rate)))
    with ExitStack() as ending:
        home = ending.enter_context(demo_folder(keep, console if ui else None))
        source = home / "events"
        source.mkdir()
        replay = Replay(stream, source, events, seconds=seconds, fast_forward=fast_forward)
        replay.start()
        ending.callback(replay.stop)
        console.print(
            f"Starting Spark; generating {events:,} events, {rate:,} a second.", highlight=False
        )
        spark = demo_session(ending)
        if kill:
            # Spark prints a page for each task that is lost
            spark.sparkContext.setLogLevel("OFF")
        start = partial(_start, spark, home, files, memory, window, slide, by)
        query = KilledQuery(start)
        ending.callback(query.stop)
        newest = NewestWindow(home / "results", *(GROUPINGS if by == ALL else [by]))
        checkpoint = str(home / "checkpoint") if ui else None
        view = _View(query, replay, newest, status, began, kill, checkpoint)
        follow([query], replay, view, console)
        if spark_window:
            console.print(
                "Running Spark's own window() over one minute of the events; it may take one, too."
            )
            status.spark_seconds = seconds_of_spark(spark, source, status)
    status.elapsed = time.monotonic() - began
    _show_end(console, status, keep)
    return 0


def _refuse_nonsense(events: int, fast_forward: float | None, by: str) -> None:
    """Refuse invalid arguments."""
    if events < 1:
        msg = f"the demo needs at least 1 event; got {events}"
        raise DefinitionError(msg)
    if fast_forward is not None and fast_forward <= 0:
        msg = f"fast-forward must be above 0; got {fast_forward}; leave it out for full speed"
        raise DefinitionError(msg)
    if by not in (*GROUPINGS, ALL):
        msg = f"cannot group by {by!r}; choose one of {', '.join(GROUPINGS)}, or {ALL}"
        raise DefinitionError(msg)


def _file_seconds(status: CallCenterStatus, fast_forward: float | None) -> int:
    """Return the event time per file: about a second of replay, or a part of the whole."""
    if fast_forward is not None:
        return max(1, round(fast_forward))
    return max(1, (status.until - status.begin) // (_FILES * 1_000_000))


def _start(
    spark: SparkSession, home: Path, files: int, memory: str, window: str, slide: str, by: str
) -> DemoQuery:
    """Start the query of the key figures over the files in `events`."""
    frame = (
        spark.readStream.schema(SPARK_SCHEMA)
        .option("maxFilesPerTrigger", files)
        .parquet(str(home / "events"))
    )
    calls = ice.stream(frame, time="timestamp", slack=_SLACK)
    functions = {"avg": ice.avg, "sum": ice.sum, "max": ice.max}
    figures = [
        (
            ice.count() if figure.function == "count" else functions[figure.function](figure.field)
        ).alias(figure.column)
        for figure in shown_figures(by)
    ]
    windows = calls.window(window, slide=slide)
    if by == ALL:
        # only groups that changed: most agents rest
        sets = windows.groupingSets([[key] for key in GROUPINGS], *GROUPINGS)
        results = sets.agg(*figures).writeStream.outputMode("changes")
    else:
        results = windows.groupBy(by).agg(*figures).writeStream
    return (
        results.format("parquet")
        .option("path", str(home / "results"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .memory(memory)
        .start()
    )


@dataclass(slots=True)
class _View:
    """The display of the running query."""

    query: KilledQuery
    replay: Replay
    newest: NewestWindow
    status: CallCenterStatus
    began: float
    #: whether workers are to be killed halfway
    kill: bool
    #: the checkpoint whose page shows the figures too, if there is a page
    checkpoint: str | None
    started: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Read the progress of the query and, after a batch, the newest window."""
        now = time.monotonic()
        self.status.elapsed = now - self.began
        self.status.written = self.replay.written
        if self.status.absorb(self.query.recentProgress):
            self.status.running = now - self.started
            self.newest.refresh()
            self.status.window_end, self.status.rows = self.newest.end, self.newest.rows
            if self.checkpoint is not None:
                rows = figure_rows(self.status, BOARD_ROWS)
                shared_page(self.checkpoint).library.show(self.checkpoint, rows)
        if self.kill and self.status.processed >= self.status.events // 3:
            self.kill = False
            self.query.kill()
            self.status.story = self.query.story

    def page(self) -> RenderableType:
        return live_page(self.status)

    def line(self) -> str:
        return plain_line(self.status)


def _show_end(console: Console, status: CallCenterStatus, keep: Path | None) -> None:
    """Show the figures of the last window and the summary of the run."""
    console.print(plain_line(status), soft_wrap=True, highlight=False)
    console.print()
    if status.rows:
        console.print(kpi_table(status, most=24))
        console.print()
    console.print(summary_table(status, kept=str(keep) if keep else None))
