"""Spill strategies: the rows kept in memory determine how many results come at run time.

Idea: the same five streams are joined with a tenth of the memory of their state, once by each
strategy. All emit the same results in the end; they differ in how many come while the streams run,
in how often state is spilled, and in how long the clean-up takes afterwards. Streams and ratios are
in the table of `join_inputs`; 30 % of the state is spilled at a time.

The strategies are also compared on *mixed* streams, with one threshold for all ratios (a tenth of
the state of the first of them), and 60 % of the state spilled at a time: this setting was searched
for; in it the penalty as printed is about neutral or pays. In the paper, partitions have a
many-to-many relationship, there is one threshold, and the amount spilled at a time is left open.

Invariants:
1. Results at run time and of clean-up are compared with the exact join, in every run
   (`test_every_strategy_makes_the_exact_results`).
2. The order of the strategies is judged seed by seed, by the worst
   (`test_bars_are_judged_by_the_worst_seed`).
3. Clean-ups, which take a second or two, are timed in rounds of all strategies, and compared round
   by round: the median of the ratios counts, against the slowest competitor
   (`test_clean_ups_are_compared_round_by_round`).

Limits: one process; the tree is run as a driver would run it, between batches, but without Spark.

References: Liu, Zhu, Rundensteiner (2006), section 6, Figures 16 to 20 and clean-up times.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import scratch, workspace
from bench.joins.join_inputs import SETTINGS, JoinInputs
from bench.joins.join_tree import JoinTreeQuery, RunCourse, SpillPlan
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.operators.multi_join.spill_strategies import (
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
#: strategies timed in every round
TIMED = ("clean_up_cpu_seconds", "clean_up_seconds")
#: fraction of the state spilled at a time for mixed streams
MIXED_AMOUNT = 0.6
#: strategies compared on mixed streams
MIXED = (BOTTOM_UP, LOCAL_OUTPUT, *GLOBAL)
#: the state of a run without spills as a multiple of the threshold
TIMES = 10.5
#: memory of a join, its buffers and arrays included, as a multiple of the threshold
QUOTA = 3


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run."""

    #: tuples of each stream
    tuples: int
    batches: int
    seeds: tuple[int, ...]
    #: runs of each strategy whose clean-up is compared
    rounds: int


