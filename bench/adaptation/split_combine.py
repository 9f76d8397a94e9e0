"""The cost of computing panes separately from windows, of switching, and of moving groups.

Idea: one job in both shapes. *Consolidation*: rows per second of processor time over the number of
keys, with two and with six kinds of windows. *Changing*: how long rows wait when the job is split,
and when it is combined again in three ways. *Moving*: how much longer a run takes if a part of the
key groups moves in the middle, instantly or copied. The formulas of the cost model are compared
with the first: by the printed form, a combined job with three times the windows should take three
times as long. With shared panes, rows cost the same and only the consolidation of panes into
windows grows; its cost is estimated from two and from four windows.

Limits: processor time on one machine; partial results are serialised and read again, but not sent
over a network.

References: sections 5.1.1, 7.1, 7.3 and 7.4, figures 9, 11 and 12, of the source named in
`docs/papers.md`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.migration import Move, Way
from bench.research.split_combine import ComponentShape, ComponentStatistics, Form, account
from bench.windows.window_job import MINUTE, Feeder, opened
from icestream.plan.windows.grid import Windows

#: minutes of the windows of both jobs; all tumble
KINDS: Mapping[str, tuple[int, ...]] = {
    "2 windows": (5, 10),
    "4 windows": (5, 10, 15, 20),
    "6 windows": (5, 10, 15, 20, 25, 30),
}
COMBINING = (Way.SMOOTH, Way.DISRUPTIVE, Way.HANDOVER)
MOVING = (Way.INSTANT, Way.DISRUPTIVE)
#: half minutes that fill ten minutes and half a pane
FILLING = 21
GROUPS, NODES = 4, 2


@dataclass(frozen=True)
class Case:
    """How much is measured."""

    #: keys of the job, for consolidation
    keys: tuple[int, ...]
    #: rows of half a minute, and minutes
    rows: int
    minutes: int
    #: keys of a key group, for changing
    group_keys: tuple[int, ...]
    #: keys of a key group, for moving, and parts of the groups that move
    moving_keys: int
    parts: tuple[float, ...]


CASES = {
    Size.SMALL: Case((500, 2_000), 1_000, 10, (500, 1_000), 300, (0.0, 1.0)),
    Size.FULL: Case(
        (2_000, 10_000, 50_000, 100_000),
        50_000,
        30,
        (1_000, 10_000, 50_000),
        10_000,
        (0.0, 0.25, 0.5, 0.75, 1.0),
    ),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Measure all three."""
    case = CASES[size]
    folder = scratch(workspace(), "split-combine")
    progress.plan(len(case.keys) + len(case.group_keys) + len(case.parts))
    for shape in ComponentShape:
        # one-time compilation and loading are not measured
        throughput(folder / "warm", shape, "6 windows", 100, replace(case, rows=100, minutes=32))
    consolidation: dict[str, list[float]] = {}
    for keys in case.keys:
        progress.step(f"consolidation, {keys:,} keys")
        for kind in KINDS:
            for shape in ComponentShape:
                rows = throughput(folder / "consolidation", shape, kind, keys, case)
                consolidation.setdefault(f"{shape.value}, {kind}", []).append(rows)
    changing: dict[str, list[dict[str, float]]] = {}
    for keys in case.group_keys:
        progress.step(f"split and combine, {keys:,} keys in a key group")
        for name, row in changes(folder / "changing", keys).items():
            changing.setdefault(name, []).append(row)
    moving: dict[str, list[float]] = {way.value: [] for way in MOVING}
    for part in case.parts:
        progress.step(f"{part:.0%} of key groups move")
        for way in MOVING:
            moving[way.value].append(moved_run(folder / "moving", way, part, case.moving_keys))
    shutil.rmtree(folder)
    figures = {
        "keys": list(case.keys),
        "consolidation": consolidation,
        "group keys": list(case.group_keys),
        "changing": changing,
        "parts": list(case.parts),
        "moving": moving,
        "model": model(consolidation, case),
    }
    return Measurement(figures, bars(figures))


def throughput(folder: Path, shape: ComponentShape, kind: str, keys: int, case: Case) -> float:
    """Return rows per second of processor time."""
    windows = tuple(Windows(each * MINUTE, each * MINUTE) for each in KINDS[kind])
    homes = [(group + 1) % NODES for group in range(GROUPS)]
    job = opened(folder, shape, GROUPS, windows=windows, nodes=NODES, homes=homes, synced=False)
    feeder = Feeder(job, keys)
    for _ in range(2 * case.minutes):
        feeder.random_keys(case.rows)
    job.close()
    return feeder.rows / feeder.seconds


