"""Files as fast input: narrow aggregates over 1 h / 10 s, Icestream against Flink's `HOP`.

Idea: count, sum and avg of one column per key, 100 keys, two cores, from Parquet files in large
batches; every batch is committed, its segments synced, its rows written as Parquet and synced.
Flink computes the same rows itself, drops its results and takes a checkpoint every 5 s, so it need
not read or write files. The same query also runs from CSV and Arrow files, and, to show the benefit
of reading in the tasks, from each format through rows of the JVM.

Cost: a minute of files to write once, then seconds per format and half a minute per Flink variant.

Limits: in size `small` warm-up is short and Flink runs without mini-batches: do not quote it.

References: `Bench` in `registry`; the numbers and how to repeat them are in `docs/performance.md`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import agreement, rows, systems
from bench.agreement import WindowTotals
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.systems import BACKENDS

CORES = 2
RANGE_MS = 3_600_000
SLIDE_MS = 10_000
SLACK_MS = 5_000
MEMORY = "512 MB"
AGGREGATES = ("n", "s", "a")
#: rows whose windows are compared between the systems
COMPARED = 300_000

#: required events per second from Parquet files, and required ratio to Flink's
LEAST_EPS = 8_000_000
LEAST_RATIO = 10


@dataclass(frozen=True, slots=True)
class Case:
    """One format, read by the tasks (`auto`) or through rows of the JVM (`rows`)."""

    format: str
    reading: str
    rows_per_file: int
    files_per_trigger: int
    batches: int
    #: batches that warm up and do not count
    skip: int

    @property
    def name(self) -> str:
        """The name of the case in the figures."""
        return f"{self.format}, {'tasks' if self.reading == 'auto' else 'JVM'}"


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of each system's run."""

    cases: tuple[Case, ...]
    #: seconds before and during the measurement
    flink_warm: float
    flink_measure: float
    flink_mini_batch: tuple[bool, ...]
    #: whether every query gets a process of its own
    apart: bool


