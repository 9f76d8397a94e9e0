"""Writes the files of a stream for a running query to read, at a pace.

Idea: a thread writes one file after the other. With `fast_forward` x, event time passes x times as
fast as wall time; without it, files are written as fast as they are generated.

Invariants:
1. No file is complete before its time (`test_oracle_fast_forward_paces_event_time`).
2. A failure ends the thread, and `check` raises it (`test_crash_a_failed_replay_says_so`).
3. Modification times follow the order of files (`test_spark_takes_the_files_in_their_order`).
4. A file is written when it is requested, not before (`test_a_file_is_written_when_asked_for`).

Limits: if listing the folder takes longer than writing two files, a listing may show the second
without the first.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.core.times import Micros


@dataclass(frozen=True, slots=True)
class EventFile:
    """A finished file of a stream."""

    path: Path
    events: int
    #: event time up to which the stream is complete, except for disorder
    until: Micros


def write_files(
    folder: Path, pieces: Iterable[tuple[pa.Table, Micros]], dictionary: Sequence[str]
) -> Iterator[EventFile]:
    """Write each piece of events, given with the event time it reaches, to its own file.

    The columns in `dictionary` have few values.
    """
    hidden = folder / "_writing"
    hidden.mkdir(parents=True, exist_ok=True)
    modified = 0
    for ordinal, (events, until) in enumerate(pieces):
        name = f"{ordinal:06d}.parquet"
        pq.write_table(
            events,
            hidden / name,
            compression="lz4",
            use_dictionary=list(dictionary),
            write_statistics=False,
        )
        modified = max(time.time_ns(), modified + 1_000_000)
        os.utime(hidden / name, ns=(modified, modified))
        (hidden / name).rename(folder / name)
        yield EventFile(folder / name, events.num_rows, until)


class ReplaySource(Protocol):
    """A stream that can be written to files."""

    @property
    def begin(self) -> Micros:
        """Return the event time of its start."""

    def write(self, folder: Path, events: int, *, seconds: int) -> Iterator[EventFile]:
        """Write the first `events` events, in files of `seconds` of event time each."""


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
        """Prepare the replay; `start()` begins it, `stop()` ends it early."""
        super().__init__(name="replay", daemon=True)
        self._stream = stream
        self._folder = folder
        self._seconds = seconds
        self._fast_forward = fast_forward
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        #: events that the finished replay will have written
        self.events = events
        #: events in complete files
        self.written = 0
        #: event time up to which files are complete
        self.until: Micros = stream.begin

    def run(self) -> None:
        """Write files until all are written or `stop` is called."""
        begin = time.monotonic()
        try:
            files = self._stream.write(self._folder, self.events, seconds=self._seconds)
            while self.written < self.events and not self._stopped.wait(self._pause(begin)):
                file = next(files)
                self.written += file.events
                self.until = file.until
        except Exception as failure:  # check raises it again, in the main thread
            self._failure = failure

    def stop(self) -> None:
        """Write no further file, and wait for the current one."""
        self._stopped.set()
        self.join()

    def check(self) -> None:
        """Raise the error of the replay, if it failed."""
        if self._failure is not None:
            raise self._failure

    def _pause(self, begin: float) -> float:
        """Return the seconds to wait before the next file."""
        if self._fast_forward is None:
            return 0.0
        due = (self.until - self._stream.begin) / 1e6 + self._seconds
        return max(0.0, due / self._fast_forward - (time.monotonic() - begin))
