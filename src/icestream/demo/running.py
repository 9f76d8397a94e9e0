"""What every demo does: a folder, a Spark, a replay, queries over it, and something to look at.

Idea: `follow` shows queries until they have processed everything the replay wrote: as a page that
is redrawn on a terminal, else as a line from time to time. What is shown is the demo's own.

Invariants:
1. What fails in a query or in the replay is raised to who follows
   (`test_crash_a_query_that_fails_ends_the_demo`, `test_crash_a_replay_that_fails_ends_the_demo`).
2. The last look comes after the last batch (`test_oracle_the_last_look_sees_the_last_batch`).
3. A page shows how queries ended although their folder is gone
   (`test_the_page_of_a_demo_outlives_its_folder`).
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
from rich.console import Console, RenderableType
from rich.live import Live

import icestream as ice
from icestream.core.errors import DefinitionError
from icestream.dashboard.server import shared_page
from icestream.demo.replay import Replay
from icestream.runtime.spark.session import kernel_cache

_POLL_SECONDS = 0.25
_LINE_SECONDS = 5.0
#: columns of output that is no terminal
_WIDTH = 100


class DemoQuery(Protocol):
    """What a demo asks of a running query."""

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


class DemoView(Protocol):
    """What a demo shows."""

    def look(self) -> None:
        """Take in how far everything is."""

    def page(self) -> RenderableType:
        """Draw it for a terminal."""

    def line(self) -> str:
        """Write it as a line."""


def wide_console() -> Console:
    """Give standard output, wide enough for the tables where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


@contextmanager
def demo_folder(keep: Path | None, shown: Console | None = None) -> Iterator[Path]:
    """Give the folder to keep, or a temporary one that is removed at the end.

    With a console, the queries in the folder are shown on the page of this process, whose address
    is printed there; what the page knows stays on it when the folder is gone.
    """
    with ExitStack() as ending:
        home = _new_folder(keep, ending)
        if shown is not None:
            page = shared_page(str(home))
            # reads the ends of the queries, after which the folder may go
            ending.callback(page.library.watched)
            shown.print(f"The queries are shown at {page.url}", highlight=False, soft_wrap=True)
        yield home


def _new_folder(keep: Path | None, ending: ExitStack) -> Path:
    if keep is None:
        temporary = tempfile.TemporaryDirectory(prefix="icestream-demo-")
        return Path(ending.enter_context(temporary))
    if keep.exists() and any(keep.iterdir()):
        msg = f"{keep} is not empty; give a new folder, or remove what an earlier demo left there"
        raise DefinitionError(msg)
    keep.mkdir(parents=True, exist_ok=True)
    return keep


def demo_session(ending: ExitStack) -> SparkSession:
    """Give a Spark on this machine, stopped at the end unless it ran before."""
    runs_already = SparkSession.getActiveSession() is not None
    if not kernel_cache().exists():
        wide_console().print("The first run compiles its kernels: half a minute more, once.")
    spark = ice.local_session(app_name="icestream demo")
    if not runs_already:
        ending.callback(spark.stop)
    return spark


def follow(queries: Sequence[DemoQuery], replay: Replay, view: DemoView, console: Console) -> None:
    """Show queries until they have processed all that the replay writes."""
    done = threading.Event()
    failures: list[Exception] = []

    def finish() -> None:
        replay.join()
        try:
            for query in queries:
                query.processAllAvailable()
        except Exception as failure:  # raised again in the thread that follows
            failures.append(failure)
        done.set()

    threading.Thread(target=finish, name="finish", daemon=True).start()

    def going_on() -> bool:
        return not done.wait(_POLL_SECONDS) and all(query.isActive for query in queries)

    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while going_on():
                view.look()
                live.update(view.page())
    else:
        line = time.monotonic()
        while going_on():
            view.look()
            if time.monotonic() - line >= _LINE_SECONDS:
                line = time.monotonic()
                console.print(view.line(), soft_wrap=True, highlight=False)
    replay.check()
    if not done.is_set():
        # a query has ended: what ended it is raised by the wait for it
        replay.stop()
        done.wait()
    if failures:
        raise failures[0]
    view.look()