SCALES = {
    Size.SMALL: Scale(
        cases=(
            Case("parquet", "auto", 1_250_000, 8, 5, 2),
            Case("arrow", "auto", 1_250_000, 4, 4, 2),
            Case("csv", "auto", 250_000, 4, 4, 2),
            Case("csv", "rows", 250_000, 2, 4, 2),
        ),
        flink_warm=2.0,
        flink_measure=2.0,
        flink_mini_batch=(False,),
        apart=False,
    ),
    Size.FULL: Scale(
        cases=(
            Case("parquet", "auto", 2_500_000, 16, 12, 4),
            Case("parquet", "rows", 2_500_000, 4, 8, 3),
            Case("arrow", "auto", 2_500_000, 8, 8, 3),
            Case("arrow", "rows", 2_500_000, 2, 6, 3),
            Case("csv", "auto", 500_000, 16, 8, 3),
            Case("csv", "rows", 500_000, 8, 6, 3),
        ),
        flink_warm=10.0,
        flink_measure=12.0,
        flink_mini_batch=(False, True),
        apart=True,
    ),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run the formats and Flink, and compare them."""
    scale, root = SCALES[size], workspace()
    variants = len(BACKENDS) * len(scale.flink_mini_batch)
    progress.plan(1 + len(scale.cases) + 2 + variants)
    progress.step("writing the events")
    folders = _write_events(scale, root)
    until = agreement.closed_by(COMPARED, SLIDE_MS, SLACK_MS)
    work = scratch(root, "fast_input")
    ours = _icestream(scale, folders, work, progress)
    totals = {
        case.name: agreement.of_parquet(_output(work, case), until)
        for case in scale.cases
        if case.name in ours
    }
    flink = systems.peer(lambda: _flink(scale, root, until, progress), progress)
    if "totals" in flink:
        totals["flink"] = WindowTotals(**flink["totals"])
    figures = summarise(ours, flink)
    expected = agreement.expected(RANGE_MS, SLIDE_MS, until)
    figures["agree"] = [
        name for name, found in totals.items() if found.narrow.agrees_with(expected.narrow)
    ]
    figures["totals_compared"] = asdict(expected.narrow)
    versions = {"flink": flink["version"]} if "version" in flink else {}
    return Measurement(figures, judge(figures, len(scale.cases) + 1), versions)


def summarise(ours: Figures, flink: Figures) -> dict[str, Any]:
    """Put the rates (events per second) side by side."""
    backends = {
        label: max((flink[name] for name in flink if name.startswith(f"{label}|")), default=None)
        for label in BACKENDS
    }
    best = max((eps for eps in backends.values() if eps), default=None)
    figures: dict[str, Any] = {name: result["eps"] for name, result in ours.items()}
    mine = figures.get("parquet, tasks")
    figures |= {f"flink_{label}_eps": eps for label, eps in backends.items()}
    figures["flink_eps"] = best
    figures["flink_scan_eps"] = flink.get("scan")
    figures["flink_unsteady"] = flink.get("unsteady", [])
    figures["ratio_flink"] = mine / best if mine and best else None
    figures["phases"] = {name: result["phases"][-1] for name, result in ours.items()}
    return figures


def judge(figures: Figures, systems_run: int) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    return (
        Bar.at_least("events/s from Parquet", LEAST_EPS, figures.get("parquet, tasks")),
        Bar.at_least("ratio_flink", LEAST_RATIO, figures["ratio_flink"]),
        Bar.at_least("runs that agree", systems_run, len(figures["agree"])),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    names = [name for name in figures if name.endswith((", tasks", ", JVM"))]
    bars = {f"Icestream: {name}": figures[name] or 0.0 for name in names}
    bars |= {f"Flink, {label}": figures[f"flink_{label}_eps"] or 0.0 for label in BACKENDS}
    drawing = Figure(figsize=(7, 3.6), layout="constrained")
    axes = drawing.subplots()
    drawn = axes.barh(list(bars), [eps / 1e6 for eps in bars.values()])
    axes.bar_label(drawn, [f"{eps / 1e6:.1f}" for eps in bars.values()], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("million events per second")
    axes.set_title("count, sum, avg over 1 h / 10 s, 100 keys, 2 cores")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


def _write_events(scale: Scale, root: Path) -> dict[Case, Path]:
    """Write the files of every case."""
    folder = root / "artifacts" / "bench" / "events"
    return {
        case: rows.write_files(
            folder, case.files_per_trigger * case.batches, case.rows_per_file, case.format
        )
        for case in scale.cases
    }


def _icestream(
    scale: Scale, folders: dict[Case, Path], work: Path, progress: ProgressLog
) -> dict[str, dict[str, Any]]:
    """Run every case; return measurements by name."""
    runs = [
        {
            "name": case.name,
            "range": "1 hour",
            "slide": "10 seconds",
            "slack": "5 seconds",
            "memory": MEMORY,
            "aggregates": AGGREGATES,
            "format": case.format,
            "reading": case.reading,
            "input": str(folders[case]),
            "files_per_trigger": case.files_per_trigger,
            "skip": case.skip,
            "output": str(_output(work, case)),
            "checkpoint": f"{_output(work, case)}-checkpoint",
        }
        for case in scale.cases
    ]
    command = [sys.executable, "-m", "bench.windows.icestream_window"]
    found: dict[str, dict[str, Any]] = {}
    for group in systems.grouped(runs, scale.apart):
        plan = {"cores": CORES, "runs": group}
        for result in systems.watched(command, plan, "icestream", progress):
            found[result["name"]] = result
    return found


def _flink(scale: Scale, root: Path, until: int, progress: ProgressLog) -> dict[str, Any]:
    """Run Flink; return rates by `backend|mini-batch`, the scan rate, totals and version."""
    common = {
        "cores": CORES, "slide": "INTERVAL '10' SECOND", "range": "INTERVAL '1' HOUR",
        "managed_memory": "512m", "checkpoint_every": "5 s", "warm": scale.flink_warm,
        "measure": scale.flink_measure, "backend": "hashmap", "mini_batch": False,
    }  # fmt: skip
    closed = datetime.fromtimestamp(until / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    runs = [
        {**common, "name": "totals", "kind": "totals", "rows": COMPARED, "until": closed},
        {**common, "name": "scan", "kind": "scan"},
        *(
            {
                **common,
                "name": f"{label}|{'mini-batch' if mini_batch else 'plain'}",
                "kind": "hop",
                "aggregates": AGGREGATES,
                "backend": backend,
                "mini_batch": mini_batch,
            }
            for label, backend in BACKENDS.items()
            for mini_batch in scale.flink_mini_batch
        ),
    ]
    return systems.flink(runs, root, scale.apart, progress)


def _output(work: Path, case: Case) -> Path:
    return work / f"{case.format}-{case.reading}"


BENCH = Bench(
    "fast-input",
    "narrow windows read 8 million events/s from files on two cores, ten times Flink's rate",
    measure,
    plot,
)
