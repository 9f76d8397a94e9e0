"""What a newcomer waits for: the demo, and the first batch of every kind of query.

Idea: the demo runs as a user starts it, in a process of its own; the log of its result files tells
when the first rows were there. Then every kind of query runs once in a fresh process, with the
machine code that `icestream warm` has made, over one small file: the seconds from `start()` to the
end of the first batch, in which Spark plans, starts its Python workers, and workers load the code.

Invariants:
1. A kind of query that did not run is a missing measurement
   (`test_a_query_that_did_not_run_is_no_measurement`).
2. The first rows are those that the sink shows to readers (`test_first_rows_are_those_of_the_log`).

Limits: the start of Spark itself is not part of a first batch, as no query can begin before it.
Size `small` runs a demo of a tenth of the events, which has no bar of time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import icestream as ice
from bench.adaptation.operators_of_state import OPERATORS, SCHEMA
from bench.harness import scratch, workspace
from bench.processes import ProcessFailed, results
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.rows import write_batches

#: events of the demo; the claim is about the first
EVENTS = {Size.FULL: 12_000_000, Size.SMALL: 1_200_000}
#: seconds until the first rows, until the end of the demo, and of a first batch
FIRST_ROWS, END, FIRST_BATCH = 15, 25, 3
#: events, keys and microseconds of the file of a first batch
ROWS, KEYS, SPAN = 10_000, 1_000, 20_000_000
#: seconds after which a query or the demo is stopped
LIMIT = 120.0


def run_demo(events: int, folder: Path) -> dict[str, float]:
    """Run the demo; return the seconds from Spark's start to its first rows, and to its end."""
    command = [sys.executable, "-m", "icestream", "demo", "--events", str(events)]
    with subprocess.Popen(
        [*command, "--keep", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("Starting Spark"))
        began = time.monotonic()
        while process.poll() is None and not shows_rows(folder / "results"):
            time.sleep(0.02)
        first = time.monotonic() - began
        process.communicate(timeout=LIMIT)
    return {"first_rows_seconds": first, "seconds": time.monotonic() - began}


def shows_rows(results_folder: Path) -> bool:
    """Return whether the log of a folder of results names a file."""
    entries = (results_folder / "_spark_metadata").glob("[0-9]*")
    return any('"path"' in each.read_text() for each in entries)


def run_first(name: str, folder: Path) -> None:
    """Run a kind of query over one file, and print the seconds of its first batch."""
    spark = ice.local_session("first-minute")
    spark.sparkContext.setLogLevel("OFF")
    write_batches(folder / "in", 1, ROWS, keys=KEYS, span=SPAN, seed=5)
    made = OPERATORS[name]
    frame = spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))
    options = {"checkpointLocation": str(folder / "checkpoint"), **made.options}
    writer = made.query(frame).writeStream.format("noop").options(**options).memory("64 MB")
    began = time.monotonic()
    writer.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps({"seconds": time.monotonic() - began}), flush=True)
    spark.stop()


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run the demo, then every kind of query in a process of its own."""
    progress.plan(1 + len(OPERATORS))
    progress.step("demo")
    demo = run_demo(EVENTS[size], scratch(workspace(), "first-minute") / "demo")
    progress.note(f"demo: {demo}")
    first: dict[str, float | None] = {}
    for name in OPERATORS:
        progress.step(name)
        folder = scratch(workspace(), "first-minute")
        command = [sys.executable, "-m", "bench.first_minute"]
        try:
            (found,) = results(command, {"name": name, "folder": str(folder)}, limit=LIMIT)
            first[name] = found["seconds"]
        except (ProcessFailed, ValueError) as failure:
            progress.note(f"{name}: {failure}")
            first[name] = None
        progress.note(f"{name}: {first[name]}")
        shutil.rmtree(folder, ignore_errors=True)
    figures = {"demo": {**demo, "events": EVENTS[size]}, "first_batch_seconds": first}
    return Measurement(figures, judge(figures))


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the demo, at its own number of events, and first batches with the claims."""
    demo: dict[str, Any] = figures["demo"]
    first = [
        Bar.at_most(f"{name}: seconds of the first batch", FIRST_BATCH, seconds)
        for name, seconds in figures["first_batch_seconds"].items()
    ]
    if demo["events"] != EVENTS[Size.FULL]:
        return tuple(first)
    return (
        Bar.at_most("demo: seconds to the first rows", FIRST_ROWS, demo["first_rows_seconds"]),
        Bar.at_most("demo: seconds to its end", END, demo["seconds"]),
        *first,
    )


BENCH = Bench(
    "first-minute",
    "the demo shows rows within 15 seconds, and the first batch of any query takes at most 3",
    measure,
)

if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    asked = json.loads(sys.argv[1])
    run_first(asked["name"], Path(asked["folder"]))
