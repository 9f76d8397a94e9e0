"""Cold state: rarely used groups are evicted, at little cost.

Idea: events access groups by Zipf's law, most of them a few groups. A query whose memory holds a
fifth of its state is compared with one that has enough, in one process and on Spark, for groups of
fixed size and for groups that grow. Then everything that may matter is varied: the classifier of
cold groups, whether clean groups are written, deltas, and how the log frees space.

A batch has a hundred thousand events, as in a query that emits several times a second; it accesses
about an eighth of the groups. A batch of a million accesses half of all groups, five times what
fits: then no choice of groups to keep in memory helps much.

Ratios are of processor time, which other programs change least: the second half of a run is divided
into five rounds, and the median of their ratios counts.

Invariants:
1. Every result is checked against numpy, or against the run with enough memory
   (`test_oracle_answers_are_exact_in_any_memory`).

Limits: files are read through the page cache, so a miss costs a copy and not a disk access. Of the
twenty million events of size `full`, those that run on Spark are the first ten million: three runs
of each kind would otherwise take longer than all the rest.

References: ICE, sections V and VIII.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.cold import cold_optimisations, cold_zipf_on_spark
from bench.cold.cold_zipf import Case, in_turns
from bench.harness import scratch, workspace
from bench.processes import results
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size

#: part of the state that fits into memory
SHARE = 0.2
#: kinds of groups that run on Spark too
KINDS = ("fixed", "growing")
#: rows of the comparison: the kind of group, one in how many events is a request, the bar
ROWS = {
    "fixed": ("fixed", 100, 0.9),
    "growing": ("growing", 100, 0.9),
    "growing, 1 request in 10": ("growing", 10, 0.6),
    "growing, 1 request in 2": ("growing", 2, 0.6),
    "profiles": ("profiles", 100, 0.7),
}
#: bytes of log for a byte of live rows
LOG_TO_LIVE = 3
#: rounds of a run; the median of their ratios counts
ROUNDS = 5
CLASSIFIERS = ("clock", "lfu", "smoothing")
#: share of the groups by which popularity shifts
DRIFTS = (0.0, 0.5)
LIMIT = 3_600.0


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run."""

    events: int
    groups: int
    batch: int
    #: events of the runs on Spark, and of those that compare classifiers and mixes of requests
    on_spark: int
    spark_repeats: int
    varied: int


SCALES = {
    Size.SMALL: Scale(1_000_000, 60_000, 50_000, 1_000_000, 1, 400_000),
    Size.FULL: Scale(20_000_000, 300_000, 100_000, 10_000_000, 1, 5_000_000),
}


# -- parts that run in a process of their own -----------------------------------------------------


def in_part_of_memory(case: Case, folder: str) -> dict[str, Any]:
    """Compare a query with all memory and one with a part, batch by batch."""
    half = case.accesses.batches // 2
    in_turns([replace(case, events=case.batch)], folder)
    first = in_turns([case], folder)
    state = first.runs[0].held[-1]
    part = replace(case, budget=int(SHARE * state))
    turns = in_turns([case, part], folder)
    rounds = np.array_split(np.arange(half, case.accesses.batches), ROUNDS)
    wall, cpu = (
        [float(np.sum(enough[some]) / np.sum(little[some])) for some in rounds if len(some)]
        for enough, little in (
            [np.array(getattr(run, of)) for run in turns.runs] for of in ("wall", "cpu")
        )
    )
    return {
        "full_state_bytes": state,
        "budget_bytes": part.budget,
        "ratio": float(np.median(cpu)),
        "ratios": cpu,
        "wall_ratios": wall,
        "wrong": sum(first.wrong) + sum(turns.wrong),
        "unlimited": turns.runs[0].figures(half),
        "limited": turns.runs[1].figures(half),
    }


def classified(case: Case, folder: str) -> dict[str, Any]:
    """Compare classifiers on the same events, batch by batch."""
    state = in_turns([case], folder).runs[0].held[-1]
    cases = [replace(case, budget=int(SHARE * state), classifier=name) for name in CLASSIFIERS]
    turns = in_turns(cases, folder)
    half = case.accesses.batches // 2
    return {
        name: {
            "misses": run.cold["returned"],
            "events_per_second": run.rate(half),
            "events_per_cpu_second": run.rate(half, cpu=True),
            "wrong": wrong,
        }
        for name, run, wrong in zip(CLASSIFIERS, turns.runs, turns.wrong, strict=True)
    }


