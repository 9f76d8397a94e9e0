"""`icestream demo`: a day in the call centres, made, queried and shown on this machine.

Idea: a thread writes the stream into files while a local Spark runs the query over them; this
thread follows the query's progress and the newest window, and ends with what the run took.

Invariants:
1. What is shown at the end is what the events say
   (`test_oracle_the_demo_ends_with_the_figures_of_the_last_window`).

Limits: unless a rate is given, the events are spread over 13/12 of the window, so that full windows
slide for a while at the end; `rate=1000, events=90_000_000` is the load of the source.

References: Shared SlideM, section 5.2 and appendix A.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from rich.console import Console
from rich.live import Live

import icestream as ice
from icestream.apps.call_center.display import (
    Status,
    kpi_table,
    live_page,
    plain_line,
    summary_table,
)
from icestream.apps.call_center.generator import AgentInteractions
from icestream.apps.call_center.kpis import DEMO, GROUPINGS
from icestream.apps.call_center.replay import Replay
from icestream.apps.call_center.results import NewestWindow
from icestream.apps.call_center.schema import SPARK_SCHEMA
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_bytes, parse_interval

_SLACK = "2 seconds"
#: files in all and events per batch to aim at, when replaying at full speed
_FILES = 200
_EVENTS_PER_BATCH = 1_000_000
_POLL_SECONDS = 0.25
_LINE_SECONDS = 5.0
#: columns of output that is no terminal
_WIDTH = 100


class Query(Protocol):
    """What the demo asks of a running query."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Tell whether the query runs."""

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802 - Spark's name
        """Give the reports of the last batches, oldest first."""

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until all input there is has been processed; raise what ended the query."""

    def stop(self) -> None:
        """Stop the query, after the batch that is running."""


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
    console: Console | None = None,
) -> int:
    """Run the demo and show it.

    Args:
        events: how many events to generate and process.
        memory: the budget of the query's state.
        fast_forward: how many times faster than event time to replay; None for full speed.
        window: the range of the window.
        slide: how often there is a result, in event time.
        rate: events per second of event time; None spreads the events over 13/12 of the window.
        by: the grouping key, one of `kpis.GROUPINGS`.
        seed: another seed is another stream.
        keep: a new or empty folder for events, results and checkpoint; None for a temporary one.
        console: where to show it.

    Returns:
        The exit code of the command: 0.
    """
    began = time.monotonic()
    console = console or _console()
    _refuse_nonsense(events, fast_forward, by)
    parse_bytes(memory)
    if rate is None:
        rate = max(1, events * 1_000_000 // (parse_interval(window) * 13 // 12))
    stream = AgentInteractions(rate=rate, seed=seed, disorder=parse_interval(_SLACK))
    until = stream.begin + events * 1_000_000 // rate
    status = Status(events, stream.begin, until, window, slide, by)
    seconds = _file_seconds(status, fast_forward)
    files = max(1, round(_EVENTS_PER_BATCH / (seconds * rate)))
    with ExitStack() as ending:
        home = ending.enter_context(_folder(keep))
        source = home / "events"
        source.mkdir()
        replay = Replay(stream, source, events, seconds=seconds, fast_forward=fast_forward)
        replay.start()
        ending.callback(replay.stop)
        console.print(
            f"Starting Spark; generating {events:,} events, {rate:,} a second.", highlight=False
        )
        runs_already = SparkSession.getActiveSession() is not None
        spark = ice.local_session(app_name="icestream demo")
        if not runs_already:
            ending.callback(spark.stop)
        query = _start(spark, home, files, memory=memory, window=window, slide=slide, by=by)
        ending.callback(query.stop)
        _follow(query, replay, NewestWindow(home / "results", by), status, console, began)
    status.elapsed = time.monotonic() - began
    _show_end(console, status, keep)
    return 0


def _console() -> Console:
    """Give standard output, wide enough for the table where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _refuse_nonsense(events: int, fast_forward: float | None, by: str) -> None:
    """Raise for arguments that make no demo."""
    if events < 1:
        msg = f"the demo needs at least 1 event; got {events}"
        raise DefinitionError(msg)
    if fast_forward is not None and fast_forward <= 0:
        msg = f"fast-forward must be above 0; got {fast_forward}; leave it out for full speed"
        raise DefinitionError(msg)
    if by not in GROUPINGS:
        msg = f"cannot group by {by!r}; choose one of {', '.join(GROUPINGS)}"
        raise DefinitionError(msg)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Give the folder to keep, or a temporary one that is removed at the end."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="icestream-demo-") as temporary:
            yield Path(temporary)
        return
    if keep.exists() and any(keep.iterdir()):
        msg = f"{keep} is not empty; give a new folder, or remove what an earlier demo left there"
        raise DefinitionError(msg)
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


def _file_seconds(status: Status, fast_forward: float | None) -> int:
    """Choose the event time per file: about a second of replay, or a part of the whole."""
    if fast_forward is not None:
        return max(1, round(fast_forward))
    return max(1, (status.until - status.begin) // (_FILES * 1_000_000))


def _start(
    spark: SparkSession, home: Path, files: int, *, memory: str, window: str, slide: str, by: str
) -> Query:
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
        for figure in DEMO
    ]
    return (
        calls.window(window, slide=slide)
        .groupBy(by)
        .agg(*figures)
        .writeStream.format("parquet")
        .option("path", str(home / "results"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .memory(memory)
        .start()
    )


def _follow(
    query: Query,
    replay: Replay,
    newest: NewestWindow,
    status: Status,
    console: Console,
    began: float,
) -> None:
    """Show the progress of the query until it has processed all events."""
    started = time.monotonic()
    done = threading.Event()
    failures: list[Exception] = []

    def finish() -> None:
        replay.join()
        try:
            query.processAllAvailable()
        except Exception as failure:  # raised again in the thread that follows
            failures.append(failure)
        done.set()

    threading.Thread(target=finish, name="finish", daemon=True).start()

    def look() -> None:
        now = time.monotonic()
        status.elapsed = now - began
        status.written = replay.written
        if status.absorb(query.recentProgress):
            status.running = now - started
            newest.refresh()
            status.window_end, status.rows = newest.end, newest.rows

    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while not done.wait(_POLL_SECONDS) and query.isActive:
                look()
                live.update(live_page(status))
    else:
        line = started
        while not done.wait(_POLL_SECONDS) and query.isActive:
            look()
            if time.monotonic() - line >= _LINE_SECONDS:
                line = time.monotonic()
                console.print(plain_line(status), soft_wrap=True, highlight=False)
    replay.check()
    if failures:
        raise failures[0]
    look()


def _show_end(console: Console, status: Status, keep: Path | None) -> None:
    """Show the figures of the last window and what the run took."""
    console.print(plain_line(status), soft_wrap=True, highlight=False)
    console.print()
    if status.rows:
        console.print(kpi_table(status, most=24))
        console.print()
    console.print(summary_table(status, kept=str(keep) if keep else None))