SCALES = {
    Size.SMALL: Scale(6_000, 30, (1,), 1),
    Size.FULL: Scale(30_000, 60, (1, 2, 3), 7),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run every strategy on the same streams, in each setting."""
    scale, folder = SCALES[size], scratch(workspace(), "spill")
    runs = 1 + len(STRATEGIES) + (scale.rounds - 1) * len(CLEANED)
    mixed = 1 + len(SETTINGS) * len(MIXED)
    progress.plan(len(scale.seeds) * (len(SETTINGS) * runs + mixed))
    figures: dict[str, Any] = {}
    for ratios in SETTINGS:
        for seed in scale.seeds:
            inputs = JoinInputs(ratios, scale.tuples, seed)
            progress.step(f"{_name(ratios)}, seed {seed}: all in memory")
            found = compared(inputs, scale.batches, folder, progress, scale.rounds)
            figures[f"{_name(ratios)}, seed {seed}"] = found
            progress.note(f"{_name(ratios)}, seed {seed}: {_told(found, STRATEGIES)}")
    for seed in scale.seeds:
        progress.step(f"mixed, seed {seed}: all in memory")
        first = JoinInputs(SETTINGS[0], scale.tuples, seed, mixed=True)
        whole, _ = _run(first, scale.batches, SpillPlan(RANDOM), folder)
        threshold = int(whole.resident[-1] / TIMES)
        for ratios in SETTINGS:
            inputs = JoinInputs(ratios, scale.tuples, seed, mixed=True)
            found = at_run_time(inputs, scale.batches, threshold, folder, progress)
            figures[f"mixed {_name(ratios)}, seed {seed}"] = found
            progress.note(f"mixed {_name(ratios)}, seed {seed}: {_told(found, MIXED)}")
    shutil.rmtree(folder, ignore_errors=True)
    return Measurement(figures, judge(figures))


def compared(
    inputs: JoinInputs, batches: int, folder: Path, progress: ProgressLog, rounds: int = 1
) -> dict[str, Any]:
    """Run the streams without spills, and with a tenth of that memory by each strategy.

    Further rounds differ only in the time of clean-up.
    """
    whole, _ = _run(inputs, batches, SpillPlan(RANDOM), folder)
    threshold = int(whole.resident[-1] / TIMES)
    found: dict[str, Any] = {
        "results": inputs.results,
        "state_bytes": whole.resident[-1],
        "threshold": threshold,
        "whole": {"results": whole.results, "seconds": whole.seconds},
    }
    for strategy in STRATEGIES:
        progress.step(f"{_name(inputs.ratios)}, seed {inputs.seed}: {strategy}")
        course, left = _run(inputs, batches, SpillPlan(strategy, threshold), folder)
        made = course.results[-1] + course.late_results
        found[strategy] = {
            **asdict(course),
            "share": course.results[-1] / inputs.results,
            "wrong": abs(made - inputs.results) + left,
            "above": max(0, course.most_resident - threshold - course.largest_step),
        }
    for strategy in CLEANED:
        run = found[strategy]
        run["rounds"] = {each: [run[each]] for each in TIMED}
    for number in range(1, rounds):
        # so that no strategy always comes first
        for strategy in np.roll(CLEANED, number).tolist():
            progress.step(f"{_name(inputs.ratios)}, seed {inputs.seed}: {strategy} again")
            course, _ = _run(inputs, batches, SpillPlan(strategy, threshold), folder)
            for each, taken in found[strategy]["rounds"].items():
                taken.append(getattr(course, each))
    for strategy in CLEANED:
        for each, taken in found[strategy]["rounds"].items():
            found[strategy][each] = statistics.median(taken)
    found["wrong"] = abs(whole.results[-1] - inputs.results)
    return found


def at_run_time(
    inputs: JoinInputs, batches: int, threshold: int, folder: Path, progress: ProgressLog
) -> dict[str, Any]:
    """Run mixed streams by each strategy, without clean-up."""
    found: dict[str, Any] = {"results": inputs.results, "threshold": threshold}
    for strategy in MIXED:
        progress.step(f"mixed {_name(inputs.ratios)}, seed {inputs.seed}: {strategy}")
        spilling = SpillPlan(strategy, threshold, MIXED_AMOUNT)
        course, _ = _run(inputs, batches, spilling, folder, clean_up=False)
        share = course.results[-1] / inputs.results
        found[strategy] = {"share": share, "spills": course.spills}
    return found


def _run(
    inputs: JoinInputs, batches: int, spilling: SpillPlan, folder: Path, *, clean_up: bool = True
) -> tuple[RunCourse, int]:
    """Return the course of a run, and the bytes of the log left after clean-up."""
    place = folder / "tree"
    shutil.rmtree(place, ignore_errors=True)
    threshold = spilling.threshold
    quota = 1 << 30 if threshold is None else QUOTA * threshold
    tree = JoinTreeQuery(place, spilling, inputs.seed, quota)
    tree.run(inputs.batches(batches))
    if threshold is None or not clean_up:
        return tree.course, 0
    tree.clean_up()
    return tree.course, tree.log_bytes


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims, by the worst seed of each setting."""
    runs = [run for name, run in figures.items() if not name.startswith("mixed")]
    bars = []
    for ratios in SETTINGS:
        mine = [run for name, run in figures.items() if name.startswith(f"{_name(ratios)},")]
        if not mine:
            continue
        printed = min(_ratio(run, GLOBAL_OUTPUT_WITH_PENALTY, (GLOBAL_OUTPUT,)) for run in mine)
        ahead = min(_ratio(run, GLOBAL_OUTPUT_AHEAD, (GLOBAL_OUTPUT,)) for run in mine)
        output = min(_ratio(run, GLOBAL_OUTPUT, (LOCAL_OUTPUT, BOTTOM_UP)) for run in mine)
        cleaning = min(_clean_up(run) for run in mine)
        making = min(_made(run) for run in mine)
        name = _name(ratios)
        bars += [
            Bar.at_least(f"{name}: global output with penalty over global output", 1, printed),
            Bar.at_least(f"{name}: global output ahead over global output", 1, ahead),
            Bar.at_least(f"{name}: global output over local output and bottom up", 1.01, output),
            Bar.at_least(f"{name}: clean-up after bottom up over the global ones", 1, cleaning),
            Bar.at_least(f"{name}: rows that its clean-up makes over the global ones", 1, making),
        ]
    for ratios in SETTINGS:
        mine = [run for name, run in figures.items() if name.startswith(f"mixed {_name(ratios)},")]
        if mine:
            printed = min(_ratio(run, GLOBAL_OUTPUT_WITH_PENALTY, (GLOBAL_OUTPUT,)) for run in mine)
            name = f"mixed {_name(ratios)}: global output with penalty over global output"
            bars.append(Bar.at_least(name, 1, printed))
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


def _clean_up(run: Mapping[str, Any]) -> float:
    """Return the time of clean-up after bottom up, relative to that after the slowest other."""
    taken = {strategy: run[strategy]["rounds"]["clean_up_cpu_seconds"] for strategy in CLEANED}
    ratios = (
        statistics.median(mine / other for mine, other in zip(taken[BOTTOM_UP], rival, strict=True))
        for rival in (taken[strategy] for strategy in GLOBAL)
    )
    return float(min(ratios))


def _made(run: Mapping[str, Any]) -> float:
    """Return the rows emitted by clean-up after bottom up, relative to the most after others."""
    return float(run[BOTTOM_UP]["late_rows"] / max(run[each]["late_rows"] for each in GLOBAL))


def _name(ratios: tuple[int, ...]) -> str:
    return "ratios " + ":".join(map(str, ratios))


def _told(run: Mapping[str, Any], strategies: Sequence[str]) -> str:
    return ", ".join(f"{strategy} {run[strategy]['share']:.0%}" for strategy in strategies)


def plot(figures: Figures, target: Path) -> None:
    """Draw run-time results, resident bytes, and clean-up, one column for each setting."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    first: dict[str, Any] = {}
    for name, run in figures.items():
        if not name.startswith("mixed"):
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
