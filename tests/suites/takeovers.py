"""Two drivers on one checkpoint, stopped and let go at every step of their disk.

Idea: both run in threads of their own on one simulated disk, of which only one is ever let go. The
first is stopped before a step of a version; the second opens the checkpoint and is stopped before
a step of its own; the first goes on to its end, then the second. Whatever the two steps are, the
first is told that it lost, at this version or the next, the second delivers what an undisturbed run
delivers, and the checkpoint is whole.

Limits: the drivers take turns at steps of the disk, three turns in all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.verify import verify
from icestream.state.versions.ownership import TakenOver
from icestream.testing.simulated_disk import SimulatedDisk
from tests.suites.crash_runs import ROOT, Delivered, Process, Script


def _acted(process: Process, action: int) -> Delivered:
    """Do an action and take its rows, as a query on Spark hands them to its sink."""
    try:
        return process.act(action)
    except Exception:
        process.query.driver.tell_if_taken_over()
        raise


class Turn:
    """Something that runs in a thread of its own, up to a step of the disk at a time."""

    def __init__(self, work: Callable[[], object]) -> None:
        """Do nothing yet."""
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._until: int | None = None
        #: steps of the disk so far
        self.steps = 0
        self.finished = False
        self.error: BaseException | None = None

    def run(self, until: int | None = None) -> None:
        """Go on until it is about to do its step of that number, or to its end."""
        if self.finished:
            return
        self._until = until
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._stopped.acquire()

    def step(self) -> None:
        """Come to a step of the disk, and stop there if it is the one."""
        if threading.current_thread() is self._thread:
            self.steps += 1
            if self.steps == self._until:
                self._stopped.release()
                self._go.acquire()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self.finished = True
            self._stopped.release()


class SharedDisk(SimulatedDisk):
    """A simulated disk whose users take turns."""

    def __init__(self) -> None:
        """Make an empty disk."""
        super().__init__()
        self.turns: list[Turn] = []

    def _step(self, what: str, path: str) -> None:
        for turn in self.turns:
            turn.step()
        super()._step(what, path)


@dataclass
class Contest:
    """One checkpoint, and two drivers that want it."""

    script: Script
    #: real folder for arenas
    folder: str
    #: what every action delivers
    expected: list[Delivered]
    #: whether both drivers run on one host
    together: bool = False
    #: contests held, and those in which the first driver's version was committed
    held: int = 0
    survived: int = 0
    #: sentences about what went wrong
    differences: list[str] = field(default_factory=list)

    def hold(self, action: int, first_step: int, second_step: int) -> bool:
        """Let two drivers meet during an action; tell whether the first came to its step."""
        scenario = f"action {action}, steps {first_step} and {second_step}"
        disk = SharedDisk()
        first = Process(self.script, disk, self._local("first"))
        for done in range(action):
            self._compare(done, first.act(done), f"{scenario}, undisturbed")
        delivered: list[Delivered] = []
        one = Turn(lambda: delivered.append(_acted(first, action)))
        two = Turn(lambda: self._live(disk, action, scenario))
        disk.turns = [one, two]
        one.run(first_step)
        met = not one.finished
        two.run(second_step)
        one.run()
        two.run()
        if delivered:
            self._compare(action, delivered[0], f"{scenario}, by the first")
        elif not isinstance(one.error, TakenOver):
            self.differences.append(f"{scenario}: the first failed with {one.error!r}")
        if two.error is not None:
            self.differences.append(f"{scenario}: the second failed with {two.error!r}")
        self._judge(disk, first, scenario)
        self.held += 1
        return met

    def _live(self, disk: SharedDisk, action: int, scenario: str) -> None:
        """Open the checkpoint and go on to the end of the input, as Spark would."""
        second = Process(self.script, disk, self._local("second"))
        begin = second.done
        if begin == action + 1:
            self.survived += 1
            self._compare(action, second.act(action), f"{scenario}, again")
        for at in range(begin, len(self.script.actions)):
            self._compare(at, second.act(at), f"{scenario}, by the second")

    def _judge(self, disk: SharedDisk, first: Process, scenario: str) -> None:
        """Ask the first for more, then look at what is left."""
        disk.turns = []
        before = disk.files()
        for _ in range(2):
            try:
                _acted(first, len(self.script.actions) - 1)
                self.differences.append(f"{scenario}: the first was not told")
            except TakenOver:
                pass
        gone = sorted(before.keys() - disk.files().keys())
        if gone:
            self.differences.append(f"{scenario}: the first removed {gone}")
        report = verify(Checkpoint(ROOT, disk), state=False)
        self.differences += [f"{scenario}: {each}" for each in report.findings]
        third = Process(self.script, disk, self._local("third"))
        last = len(self.script.actions) - 1
        if third.done != last + 1:
            self.differences.append(f"{scenario}: the last version is {third.done}")
        self._compare(last, third.act(last), f"{scenario}, opened again")

    def _local(self, name: str) -> str:
        return os.path.join(self.folder, "host" if self.together else name)

    def _compare(self, action: int, found: Delivered, scenario: str) -> None:
        if found != self.expected[action]:
            self.differences.append(f"{scenario}: action {action} differs")


__all__ = ["Contest", "SharedDisk", "Turn"]
