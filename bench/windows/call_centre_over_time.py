"""Memory, latency and throughput while a window fills: with the log on disk, and in memory only.

Idea: the call-centre figures run in one process whose data segment is limited, four times: storing
raw events or panes, with the log on disk or (`memory_files`) in the heap. Memory-only runs end when
the limit is reached, before the window is full; the others continue past it.

Limits: the limit is the operating system's (`RLIMIT_DATA`), above what the process holds when warm,
so it covers everything the process allocates. Latency is the time of a batch over its events, and
the time of the slowest batch: results are per slide, not per event.

References: Figure 10 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness import scratch, workspace
from bench.memory_files import MemoryFiles
from bench.processes import ProcessFailed, results
from bench.registry import Bar, Figures, Size
from icestream.demo.call_centre.generator import AgentInteractions
from icestream.demo.call_centre.kpis import FIELDS, GROUPINGS
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings
from icestream.state.files import LocalFiles

SECOND = 1_000_000
LIMIT = 1_200.0


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    store: str
    on_disk: bool
    #: seconds of the window, of the whole run and of a batch, in event time
    window: int
    total: int
    batch: int
    rate: int
    #: bytes of the query's budget, and bytes that the warm process may allocate
    budget: int
    limit: int

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return f"{self.store}, {'log on disk' if self.on_disk else 'memory only'}"

    @property
    def plan(self) -> Plan:
        """Return the query of the 144 figures."""
        aggregates = [Aggregate("count", None, "calls")]
        for place, name in enumerate(FIELDS):
            aggregates += [
                Aggregate("sum", f"x{place}", f"sum_{name}"),
                Aggregate("avg", f"x{place}", f"avg_{name}"),
            ]
        return Plan.of(
            sources=(Source("calls", 2 * SECOND),),
            windows=Windows(self.window * SECOND, 10 * SECOND),
            keys=pa.schema([(name, pa.int32()) for name in GROUPINGS]),
            inputs=pa.schema([(f"x{place}", pa.int32()) for place in range(len(FIELDS))]),
            expressions=tuple(FIELDS),
            aggregates=tuple(aggregates),
            grouping_sets=tuple((place,) for place in range(len(GROUPINGS))),
            time=pa.timestamp("us", "UTC"),
            mode="changes",
            store=self.store,
        )


def cases(size: Size) -> tuple[Case, ...]:
    """Return the four runs of a size."""
    window = 1_200 if size is Size.SMALL else 7_200
    limit = (24 if size is Size.SMALL else 80) << 20
    return tuple(
        Case(store, on_disk, window, window * 3 // 2, window // 60, 1_000, limit // 4, limit)
        for store in ("tuples", "panes")
        for on_disk in (False, True)
    )


def run_case(case: Case, folder: str) -> None:
    """Feed the stream batch by batch, printing a JSON line for each."""
    plan = case.plan
    stream = AgentInteractions(rate=case.rate)
    rows = case.batch * case.rate
    warm = _feed(plan, LocalFiles(), case, os.path.join(folder, "warm"), stream, range(3), rows)
    deque(warm, maxlen=0)
    files = LocalFiles() if case.on_disk else MemoryFiles()
    held = _data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (held + case.limit, held + case.limit))
    numbers = range(case.total // case.batch)
    for line in _feed(plan, files, case, os.path.join(folder, "run"), stream, numbers, rows):
        print(json.dumps({**line, "bytes": line["bytes"] - held}), flush=True)


def _feed(
    plan: Plan,
    files: Any,
    case: Case,
    folder: str,
    stream: AgentInteractions,
    numbers: range,
    rows: int,
) -> Iterator[dict[str, Any]]:
    settings = Settings(f"{folder}/checkpoint", f"{folder}/local", case.budget, shards=1)
    query = LocalQuery(plan, settings, files, LocalFiles())
    for number in numbers:
        batch = batch_of(plan, stream, number * rows, rows)
        started = time.perf_counter()
        query.driver.batch(number, [[batch]])
        spent = time.perf_counter() - started
        yield {
            "at": (number + 1) * case.batch,
            "events": rows,
            "seconds": spent,
            "bytes": _data_bytes(),
        }
    query.close()


def batch_of(plan: Plan, stream: AgentInteractions, first: int, count: int) -> pa.RecordBatch:
    """Return events of the stream as the plan takes them."""
    events = stream.batch(first, count)
    columns = [
        events.column("timestamp").cast(plan.time),
        pa.array(np.zeros(count, dtype=np.int32)),
        *(events.column(name) for name in (*GROUPINGS, *FIELDS)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)


def _data_bytes() -> int:
    """Return the private writable memory of this process, which the limit counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData"):
            return int(line.split()[1]) * 1024
    return 0


def measure(size: Size) -> dict[str, Any]:
    """Run every case in a process of its own until it ends or dies."""
    figures: dict[str, Any] = {}
    for case in cases(size):
        folder = scratch(workspace(), "call-centre-over-time")
        lines: list[dict[str, Any]] = []
        died = None
        asked = {"case": asdict(case), "folder": str(folder)}
        command = [sys.executable, "-m", "bench.windows.call_centre_over_time"]
        try:
            results(command, asked, limit=LIMIT, on_result=lines.append)
        except ProcessFailed as failure:
            died = str(failure).splitlines()[-1]
        shutil.rmtree(folder)
        figures[case.name] = {
            "window_seconds": case.window,
            "limit_bytes": case.limit,
            "reached_seconds": lines[-1]["at"] if lines else 0,
            "total_seconds": case.total,
            "died": died,
            "lines": lines,
        }
    return figures


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Require that runs in memory die before their window is full, and that the others finish."""
    alone = [each for name, each in figures.items() if "memory only" in name]
    ours = [each for name, each in figures.items() if "on disk" in name]
    dead = sum(each["died"] is not None for each in alone)
    through = sum(each["reached_seconds"] >= each["total_seconds"] for each in ours)
    return (
        Bar.at_least("memory-only runs that died", len(alone), dead),
        Bar.at_least("runs on disk that went through", len(ours), through),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw memory, latency and throughput over event time, a column for each kind of log."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(10, 8), layout="constrained")
    axes = drawing.subplots(3, 2, sharex=True)
    kinds = ("memory only", "log on disk")
    for column, kind in enumerate(kinds):
        axes[0, column].set_title(kind)
        for name, run in figures.items():
            if kind not in name or not run["lines"]:
                continue
            store = name.split(",")[0]
            hours = [line["at"] / 3600 for line in run["lines"]]
            held = [line["bytes"] / (1 << 20) for line in run["lines"]]
            latency = [1e6 * line["seconds"] / line["events"] for line in run["lines"]]
            rate = [line["events"] / line["seconds"] / 1e3 for line in run["lines"]]
            for row, values in enumerate((held, latency, rate)):
                (drawn,) = axes[row, column].plot(hours, values, label=store)
                if run["died"] is not None:
                    axes[row, column].plot(hours[-1:], values[-1:], "x", color=drawn.get_color())
        axes[2, column].set_xlabel("hours of event time")
        axes[0, column].legend()
    for row, label in enumerate(
        ("memory of the process, MB", "time per event, µs", "thousand events/s")
    ):
        for column in range(2):
            axes[row, column].set_ylabel(label)
            axes[row, column].set_ylim(bottom=0)
    drawing.suptitle("144 figures while the window fills; x marks a run that ran out of memory")
    drawing.savefig(target, dpi=120)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    run_case(Case(**asked["case"]), asked["folder"])
