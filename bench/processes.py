"""Run one system in a process of its own and read the JSON lines it prints.

Idea: a measured system gets a fresh process, its plan as one JSON argument, and prints one JSON
line per result as soon as it has it; everything else it prints is its log. So a slow system can be
stopped and its results so far be used, and nothing of it stays in memory for the next one.

Invariants:
1. Lines that are not JSON objects are not results (`test_only_json_lines_are_results`).
2. A process that fails raises with the end of its log (`test_a_failed_process_shows_its_log`).
3. No process outlives the call (`test_a_process_past_its_time_is_stopped_with_what_it_said`).
4. With `memory`, a result has the peak memory of the process and its children since the result
   before it (`test_a_result_has_the_peak_memory_of_its_process`).

Limits: peaks between two samples are missed; memory that a JVM does not return counts for the
results after the one that needed it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import psutil

from icestream.core.errors import IcestreamError

#: lines of a failed process that are shown
_SHOWN = 15
#: seconds between two samples of memory
_EVERY = 0.5


class ProcessFailed(IcestreamError):
    """A measured system did not run: see its log."""


def results(
    command: Sequence[str],
    plan: Mapping[str, Any],
    *,
    limit: float,
    memory: bool = False,
    each: bool = False,
    on_result: Callable[[dict[str, Any]], None] = lambda _result: None,
) -> list[dict[str, Any]]:
    """Run `command` with `plan` and return what it printed within `limit` seconds.

    With `each` every result has as many seconds of its own.
    """
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        expired = threading.Event()
        with subprocess.Popen(
            [*command, json.dumps(plan)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as process:

            def expire() -> None:
                expired.set()
                _stop(process)

            timer = threading.Timer(limit, expire)
            timer.start()
            held = _TreeMemory(process.pid)
            if memory:
                held.start()
            try:
                for result in _objects(process.stdout):
                    if memory:
                        result["process_bytes"] = held.taken()
                    found.append(result)
                    on_result(result)
                    if each:
                        timer.cancel()
                        timer = threading.Timer(limit, expire)
                        timer.start()
                code = process.wait()
            finally:
                timer.cancel()
                held.stop()
                _stop(process)
        if code != 0 and not expired.is_set():
            log.seek(0)
            tail = "\n".join(log.read().splitlines()[-_SHOWN:])
            msg = f"{' '.join(command)} ended with {code}; the end of its log:\n{tail}"
            raise ProcessFailed(msg)
    return found


class _TreeMemory(threading.Thread):
    """Samples the memory of a process and its children; what they share counts once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._ended = threading.Event()
        self._peak = 0

    def run(self) -> None:
        """Sample until stopped."""
        while not self._ended.wait(_EVERY):
            self._peak = max(self._peak, self._now())

    def taken(self) -> int:
        """Return the peak since the last call, in bytes."""
        peak, self._peak = max(self._peak, self._now()), 0
        return peak

    def stop(self) -> None:
        """Stop sampling."""
        self._ended.set()
        if self.ident is not None:
            self.join()

    def _now(self) -> int:
        total = 0
        with suppress(psutil.Error):
            process = psutil.Process(self._pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.Error):
                    total += each.memory_full_info().pss
        return total


def _objects(lines: IO[str] | None) -> Iterator[dict[str, Any]]:
    """Pick the JSON objects among printed lines."""
    for line in lines or ():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def _stop(process: subprocess.Popen[str]) -> None:
    """Stop a process and all its children (its JVM too): they share a session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
