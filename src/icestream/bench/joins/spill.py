"""Spill strategies: what stays in memory decides how many results come at run time.

Idea: the same five streams are joined with a tenth of the memory their state would take, once by
each strategy. All make the same results in the end; they differ in how many come while the streams
run, in how often state leaves memory, and in how long the clean-up takes afterwards. Streams and
ratios are in the table of `join_inputs`; 30 % of the state leaves at a time.

Invariants:
1. Results at run time and of clean-up are counted against the exact join, in every run
   (`test_every_strategy_makes_the_exact_results`).
2. The order of the strategies is judged seed by seed, by the worst
   (`test_bars_are_judged_by_the_worst_seed`).

Limits: one process; the tree is run as a driver would, between batches, but without Spark.

References: Liu, Zhu, Rundensteiner (2006), section 6, Figures 16 to 20 and clean-up times.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from icestream.bench.harness import scratch, workspace
from icestream.bench.joins.join_inputs import SETTINGS, JoinInputs
from icestream.bench.joins.join_tree import Course, JoinTree, Spilling
from icestream.bench.registry import Bar, Bench, Figures, Measurement, Progress, Size
from icestream.operators.multi_join.strategies import (
    BOTTOM_UP,
    GLOBAL_OUTPUT,
    GLOBAL_OUTPUT_AHEAD,
    GLOBAL_OUTPUT_WITH_PENALTY,
    LOCAL_OUTPUT,
    RANDOM,
    STRATEGIES,
)

#: strategies that look at the whole query
GLOBAL = (GLOBAL_OUTPUT, GLOBAL_OUTPUT_WITH_PENALTY, GLOBAL_OUTPUT_AHEAD)
#: strategies whose clean-up is compared
CLEANED = (BOTTOM_UP, *GLOBAL)
#: the state of a run without spills as a multiple of the threshold
TIMES = 10.5
#: memory of a join, its buffers and arrays included, as a multiple of the threshold
QUOTA = 3


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    #: tuples of each stream
    tuples: int
    batches: int
    seeds: tuple[int, ...]
    #: runs of the strategies whose clean-up is compared, which takes about a second
    repeats: int


SCALES = {
    Size.SMALL: Scale(6_000, 30, (1,), 1),
    Size.FULL: Scale(30_000, 60, (1, 2, 3), 3),
}


def measure(size: Size, progress: Progress) -> Measurement:
    """Run every strategy on the same streams, in each setting."""
    scale, folder = SCALES[size], scratch(workspace(), "spill")
    rounds = len(STRATEGIES) + (scale.repeats - 1) * len(CLEANED)
    progress.plan(len(SETTINGS) * len(scale.seeds) * (1 + rounds))
    figures: dict[str, Any] = {}
    for ratios in SETTINGS:
        for seed in scale.seeds:
            inputs = JoinInputs(ratios, scale.tuples, seed)
            progress.step(f"{_name(ratios)}, seed {seed}: all in memory")
            found = compared(inputs, scale.batches, folder, progress, scale.repeats)
            figures[f"{_name(ratios)}, seed {seed}"] = found
            progress.note(f"{_name(ratios)}, seed {seed}: {_told(found)}")
    shutil.rmtree(folder, ignore_errors=True)
    return Measurement(figures, judge(figures))


def compared(
    inputs: JoinInputs, batches: int, folder: Path, progress: Progress, repeats: int = 1
) -> dict[str, Any]:
    """Run the streams without spills, and with a tenth of that memory by each strategy.

    Of several runs, which differ in nothing but time, the median time of clean-up counts.
    """
    whole, _ = _run(inputs, batches, Spilling(RANDOM), folder)
    threshold = int(whole.resident[-1] / TIMES)
    found: dict[str, Any] = {
        "results": inputs.results,
        "state_bytes": whole.resident[-1],
        "threshold": threshold,
        "whole": {"results": whole.results, "seconds": whole.seconds},
    }
    for strategy in STRATEGIES:
        progress.step(f"{_name(inputs.ratios)}, seed {inputs.seed}: {strategy}")
        course, left = _run(inputs, batches, Spilling(strategy, threshold), folder)
        made = course.results[-1] + course.late_results
        found[strategy] = {
            **asdict(course),
            "share": course.results[-1] / inputs.results,
            "wrong": abs(made - inputs.results) + left,
            "above": max(0, course.most_resident - threshold - course.largest_step),
        }
    seconds = {strategy: [found[strategy]["clean_up_cpu_seconds"]] for strategy in CLEANED}
    for _ in range(repeats - 1):
        for strategy, taken in seconds.items():
            progress.step(f"{_name(inputs.ratios)}, seed {inputs.seed}: {strategy} again")
            course, _ = _run(inputs, batches, Spilling(strategy, threshold), folder)
            taken.append(course.clean_up_cpu_seconds)
    for strategy, taken in seconds.items():
        found[strategy]["clean_up_cpu_seconds"] = statistics.median(taken)
    found["wrong"] = abs(whole.results[-1] - inputs.results)
    return found


def _run(inputs: JoinInputs, batches: int, spilling: Spilling, folder: Path) -> tuple[Course, int]:
    """Return what happened, and bytes of the log that were still there after clean-up."""
    place = folder / "tree"
    shutil.rmtree(place, ignore_errors=True)
    threshold = spilling.threshold
    quota = 1 << 30 if threshold is None else QUOTA * threshold
    tree = JoinTree(place, spilling, inputs.seed, quota)
    tree.run(inputs.batches(batches))
    if threshold is not None:
        tree.clean_up()
    return tree.course, 0 if threshold is None else tree.log_bytes


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Hold the figures against what is claimed, by the worst seed of each setting."""
    runs = [run for run in figures.values() if isinstance(run, Mapping)]
    bars = []
    for ratios in SETTINGS:
        mine = [run for name, run in figures.items() if name.startswith(f"{_name(ratios)},")]
        if not mine:
            continue
        printed = min(_ratio(run, GLOBAL_OUTPUT_WITH_PENALTY, (GLOBAL_OUTPUT,)) for run in mine)
        ahead = min(_ratio(run, GLOBAL_OUTPUT_AHEAD, (GLOBAL_OUTPUT,)) for run in mine)
        output = min(_ratio(run, GLOBAL_OUTPUT, (LOCAL_OUTPUT, BOTTOM_UP)) for run in mine)
        cleaning = min(_clean_up(run, "clean_up_cpu_seconds") for run in mine)
        making = min(_clean_up(run, "late_rows") for run in mine)
        name = _name(ratios)
        bars += [
            Bar.at_least(f"{name}: global output with penalty over global output", 1, printed),
            Bar.at_least(f"{name}: global output ahead over global output", 1, ahead),
            Bar.at_least(f"{name}: global output over local output and bottom up", 1.01, output),
            Bar.at_least(f"{name}: clean-up after bottom up over the global ones", 1, cleaning),
            Bar.at_least(f"{name}: rows that its clean-up makes over the global ones", 1, making),
        ]
    return (
        *bars,
        Bar.at_most("bytes above threshold and a batch", 0, max(_each(runs, "above"))),
        Bar.at_least(
            "state over threshold", 10, min(run["state_bytes"] / run["threshold"] for run in runs)
        ),
        Bar.at_most(
            "wrong results", 0, sum(_each(runs, "wrong")) + sum(run["wrong"] for run in runs)
        ),
    )


