"""What it costs when state outgrows its budget: every kind of state at 1 to 100 times the memory.

Idea: one stream, whose keys come back at random so that no part of the state is hotter than the
rest, and whose event time hardly moves so that nothing expires, runs through a query for every
kind of state on Spark. The log of a first run, in plenty of memory, tells how large the state
becomes; then the same query runs with that size and with parts of it as its budget. Rates are of
the second half of the batches, when most of the state is there. All runs of a kind share a Spark
session, so that only the first one compiles and imports.

Invariants:
1. Rates are compared with that of the run in which all state fits
   (`test_rates_are_relative_to_the_run_in_memory`).
2. A budget that a query refuses is a missing measurement, with the refusal
   (`test_a_refused_budget_is_no_measurement`).

Limits: in size `small` the budgets of update streams at ten times are below the least that these
accept. Uniform keys are the worst case of a cache; skewed ones are in `cold-state`. Bytes read
back are those of system calls: pages of mapped files are not counted. Update streams serve as many
keys as time allows; their rate is that of events taken in.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

import icestream as ice
from bench.adaptation.operators_of_state import OPERATORS, SCHEMA
from bench.harness import scratch, workspace
from bench.processes import ProcessFailed, results
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.rows import write_batches
from bench.safety.process_memory import SPAN, WORKERS, WorkerMemory
from bench.steady import steady_rate
from icestream.core.errors import BudgetError, DefinitionError

#: state in budgets, and the point of the claim
TIMES = (1, 3, 10, 30, 100)
CLAIMED = 10
LEAST = 0.5
#: update queues: a key outside of memory is a page read and written
LEAST_UPDATES = 0.15
#: bytes in which everything fits
PLENTY = 512 << 20
#: seconds after which a kind of state is stopped, with the runs that it has finished
LIMIT = 400.0


@dataclass(frozen=True, slots=True)
class Stream:
    """The events of all runs."""

    #: events of a batch
    events: int
    batches: int
    #: how often a key comes back
    visits: int = 4


STREAMS = {Size.SMALL: Stream(100_000, 10), Size.FULL: Stream(150_000, 16)}


def run_kind(name: str, stream: Stream, folder: Path) -> None:
    """Run a kind of state with every budget, and print each result."""
    spark = ice.local_session("growth", cores=WORKERS)
    spark.sparkContext.setLogLevel("OFF")
    keys = stream.events * stream.batches // stream.visits
    span = SPAN // stream.batches
    write_batches(folder / "in", stream.batches, stream.events, keys=keys, span=span, seed=11)
    run(spark, name, stream, folder, PLENTY)  # compiles and imports what workers need
    found = run(spark, name, stream, folder, PLENTY)
    state = found["log_bytes"]
    print(json.dumps({"times": 0, "state_bytes": state, **found}), flush=True)
    for times in TIMES:
        try:
            found = run(spark, name, stream, folder, max(1, state // times))
        except (BudgetError, DefinitionError) as refusal:
            found = {"refusal": str(refusal)}
        print(json.dumps({"times": times, "state_bytes": state, **found}), flush=True)
    spark.stop()


def run(spark: Any, name: str, stream: Stream, folder: Path, budget: int) -> dict[str, Any]:
    """Run a query with a budget to the end of its input."""
    made = OPERATORS[name]
    checkpoint = folder / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    writer = made.query(reader.parquet(str(folder / "in"))).writeStream.format("noop")
    options = {"checkpointLocation": str(checkpoint), "rebalance": "off", **made.options}
    workers, before = WorkerMemory(psutil.Process()), read_bytes()
    with workers.watched():
        query = writer.options(**options).memory(budget).trigger(availableNow=True).start()
        query.awaitTermination()
    reports = query.recentProgress
    own = [each["icestream"] for each in reports]
    return {
        "budget_bytes": budget,
        "events_per_second": steady_rate(reports, stream.batches // 2),
        "memory_bytes": max(each["peakMemoryBytes"] for each in own),
        "log_bytes": max(each["logBytes"] for each in own),
        "process_bytes": workers.peak,
        "read_bytes": read_bytes() - before,
    }


def read_bytes() -> int:
    """Return the bytes that all Python workers have read by system calls."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "python" in process.name():
                total += process.io_counters().read_chars
    return total


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run every kind of state in a process of its own."""
    figures = {}
    progress.plan(len(OPERATORS))
    for name in OPERATORS:
        progress.step(name)
        folder = scratch(workspace(), "growth")
        command = [sys.executable, "-m", "bench.cold.growth"]
        plan = {"name": name, "stream": asdict(STREAMS[size]), "folder": str(folder)}
        try:
            found = results(command, plan, limit=LIMIT)
        except ProcessFailed as failure:
            progress.note(f"{name}: {failure}")
            found = []
        figures[name] = relative(found)
        progress.note(f"{name}: {figures[name]['of_all_in_memory']}")
        shutil.rmtree(folder, ignore_errors=True)
    return Measurement(figures, judge(figures))


def relative(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the runs of a kind of state, and their rates relative to the run in memory."""
    runs = {each.pop("times"): each for each in found}
    base = runs.get(0, {}).get("events_per_second")
    rates = {times: run.get("events_per_second") for times, run in runs.items() if times in TIMES}
    return {
        "state_bytes": runs.get(0, {}).get("state_bytes"),
        "of_all_in_memory": {
            str(times): round(rate / base, 3) for times, rate in rates.items() if rate and base
        },
        "runs": {str(times): run for times, run in runs.items()},
    }


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare each kind of state at ten times its budget with the claim."""
    return tuple(
        Bar.at_least(
            f"{name}: rate at {CLAIMED} times the budget",
            LEAST_UPDATES if name.startswith("update") else LEAST,
            found["of_all_in_memory"].get(str(CLAIMED)),
        )
        for name, found in figures.items()
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw rate, bytes read back and memory of the workers over the size of the state."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(16, 6), layout="constrained")
    rate, read, memory = drawing.subplots(1, 3)
    for number, (name, found) in enumerate(figures.items()):
        style = {"marker": "o", "ms": 3, "color": f"C{number % 10}", "label": name}
        style["linestyle"] = "-" if number < 10 else "--"
        parts: Mapping[str, float] = found["of_all_in_memory"]
        rate.plot([int(times) for times in parts], list(parts.values()), **style)
        runs = {int(t): run for t, run in found["runs"].items() if int(t) and "read_bytes" in run}
        read.plot(list(runs), [run["read_bytes"] / 1e6 for run in runs.values()], **style)
        memory.plot(list(runs), [run["process_bytes"] / 1e6 for run in runs.values()], **style)
    rate.axhline(LEAST, linestyle=":", color="grey")
    rate.set(title="events per second", ylabel="of the rate with all state in memory")
    read.set(title="bytes that workers read", ylabel="MB")
    memory.set(title="memory of the workers", ylabel="MB")
    for axes in (rate, read, memory):
        axes.set_xscale("log")
        axes.set_xticks(TIMES, [str(times) for times in TIMES])
        axes.set(xlabel="state / budget")
        axes.set_ylim(bottom=0)
    drawing.legend(*rate.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "growth",
    "with state of ten times its budget every kind of query keeps half of its rate",
    measure,
    plot,
)

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    run_kind(asked["name"], Stream(**asked["stream"]), Path(asked["folder"]))
