"""Kills a query at every step of its disk and checks that it delivers what it would have delivered.

Idea: a query runs on a disk in memory. Before any change of the disk the run can stop: it takes
what a crash would leave at that moment, lets a new process continue from there to the end of the
input, and compares everything delivered with the undisturbed run. Nothing of the killed process
runs on, as with `kill -9`. Arenas are on a real disk; each process has its own.

Invariants:
1. After a crash batches are fed as Spark feeds them: the one that was not delivered, and perhaps
   the one before, which must then be delivered unchanged.
2. Rows are compared bit by bit, and a recovery that fails is a difference
   (`test_crash_runs_notice_a_wrong_row`, `test_crash_runs_notice_what_was_not_synced`).

Cost: one recovery per crash point, of half the input on average.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from unittest import mock

import numpy as np
import pyarrow as pa

from icestream.core.errors import IcestreamError, StorageError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.grid import operator
from icestream.plan.computation import Computation
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery, Splits, read_rows
from icestream.runtime.version import quotas
from icestream.runtime.version.settings import Settings
from icestream.state import snapshot_schedule
from icestream.state.files import Files
from icestream.testing.simulated_disk import Crash, CrashMode, SimulatedDisk

SECOND = 1_000_000
ROOT = "checkpoint"
MODES: tuple[CrashMode, ...] = ("drop", "tear", "keep")

#: rows and late events of one action, as text in a fixed order
Delivered = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Script:
    """A query and its input: batches, with a flush after half of them and at the end."""

    batches: int = 20
    events: int = 24
    #: number of keys with events at a time; as time passes, new keys replace old ones
    keys: int = 12
    shards: int = 2
    #: bytes for all shards; with the small sizes of `staged`, a few hundred groups exceed it
    budget: int = 8 << 20
    seed: int = 7

    @cached_property
    def plan(self) -> Computation:
        """Return the plan: fields with and without an inverse, late events kept."""
        return Plan.of(
            sources=(Source("events", 1 * SECOND),),
            windows=Windows(6 * SECOND, 2 * SECOND),
            keys=pa.schema([("name", pa.string())]),
            inputs=pa.schema([("x0", pa.float64()), ("x1", pa.int64())]),
            expressions=("x", "y"),
            aggregates=(
                Aggregate("count", None, "n"),
                Aggregate("sum", "x0", "s"),
                Aggregate("min", "x0", "least"),
                Aggregate("max", "x1", "most"),
            ),
            time=pa.timestamp("us", "UTC"),
            late="keep",
            key_groups=8,
        )

    @cached_property
    def actions(self) -> tuple[int | None, ...]:
        """Return batch numbers in the order they are fed; None is a flush."""
        half = self.batches // 2
        return (*range(half), None, *range(half, self.batches), None)

    @cached_property
    def inputs(self) -> tuple[Splits, ...]:
        return tuple(
            [[self.events_in(batch, split)] for split in range(2)] for batch in range(self.batches)
        )

    def settings(self, local: str) -> Settings:
        """Return the settings of a process whose arenas are in `local`."""
        return Settings(root=ROOT, local=local, budget=self.budget, shards=self.shards)

    def events_in(self, batch: int, split: int) -> pa.RecordBatch:
        dice = np.random.default_rng([self.seed, batch, split])
        count = self.events // 2
        # a flush in the middle closes windows up to 6 seconds ahead: continue after them
        start = batch + (8 if batch >= self.batches // 2 else 0)
        times = start * SECOND + dice.integers(-SECOND, SECOND, count)
        times[: count // 8] -= 9 * SECOND
        names = [f"key-{batch + key}" for key in dice.integers(0, self.keys, count)]
        return pa.record_batch(
            [
                pa.array(times).cast(pa.timestamp("us", "UTC")),
                pa.array(np.zeros(count, dtype=np.int32)),
                pa.array(names),
                pa.array(dice.normal(size=count)),
                pa.array(dice.integers(-50, 50, count)),
            ],
            schema=self.plan.batch_schema,
        )


@contextmanager
def staged(*, tight: bool = False) -> Iterator[None]:
    """Stage a crash run: snapshots are frequent and, if `tight`, groups exceed the quota."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(snapshot_schedule, "AFTER", 3))
        stack.enter_context(mock.patch.object(snapshot_schedule, "AT_LATEST", 5))
        if tight:
            stack.enter_context(mock.patch.object(operator, "SLICE_BYTES", 1024))
            stack.enter_context(mock.patch.object(quotas, "LEAST_QUOTA", 1024))
        yield


