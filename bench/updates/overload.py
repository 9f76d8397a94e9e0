"""Fresh results under overload: an update stream against append streams, with and without shedding.

Idea: a feed of quotes at uneven rates requires several times the work that the machine can do. The
same step runs behind an update stream, behind an append stream, and behind an append stream that
drops quotes at random so that its load is 0.95. Staleness is measured from outside: from the times
at which quotes were made and results delivered.

Limits: the step waits instead of computing, so that its cost does not depend on what else the
machine does. There are more keys than the machine can serve in an interval, since a batch serves a
key once. In size `small` the runs are too short for an append stream to fall far behind, and
only figures that do not depend on that have bars.

References: sections 3.3 and 5 of the source named in `docs/papers.md`; `Bench` in `registry`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import systems
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.prediction import predict
from bench.updates.paced_batches import (
    AFTER_CALL,
    ANSWERS,
    LOADING,
    RARE,
    SINK,
    longest_batches,
    waits_of_rare_keys,
)

#: cases of `paced_on_spark`, which imports Spark
ON_SPARK = ("keys", "windows", "call", "sink")

CORES = 2
INTERVAL = 1
SKEW = 0.9
#: share of the machine's time that an append stream without overload may take
TUNED = 0.95
SCHEDULE = "inplace"
LOADS = (5, 20)

MOST_BATCH = 1.2
LEAST_APPEND = 10
LEAST_SHEDDING = 1.8
#: allowed ratio of the staleness to the prediction at the machine's capacity plus one interval
MOST_OFF = 1.25
#: share of the answers that the machine could compute
LEAST_ANSWERS = 0.85
#: answers in the batch after a slow first call, as a share of those in later ones
LEAST_AFTER = 0.8
#: wait of rare keys with an eighth of them in memory, by that with all in memory
MOST_WAIT = 2.0


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of the input, and its duration."""

    keys: int
    #: seconds that the step takes for a key
    cost: float
    seconds: int
    #: seconds that do not count
    warm: int
    loads: tuple[int, ...]


