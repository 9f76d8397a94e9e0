"""Serving keys between two versions, while no task runs: Spark plans, commits and reads meanwhile.

Idea: at the end of a version a shard copies the rows of its next keys. A thread of the process
calls the step for them, a slice at a time, until the next task begins; if the step's cost is not
known yet, one key at first. The results wait in a file
beside the arrays of the shard's arena, which the thread holds locked: whichever process gets the
shard asks for them by a byte in that file and waits for the lock, for one slice at most. The next
version begins with these results, before it takes updates: as if the task had gone on serving.

Invariants:
1. Results count only for keys that are next, with the values that were served; otherwise, and
   if the process died, the keys are served again (`test_keys_served_ahead_are_those_that_are_next`,
   `test_crash_what_was_served_ahead_is_served_again_if_it_is_lost`).
2. The newest value of every key is served in the end, in the same order after a lost disk
   (`test_oracle_a_queue_that_serves_ahead_goes_on_after_a_lost_disk`).
3. User code does not run twice at once in a process (`test_a_task_waits_for_the_slice_under_way`),
   and a task of another one waits for a slice of any shard, not of all
   (`test_work_that_is_asked_for_ends_first`).
4. What a task waits for a slice is part of its time for serving
   (`test_bounded_waiting_for_a_slice_is_time_of_serving`).

Cost: a file and a lock for each shard and version; the rows of the keys, up to `MOST_KEYS`.

Limits: processes of one machine. Between versions as much time is expected as there was after
one of the last two, and up to twice as much is used, in short slices.
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
#: part of the expected time for which slices are planned once it has passed
SHORT = 4
#: places in the file: whether the results are asked for, how many bytes they have, the results
_ASKED, _LENGTH, _RESULTS = 0, 1, 9


@dataclass
class ServedAhead:
    """What a step made of the next keys of a reader."""

    keys: Dequeued
    #: what calls cost, as far as the shard knew and its spare time taught
    pace: Pace = field(default_factory=Pace)
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
        clock: Callable[[], float],
    ) -> None:
        """Create the file for the results; `keys` has those of each step, `clock` seconds."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
        self._steps, self._clock = steps, clock
        self._served = [
            ServedAhead(each, Pace(list(pace.sums))) for each, pace in zip(keys, paces, strict=True)
        ]
        self._turns = deque(range(len(steps)))

    def begin(self) -> None:
        """Let whoever asks for the results wait for them."""
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def is_asked_for(self) -> bool:
        """Return whether a task waits for the results."""
        return bool(os.pread(self._handle, 1, _ASKED))

    def proceed(self, left: Micros) -> bool:
        """Serve a slice; return False if there is nothing more to do in that time."""
        if not self._turns:
            return False
        reader = self._turns.popleft()
        step, served = self._steps[reader], self._served[reader]
        first = not served.pace.sums[0] and not served.count
        count = served.pace.slice(left // (1 + len(self._turns)), first=first)
        rows = served.keys.rows.slice(served.count, count)
        if rows.num_rows:
            began = self._clock()
            made = list(step.served(rows.select(step.payload.names)))
            good = [each for each in made if not isinstance(each, BadRows)]
            served.pace.learn(rows.num_rows, 1e6 * (self._clock() - began))
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

    def is_asked_for(self) -> bool:
        """Return whether a task waits for what was done."""
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
        #: microseconds until the next task, the shorter of the last two gaps; 0 if not known
        self.expected: Micros = 0
        self._gap: Micros | None = None
        self._offered: list[Proceeding] = []
        #: microseconds that the current task waited for a slice, until they are counted
        self._waited: Micros = 0
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
            gap = int(1e6 * (self._clock() - self._began))
            self.expected, self._gap = min(gap, gap if self._gap is None else self._gap), gap
            self._began = None
        self._over.set()
        if self._thread is not None:
            began = self._clock()
            self._thread.join()
            self._thread, self._waited = None, int(1e6 * (self._clock() - began))

    def waited(self) -> Micros:
        """Return how long the task waited for a slice, the first time it asks."""
        waited, self._waited = self._waited, 0
        return waited

    def work(self) -> None:
        """Do what was offered, in turns, until a task begins or is far behind its time."""
        until = self._clock() + self.expected / 1e6
        turns, self._offered = deque(self._offered), []
        while turns:
            asked = [work for work in turns if work.is_asked_for()]
            for work in asked:
                turns.remove(work)
                work.close()
            if not turns:
                break
            work = turns.popleft()
            left = int(1e6 * (until - self._clock()))
            is_over = self._over.is_set() or left < -self.expected
            try:
                goes_on = not is_over and work.proceed(max(left, self.expected // SHORT))
            except Exception:
                # the task calls the step again, and reports what fails
                goes_on = False
            if goes_on:
                turns.append(work)
            else:
                work.close()


#: that of this process
SPARE_TIME = SpareTime()
