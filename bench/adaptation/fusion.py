"""Rows sent between components, and number of components, over random jobs of many operators.

Idea: the same random jobs are fused by measured rates (COMM), by common attributes (PA) and one by
one as a baseline; the rows still sent between components are reported as a share of all rows sent.
Also measured: rates with single operators moved afterwards, all three with components that may wait
for each other in a cycle, as is possible without batches, and other kinds of random jobs. A join
and an aggregate by its key run on Spark as one component and as two (`fused_scopes`).

Invariants:
1. Two measurements give the same figures (`test_figures_are_the_same_every_time`).
2. Every fusion measured is valid (`test_what_is_measured_is_valid`).

References: section 7.6, figures 14 and 15, of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.adaptation.fused_scopes import join_then_aggregate
from bench.adaptation.random_jobs import STEP, random_job
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.fusion import communication, fused_one_by_one, improved
from icestream.plan.fuse.fusion import (
    Components,
    fused_by_attributes,
    fused_by_rates,
)
from icestream.plan.fuse.operator_graph import Graph

SIZES = (50, 100, 150)
JOBS = {Size.SMALL: 40, Size.FULL: 500}
#: maximum change of the number of attributes to the next operator, and jobs of 100 for each
STEPS = (1, 3, 8, 15)
STEP_JOBS = {Size.SMALL: 10, Size.FULL: 100}
COMM, PA, BASELINE, IMPROVED = "COMM", "PA", "baseline", "COMM, improved"
#: largest share of the baseline's rows that COMM may send
WANTED = 0.7
#: least rate of a join and an aggregate in one component, by that of two
LEAST_RATIO = 1.5

Fusing = Callable[[Graph, int], Components]

WAYS: Mapping[str, Fusing] = {
    COMM: lambda job, _: fused_by_rates(job),
    PA: lambda job, _: fused_by_attributes(job),
    BASELINE: fused_one_by_one,
    IMPROVED: lambda job, _: improved(job, fused_by_rates(job)),
}
CIRCLES: Mapping[str, Fusing] = {
    COMM: lambda job, _: fused_by_rates(job, circles=True),
    PA: lambda job, _: fused_by_attributes(job, circles=True),
    BASELINE: lambda job, seed: fused_one_by_one(job, seed, circles=True),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Fuse all jobs in all variants."""
    progress.plan(1 + len(SIZES) + len(STEPS))
    progress.step("join then aggregate on Spark")
    joined = join_then_aggregate(size, scratch(workspace(), "fusion"))
    figures: dict[str, Any] = {"join then aggregate": joined}
    for operators in SIZES:
        progress.step(f"{operators} operators")
        jobs = [random_job(operators, seed) for seed in range(JOBS[size])]
        found = averages(jobs, WAYS)
        circles = averages(jobs, CIRCLES)
        figures[f"{operators} operators"] = {
            **found,
            **{f"{name}, circles": value for name, value in circles.items()},
        }
    for step in STEPS:
        progress.step(f"steps of {step}")
        jobs = [random_job(100, seed, step) for seed in range(STEP_JOBS[size])]
        found = averages(jobs, WAYS)
        base = found[_sent(BASELINE)]
        figures[f"steps to {step}{' (above)' if step == STEP else ''}"] = {
            f"{name} by baseline": found[_sent(name)] / base for name in (COMM, PA, IMPROVED)
        }
    return Measurement(figures, bars(figures))


def averages(jobs: list[Graph], ways: Mapping[str, Fusing]) -> dict[str, float]:
    """Return the percentage sent between components, and their number, averaged over jobs."""
    found: dict[str, float] = {}
    for name, fusing in ways.items():
        sent = count = 0.0
        for seed, job in enumerate(jobs):
            components = fusing(job, seed)
            sent += communication(job, components) / sum(edge.rate for edge in job.edges)
            count += len(components)
        found[_sent(name)] = 100 * sent / len(jobs)
        found[_count(name)] = count / len(jobs)
    return found


def bars(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the bars."""
    found = [
        Bar.at_least(
            f"join then aggregate, {name}: rate of one component by two", LEAST_RATIO, row["ratio"]
        )
        for name, row in figures["join then aggregate"].items()
    ]
    for operators in SIZES:
        row = figures[f"{operators} operators"]
        comm, pa, base = (float(row[_sent(name)]) for name in (COMM, PA, BASELINE))
        found += [
            Bar(f"COMM by PA, {operators} operators", "< 1", comm / pa, comm < pa),
            Bar(f"PA by baseline, {operators} operators", "< 1", pa / base, pa < base),
            Bar.at_most(f"COMM by baseline, {operators} operators", WANTED, comm / base),
        ]
    return tuple(found)


def _sent(name: str) -> str:
    return f"{name}: % sent"


def _count(name: str) -> str:
    return f"{name}: components"


def plot(figures: Figures, target: Path) -> None:
    """Draw the number of components and the rows sent between them, over operators."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(11, 4.5), layout="constrained")
    count, sent = drawing.subplots(1, 2)
    rows = [figures[f"{operators} operators"] for operators in SIZES]
    for name, style in ((COMM, "o-"), (PA, "s-"), (BASELINE, "^-"), (IMPROVED, "o--")):
        count.plot(SIZES, [row[_count(name)] for row in rows], style, label=name)
        sent.plot(SIZES, [row[_sent(name)] for row in rows], style, label=name)
    count.set(title="components, on average", xlabel="operators", xticks=SIZES, ylim=(0, None))
    sent.set(
        title="sent between components, % of all rows",
        xlabel="operators",
        xticks=SIZES,
        ylim=(0, 100),
    )
    for panel in (count, sent):
        panel.legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "fusion",
    "fusing by measured rates sends at most 0.7 of what the baseline sends between components",
    measure,
    plot,
)