class Process:
    """One process that runs the query, from opening the checkpoint to its end."""

    def __init__(self, script: Script, files: Files, local: str) -> None:
        self.script = script
        self.files = files
        self.query = LocalQuery(script.plan, script.settings(local), files)

    @property
    def done(self) -> int:
        """Return the number of committed actions; each makes one version."""
        last = self.query.driver.last
        return 0 if last is None else last.version

    def act(self, action: int) -> Delivered:
        number = self.script.actions[action]
        run = self.query.driver
        if number is None:
            deliveries = run.flush()
        else:
            deliveries = run.batch(number, self.script.inputs[number])
        return (
            self._texts([path for delivery in deliveries for path in delivery.results]),
            self._texts([path for delivery in deliveries for path in delivery.late]),
        )

    def _texts(self, paths: Sequence[str]) -> tuple[str, ...]:
        tables = (table for path in paths for table in read_rows(self.files, path))
        return tuple(sorted(repr(row) for table in tables for row in table.to_pylist()))


@dataclass
class CrashRuns:
    """The undisturbed run and the disturbed runs."""

    script: Script
    #: real folder for arenas
    folder: str
    #: what every action delivers
    expected: list[Delivered] = field(default_factory=list)
    #: crash points tried
    points: int = 0
    #: descriptions of deliveries that differ
    differences: list[str] = field(default_factory=list)
    _lives: int = 0

    def local(self) -> str:
        """Return a folder for the arenas of another process."""
        self._lives += 1
        return os.path.join(self.folder, f"life-{self._lives}")

    def undisturbed(self) -> SimulatedDisk:
        """Run to the end and record what is delivered; return the disk."""
        disk = SimulatedDisk()
        process = Process(self.script, disk, self.local())
        self.expected = [process.act(action) for action in range(len(self.script.actions))]
        return disk

    def crash_everywhere(
        self,
        chosen: Callable[[int], bool] = lambda _step: True,
        on_point: Callable[[int], None] = lambda _step: None,
    ) -> None:
        """Run again and crash before every chosen step, in each of the modes in turn.

        Every third recovery is killed as well, at another step.
        """
        current = 0

        def crash(step: int) -> None:
            if not chosen(step):
                return
            mode = MODES[step % len(MODES)]
            again = random.Random(step).randint(1, 60) if step % 9 < 3 else None
            left = disk.after_crash(mode, tear=step, crash_at=again)
            scenario = f"crash before step {step} ({mode})"
            try:
                self.recover(left, current, scenario)
            except IcestreamError as error:
                self.differences.append(f"{scenario}: {error}")
            self.points += 1
            on_point(step)

        disk = WatchedDisk(crash)
        process = Process(self.script, disk, self.local())
        for action in range(len(self.script.actions)):
            current = action
            self._compare(action, process.act(action), "a second undisturbed run")

    def recover(
        self, disk: SimulatedDisk, action: int, scenario: str, local: str | None = None
    ) -> None:
        """Continue after a crash in `action` and compare what is delivered from there on."""
        local = local or self.local()
        at = action
        try:
            process = Process(self.script, disk, local)
            if at and process.done == at:
                self._compare(at - 1, process.act(at - 1), f"{scenario}, delivered again")
            for at in range(action, len(self.script.actions)):
                self._compare(at, process.act(at), scenario)
        except Crash:
            left = disk.after_crash(MODES[disk.steps % len(MODES)], tear=disk.steps)
            self.recover(left, at, f"{scenario}, then before step {disk.steps} of the recovery")
        finally:
            shutil.rmtree(local, ignore_errors=True)

    def refuse(self, step: int, *, restart: bool) -> None:
        """Run with a disk that is full at one step; feed again in the same process, or a new one.

        The error must name a path and give advice.
        """
        disk = SimulatedDisk(fail_at=step, tear=step)
        local = self.local()
        scenario = f"disk full at step {step}, {'restarted' if restart else 'fed again'}"
        process: Process | None = None
        action = 0
        try:
            while action < len(self.script.actions):
                try:
                    process = process or Process(self.script, disk, local)
                    found = process.act(action)
                except StorageError as error:
                    _, path = disk.trace[step - 1]
                    if "free space" not in str(error) or path not in str(error):
                        self.differences.append(f"{scenario}: the error does not help: {error}")
                    if restart:
                        disk, process = disk.after_crash("keep"), None
                    continue
                self._compare(action, found, scenario)
                action += 1
            self.points += 1
        finally:
            shutil.rmtree(local, ignore_errors=True)

    def _compare(self, action: int, found: Delivered, scenario: str) -> None:
        if found != self.expected[action]:
            rows = [len(set(a) ^ set(b)) for a, b in zip(found, self.expected[action], strict=True)]
            self.differences.append(f"{scenario}: action {action} differs in {rows} rows")


class WatchedDisk(SimulatedDisk):
    """A simulated disk that calls a function before each step, with the step's number."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__()
        self._before = before

    def _step(self, what: str, path: str) -> None:
        self._before(self.steps + 1)
        super()._step(what, path)
