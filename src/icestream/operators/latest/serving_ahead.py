"""Serving keys between two versions, while no task runs: Spark plans, commits and reads meanwhile.

Idea: at the end of a version a shard copies the rows of its next keys. A thread of the process
calls the step for them, a slice at a time, until the next task begins. The results wait in a file
beside the arrays of the shard's arena, which the thread holds locked: whichever process gets the
shard asks for them by a byte in that file and waits for the lock, for one slice at most. The next
version begins with these results, before it takes updates: as if the task had gone on serving.

Invariants:
1. Results count only for keys that are next, with the values that were served; otherwise, and
   if the process died, the keys are served again (`test_keys_served_ahead_are_those_that_are_next`,
   `test_crash_what_was_served_ahead_is_served_again_if_it_is_lost`).
2. The newest value of every key is served in the end, in the same order after a lost disk
   (`test_oracle_a_queue_that_serves_ahead_goes_on_after_a_lost_disk`).
3. User code does not run twice at once in a process (`test_a_task_waits_for_the_slice_under_way`).

Cost: a file and a lock for each shard and version; the rows of the keys, up to `MOST_KEYS`.

Limits: processes of one machine. Between versions as much time is expected as there was last.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids
from icestream.core.times import Micros
from icestream.operators.bad_rows import BadRows
from icestream.operators.latest.pacing import Pace
from icestream.operators.latest.step import UpdateStep
from icestream.state.files import PRIVATE_FILE
from icestream.state.queue.reader import Dequeued

#: maximum number of keys that a shard serves between two versions
MOST_KEYS = 4096
#: places in the file: whether the results are asked for, how many bytes they have, the results
_ASKED, _LENGTH, _RESULTS = 0, 1, 9


@dataclass
class ServedAhead:
    """What a step made of the next keys of a reader."""

    keys: Dequeued
    count: int = 0
    calls: int = 0
    made: list[pa.RecordBatch] = field(default_factory=list)

    @property
    def identities(self) -> tuple[Ids, Ids]:
        return self.keys.id_high[: self.count], self.keys.id_low[: self.count]

    def is_next(self, keys: Dequeued) -> bool:
        """Return whether these are the keys, and their values, that were served."""
        mine = self.keys
        return all(
            np.array_equal(theirs, ours[: self.count])
            for theirs, ours in (
                (keys.id_high, mine.id_high),
                (keys.id_low, mine.id_low),
                (keys.arrived, mine.arrived),
            )
        )


class ShardAhead:
    """The next keys of one shard, and what its steps make of them."""

    def __init__(
        self,
        path: str,
        keys: Sequence[Dequeued],
        steps: Sequence[UpdateStep],
        paces: Sequence[Pace],
    ) -> None:
        """Create the file for the results; `keys` has those of each step."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
        self._steps, self._paces = steps, paces
        self._served = [ServedAhead(each) for each in keys]
        self._turns = deque(range(len(steps)))

    def begin(self) -> None:
        """Let whoever asks for the results wait for them."""
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def proceed(self, left: Micros) -> bool:
        """Serve a slice; return False if there is nothing more to do in that time."""
        if not self._turns or os.pread(self._handle, 1, _ASKED):
            return False
        reader = self._turns.popleft()
        step, served = self._steps[reader], self._served[reader]
        count = self._paces[reader].slice(left // (1 + len(self._turns)), first=False)
        rows = served.keys.rows.slice(served.count, count)
        if rows.num_rows:
            made = list(step.served(rows.select(step.payload.names)))
            good = [each for each in made if not isinstance(each, BadRows)]
            # the task reports rows that fail
            if len(good) == len(made):
                served.made += good
                served.calls += 1
                served.count += rows.num_rows
                self._turns.append(reader)
        return True

    def close(self) -> None:
        """Write the results, and unlock the file."""
        try:
            results = pickle.dumps(self._served)
            os.pwrite(self._handle, results, _RESULTS)
            os.pwrite(self._handle, len(results).to_bytes(_RESULTS - _LENGTH, "little"), _LENGTH)
        finally:
            os.close(self._handle)


def served_ahead(path: str) -> list[ServedAhead]:
    """Return the results of each step once their process has written them, and remove the file."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return []
    try:
        os.pwrite(handle, b"\1", _ASKED)
        fcntl.flock(handle, fcntl.LOCK_EX)
        length = int.from_bytes(os.pread(handle, _RESULTS - _LENGTH, _LENGTH), "little")
        found: list[ServedAhead] = []
        if length:
            found = pickle.loads(os.pread(handle, length, _RESULTS))
    finally:
        os.close(handle)
        os.unlink(path)
    return found


class Proceeding(Protocol):
    """Work that can be done between two tasks, a slice at a time."""

    def begin(self) -> None:
        """Prepare, before anything else may happen."""
        ...

    def proceed(self, left: Micros) -> bool:
        """Do a slice; return False if there is nothing more to do in that time."""
        ...

    def close(self) -> None:
        """Leave what was done to the next task."""
        ...


class SpareTime:
    """The time of a process between two tasks, and what is done in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: microseconds between the last two tasks; 0 if there was one task only
        self.expected: Micros = 0
        self._offered: list[Proceeding] = []
        self._began: float | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def offer(self, work: Proceeding) -> None:
        """Let work be done once the task has ended."""
        self._offered.append(work)

    def begin(self) -> None:
        """Note that a task has ended."""
        self._began = self._clock()
        if self._offered:
            self._over.clear()
            for work in self._offered:
                work.begin()
            self._thread = threading.Thread(target=self.work, name="icestream-ahead", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Note that a task begins, and wait for the slice under way."""
        if self._began is not None:
            self.expected = int(1e6 * (self._clock() - self._began))
            self._began = None
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def work(self) -> None:
        """Do what was offered, in turns, for the expected time or until a task begins."""
        until = self._clock() + self.expected / 1e6
        turns, self._offered = deque(self._offered), []
        while turns:
            work = turns.popleft()
            left = int(1e6 * (until - self._clock()))
            try:
                goes_on = not self._over.is_set() and left > 0 and work.proceed(left)
            except Exception:
                # the task calls the step again, and reports what fails
                goes_on = False
            if goes_on:
                turns.append(work)
            else:
                work.close()


#: that of this process
SPARE_TIME = SpareTime()
