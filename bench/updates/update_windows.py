"""Staleness of window results: append, random shedding of windows, LAZY and EAGER.

Idea: virtual time, one tuple per unit of time, one operator, the window queue's own code. One key
with tumbling windows, one key with windows that slide by 1, and ten keys of four distributions of
arrivals, each over a range of window sizes. With several keys the time of windows can mean two
things, and both are run: the key's own (its tuples are 1, 2, 3, ..., so a window has as many tuples
as it is long), or the common time of arrival (a window of a slow key has few tuples).

Limits: windows that are shed are chosen at random; with as many dropped as update semantics drop,
the append queue is just saturated and its staleness grows with the run, so it is also shown tuned
to 95 % load.

References: Figures 13a, 13b and 14 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.window_simulation import Input, run_append, run_updates
from icestream.core.arrays import Ints
from icestream.state.queue.windows.spec import Semantics, UpdateWindows

SIZES = (2, 4, 8, 16, 32)
SIZES_OF_TEN = (2, 5, 10, 20, 40)
KEYS = 10
THETAS = (0.0, 0.5, 0.9)
IN_TURN = "in turn"
SEED = 11
#: seeds of the random shedding, averaged over
SEEDS = range(5)
#: load of the operator when shedding is tuned
TUNED = 0.95
#: allowed difference from the value computed by hand, because of the ends of a run
NEAR = 0.02
BOTH: tuple[Semantics, Semantics] = ("lazy", "eager")

NAMES = {"own time": "each key's own time", "common time": "the common time"}

Series = dict[str, list[float]]


def one_key(tuples: int) -> Input:
    """Return one tuple of one key per unit of time."""
    return Input.of(np.zeros(tuples, dtype=np.int64), own_time=True)


def distributions(tuples: int) -> dict[str, Ints]:
    """Return the keys of the tuples: Zipf's law with several exponents, and keys in turn."""
    drawn: dict[str, Ints] = {}
    for theta in THETAS:
        weights = 1 / np.arange(1, KEYS + 1) ** theta
        random = np.random.default_rng(SEED)
        drawn[f"Zipf {theta:g}"] = random.choice(KEYS, tuples, p=weights / weights.sum())
    return {**drawn, IN_TURN: np.arange(tuples) % KEYS}


def tumbling(tuples: int) -> Series:
    """Measure windows that follow each other, of one key, at a cost of 1."""
    given = one_key(tuples)
    return {
        semantics: [
            run_updates(UpdateWindows(size, size, semantics), given, 1).staleness for size in SIZES
        ]
        for semantics in BOTH
    }


def sliding(tuples: int) -> Series:
    """Measure windows that slide by 1, of one key, at a cost of 1."""
    given = one_key(tuples)
    found: Series = {name: [] for name in ("append", "shed alike", "shed to 95 %", *BOTH)}
    for size in SIZES:
        windows = UpdateWindows(size, 1)
        found["append"].append(run_append(windows, given, 1).staleness)
        runs = {name: run_updates(UpdateWindows(size, 1, name), given, 1) for name in BOTH}
        share = len(runs["lazy"].deliveries) / tuples
        for name, keep in (("shed alike", share), ("shed to 95 %", TUNED / size)):
            shed = [run_append(windows, given, 1, keep=keep, seed=each) for each in SEEDS]
            found[name].append(float(np.mean([run.staleness for run in shed])))
        for name, run in runs.items():
            found[name].append(run.staleness)
    return found


