"""Sliding windows at any density and with any number of keys, beside Flink and Spark written well.

Idea: what a window costs an engine that folds events into slices depends on how many events share
a slice of a key. `windows` varies the range at one density; this bench varies density (events per
second of event time) and keys: the corners of 10^3 to 10^6 and 10^2 to 10^6, and their centre. The
range gets shorter as density grows, so that every system fills its windows while it warms up and
Icestream reads at most 100 million events; the slide is 10 seconds throughout. At each point every
configuration of Flink (state backend, mini-batches) runs briefly, the fastest is then measured; its
rate counts or that of the brief run, whichever is higher. Spark chains two windows. All numbers
are medians over repeated runs, taken in turn.

Invariant: a point counts only if Icestream's totals over closed windows are those of numpy.

Cost: about 25 minutes in size `full`.

Limits: Flink computes its rows and drops its results, Icestream and Spark read and write Parquet.
With 10^3 events a second and 10^6 keys nearly every event has a slice of its own and each window
emits more rows than it received events since the last one: writing rows is what is measured.
Spark's windows are still filling there.

References: `bench.windows.overlap`, whose peers these are; `docs/performance.md`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import agreement, rows, systems
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.rows import StreamShape
from bench.systems import BACKENDS
from bench.windows.overlap import CORES, MEMORY, SLACK, SLIDE, FileFeed, draw_rates
from icestream.core.units import parse_interval


@dataclass(frozen=True, slots=True)
class Point:
    """A density and a number of keys, with a range whose windows fill."""

    name: str
    shape: StreamShape
    range: str
    #: the range in Flink SQL
    literal: str
    icestream: FileFeed
    spark: FileFeed
    #: rows whose windows are compared with numpy's
    compared: int


TEN, FIVE, ONE = "INTERVAL '10' MINUTE", "INTERVAL '5' MINUTE", "INTERVAL '1' MINUTE"
POINTS = (
    Point(
        "10^3 events/s, 10^2 keys", StreamShape(100, 1), "10 minutes", TEN,
        FileFeed(2_500_000, 4, 8, 2), FileFeed(500_000, 2, 8, 3), 300_000,
    ),
    Point(
        "10^3 events/s, 10^6 keys", StreamShape(1_000_000, 1), "10 minutes", TEN,
        FileFeed(50_000, 2, 12, 7), FileFeed(50_000, 2, 4, 2), 100_000,
    ),
    Point(
        "3 10^4 events/s, 10^4 keys", StreamShape(10_000, 31), "5 minutes", FIVE,
        FileFeed(2_500_000, 4, 6, 2), FileFeed(500_000, 2, 12, 6), 3_000_000,
    ),
    Point(
        "10^6 events/s, 10^2 keys", StreamShape(100, 1_000), "1 minute", ONE,
        FileFeed(2_500_000, 4, 10, 7), FileFeed(2_500_000, 2, 6, 3), 30_000_000,
    ),
    Point(
        "10^6 events/s, 10^6 keys", StreamShape(1_000_000, 1_000), "1 minute", ONE,
        FileFeed(2_500_000, 4, 10, 7), FileFeed(2_500_000, 2, 6, 3), 30_000_000,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often systems are measured."""

    points: tuple[Point, ...]
    repeats: int
    #: seconds before and during a measurement of Flink, while its configurations are compared
    flink_search: tuple[float, float]
    #: and when the fastest is measured
    flink: tuple[float, float]