SCALES = {
    Size.SMALL: Scale(400, 0.01, 15, 12, (5,)),
    Size.FULL: Scale(400, 0.01, 70, 20, LOADS),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run all streams at all loads."""
    scale, work = SCALES[size], scratch(workspace(), "overload")
    kinds = (SCHEDULE, "append", "shedding")
    progress.plan(len(scale.loads) * len(kinds) + len(ON_SPARK) + 2)
    progress.step("slow sinks, keys, windows and calls in virtual time")
    slow = longest_batches()
    progress.step("rare keys beyond memory")
    rare = {schedule: waits_of_rare_keys(schedule) for schedule in RARE}
    found: dict[str, Any] = {}
    for load in scale.loads:
        for kind in kinds:
            name = f"{kind} at {load}"
            run = _run(name, kind, load, scale, work)
            command = [sys.executable, "-m", "bench.updates.overload_run"]
            for result in systems.watched(command, {"cores": CORES, "runs": [run]}, name, progress):
                found[name] = result
    loads, paced = summarise(found, scale), _paced_on_spark(work, progress)
    figures = {"loads": loads, "virtual time": slow, "on Spark": paced, "rare keys": rare}
    bars = (*judge(loads, size), *judge_paced(slow), *judge_paced(paced), *judge_rare(rare))
    return Measurement(figures, bars)


def _paced_on_spark(work: Path, progress: ProgressLog) -> dict[str, float]:
    """Return what `longest_batches` returns, measured on Spark."""
    runs = [{"name": name, "folder": str(work / f"paced-{name}")} for name in ON_SPARK]
    command = [sys.executable, "-m", "bench.updates.paced_on_spark"]
    found = {
        each["name"]: each
        for each in systems.watched(command, {"cores": CORES, "runs": runs}, "paced", progress)
    }
    return {
        "on Spark, slow sink, by sink and interval": found["sink"]["longest"] / (SINK + INTERVAL),
        "on Spark, 500 ms a key, by interval": found["keys"]["longest"] / INTERVAL,
        "on Spark, 500 ms a key, second batch by interval": found["keys"]["second"] / INTERVAL,
        "on Spark, aligned windows, by interval": found["windows"]["longest"] / INTERVAL,
        "on Spark, first call of 10 s, beyond it by interval": (
            (found["call"]["first"] - LOADING) / INTERVAL
        ),
        f"on Spark, {AFTER_CALL}": found["call"]["answers_after"],
    }


def _run(name: str, kind: str, load: int, scale: Scale, work: Path) -> dict[str, Any]:
    capacity = CORES / scale.cost
    return {
        "name": name,
        "kind": kind,
        "folder": str(work / name.replace(" ", "-")),
        "keys": scale.keys,
        "cost": scale.cost,
        "rate": load * capacity,
        "kept": TUNED / load,
        "skew": SKEW,
        "interval": INTERVAL,
        "seconds": scale.seconds,
        "warm": scale.warm,
    }


def summarise(found: Figures, scale: Scale) -> dict[str, Any]:
    """Put the streams side by side, load by load."""
    figures: dict[str, Any] = {}
    for load in scale.loads:
        mine, append, shedding = (
            found.get(f"{kind} at {load}") for kind in (SCHEDULE, "append", "shedding")
        )
        stale = mine["staleness"] if mine else None
        figures[f"load {load}"] = {
            "staleness_s": stale,
            "append_s": append["staleness"] if append else None,
            "shedding_s": shedding["staleness"] if shedding else None,
            "reported_s": mine["reported"] if mine else None,
            "longest_batch_s": max(mine["batches"], default=None) if mine else None,
            "longest_append_batch_s": max(append["batches"], default=None) if append else None,
            "answers_per_second": mine["answers_per_second"] if mine else None,
            "possible_per_second": CORES / scale.cost,
            "predicted_s": _predicted(load, scale),
            "append_times": _ratio(append, stale),
            "shedding_times": _ratio(shedding, stale),
        }
    return figures


def _predicted(load: int, scale: Scale) -> float:
    """Return the staleness that the simulator predicts if the cores do nothing but the step."""
    shares = np.arange(1, scale.keys + 1, dtype=np.float64) ** -SKEW
    rates = load * CORES / scale.cost * shares / shares.sum()
    return predict(rates, scale.cost / CORES, SCHEDULE).application


def _ratio(peer: Any, stale: float | None) -> float | None:
    return peer["staleness"] / stale if peer and stale else None


def judge(figures: Figures, size: Size) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    bars = []
    for load, each in figures.items():
        batch = each["longest_batch_s"]
        part = None if batch is None else batch / INTERVAL
        bars.append(Bar.at_most(f"{load}: longest batch / interval", MOST_BATCH, part))
        if size == Size.FULL:
            bars.append(Bar.at_least(f"{load}: append", LEAST_APPEND, each["append_times"]))
        bars.append(Bar.at_least(f"{load}: shedding", LEAST_SHEDDING, each["shedding_times"]))
        stale, answers = each["staleness_s"], each["answers_per_second"]
        off = None if stale is None else stale / (each["predicted_s"] + INTERVAL)
        bars.append(Bar.at_most(f"{load}: measured / (predicted + interval)", MOST_OFF, off))
        used = None if answers is None else answers / each["possible_per_second"]
        bars.append(Bar.at_least(f"{load}: answers / possible", LEAST_ANSWERS, used))
    return tuple(bars)


def judge_paced(slow: Figures) -> tuple[Bar, ...]:
    """Compare the length of batches and the share of answers with the claims."""
    shares = {
        AFTER_CALL: LEAST_AFTER,
        f"on Spark, {AFTER_CALL}": LEAST_AFTER,
        ANSWERS: LEAST_ANSWERS,
    }
    return tuple(
        Bar.at_least(name, shares[name], value)
        if name in shares
        else Bar.at_most(f"longest batch, {name}", MOST_BATCH, value)
        for name, value in slow.items()
    )


def judge_rare(rare: Figures) -> tuple[Bar, ...]:
    """Compare the waits of rare keys beyond memory with the claim."""
    return tuple(
        Bar.at_most(f"longest wait of rare keys beyond memory, {schedule}", MOST_WAIT, times)
        for schedule, times in rare.items()
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw mean staleness as bars on a logarithmic scale."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(6, 2.4), layout="constrained")
    axes = drawing.subplots()
    named = {"update": "staleness_s", "shedding": "shedding_s", "append": "append_s"}
    bars = {
        f"{load}, {name}": each[field] or 0.0
        for load, each in figures["loads"].items()
        for name, field in named.items()
    }
    drawn = axes.barh(list(bars), list(bars.values()))
    axes.bar_label(drawn, [f"{seconds:.2f} s" for seconds in bars.values()], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(0.5, 2 * max(bars.values()))
    ticks = [seconds for seconds in (0.5, 1, 2, 5, 10, 20, 50, 100) if seconds < axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{seconds:g}" for seconds in ticks])
    axes.set_xticks([], minor=True)
    axes.invert_yaxis()
    axes.set_xlabel("mean staleness, seconds")
    axes.set_title("Answers under overload, 2 cores")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


BENCH = Bench(
    "overload",
    "under any overload batches keep their interval and answers stay 10 times fresher than append",
    measure,
    plot,
)
