"""Puts the files of a stream in front of a running query, at a pace.

Idea: a thread writes one file after the other. At `fast_forward` x, a file is complete when x times
less wall time has passed than its event time; without it, files come as fast as they are made.

Invariants:
1. No file is complete before its time (`test_oracle_fast_forward_paces_event_time`).
2. A failure ends the thread and is raised by `check` (`test_crash_a_failed_replay_says_so`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from icestream.core.times import Micros
from icestream.demo.event_files import EventFile


class ReplaySource(Protocol):
    """A stream that can be written to files."""

    @property
    def begin(self) -> Micros:
        """Give the event time it begins at."""

    def write(self, folder: Path, events: int, *, seconds: int) -> Iterator[EventFile]:
        """Write the first `events` events, a file of `seconds` of event time at a time."""


class Replay(threading.Thread):
    """Writes the first `events` events of a stream into a folder, in the background."""

    def __init__(
        self,
        stream: ReplaySource,
        folder: Path,
        events: int,
        *,
        seconds: int,
        fast_forward: float | None = None,
    ) -> None:
        """Prepare; `start()` begins, `stop()` ends early."""
        super().__init__(name="replay", daemon=True)
        self._stream = stream
        self._folder = folder
        self._seconds = seconds
        self._fast_forward = fast_forward
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        #: events the replay will have written when it is done
        self.events = events
        #: events in files that are complete
        self.written = 0
        #: event time up to which files are complete
        self.until: Micros = stream.begin

    def run(self) -> None:
        """Write files until all are written or `stop` was called."""
        begin = time.monotonic()
        try:
            files = self._stream.write(self._folder, self.events, seconds=self._seconds)
            while self.written < self.events and not self._stopped.wait(self._pause(begin)):
                file = next(files)
                self.written += file.events
                self.until = file.until
        except Exception as failure:  # raised again by check, in the main thread
            self._failure = failure

    def stop(self) -> None:
        """Write no further file, and wait for the one being written."""
        self._stopped.set()
        self.join()

    def check(self) -> None:
        """Raise what made the replay fail, if it failed."""
        if self._failure is not None:
            raise self._failure

    def _pause(self, begin: float) -> float:
        """Give the seconds to wait before the next file."""
        if self._fast_forward is None:
            return 0.0
        due = (self.until - self._stream.begin) / 1e6 + self._seconds
        return max(0.0, due / self._fast_forward - (time.monotonic() - begin))
