"""Sliding windows of any range at one cost: Icestream against Spark's `window()` and Flink's `HOP`.

Idea: three systems compute count, sum, avg, min and max per key over the same rows (`rows`), with
two cores each, and are timed once warm. Icestream and Spark read Parquet, write Parquet and commit
every batch; Flink computes the rows itself, drops its results and takes a checkpoint every 5 s.
Flink need not read or write files. Spark's query is written in two ways: with one window, and with
two chained ones, which is how a Spark expert writes it. The results are compared in the same run.

Cost: Icestream reads hundreds of millions of rows; a peer runs for a fixed time or on a prefix.

Limits: in size `small` warm-up is short, Flink runs without mini-batches, no 24 hours of events are
read, and Spark's 24 h / 10 s is left out: its first batch alone takes minutes. No peer fills its
24 h windows in size `full` either; Icestream does. Spark's rate grows with the size of its batches,
which are kept small enough for a run of about a minute.

References: `Bench` in `registry`; the numbers and how to repeat them are in `docs/performance.md`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import agreement, rows, systems
from bench.agreement import WindowTotals
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.systems import BACKENDS
from icestream.core.units import parse_interval

CORES = 2
SLIDE = "10 seconds"
SLACK = "5 seconds"
MEMORY = "512 MB"
#: rows whose windows are compared between the systems
COMPARED = 300_000


@dataclass(frozen=True, slots=True)
class Case:
    """One range of a window sliding by 10 seconds."""

    name: str
    range: str
    #: the range in Flink SQL
    literal: str


CASES = (
    Case("1 min / 10 s", "1 minute", "INTERVAL '1' MINUTE"),
    Case("1 h / 10 s", "1 hour", "INTERVAL '1' HOUR"),
    Case("24 h / 10 s", "24 hours", "INTERVAL '1' DAY"),
)
SHORT, HOUR, DAY = CASES
#: Spark with two chained windows
CHAINED = "spark with two windows"


@dataclass(frozen=True, slots=True)
class FileFeed:
    """The input of a system that reads files."""

    rows_per_file: int
    files_per_trigger: int
    batches: int
    #: batches that warm up and do not count
    skip: int

    @property
    def files(self) -> int:
        """The number of files."""
        return self.files_per_trigger * self.batches


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of each system's run."""

    icestream: dict[Case, FileFeed]
    spark: dict[Case, FileFeed]
    #: Spark with two chained windows
    spark_chained: dict[Case, FileFeed]
    #: seconds before and during the measurement
    flink_warm: float
    flink_measure: float
    flink_mini_batch: tuple[bool, ...]
    #: whether every query gets a process of its own
    apart: bool


