"""Two streams joined within a bound of time: Icestream against Spark's stream-stream join.

Idea: both join the same two streams of files, on skewed keys and at most 20 seconds apart, in the
same batches, write the rows as Parquet, commit every batch and have two cores; rates are of input
rows, of both streams together, once warm. The join is an inner, a left and a full outer one. All
rows that a system wrote are compared with what numpy expects (`pair_agreement`).

Limits: Icestream reads more batches than Spark, which takes seconds for each. In size `small`
batches are small, so that fixed costs per batch weigh more than the join. Rows without a partner
whose bound the watermark has not passed when the streams end are not compared.

References: `Bench` in `registry`; the numbers and how to repeat them are in `docs/performance.md`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import systems
from bench.cold.keyed_rows import DISORDER_MS, TICK_MS, KeyedStream
from bench.cold.user_state import prefix
from bench.harness import scratch, workspace
from bench.joins import pair_agreement
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.core.units import parse_interval

CORES = 2
WITHIN = "20 seconds"
SLACK = "2 seconds"
MEMORY = "512 MB"
LEAST_RATIO = 20

#: of 200,000 keys the most frequent one has 0.7 % of the rows, 1,500 times its even share
LEFT = KeyedStream("left", 12_345, 200_000, 2.5)
RIGHT = KeyedStream("right", 54_321, 200_000, 2.5)

SPARK, ICESTREAM = "spark", "icestream"
INNER, LEFT_OUTER, FULL_OUTER = HOWS = ("inner", "left", "full")
MODULES = {SPARK: "peers.spark_stream_join", ICESTREAM: "joins.icestream_stream_join"}


@dataclass(frozen=True, slots=True)
class JoinFeed:
    """The input of a system; batches are the same for all, their number is not."""

    batches: int
    #: batches that warm up and do not count
    skip: int


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of each system's run."""

    rows_per_file: int
    #: files of each stream in a batch
    files_per_trigger: int
    feeds: dict[str, JoinFeed]

    def rows(self, system: str) -> int:
        """Return the rows of each stream that a system reads."""
        return self.rows_per_file * self.files_per_trigger * self.feeds[system].batches


SCALES = {
    Size.SMALL: Scale(10_000, 2, {SPARK: JoinFeed(4, 2), ICESTREAM: JoinFeed(6, 2)}),
    Size.FULL: Scale(100_000, 2, {SPARK: JoinFeed(6, 2), ICESTREAM: JoinFeed(24, 4)}),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run both systems on the same files and compare them."""
    scale, root = SCALES[size], workspace()
    progress.plan(1 + len(scale.feeds) * len(HOWS))
    progress.step("writing the events")
    events = root / "artifacts" / "bench" / "events"
    files = scale.files_per_trigger * max(feed.batches for feed in scale.feeds.values())
    every = [side.write_files(events, files, scale.rows_per_file) for side in (LEFT, RIGHT)]
    work = scratch(root, "stream_join")
    figures: dict[str, Any] = {}
    for how in HOWS:
        rates: dict[str, Any] = {}
        agree: list[str] = []
        for system in scale.feeds:
            folder = work / how
            found = systems.peer(
                lambda name=system, to=folder, kind=how: _run(  # type: ignore[misc]
                    name, kind, scale, every, to, progress
                ),
                progress,
            )
            rates |= found
            if found.get(system) and agrees(how, folder / system, scale, system):
                agree.append(system)
        figures[how] = summarise(rates, agree)
    return Measurement(figures, judge(figures))


def agrees(how: str, folder: Path, scale: Scale, system: str) -> bool:
    """Return whether a system wrote the rows that are expected of its input."""
    rows, within = scale.rows(system), parse_interval(WITHIN) // 1_000
    pairs, *unpaired = pair_agreement.of_parquet(folder)
    if pairs != pair_agreement.expected(LEFT, RIGHT, rows, within):
        return False
    # rows before the last batch whose bound its watermark has passed
    late = (within + parse_interval(SLACK) // 1_000 + DISORDER_MS) // TICK_MS
    due = max(0, rows - scale.rows_per_file * scale.files_per_trigger - late)
    nobody = np.zeros(rows, dtype=np.bool_)
    sides = ((LEFT, RIGHT), (RIGHT, LEFT))
    kept = (how != INNER, how == FULL_OUTER)
    return all(
        found.agrees(pair_agreement.alone(*side, rows, within) if asked else nobody, due)
        for found, side, asked in zip(unpaired, sides, kept, strict=True)
    )


def summarise(rates: Figures, agree: list[str]) -> dict[str, Any]:
    """Put the rates (input rows per second) side by side."""
    mine, peer = rates.get(ICESTREAM), rates.get(SPARK)
    return {
        "icestream_eps": mine,
        "spark_eps": peer,
        "ratio_spark": mine / peer if mine and peer else None,
        "agree": agree,
    }


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    bars: list[Bar] = []
    for how, each in figures.items():
        bars += [
            Bar.at_least(f"{how}: ratio_spark", LEAST_RATIO, each["ratio_spark"]),
            Bar.at_least(f"{how}: systems that agree", len(MODULES), len(each["agree"])),
        ]
    return tuple(bars)


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars on a logarithmic scale."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    names = {"Icestream": "icestream_eps", "Spark": "spark_eps"}
    bars = {
        f"{name}, {how}": each[key] or 0.0
        for how, each in figures.items()
        for name, key in names.items()
    }
    drawing = Figure(figsize=(6, 3.6), layout="constrained")
    axes = drawing.subplots()
    drawn = axes.barh(list(bars), list(bars.values()))
    axes.bar_label(drawn, [f"{eps:,.0f}" for eps in bars.values()], fontsize=8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("input rows per second")
    axes.set_title(f"Join on skewed keys within {WITHIN}, 2 cores")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


def _run(
    system: str, how: str, scale: Scale, every: list[Path], work: Path, progress: ProgressLog
) -> dict[str, float | None]:
    """Run one system over its files, in a process of its own."""
    feed = scale.feeds[system]
    files = scale.files_per_trigger * feed.batches
    left, right = (
        prefix(folder, files, work / f"{system}-{side.name}")
        for folder, side in zip(every, (LEFT, RIGHT), strict=True)
    )
    run = {
        "name": system,
        "how": how,
        "within": WITHIN,
        "slack": SLACK,
        "memory": MEMORY,
        "left": str(left),
        "right": str(right),
        "files_per_trigger": scale.files_per_trigger,
        "skip": feed.skip,
        "output": str(work / system),
        "checkpoint": f"{work / system}-checkpoint",
    }
    command = [sys.executable, "-m", f"bench.{MODULES[system]}"]
    found = systems.watched(command, {"cores": CORES, "runs": [run]}, system, progress)
    return {result["name"]: result["eps"] for result in found}


BENCH = Bench(
    "stream-join",
    "a join of two streams within a bound of time takes 20 times Spark's input rate",
    measure,
    plot,
)
