"""What a query adds to its workers, for every kind of state at ten times the budget, on Spark.

Idea: each kind of state runs in a program of its own, twice: with few events, whose state is tiny,
and until its log is ten times the budget. A thread adds up the memory of all Python workers (PSS:
what they share counts once). The difference of the two peaks is what the state adds, and the work
on large batches with it. Event time hardly moves, so that nothing expires and few rows are final.

Limits: peaks between two samples are missed; samples are taken every 20 ms or as fast as the
kernel adds up pages.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import icestream as ice
from bench.adaptation.operators_of_state import OPERATORS, SCHEMA
from bench.rows import write_batches

#: bytes that each worker may take beyond the budget
CONSTANT = 64 << 20
#: state in budgets
TIMES = 10
WORKERS = 2
#: seconds between two samples of the memory
EVERY = 0.02
#: events of a batch of the run whose state is tiny
TINY = 1_000
#: microseconds of event time in all batches together: less than any window or lifetime
SPAN = 250_000


@dataclass(frozen=True, slots=True)
class KindOfState:
    """A kind of state, and how much of it there is."""

    name: str
    #: bytes
    budget: int
    #: events of a batch, and the most batches
    events: int
    batches: int
    #: seconds after which a run is measured as far as it got
    limit: float
    #: events of a key in all batches together
    per_key: int = 4


class WorkerMemory:
    """Watches the memory of the Python workers of Spark."""

    def __init__(self, program: psutil.Process) -> None:
        """Watch the workers that a program starts."""
        self._program = program
        self.peak = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the peak while the block runs."""
        self.peak, done = 0, threading.Event()

        def watch() -> None:
            while not done.wait(EVERY):
                self.peak = max(self.peak, self.now())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def now(self) -> int:
        """Return the bytes of all workers."""
        total = 0
        for process in self._program.children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                if "python" in process.name():
                    total += _pss(process.pid)
        return total


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def run_kind(kind: KindOfState, folder: Path) -> dict[str, Any]:
    """Run a kind of state in this process."""
    spark = ice.local_session("process memory", cores=WORKERS)
    spark.sparkContext.setLogLevel("OFF")
    workers = WorkerMemory(psutil.Process())
    span = SPAN // kind.batches
    keys = kind.events * kind.batches // kind.per_key
    write_batches(folder / "in", kind.batches, kind.events, keys=keys, span=span, seed=5)
    write_batches(folder / "tiny", 2, TINY, keys=TINY // 4, span=span, seed=5)
    _run(spark, kind, folder, "tiny", most=1.0)  # compiles and imports what workers need
    with workers.watched():
        _run(spark, kind, folder, "tiny", most=1.0)
    tiny = workers.peak
    with workers.watched():
        found = _run(spark, kind, folder, "in", most=kind.limit)
    spark.stop()
    return {
        **found,
        "budget_bytes": kind.budget,
        "tiny_bytes": tiny,
        "peak_bytes": workers.peak,
        "added_bytes": workers.peak - tiny,
    }


def _run(spark: Any, kind: KindOfState, folder: Path, data: str, most: float) -> dict[str, Any]:
    """Run a query until its state is large enough, its input ends, or its time is over."""
    made = OPERATORS[kind.name]
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    checkpoint = folder / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = (
        made.query(reader.parquet(str(folder / data)))
        .writeStream.format("noop")
        .options(checkpointLocation=str(checkpoint), rebalance="off", **made.options)
        .memory(kind.budget)
        .trigger(availableNow=True)
    )
    started = time.monotonic()
    query = writer.start()
    state = reserved = events = 0
    while True:
        ended = query.awaitTermination(0.2)
        progress = query.lastProgress
        if progress:
            own = progress["icestream"]
            state = max(state, own["logBytes"])
            reserved = max(reserved, own["peakMemoryBytes"])
        if (
            ended
            or state >= TIMES * kind.budget
            or time.monotonic() - started > most + 60 * (data == "tiny")
        ):
            break
    seconds = time.monotonic() - started
    events = sum(each["numInputRows"] for each in query.recentProgress)
    query.stop()
    return {
        "state_bytes": state,
        "reserved_bytes": reserved,
        "events": events,
        "seconds": seconds,
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    found = run_kind(KindOfState(**asked["kind"]), Path(asked["folder"]))
    print(json.dumps(found), flush=True)