def work(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Do one part of the measurement."""
    folder = plan["folder"]
    match plan["what"]:
        case "memory":
            return in_part_of_memory(Case(**plan["case"]), folder)
        case "classifiers":
            return classified(Case(**plan["case"]), folder)
        case "clean groups":
            scale = cold_optimisations.MIXED[Size(plan["size"])]
            return cold_optimisations.clean_groups(scale, Path(folder))
        case "deltas":
            return cold_optimisations.deltas(
                cold_optimisations.FILLED[Size(plan["size"])], Path(folder)
            )
        case _:
            return cold_optimisations.expiry(
                cold_optimisations.PASSING[Size(plan["size"])], Path(folder)
            )


# -- the bench -----------------------------------------------------------------------------


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run every part in a process of its own."""
    scale, figures = SCALES[size], {}
    progress.plan(len(ROWS) + len(KINDS) + len(DRIFTS) + 3)
    for name, (kind, asking, _) in ROWS.items():
        events = scale.events if name in KINDS else scale.varied
        case = Case(kind, events, scale.groups, scale.batch, asking=asking)
        progress.step(f"{name}, one process")
        found = _elsewhere("memory", case=asdict(case))
        for memory in ("unlimited", "limited"):
            figures[f"{name}, {memory}"] = found.pop(memory)
        figures[name] = found
        progress.note(f"{name}: {found['ratio']:.2f} of the speed in {SHARE:.0%} of the memory")
    for kind in KINDS:
        progress.step(f"{kind} groups, on Spark")
        case = Case(kind, scale.on_spark, scale.groups, scale.batch, shards=2)
        folder = scratch(workspace(), "cold-state-on-spark")
        found = cold_zipf_on_spark.measure(case, SHARE, scale.spark_repeats, folder)
        figures[f"{kind}, on Spark"] = found
        progress.note(f"{kind} on Spark: {found['ratio']:.2f} of the speed")
    for drift in DRIFTS:
        progress.step(f"classifiers, {'with' if drift else 'without'} drift")
        case = Case("profiles", scale.varied, scale.groups, scale.batch, drift=drift)
        for name, each in _elsewhere("classifiers", case=asdict(case)).items():
            figures[f"{name}, {'drift' if drift else 'no drift'}"] = each
    for what in ("clean groups", "deltas", "expiry"):
        progress.step(what)
        figures.update(_elsewhere(what, size=size.value))
    return Measurement(figures, judge(figures))


def _elsewhere(what: str, **plan: Any) -> dict[str, Any]:
    folder = scratch(workspace(), "cold-state")
    command = [sys.executable, "-m", "bench.cold.cold_state"]
    (found,) = results(command, {"what": what, "folder": str(folder), **plan}, limit=LIMIT)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    wrong = sum(each.get("wrong", 0) for each in figures.values() if isinstance(each, Mapping))
    wrong += figures["clean groups"]["wrong_answers"] + figures["expiry and cleaning"]["wrong_ways"]
    wrong += sum(
        each.get("wrong_rows", 0) for each in figures.values() if isinstance(each, Mapping)
    )
    ratios = [
        Bar.at_least(f"{name}, in 20 %", least, figures[name]["ratio"])
        for name, (_, _, least) in ROWS.items()
    ]
    ratios += [
        Bar.at_least(f"{kind}, in 20 %, on Spark", 0.9, figures[f"{kind}, on Spark"]["ratio"])
        for kind in KINDS
    ]
    most = max(
        each["log_to_live_most"]
        for each in figures.values()
        if isinstance(each, Mapping) and "log_to_live_most" in each
    )
    return (
        *ratios,
        Bar.at_least("bytes saved by clean groups", 0.64, figures["clean groups"]["cut_of_bytes"]),
        Bar.at_least("time saved by deltas", 0.3, figures["evict, time saved"]),
        Bar.at_most("log / live rows, expiry and cleaning", LOG_TO_LIVE, most),
        Bar.at_most("wrong answers", 0, wrong),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw speed and memory, misses, writes, time to evict, and logs over time."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(14, 7), layout="constrained")
    (speed, memory, misses), (writes, leaving, log) = drawing.subplots(2, 3)
    names = [*ROWS, *(f"{kind}, on Spark" for kind in KINDS)]
    speed.bar(names, [figures[name]["ratio"] for name in names])
    speed.axhline(0.9, linestyle="--", color="grey")
    speed.set(title="speed in 20 % of the memory", ylabel="of the speed with all memory")
    speed.tick_params(axis="x", rotation=20)
    _beside(
        memory, tuple(ROWS), {"all memory": "full_state_bytes", "20 %": "budget_bytes"}, figures
    )
    memory.set(title="memory in one process", ylabel="MB")
    for place, drift in enumerate(("no drift", "drift")):
        counts = [figures[f"{name}, {drift}"]["misses"] for name in CLASSIFIERS]
        misses.bar(np.arange(len(counts)) + 0.4 * place, counts, 0.4, label=drift)
    misses.set_xticks(np.arange(len(CLASSIFIERS)) + 0.2, CLASSIFIERS)
    misses.set(title="groups read back")
    misses.legend()
    switches = ("clean is free", "clean is written")
    writes.bar(switches, [figures[name]["writes_per_second"] for name in switches])
    writes.set(title="table I: groups written in a second", ylabel="writes/s")
    for durability in ("evict", "log"):
        for how in ("deltas", "whole groups"):
            run = figures[f"{durability}, {how}"]
            leaving.plot(
                run["updated_percent"], run["seconds"], marker="o", label=f"{durability}, {how}"
            )
    leaving.set(title="8: time until all groups have left", xlabel="% updated", ylabel="s")
    leaving.set_ylim(bottom=0)
    leaving.legend(fontsize=8)
    for name in ("expiry, records of 65536", "cleaning"):
        log.plot(np.array(figures[name]["log_over_time"]) / 1e6, label=name.split(",")[0])
    log.set(title="log of rows that are kept for a while", xlabel="version", ylabel="MB")
    log.set_ylim(bottom=0)
    log.legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


def _beside(axes: Any, cases: Sequence[str], fields: Mapping[str, str], figures: Figures) -> None:
    """Draw fields of cases side by side, in megabytes."""
    for place, (label, field) in enumerate(fields.items()):
        heights = [figures[case][field] / 1e6 for case in cases]
        axes.bar(np.arange(len(cases)) + 0.4 * place, heights, 0.4, label=label)
    axes.set_xticks(np.arange(len(cases)) + 0.2, cases)
    axes.legend(fontsize=8)


BENCH = Bench(
    "cold-state",
    "with a fifth of its state in memory a query over skewed groups is as fast, and exact",
    measure,
    plot,
)

if __name__ == "__main__":
    print(json.dumps(work(json.loads(sys.argv[1]))), flush=True)