EFFORTS = {
    Size.SMALL: Effort((POINTS[2],), 1, (2.0, 2.0), (3.0, 3.0)),
    Size.FULL: Effort(POINTS, 3, (4.0, 4.0), (10.0, 8.0)),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Measure every system at every point."""
    effort, root = EFFORTS[size], workspace()
    variants = len(BACKENDS) * 2
    progress.plan(len(effort.points) * (1 + variants + 3 * effort.repeats))
    figures: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for point in effort.points:
        found = _measured(point, effort, root, progress)
        versions |= found.pop("versions")
        figures[point.name] = found
    ratios = [each for found in figures.values() if (each := found["ratio_flink"])]
    spark = [each for found in figures.values() if (each := found["ratio_spark"])]
    figures["ratio_flink"] = statistics.geometric_mean(ratios) if ratios else None
    figures["ratio_flink_least"] = min(ratios, default=None)
    figures["ratio_spark"] = statistics.geometric_mean(spark) if spark else None
    figures["points_that_agree"] = [p.name for p in effort.points if figures[p.name]["agrees"]]
    return Measurement(figures, judge(figures, len(effort.points)), versions)


def summarise(runs: Mapping[str, list[float | None]], flink: Figures) -> dict[str, Any]:
    """Put the medians of repeated runs side by side; Flink's is at least that of its search."""
    ours, spark, again = (_median(runs[name]) for name in ("icestream", "spark", "flink"))
    best = flink.get("best")
    peer = max((eps for eps in (again, flink.get(best or "")) if eps), default=None)
    return {
        "icestream_eps": ours,
        "spark_eps": spark,
        "flink_eps": peer,
        "flink_configuration": best,
        "flink_search": {name: eps for name, eps in flink.items() if "|" in name},
        "runs": dict(runs),
        "ratio_flink": ours / peer if ours and peer else None,
        "ratio_spark": ours / spark if ours and spark else None,
    }


def judge(figures: Figures, points: int) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    return (
        Bar.at_least("ratio_flink, geometric mean", 3, figures["ratio_flink"]),
        Bar.at_least("ratio_flink, least", 1.2, figures["ratio_flink_least"]),
        Bar.at_least("ratio_spark with two windows, geometric mean", 20, figures["ratio_spark"]),
        Bar.at_least("points that agree", points, len(figures["points_that_agree"])),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates of the systems at each point, on a logarithmic scale."""
    points = {p.name: p.name.replace(", ", "\n") for p in POINTS if p.name in figures}
    labels = {
        "icestream_eps": "Icestream",
        "flink_eps": "Flink's fastest",
        "spark_eps": "Spark, two windows",
    }
    title = "Windows that slide by 10 seconds, 2 cores"
    draw_rates(figures, points, labels, title, target, (9, 3.8))


def _measured(point: Point, effort: Effort, root: Path, progress: ProgressLog) -> dict[str, Any]:
    """Run all systems at one point, in turn."""
    folder = root / "artifacts" / "bench" / "events"
    progress.step(f"{point.name}: writing the events")
    inputs = {
        feed: rows.write_files(folder, feed.files, feed.rows_per_file, shape=point.shape)
        for feed in (point.icestream, point.spark)
    }
    work = scratch(root, "density")
    flink = systems.peer(lambda: _search(point, effort, root, progress), progress)
    runs: dict[str, list[float | None]] = {"icestream": [], "spark": [], "flink": []}
    for number in range(effort.repeats):
        output = work / f"icestream-{number}"
        ours = _files_run("icestream", point, point.icestream, inputs, output, progress)
        runs["icestream"].append(ours.get(point.name))
        spark = systems.peer(
            lambda n=number: _files_run(  # type: ignore[misc]
                "spark", point, point.spark, inputs, work / f"spark-{n}", progress
            ),
            progress,
        )
        runs["spark"].append(spark.get(point.name))
        if flink:
            again = systems.peer(
                lambda: _flink(point, effort.flink, [flink["best"]], root, progress), progress
            )
            runs["flink"].append(again.get(flink["best"]))
    slide, slack = (parse_interval(each) // 1_000 for each in (SLIDE, SLACK))
    until = agreement.closed_by(point.compared, slide, slack, point.shape)
    expected = agreement.expected(parse_interval(point.range) // 1_000, slide, until, point.shape)
    totals = agreement.of_parquet(work / "icestream-0", until)
    versions = {"flink": flink["version"]} if "version" in flink else {}
    agrees = totals.agrees_with(expected)
    return {**summarise(runs, flink), "agrees": agrees, "versions": versions}


def _search(point: Point, effort: Effort, root: Path, progress: ProgressLog) -> dict[str, Any]:
    """Run every configuration of Flink briefly; `best` names the fastest."""
    names = [f"{label}|{mode}" for label in BACKENDS for mode in ("plain", "mini-batch")]
    found = _flink(point, effort.flink_search, names, root, progress)
    return {**found, "best": max(names, key=lambda name: found.get(name) or 0.0)}


def _flink(
    point: Point, seconds: tuple[float, float], names: list[str], root: Path, progress: ProgressLog
) -> dict[str, Any]:
    warm, measured = seconds
    runs = [
        {
            "cores": CORES, "slide": "INTERVAL '10' SECOND", "managed_memory": "512m",
            "checkpoint_every": "5 s", "warm": warm, "measure": measured, "range": point.literal,
            "backend": BACKENDS[name.partition("|")[0]], "mini_batch": name.endswith("mini-batch"),
            "name": name, "kind": "hop",
        }
        for name in names
    ]  # fmt: skip
    return systems.flink(runs, root, True, progress, point.shape)


def _files_run(
    system: str,
    point: Point,
    feed: FileFeed,
    inputs: dict[FileFeed, Path],
    output: Path,
    progress: ProgressLog,
) -> dict[str, float | None]:
    """Run a system that reads the Parquet files; return its rate under the point's name."""
    module = "windows.icestream_window" if system == "icestream" else "peers.spark_window"
    run = {
        "name": point.name, "range": point.range, "slide": SLIDE, "windows": "two",
        "slack": SLACK, "memory": MEMORY, "input": str(inputs[feed]), "skip": feed.skip,
        "files_per_trigger": feed.files_per_trigger, "output": str(output),
        "checkpoint": f"{output}-checkpoint",
    }  # fmt: skip
    command = [sys.executable, "-m", f"bench.{module}"]
    plan = {"cores": CORES, "runs": [run]}
    found = systems.watched(command, plan, system, progress, limit=240.0)
    return {result["name"]: result["eps"] for result in found}


def _median(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate]
    return statistics.median(known) if known else None


BENCH = Bench(
    "density",
    "at any density of events and number of keys windows are three times as fast as Flink's best",
    measure,
    plot,
)
