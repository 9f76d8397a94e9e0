"""A demo's query whose workers are killed once, and which starts again from its checkpoint.

Idea: on one machine Spark gives a failed task no second try, so a killed worker ends the query with
an error. `kill` takes the workers away without warning, waits for that end and starts the query
again: it goes on from its last committed version. Where Spark replaces the workers between two
batches the query never notices.

Invariants:
1. A query that ends by anything else raises its error
   (`test_a_query_that_was_not_killed_raises_its_error`).
2. Whoever waits for the query waits for the one that was started again
   (`test_a_killed_query_is_waited_for_until_the_end`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil

from icestream.demo.running import DemoQuery

#: seconds until workers work, and until a query that lost them has ended or finished a batch
_PATIENCE = 20.0
_POLL_SECONDS = 0.05
#: the argument of the process that Spark's workers are forks of
_DAEMON = "icestream.runtime.spark.daemon"


class KilledQuery:
    """A running query that survives `kill`."""

    def __init__(self, start: Callable[[], DemoQuery]) -> None:
        """Start the query; `start` is called once more after a kill."""
        self._start = start
        self._query = start()
        self._changing = threading.Lock()
        #: what happened, in one line; empty before
        self.story = ""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        with self._changing:
            return self._query.isActive

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802 - Spark's name
        return self._query.recentProgress

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        while True:
            query, failure = self._query, None
            try:
                query.processAllAvailable()
            except Exception as error:
                failure = error
            with self._changing:
                if query is self._query:
                    if failure is not None:
                        raise failure
                    return

    def stop(self) -> None:
        self._query.stop()

    def kill(self) -> None:
        """Kill the Python workers, and start the query again if that ended it."""
        with self._changing:
            workers = f"Python workers killed: {kill_workers()}"
            began = time.monotonic()
            if self._ends():
                self._query = self._start()
                seconds = time.monotonic() - began
                self.story = f"{workers}; the query ran again after {seconds:.1f} s, no row lost"
            else:
                self.story = f"{workers}; their batch was done, and Spark replaced them"

    def _ends(self) -> bool:
        """Wait until the query has ended, or has made another version."""
        reports, end = self._query.recentProgress, time.monotonic() + _PATIENCE
        while self._query.isActive and time.monotonic() < end:
            if self._query.recentProgress[-1:] != reports[-1:]:
                return False
            time.sleep(_POLL_SECONDS)
        return not self._query.isActive


def kill_workers() -> int:
    """Kill the Python workers of the Spark that this process started, at work; return how many."""
    before, end = _worker_times(), time.monotonic() + _PATIENCE
    busy: list[psutil.Process] = []
    while not busy and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        busy = [each for each, used in _worker_times().items() if used > before.get(each, used)]
    for process in busy:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return len(busy)


def _worker_times() -> dict[psutil.Process, float]:
    """Return the processor time of each Python worker."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            parent = process.parent()
            if parent is not None and _DAEMON in parent.cmdline():
                found[process] = sum(process.cpu_times()[:2])
    return found