def ratios(tuples: int, *, own_time: bool) -> Series:
    """Measure EAGER's staleness over LAZY's, of ten keys, windows sliding by 1, cost 1."""
    found: Series = {}
    for name, keys in distributions(tuples).items():
        given = Input.of(keys, own_time=own_time)
        found[name] = []
        for size in SIZES_OF_TEN:
            lazy, eager = (run_updates(UpdateWindows(size, 1, each), given, 1) for each in BOTH)
            found[name].append(eager.staleness / lazy.staleness)
    return found


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run everything and compare it with the claims."""
    tuples = 10_000 if size is Size.SMALL else 60_000
    steps: dict[str, Callable[[], Series]] = {
        "tumbling": lambda: tumbling(tuples),
        "sliding": lambda: sliding(tuples),
        "ten keys, own time": lambda: ratios(tuples, own_time=True),
        "ten keys, common time": lambda: ratios(tuples, own_time=False),
    }
    progress.plan(len(steps))
    figures: dict[str, Any] = {"sizes": list(SIZES), "sizes of ten": list(SIZES_OF_TEN)}
    for name, step in steps.items():
        progress.step(name)
        figures[name] = step()
    figures["claims"] = claims(figures)
    for claim, verdict in figures["claims"].items():
        progress.note(f"{'holds' if verdict['holds'] else 'does not hold'}: {claim}")
    return Measurement(figures, judge(figures))


def claims(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every claim of the paper with its outcome."""
    tumble, slide = figures["tumbling"], figures["sliding"]
    found: dict[str, dict[str, Any]] = {
        "tumbling: LAZY grows linearly with the window, to half its size": _verdict(
            tumble["lazy"], [each / 2 for each in SIZES], _near
        ),
        "tumbling: EAGER falls as the window grows, to 1 / (2 size)": _verdict(
            tumble["eager"], [1 / (2 * each) for each in SIZES], _near
        ),
        "sliding: LAZY and EAGER are fresher than append": _verdict(
            _most(slide["lazy"], slide["eager"]), slide["append"], _below
        ),
        "sliding: both are fresher than shedding as many windows at random": _verdict(
            _most(slide["lazy"], slide["eager"]), slide["shed alike"], _below
        ),
        "sliding: both are fresher than shedding tuned to 95 % load": _verdict(
            _most(slide["lazy"], slide["eager"]), slide["shed to 95 %"], _below
        ),
        "sliding: EAGER is fresher than LAZY": _verdict(slide["eager"], slide["lazy"], _below),
    }
    for time in ("own time", "common time"):
        ten = figures[f"ten keys, {time}"]
        for theta in THETAS:
            name = f"Zipf {theta:g}"
            found[f"ten keys, {time}, {name}: EAGER is staler than LAZY at every size"] = _verdict(
                ten[name], [1.0] * len(ten[name]), lambda a, b: a > b
            )
            found[f"ten keys, {time}, {name}: less so with larger windows"] = _verdict(
                ten[name][1:], ten[name][:-1], _below
            )
        found[f"ten keys, {time}, in turn: EAGER is fresher than LAZY at every size"] = _verdict(
            ten[IN_TURN], [1.0] * len(ten[IN_TURN]), _below
        )
    return found


def _verdict(
    found: Sequence[float], wanted: Sequence[float], agrees: Callable[[float, float], bool]
) -> dict[str, Any]:
    held = [agrees(each, other) for each, other in zip(found, wanted, strict=True)]
    return {"holds": all(held), "at_sizes": f"{sum(held)} of {len(held)}", "found": list(found)}


def _near(found: float, wanted: float) -> bool:
    return abs(found - wanted) <= NEAR * wanted


def _below(found: float, wanted: float) -> bool:
    return found < wanted


def _most(*series: Sequence[float]) -> list[float]:
    return [max(each) for each in zip(*series, strict=True)]


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare required properties with bars; claims that do not hold are only reported."""
    slide, ten = figures["sliding"], figures["ten keys, own time"]
    worst = min(
        shed / update
        for shed, update in zip(
            slide["shed to 95 %"], _most(slide["lazy"], slide["eager"]), strict=True
        )
    )
    return (
        Bar.at_least("tuned shedding over updates, one key, sliding", 1.8, worst),
        Bar.at_most("EAGER over LAZY, ten keys in turn", 1.0, max(ten[IN_TURN])),
        Bar.at_least("EAGER over LAZY, ten keys, Zipf 0.9", 1.0, min(ten["Zipf 0.9"])),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw staleness over window sizes, and EAGER over LAZY for ten keys."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(11, 8), layout="constrained")
    (tumble, slide), (own, common) = drawing.subplots(2, 2)
    for axes, name, title in (
        (tumble, "tumbling", "one key, tumbling windows"),
        (slide, "sliding", "one key, windows sliding by 1"),
    ):
        for series, values in figures[name].items():
            axes.plot(figures["sizes"], values, marker="o", label=series)
        axes.set(title=title, ylabel="average staleness")
        _finish(axes, figures["sizes"])
    for axes, time in ((own, "own time"), (common, "common time")):
        for series, values in figures[f"ten keys, {time}"].items():
            axes.plot(figures["sizes of ten"], values, marker="o", label=series)
        axes.axhline(1.0, linestyle="--", color="grey")
        axes.set(title=f"ten keys, windows over {NAMES[time]}", ylabel="EAGER / LAZY")
        _finish(axes, figures["sizes of ten"])
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


def _finish(axes: Any, sizes: Sequence[int]) -> None:
    axes.set(xlabel="size of windows", xscale="log", yscale="log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.legend(fontsize=8)


BENCH = Bench(
    "update-windows",
    "windows as updates are fresher than append and random shedding, at any size of window",
    measure,
    plot,
)
