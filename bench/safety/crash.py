"""Killed anywhere, on a full disk or with damaged files: never a wrong row.

Idea: short queries run on a disk in memory, and every step on it, and every byte of every kind of
file, fails in turn (`tests.suites.crash_runs`, `tests.faults.bit_flips`). The deliveries of
every recovery are compared with those of an undisturbed run.

    crash    the process dies before the step; unsynced data is dropped, torn or kept
    refuse   the disk is full at the step, once; the batch is fed again
    flip     a bit of a file flips between two runs; it is detected and named, or harmless

    kill     a real Spark query is killed with SIGKILL at random moments (`bench.safety.sigkill`)

Cost: one recovery per point; the points are divided among the cores. The small size tries every
sixth point and kills nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Measurement, ProgressLog, Size
from bench.safety import sigkill
from tests.faults.bit_flips import HARMLESS, NOTICED, BitFlips
from tests.suites.crash_runs import CrashRuns, Script, staged

CRASH = "crash"
REFUSE = "refuse"
FLIP = "flip"


@dataclass(frozen=True)
class Case:
    """A script and the fault injected into it."""

    name: str
    what: str
    script: Script
    #: parts that run separately, each with a share of the points
    parts: int
    #: blocks so small that the groups of a shard exceed its quota
    tight: bool = False


#: a few hundred groups in a quota that holds some dozens
TIGHT = Script(batches=6, keys=400, events=800, shards=1, budget=60 << 10)
FLIPPED = Script(batches=18)
#: actions before bits flip: a snapshot was taken, and keys and panes were logged since
STOPPED = 8
#: bytes of an arena's file between two flips
ARENA_STRIDE = 1024

#: one in this many points of each case is tried
SHARE = {Size.SMALL: 6, Size.FULL: 1}
POINTS = {Size.SMALL: 100, Size.FULL: 1_000}

CASES = {
    Size.SMALL: (
        Case("crash", CRASH, Script(batches=20), 24),
        Case("crash, partitioned", CRASH, TIGHT, 12, tight=True),
        Case("refuse", REFUSE, Script(batches=8), 12),
        Case("flip", FLIP, FLIPPED, 48),
    ),
    Size.FULL: (
        Case("crash", CRASH, Script(batches=70), 96),
        Case("crash, partitioned", CRASH, TIGHT, 8, tight=True),
        Case("refuse", REFUSE, Script(batches=20), 36),
        Case("flip", FLIP, FLIPPED, 24),
    ),
}


@dataclass
class CrashFindings:
    """The findings of a part of a case."""

    points: int = 0
    versions: int = 0
    #: sentences about rows that differ, or errors that do not help
    failures: list[str] = field(default_factory=list)
    #: flips by kind of file, and their outcome
    flips: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, other: CrashFindings) -> None:
        """Add the findings of another part."""
        self.points += other.points
        self.versions = max(self.versions, other.versions)
        self.failures += other.failures
        for kind, outcomes in other.flips.items():
            self.flips.setdefault(kind, Counter()).update(outcomes)


def run_part(case: Case, part: int) -> CrashFindings:
    """Try every point whose number is `part` modulo the parts of the case."""
    with staged(tight=case.tight), tempfile.TemporaryDirectory() as folder:
        runs = CrashRuns(case.script, folder)
        steps = runs.undisturbed().steps
        mine = range(part, steps + 1, case.parts)
        found = CrashFindings(versions=len(case.script.actions))
        if case.what == CRASH:
            runs.crash_everywhere(lambda step: step in mine)
        elif case.what == REFUSE:
            for step in mine:
                if step:
                    runs.refuse(step, restart=step // case.parts % 2 == 1)
        else:
            flips = BitFlips(runs, STOPPED)
            _flip_all(flips, part, case.parts)
            found.flips = flips.outcomes
            found.failures += flips.undetected
            runs.points = sum(outcomes.total() for outcomes in flips.outcomes.values())
        found.points = runs.points
        found.failures += runs.differences
        return found


def _flip_all(flips: BitFlips, part: int, parts: int) -> None:
    """Flip a bit of every byte whose place is `part` modulo `parts`."""
    for kind, path in flips.durable_files().items():
        flips.flip_durable(kind, path, range(part, flips.size(path), parts))
    flips.flip_parcel(range(part, flips.parcel_size(), parts))
    for name in flips.arena_files()[part::parts]:
        flips.flip_arena(name, range(0, flips.arena_size(name), ARENA_STRIDE))


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Try everything and count."""
    cases, share = CASES[size], SHARE[size]
    found = {case.name: CrashFindings() for case in cases}
    progress.plan(sum(len(range(0, case.parts, share)) for case in cases) + (size is Size.FULL))
    for case, part in _parts(cases, share):
        progress.step(f"{case.name}: {found[case.name].points + part.points} points")
        found[case.name].add(part)
        for failure in part.failures[:3]:
            progress.note(f"{case.name}: {failure}")
    crashes = [found[case.name] for case in cases if case.what == CRASH]
    refusals = [found[case.name] for case in cases if case.what == REFUSE]
    flips = [found[case.name] for case in cases if case.what == FLIP]
    figures: dict[str, Any] = {
        "points": sum(each.points for each in crashes),
        "differences": sum(len(each.failures) for each in crashes),
        "versions": max(each.versions for each in crashes),
        "refusals": sum(each.points for each in refusals),
        "refusal_differences": sum(len(each.failures) for each in refusals),
        "flips": sum(each.points for each in flips),
        "undetected_flips": sum(len(each.failures) for each in flips),
    }
    for outcome in (NOTICED, HARMLESS):
        figures[f"{outcome} flips"] = {
            kind: outcomes[outcome] for each in flips for kind, outcomes in each.flips.items()
        }
    bars: tuple[Bar, ...] = (
        Bar.at_least("points", POINTS[size], figures["points"]),
        Bar.at_most("differences", 0, figures["differences"]),
        Bar.at_most("refusal_differences", 0, figures["refusal_differences"]),
        Bar.at_most("undetected_flips", 0, figures["undetected_flips"]),
    )
    if size is Size.FULL:
        progress.step(f"{sigkill.KILLS} SIGKILLs")
        killed = sigkill.compare(scratch(workspace(), "sigkill"))
        figures |= {"sigkills": killed.kills, "sigkill_differences": killed.differences}
        bars += killed.bars
    return Measurement(figures, bars)


def _parts(cases: tuple[Case, ...], share: int) -> Iterator[tuple[Case, CrashFindings]]:
    """Run the parts of all cases on all cores, and yield each as it ends."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), fresh) as pool:
        running = {
            pool.submit(run_part, case, part): case
            for case in cases
            for part in range(0, case.parts, share)
        }
        for done in as_completed(running):
            yield running[done], done.result()


BENCH = Bench(
    "crash",
    "killed at any step, out of disk at any step, with any byte flipped: no wrong row",
    measure,
)