def _each(runs: list[Mapping[str, Any]], what: str) -> list[float]:
    return [run[strategy][what] for run in runs for strategy in STRATEGIES]


def _ratio(run: Mapping[str, Any], strategy: str, others: tuple[str, ...]) -> float:
    best = max(run[other]["share"] for other in others)
    return float(run[strategy]["share"] / best) if best else 0.0


def _clean_up(run: Mapping[str, Any], what: str) -> float:
    """Return what clean-up takes after bottom up, in parts of what it takes after the others."""
    taken = {strategy: run[strategy][what] for strategy in STRATEGIES}
    return float(taken[BOTTOM_UP] / max(taken[strategy] for strategy in GLOBAL))


def _name(ratios: tuple[int, ...]) -> str:
    return "ratios " + ":".join(map(str, ratios))


def _told(run: Mapping[str, Any]) -> str:
    return ", ".join(f"{strategy} {run[strategy]['share']:.0%}" for strategy in STRATEGIES)


def plot(figures: Figures, target: Path) -> None:
    """Draw run-time results, resident bytes, and clean-up, one column for each setting."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    first: dict[str, Any] = {}
    for name, run in figures.items():
        first.setdefault(name.split(",")[0], run)
    drawing = Figure(figsize=(13, 9), layout="constrained")
    axes = drawing.subplots(3, len(first), squeeze=False)
    for column, (name, run) in enumerate(first.items()):
        output, memory, cleaning = axes[:, column]
        for strategy in STRATEGIES:
            output.plot(run[strategy]["results"], label=strategy.replace("_", " "))
        output.set(title=name, xlabel="batch", ylabel="results at run time")
        for strategy in (BOTTOM_UP, *GLOBAL):
            times = run[strategy]["spills"]
            resident = [held / run["threshold"] for held in run[strategy]["resident"]]
            memory.plot(resident, label=f"{strategy.replace('_', ' ')}: {times} spills")
        memory.axhline(1, linestyle="--", color="grey")
        memory.set(xlabel="batch", ylabel="resident rows / threshold")
        memory.set_ylim(bottom=0)
        memory.legend(fontsize=7)
        names = [strategy.replace("_", "\n") for strategy in STRATEGIES]
        cleaning.bar(names, [run[each]["clean_up_cpu_seconds"] for each in STRATEGIES])
        cleaning.set(ylabel="clean-up, processor s")
        cleaning.tick_params(axis="x", labelsize=6)
    axes[0, 0].legend(fontsize=7)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "spill",
    "with a tenth of the memory, what is spilled by productivity costs the fewest results",
    measure,
    plot,
)