SCALES = {
    Size.SMALL: Scale(
        icestream=dict.fromkeys(CASES, FileFeed(1_250_000, 4, 5, 2)),
        spark={SHORT: FileFeed(250_000, 2, 5, 2), HOUR: FileFeed(10_000, 2, 4, 2)},
        spark_chained=dict.fromkeys((SHORT, HOUR), FileFeed(250_000, 2, 5, 2)),
        flink_warm=2.0,
        flink_measure=2.0,
        flink_mini_batch=(False,),
        apart=False,
    ),
    Size.FULL: Scale(
        icestream={
            SHORT: FileFeed(2_500_000, 4, 30, 3),
            HOUR: FileFeed(2_500_000, 4, 30, 3),
            DAY: FileFeed(2_500_000, 4, 30, 10),
        },
        spark={
            SHORT: FileFeed(500_000, 2, 18, 4),
            HOUR: FileFeed(200_000, 2, 5, 2),
            DAY: FileFeed(250, 2, 3, 1),
        },
        spark_chained={
            SHORT: FileFeed(500_000, 2, 18, 4),
            HOUR: FileFeed(500_000, 2, 10, 3),
            DAY: FileFeed(25_000, 2, 4, 1),
        },
        flink_warm=10.0,
        flink_measure=12.0,
        flink_mini_batch=(False, True),
        apart=True,
    ),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run the three systems and compare them."""
    scale, root = SCALES[size], workspace()
    variants = len(BACKENDS) * len(scale.flink_mini_batch)
    files = len(scale.icestream) + len(scale.spark) + len(scale.spark_chained)
    progress.plan(1 + files + 2 + variants * len(CASES))
    progress.step("writing the events")
    folders = _write_events(scale, root)
    until = agreement.closed_by(COMPARED, _ms(SLIDE), _ms(SLACK))
    totals: dict[str, WindowTotals | None] = {}

    work = scratch(root, "windows")
    ours = _files_system("icestream", scale.icestream, folders, work, scale.apart, progress)
    totals["icestream"] = agreement.of_parquet(_output(work, "icestream", SHORT), until)
    spark = systems.peer(
        lambda: _files_system("spark", scale.spark, folders, work, scale.apart, progress), progress
    )
    if spark.get(SHORT.name):
        totals["spark"] = agreement.of_parquet(_output(work, "spark", SHORT), until)
    chained = systems.peer(
        lambda: _files_system(
            CHAINED, scale.spark_chained, folders, work, scale.apart, progress, windows="two"
        ),
        progress,
    )
    if chained.get(SHORT.name):
        totals[CHAINED] = agreement.of_parquet(_output(work, CHAINED, SHORT), until)
    flink = systems.peer(lambda: _flink(scale, root, until, progress), progress)
    if "totals" in flink:
        totals["flink"] = WindowTotals(**flink["totals"])

    figures = summarise(ours, spark, chained, flink)
    expected = agreement.expected(_ms(SHORT.range), _ms(SLIDE), until)
    agree = [name for name, found in totals.items() if found and found.agrees_with(expected)]
    figures["systems_that_agree"] = agree
    figures["totals_compared"] = asdict(expected)
    versions = {"flink": flink["version"]} if "version" in flink else {}
    return Measurement(figures, judge(figures), versions)


def summarise(ours: Figures, spark: Figures, chained: Figures, flink: Figures) -> dict[str, Any]:
    """Put the rates (events per second) side by side."""
    figures: dict[str, Any] = {}
    for case in CASES:
        backends = {
            label: max(
                (eps for name, eps in flink.items() if name.startswith(f"{case.name}|{label}|")),
                default=None,
            )
            for label in BACKENDS
        }
        best = max((eps for eps in backends.values() if eps), default=None)
        mine = ours.get(case.name)
        figures[case.name] = {
            "icestream_eps": mine,
            "spark_eps": spark.get(case.name),
            "spark_chained_eps": chained.get(case.name),
            "flink_eps": best,
            **{f"flink_{label}_eps": eps for label, eps in backends.items()},
            "ratio_spark": _ratio(mine, spark.get(case.name)),
            "ratio_spark_chained": _ratio(mine, chained.get(case.name)),
            "ratio_flink": _ratio(mine, best),
        }
    figures["flatness"] = _ratio(ours.get(DAY.name), ours.get(SHORT.name))
    figures["flink_scan_eps"] = flink.get("scan")
    figures["flink_unsteady"] = flink.get("unsteady", [])
    return figures


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    hour = figures[HOUR.name]
    return (
        Bar.at_least(f"ratio_spark at {HOUR.name}", 200, hour["ratio_spark"]),
        Bar.at_least(
            f"ratio_spark with two windows at {HOUR.name}", 20, hour["ratio_spark_chained"]
        ),
        Bar.at_least(f"ratio_flink at {HOUR.name}", 3, hour["ratio_flink"]),
        Bar.at_least("flatness", 0.8, figures["flatness"]),
        Bar.at_least("systems_that_agree", 4, len(figures["systems_that_agree"])),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars on a logarithmic scale."""
    systems = {
        "icestream_eps": "Icestream",
        "flink_eps": "Flink",
        "spark_chained_eps": "Spark, two windows",
        "spark_eps": "Spark, one window",
    }
    cases = {case.name: case.name for case in CASES}
    draw_rates(figures, cases, systems, "Sliding windows, 100 keys, 2 cores", target, (7, 3.6))


def draw_rates(
    figures: Figures,
    cases: Mapping[str, str],
    systems: Mapping[str, str],
    title: str,
    target: Path,
    inches: tuple[float, float],
) -> None:
    """Draw the rates of systems in cases as bars, given the labels of both."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=inches, layout="constrained")
    axes = drawing.subplots()
    width = 0.8 / len(systems)
    for place, (field, label) in enumerate(systems.items()):
        heights = [figures[case][field] or math.nan for case in cases]
        shift = (place - (len(systems) - 1) / 2) * width
        bars = axes.bar([at + shift for at in range(len(cases))], heights, width, label=label)
        axes.bar_label(bars, [f"{eps:,.0f}" for eps in heights], fontsize=7)
    axes.set_yscale("log")
    axes.set_xticks(range(len(cases)), list(cases.values()))
    axes.set_ylabel("events per second")
    axes.set_title(title)
    axes.legend()
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


def _write_events(scale: Scale, root: Path) -> dict[FileFeed, Path]:
    """Write the files each feed reads."""
    feeds = {
        *scale.icestream.values(),
        *scale.spark.values(),
        *scale.spark_chained.values(),
    }
    folder = root / "artifacts" / "bench" / "events"
    return {feed: rows.write_files(folder, feed.files, feed.rows_per_file) for feed in feeds}


def _files_system(
    system: str,
    feeds: dict[Case, FileFeed],
    folders: dict[FileFeed, Path],
    work: Path,
    apart: bool,
    progress: ProgressLog,
    windows: str = "one",
) -> dict[str, float | None]:
    """Run a system that reads the Parquet files; return rates by case."""
    module = "windows.icestream_window" if system == "icestream" else "peers.spark_window"
    command = [sys.executable, "-m", f"bench.{module}"]
    runs = [
        {
            "name": case.name,
            "range": case.range,
            "slide": SLIDE,
            "windows": windows,
            "slack": SLACK,
            "memory": MEMORY,
            "input": str(folders[feed]),
            "files_per_trigger": feed.files_per_trigger,
            "skip": feed.skip,
            "output": str(_output(work, system, case)),
            "checkpoint": str(_output(work, system, case)) + "-checkpoint",
        }
        for case, feed in feeds.items()
    ]
    rates: dict[str, float | None] = {}
    for group in systems.grouped(runs, apart):
        found = systems.watched(command, {"cores": CORES, "runs": group}, system, progress)
        rates |= {result["name"]: result["eps"] for result in found}
    return rates


def _flink(scale: Scale, root: Path, until: int, progress: ProgressLog) -> dict[str, Any]:
    """Run Flink; return rates by `case|backend|mini-batch`, the scan rate, totals and version."""
    common = {
        "cores": CORES, "slide": "INTERVAL '10' SECOND", "managed_memory": "512m",
        "checkpoint_every": "5 s", "warm": scale.flink_warm, "measure": scale.flink_measure,
        "backend": "hashmap", "mini_batch": False, "range": SHORT.literal,
    }  # fmt: skip
    closed = datetime.fromtimestamp(until / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    runs = [
        {**common, "name": "totals", "kind": "totals", "rows": COMPARED, "until": closed},
        {**common, "name": "scan", "kind": "scan"},
    ]
    for case in CASES:
        for label, backend in BACKENDS.items():
            for mini_batch in scale.flink_mini_batch:
                variant = {"range": case.literal, "backend": backend, "mini_batch": mini_batch}
                name = f"{case.name}|{label}|{'mini-batch' if mini_batch else 'plain'}"
                runs.append({**common, **variant, "name": name, "kind": "hop"})
    return systems.flink(runs, root, scale.apart, progress)


def _output(work: Path, system: str, case: Case) -> Path:
    return work / system / case.name.replace(" / ", "-").replace(" ", "")


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None


def _ms(interval: str) -> int:
    return parse_interval(interval) // 1_000


BENCH = Bench(
    "windows",
    "a sliding window costs the same whatever its range, and less than Spark's and Flink's",
    measure,
    plot,
)
