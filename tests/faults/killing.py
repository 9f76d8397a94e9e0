"""Kills a program again and again, like `kill -9`, until it has finished its work.

Idea: the program is started in a session of its own and killed with SIGKILL at random moments:
    while
it starts, and while it works. It must finish sooner or later, since completed work counts. The
caller compares its output with an undisturbed run.

Invariants:
1. Nothing that the program started outlives its kill, not even outside its process group
   (`test_a_killed_program_leaves_nothing_running`).
2. The moments follow from the seed, apart from the program's own pace.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from icestream.core.errors import IcestreamError

#: share of the kills that may hit while the program starts
_EARLY = 0.3
#: lines of a failed program that are shown
_SHOWN = 30


@dataclass
class Killings:
    """The history of a program."""

    kills: int = 0
    #: runs that ended by themselves before they were killed
    spared: int = 0
    #: runs that ended with a code after which they are restarted
    refused: int = 0
    #: seconds from start to kill
    lives: list[float] = field(default_factory=list)


def kill_until_done(
    command: Sequence[str],
    *,
    steps: Callable[[], int],
    kills: int,
    seed: int,
    longest: float = 2.5,
    early: float = 12.0,
    patience: float = 300.0,
    again: Collection[int] = (),
    on_kill: Callable[[Killings], None] = lambda _killings: None,
    on_start: Callable[[int], None] = lambda _pid: None,
) -> Killings:
    """Start `command` and kill it `kills` times, then let it run to its end.

    Args:
        command: a program that continues where its last run ended.
        steps: counts the finished work; a run is at work once it has grown.
        kills: how many times it is killed.
        seed: seed of the moments.
        longest: maximum seconds at work before a run is killed.
        early: the same, from the start of the program, for the runs that are killed early.
        patience: seconds a run may take to start, or in the end to finish.
        again: exit codes after which a run is simply restarted.
        on_kill: called after every kill.
        on_start: called with the process of every run.
    """
    dice = random.Random(seed)
    done = Killings()
    while done.kills < kills:
        at_work = dice.random() >= _EARLY
        delay = dice.uniform(0.0, longest if at_work else early)
        before = steps()
        with _Program(command) as program:
            on_start(program.pid)
            if at_work:
                program.wait(patience, partial(_grown, steps, before))
            program.wait(delay)
            if program.ended:
                if program.code in again:
                    done.refused += 1
                    continue
                program.check()
                done.spared += 1
                return done
            done.lives.append(program.age)
            program.kill()
        done.kills += 1
        on_kill(done)
    while True:
        with _Program(command) as program:
            on_start(program.pid)
            program.wait(patience)
            if not program.ended:
                msg = f"{' '.join(command)} did not end in {patience:.0f} seconds"
                raise IcestreamError(msg)
            if program.code not in again:
                program.check()
                return done
            done.refused += 1


def _grown(steps: Callable[[], int], before: int) -> bool:
    return steps() > before


class _Program:
    """One run of the program; nothing of it is left when the block ends."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="icestream-killing-")
        self._log = Path(self._folder.name, "log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        self._started = time.monotonic()

    @property
    def age(self) -> float:
        return time.monotonic() - self._started

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Wait until something is true or the program ends, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.ended and time.monotonic() < deadline and not until():
            time.sleep(0.01)

    def check(self) -> None:
        """Raise with the end of its log if the program failed."""
        if self._process.returncode != 0:
            said = self._log.read_text(encoding="utf-8", errors="replace")
            tail = "\n".join(said.splitlines()[-_SHOWN:])
            code = self._process.returncode
            msg = f"{' '.join(self._command)} ended with {code}; the end of its log:\n{tail}"
            raise IcestreamError(msg)

    def kill(self) -> None:
        """Kill the process group at once, then processes that left it."""
        strays: list[psutil.Process] = []
        # a stopped process starts nothing more while its children are listed
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)
        with suppress(psutil.NoSuchProcess):
            strays = psutil.Process(self._process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stray in strays:
            with suppress(psutil.NoSuchProcess):
                stray.kill()
        self._process.wait()
        psutil.wait_procs(strays, timeout=10)

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()
