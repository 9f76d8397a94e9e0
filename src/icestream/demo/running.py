"""What every demo does: create a folder, start Spark, replay events, run queries and show them.

Idea: `follow` shows queries until they have processed everything that the replay wrote: on a
terminal as a page that is redrawn, otherwise as a line from time to time. The demo defines the
content.

Invariants:
1. An error of a query or of the replay is raised by `follow`
   (`test_crash_a_query_that_fails_ends_the_demo`, `test_crash_a_replay_that_fails_ends_the_demo`).
2. The view is updated once more after the last batch
   (`test_oracle_the_last_look_sees_the_last_batch`).
3. A page shows how queries ended even if their folder is gone
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

_POLL_SECONDS = 0.25
_LINE_SECONDS = 5.0
#: width of output that is not a terminal
_WIDTH = 100


class DemoQuery(Protocol):
    """What a demo needs of a running query."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Return whether the query is running."""

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802 - Spark's name
        """Return the reports of the last batches, oldest first."""

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until all available input has been processed; raise the error of the query."""

    def stop(self) -> None:
        """Stop the query, after the current batch."""


class DemoView(Protocol):
    """The display of a demo."""

    def look(self) -> None:
        """Update it with the current progress."""

    def page(self) -> RenderableType:
        """Return it for a terminal."""

    def line(self) -> str:
        """Return it as one line."""


def wide_console() -> Console:
    """Return the console for running a demo, wide enough for tables if it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


@contextmanager
def demo_folder(keep: Path | None, shown: Console | None = None) -> Iterator[Path]:
    """Return the folder for running a demo: one to keep, or a temporary one.

    With a console, the page of this process shows the queries in the folder, and its address is
    printed there; the page keeps what it has read when the folder is gone.
    """
    with ExitStack() as ending:
        home = _new_folder(keep, ending)
        if shown is not None:
            page = shared_page(str(home))
            # read the ends of the queries before the folder is removed
            ending.callback(page.library.watched)
            shown.print(f"The dashboard is at {page.url}", highlight=False, soft_wrap=True)
        yield home


def _new_folder(keep: Path | None, ending: ExitStack) -> Path:
    if keep is None:
        temporary = tempfile.TemporaryDirectory(prefix="icestream-demo-")
        return Path(ending.enter_context(temporary))
    if keep.exists() and any(keep.iterdir()):
        msg = f"{keep} is not empty; give a new folder, or remove the files of an earlier demo"
        raise DefinitionError(msg)
    keep.mkdir(parents=True, exist_ok=True)
    return keep


def demo_session(ending: ExitStack) -> SparkSession:
    """Return the Spark session for running a demo; it is stopped unless it ran before."""
    runs_already = SparkSession.getActiveSession() is not None
    spark = ice.local_session(app_name="icestream demo")
    if not runs_already:
        ending.callback(spark.stop)
    return spark


def follow(queries: Sequence[DemoQuery], replay: Replay, view: DemoView, console: Console) -> None:
    """Show the running queries of a demo until they processed all that the replay writes."""
    done = threading.Event()
    failures: list[Exception] = []

    def finish() -> None:
        replay.join()
        try:
            for query in queries:
                query.processAllAvailable()
        except Exception as failure:  # raised again in the main thread
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
        # a query has ended: waiting for it raises its error
        replay.stop()
        done.wait()
    if failures:
        raise failures[0]
    view.look()
