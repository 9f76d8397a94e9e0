"""Plots of the recommender with less memory than state: a panel for each figure of the paper.

References: ICE, section VIII-B, figures 5a to 7, and table I.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.cold.recommender_for_ever import FOR_EVER
from bench.cold.recommender_over_time import EVICT, EVICT_ALL, LITTLE, LOG_ALL, PAIR
from bench.registry import Figures

ONLY, MIXED = "recommend only", "mixed"
#: figure, case, measured field, its unit, and its name
OVER_TIME = (
    ("5a", ONLY, "state_bytes", 1e-6, "state in memory, MB"),
    ("5b", ONLY, "events_per_second", 1.0, "events/s"),
    ("5c", FOR_EVER, "state_bytes", 1e-6, "state in memory, MB"),
    ("6a", FOR_EVER, "events_per_second", 1.0, "events/s"),
    ("6c", MIXED, "reads_per_second", 1.0, "reads/s"),
    ("7", MIXED, "cpu", 100.0, "processor, % of one"),
)
#: runs whose reads are drawn: including those in mode `evict`
READING = (*PAIR, EVICT)


def plot(figures: Figures, target: Path) -> None:
    """Draw memory, speed, reads and processor time over batches, memory saved, and writes."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(11, 12), layout="constrained")
    panels = iter(drawing.subplots(4, 2).flat)
    for number, case, field, unit, label in OVER_TIME:
        axes = next(panels)
        for name in READING if field == "reads_per_second" else PAIR:
            lines = figures[case]["lines"][name]
            axes.plot([unit * line[field] for line in lines], label=_label(name))
        axes.set(title=f"{number}: {case}", xlabel="batch", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    _saved(next(panels), figures)
    _written(next(panels), figures)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


def _label(name: str) -> str:
    return f"{name} memory" if name in PAIR else f"{LITTLE} memory, {name}"


def _saved(axes: Any, figures: Figures) -> None:
    shares = sorted(name for name in figures if name.startswith("updates ") and ":" not in name)
    axes.bar(shares, [100 * figures[name]["memory_saved_at_the_end"] for name in shares])
    axes.set(title="6b: memory saved at the end", ylabel="%")


def _written(axes: Any, figures: Figures) -> None:
    pairs = {"evict": (EVICT, EVICT_ALL), "log": (LITTLE, LOG_ALL)}
    for place, label in enumerate(("clean groups free", "clean groups written")):
        rates = [figures[f"{MIXED}: {pair[place]}"]["writes_per_second"] for pair in pairs.values()]
        axes.bar(np.arange(len(pairs)) + 0.4 * place, rates, 0.4, label=label)
    axes.set_xticks(np.arange(len(pairs)) + 0.2, [f"mode {name}" for name in pairs])
    axes.set(title="table I: groups written in a second, mixed", ylabel="writes/s")
    axes.legend(fontsize=8)
