"""Nexmark: all statements that Icestream runs, beside Spark where it can express them.

Idea: both read the same Parquet files in the same batches, write what they compute, commit every
batch and have two cores; rates are of all events in the files that a statement reads, once warm.
The answers are compared with DuckDB's in the tests (`tests/sql/lowering/test_nexmark.py`).

Limits: Icestream reports changes (`update`), which Spark cannot for joins; for q17 Spark writes to
a sink that discards rows. Flink is not measured here. In size `small` batches are small, so that
fixed costs per batch weigh more than the statements.
"""

from __future__ import annotations

import sys
from math import exp, log
from pathlib import Path
from typing import Any

from bench import systems
from bench.harness import scratch, workspace
from bench.nexmark.events import Nexmark
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size

CORES = 2
MEMORY = "512 MB"
SKIP = 2
#: events and batches
SCALES = {Size.SMALL: (60_000, 6), Size.FULL: (5_000_000, 20)}
RATE = 10_000

ICESTREAM, SPARK = "icestream", "spark"
MODULES = {ICESTREAM: "nexmark.icestream_nexmark", SPARK: "peers.spark_nexmark"}
#: q6 is refused
STATEMENTS = tuple(f"q{number}" for number in range(23) if number != 6)
#: statements that Spark expresses, and those of them that need state
BY_SPARK = ("q0", "q1", "q2", "q3", "q10", "q14", "q17", "q20", "q21", "q22")
WITH_STATE = ("q3", "q17", "q20")
LEAST_RATIO, LEAST_ALONE = 10, 0.9


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run both systems on the same files."""
    from bench.nexmark.running import written_tables  # noqa: PLC0415 - imports Spark

    count, batches = SCALES[size]
    work = scratch(workspace(), "nexmark")
    progress.plan(1 + len(STATEMENTS) + len(BY_SPARK))
    progress.step("writing the events")
    written_tables(Nexmark(count, rate=RATE if size is Size.FULL else 1_000), work / "in", batches)
    rates: dict[str, dict[str, Any]] = {}
    for system, names in ((ICESTREAM, STATEMENTS), (SPARK, BY_SPARK)):
        runs = [
            {
                "name": name,
                "input": str(work / "in"),
                "output": str(work / system / name),
                "memory": MEMORY,
                "skip": SKIP,
            }
            for name in names
        ]
        command = [sys.executable, "-m", f"bench.{MODULES[system]}"]
        plan = {"cores": CORES, "runs": runs}
        found = systems.peer(
            lambda c=command, p=plan, s=system: {  # type: ignore[misc]
                each["name"]: each for each in systems.watched(c, p, s, progress)
            },
            progress,
        )
        rates[system] = found
    figures = summarise(rates)
    return Measurement(figures, judge(figures))


def summarise(rates: Figures) -> dict[str, Any]:
    """Put the rates (events per second) side by side."""
    mine = {name: each["eps"] for name, each in rates[ICESTREAM].items()}
    peer = {name: each["eps"] for name, each in rates[SPARK].items()}
    ratios = {name: mine[name] / peer[name] for name in peer if mine.get(name) and peer[name]}
    return {
        "icestream_eps": mine,
        "forms": {name: each["form"] for name, each in rates[ICESTREAM].items()},
        "spark_eps": peer,
        "ratios": ratios,
        "with_state": mean([ratios[name] for name in WITH_STATE if name in ratios]),
        "alone": mean([ratio for name, ratio in ratios.items() if name not in WITH_STATE]),
    }


def mean(ratios: list[float]) -> float | None:
    """Return the geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    ran = sum(eps is not None for eps in figures["icestream_eps"].values())
    return (
        Bar.at_least("statements that run", len(STATEMENTS), ran),
        Bar.at_least("of Spark, with state", LEAST_RATIO, figures["with_state"]),
        Bar.at_least("of Spark, handed to it", LEAST_ALONE, figures["alone"]),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars on a logarithmic scale."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    names = list(figures["icestream_eps"])
    drawing = Figure(figsize=(8, 5), layout="constrained")
    axes = drawing.subplots()
    for shift, (label, rates) in enumerate(
        (("Icestream", figures["icestream_eps"]), ("Spark", figures["spark_eps"]))
    ):
        places = [place + 0.4 * shift for place in range(len(names))]
        axes.barh(places, [rates.get(name) or 0.0 for name in names], 0.38, label=label)
    axes.set_yticks([place + 0.2 for place in range(len(names))], names)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("events per second")
    axes.set_title("Nexmark, 2 cores")
    axes.legend()
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


BENCH = Bench(
    "nexmark",
    "all Nexmark statements but one run as published, those with state ten times as fast as Spark",
    measure,
    plot,
)
