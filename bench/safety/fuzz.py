"""A million almost valid inputs crash no reader and make none of them use much memory.

Idea: every reader of files, texts and requests (`fuzz_targets`) runs in a process of its own whose
memory is bounded to a fixed amount above its warm state. It processes numbered inputs, each
generated from its number alone, and records the number before it tries. A foreign error, an end of
the process, a refused allocation or a long silence is a finding, reported with target and number,
so that `reproduce` generates the same input again. As many readers run at a time as there are
cores, the slowest first, with their temporary files in memory.

Limits: memory is bounded by address space, so a finding is an allocation that is much too large for
its input, not a small leak. State has fewer inputs: each restores a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psutil

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Measurement, ProgressLog, Size
from icestream.core.errors import IcestreamError

if TYPE_CHECKING:
    from bench.safety.fuzz_targets import FuzzTarget

#: bytes that one input may make a warm reader allocate
ALLOWED = 512 << 20
#: seconds of a processor that one input may take
PATIENCE = 10
#: inputs that warm a reader up
WARM_UP = 50
#: share of a full run's inputs in a small run
SHARE = {Size.SMALL: 0.02, Size.FULL: 1.0}
#: findings after which a target is abandoned
ENOUGH = 20
#: where Linux keeps files in memory
IN_MEMORY = "/dev/shm"


class _TooLong(BaseException):
    """An input took too long."""


def tried(target: FuzzTarget, number: int) -> str | None:
    """Feed one input; return what went wrong, None if nothing did."""
    data = target.input(number)
    try:
        target.feed(data)
    except IcestreamError:
        return None
    except _TooLong:
        return f"took more than {PATIENCE} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return None


def reproduce(name: str, number: int, folder: Path) -> str | None:
    """Feed the input of a finding again, from samples in a folder, created if missing."""
    if not folder.exists():
        _all_targets().make_samples(folder)
    return tried(_named(name, folder), number)


def _named(name: str, folder: Path) -> FuzzTarget:
    found: FuzzTarget = next(each for each in _all_targets().targets(folder) if each.name == name)
    return found


def _all_targets() -> ModuleType:
    from bench.safety import fuzz_targets  # noqa: PLC0415 - reads statements with PySpark's help

    return fuzz_targets


def _work(
    name: str, folder: Path, last: int, place: Synchronized[int], found: Any, allowed: int
) -> None:
    """Feed inputs from the number in `place` on; runs in a process of its own."""

    def give_up(*_: object) -> None:
        raise _TooLong

    if os.access(IN_MEMORY, os.W_OK):
        tempfile.tempdir = IN_MEMORY
    target = _named(name, folder)
    signal.signal(signal.SIGPROF, give_up)
    for number in range(WARM_UP):
        _tried_in_time(target, -1 - number)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + allowed, most))
    for number in range(place.value, last):
        place.value = number
        wrong = _tried_in_time(target, number)
        if wrong is not None:
            found.put((number, wrong))
    place.value = last


def _tried_in_time(target: FuzzTarget, number: int) -> str | None:
    """Try an input; if compiled code hangs, which ignores timers, end the process."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 2 * PATIENCE, most))
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        return tried(target, number)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def findings(target: FuzzTarget, folder: Path, count: int) -> list[tuple[int, str]]:
    """Feed a number of inputs; return the numbers of those that failed, with the reason."""
    context = multiprocessing.get_context("spawn")
    place, found = context.Value("q", 0), context.SimpleQueue()
    wrong: list[tuple[int, str]] = []
    while place.value < count and len(wrong) < ENOUGH:
        process = context.Process(
            target=_work, args=(target.name, folder, count, place, found, ALLOWED)
        )
        process.start()
        while process.is_alive() or not found.empty():
            process.join(0.1)
            while not found.empty():
                wrong.append(found.get())
            if len(wrong) >= ENOUGH:
                process.terminate()
                process.join()
        if place.value < count and process.exitcode != 0:
            wrong.append((place.value, f"the process ended with {process.exitcode}"))
            place.value += 1
    return wrong


def _all_findings(
    every: list[FuzzTarget], folder: Path, share: float
) -> Iterator[tuple[FuzzTarget, int, list[tuple[int, str]], float]]:
    """Yield targets with the number of their inputs, their findings and the seconds they took."""

    def run(target: FuzzTarget) -> tuple[FuzzTarget, int, list[tuple[int, str]], float]:
        count = max(100, round(1000 * target.thousands * share))
        began = time.monotonic()
        return target, count, findings(target, folder, count), time.monotonic() - began

    slowest = sorted(every, key=lambda each: not each.name.startswith("state"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in as_completed([pool.submit(run, target) for target in slowest]):
            yield done.result()


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Feed every target."""
    folder = Path(scratch(workspace(), "fuzz"))
    _all_targets().make_samples(folder)
    every: list[FuzzTarget] = list(_all_targets().targets(folder))
    progress.plan(len(every))
    inputs, wrong = Counter[str](), Counter[str]()
    rates: dict[str, float] = {}
    for target, count, found, seconds in _all_findings(every, folder, SHARE[size]):
        progress.step(target.name)
        rates[target.name] = count / seconds
        inputs[target.name], wrong[target.name] = count, len(found)
        for number, why in found[:3]:
            progress.note(f"{target.name}, input {number}: {why}")
    signed = [inputs[each.name] for each in every if each.name in _FILE_PARSERS]
    total = sum(inputs.values())
    full = SHARE[size]
    return Measurement(
        {
            "inputs": dict(inputs),
            "findings": dict(wrong),
            "inputs_per_second": rates,
            "total": total,
        },
        (
            Bar.at_least("inputs", 1_000_000 * full, total),
            Bar.at_least("signed inputs of each file parser", 100_000 * full, min(signed)),
            Bar.at_most("crashes and unbounded allocations", 0, sum(wrong.values())),
        ),
    )


_FILE_PARSERS = ("commits, signed", "plans, signed", "segments, signed")

BENCH = Bench(
    "fuzz",
    "a million damaged inputs, many with valid checksums, crash no reader and take no memory",
    measure,
)