def changes(folder: Path, keys: int) -> dict[str, dict[str, float]]:
    """Return pause and time to completion of a split, and of combining in all ways."""
    found = {}
    for way in COMBINING:
        job = opened(folder / way.value, ComponentShape.COMBINED, 2, synced=False)
        feeder = Feeder(job, 2 * keys)
        for _ in range(FILLING):
            feeder.every_key()
        found["split"] = {"pause_ms": 1e3 * job.split(), "minutes": 0.0}
        # from here on panes are computed elsewhere, and windows must follow when combined
        job.move([Move(group, 1, Way.INSTANT) for group in range(2)])
        feeder.every_key()
        began, batches = time.perf_counter(), 0
        job.combine(way)
        pause = time.perf_counter() - began
        while job.combining:
            feeder.every_key()
            batches += 1
        found[f"combine, {way.value}"] = {"pause_ms": 1e3 * pause, "minutes": batches / 2}
        job.close()
    return found


def moved_run(folder: Path, way: Way, part: float, keys: int) -> float:
    """Return the seconds of processor time of a run in which a part of key groups moves."""
    groups = 2 * GROUPS
    windows = (Windows(5 * MINUTE, 5 * MINUTE),)
    job = opened(folder, ComponentShape.SPLIT, groups, windows=windows, synced=False)
    feeder = Feeder(job, keys * groups)
    moving = 0.0
    for batch in range(FILLING + 3):
        if batch == FILLING // 2:
            moves = [Move(group, 1, way) for group in range(round(part * groups))]
            began = time.process_time()
            job.move(moves)
            moving = time.process_time() - began
        feeder.every_key()
    job.close()
    return feeder.seconds + moving


def model(consolidation: Mapping[str, list[float]], case: Case) -> dict[str, Any]:
    """Return the cost of six windows by both forms, from that of two, and as measured."""
    rows = float(2 * case.minutes * case.rows)
    few, some, many = (
        rows / consolidation[f"{ComponentShape.COMBINED.value}, {kind}"][-1] for kind in KINDS
    )
    sending = rows / consolidation[f"{ComponentShape.SPLIT.value}, 2 windows"][-1] - few
    into_window = (some - few) / 2
    found: dict[str, Any] = {"combined, measured": many / few}
    for form in Form:
        costs = {}
        for kind, minutes in KINDS.items():
            panes = case.minutes
            per_pane = sending / (panes * GROUPS)
            once = few / 2 if form is Form.PRINTED else few - 2 * into_window
            statistics = ComponentStatistics(
                tuples=rows,
                execution=once / rows,
                windows=len(minutes),
                panes=panes,
                key_groups=GROUPS,
                moved=0,
                sending=per_pane,
                moving=per_pane,
                pause=0.0,
                consolidating=into_window / (panes * GROUPS),
            )
            costs[kind] = account(statistics, form).cost
        two, six = costs["2 windows"], costs["6 windows"]
        found[f"combined, {form.value}"] = (
            six[ComponentShape.COMBINED] / two[ComponentShape.COMBINED]
        )
        found[f"choice, {form.value}"] = min(six, key=lambda shape: six[shape]).value
    best = max(ComponentShape, key=lambda shape: consolidation[f"{shape.value}, 6 windows"][-1])
    found["choice, measured"] = best.value
    return found


def bars(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the bars."""
    changing, said = figures["changing"], figures["model"]
    split = changing["split"][-1]["pause_ms"]
    copied = changing[f"combine, {Way.DISRUPTIVE.value}"][-1]["pause_ms"]
    smooth = changing[f"combine, {Way.SMOOTH.value}"][-1]["minutes"]
    off = abs(said[f"combined, {Form.SHARED_PANES.value}"] - said["combined, measured"])
    printed = abs(said[f"combined, {Form.PRINTED.value}"] - said["combined, measured"])
    return (
        Bar.at_most("pause, split by combine (disruptive)", 0.1, split / copied),
        Bar.at_most("minutes until smooth combining is done", 10.5, smooth),
        Bar.at_most("error of the model, with shared panes by printed", 0.5, off / printed),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw throughput over keys, pauses over state, and the extra time of runs with moves."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(13, 4), layout="constrained")
    first, second, third = drawing.subplots(1, 3)
    for name, rates in figures["consolidation"].items():
        first.plot(figures["keys"], [rate / 1e6 for rate in rates], "o-", label=name)
    first.set(title="consolidation", xlabel="keys", ylabel="million rows per processor second")
    for name, rows in figures["changing"].items():
        minutes = rows[-1]["minutes"]
        label = name if not minutes else f"{name} (done after {minutes:g} min)"
        second.plot(figures["group keys"], [row["pause_ms"] for row in rows], "o-", label=label)
    second.set(title="split and combine", xlabel="keys in a key group", ylabel="pause, ms")
    for name, seconds in figures["moving"].items():
        more = [100 * (each / seconds[0] - 1) for each in seconds]
        third.plot([100 * part for part in figures["parts"]], more, "o-", label=name)
    third.set(title="moving key groups", xlabel="% of them", ylabel="% more processor time")
    for panel in (first, second):
        panel.set_xscale("log")
    second.set_yscale("log")
    first.set_ylim(bottom=0)
    for panel in (first, second, third):
        panel.legend(fontsize=7)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "split-combine",
    "splitting pauses a tenth of what combining does, and panes shared in both shapes are the "
    "better model of their cost",
    measure,
    plot,
)
