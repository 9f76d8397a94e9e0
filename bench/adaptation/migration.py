"""How long a key group pauses when it moves to another node, by the size of its state.

Idea: the same windows run on nodes with a folder each; a key group is moved from node to node
    between
two batches, in each of four ways. Split, its state is the open pane of every key; combined, ten
panes and the running windows. The pause is the wall-clock time in which no node would accept a row
of the group. Folders and empty arenas are created on the target before, while the source still
accepts rows: that is not part of the pause, but a figure of its own (`before_ms`). After each copy,
one file of as many bytes is copied in the same folder to measure raw speed, in processor time,
since neither waits for the disk.

Limits: one machine and one disk; a copy goes through the page cache and waits for no disk, which
favours it. A network would slow down copies and rebuilding, not the others.

References: section 7.2, figure 10, of the source named in `docs/papers.md`; the handover of
    markers,
with the arena renamed or rebuilt from the log, is not described there.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.migration import Move, Way
from bench.research.split_combine import ComponentShape
from bench.windows.window_job import Feeder, opened

#: keys in each key group
KEYS = {Size.SMALL: (5_000, 50_000), Size.FULL: (1_000, 10_000, 50_000, 100_000, 200_000)}
#: sizes to which the bars apply
WANTED_KEYS = 50_000
REPEATS = {Size.SMALL: 3, Size.FULL: 7}
#: half minutes until the windows are full, and until a pane of a split job is half full
BATCHES = {ComponentShape.COMBINED: 21, ComponentShape.SPLIT: 3}

#: name, way, and whether nodes share one disk; each has a key group of its own
Kind = tuple[str, Way, bool]
REBUILT = "handover, rebuilt"
WITH_STATE: tuple[Kind, ...] = (
    ("disruptive", Way.DISRUPTIVE, True),
    ("handover", Way.HANDOVER, True),
    (REBUILT, Way.HANDOVER, False),
    ("smooth", Way.SMOOTH, True),
)
KINDS: Mapping[ComponentShape, tuple[Kind, ...]] = {
    ComponentShape.SPLIT: (*WITH_STATE, ("instant", Way.INSTANT, True)),
    ComponentShape.COMBINED: WITH_STATE,
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Move key groups of all sizes in all ways."""
    folder = scratch(workspace(), "migration")
    progress.plan(2 * len(KEYS[size]))
    figures: dict[str, Any] = {"keys": list(KEYS[size])}
    for shape in ComponentShape:
        figures[shape.value] = {name: [] for name, _, _ in KINDS[shape]}
        for keys in KEYS[size]:
            progress.step(f"{shape.value}, {keys:,} keys in a key group")
            for name, found in moves(folder / shape.value, shape, keys, REPEATS[size]).items():
                figures[shape.value][name].append(found)
    shutil.rmtree(folder)
    return Measurement(figures, bars(figures))


def moves(
    folder: Path, shape: ComponentShape, keys: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Return the measurements of the moves of one size, by name."""
    kinds = KINDS[shape]
    job = opened(folder, shape, len(kinds))
    feeder = Feeder(job, keys * len(kinds))
    for _ in range(BATCHES[shape]):
        feeder.every_key()
    component = job.computing or job.windows
    found = {}
    for group, (name, way, one_disk) in enumerate(kinds):
        component.one_disk = one_disk
        moved, raws = [], []
        for target in range(1, repeats + 1):
            moved += job.move([Move(group, target, way)])
            if moved[-1].bytes:
                raws.append(_raw_copy(folder, moved[-1].bytes))
        found[name] = {
            "before_ms": 1e3 * statistics.median(each.before for each in moved),
            "pause_ms": 1e3 * statistics.median(each.pause for each in moved),
            "processor_ms": 1e3 * statistics.median(each.processor for each in moved),
        }
        if raws:
            raw = 1e3 * statistics.median(raws)
            found[name] |= {"bytes": moved[-1].bytes, "raw_processor_ms": raw}
    job.close()
    return found


def _raw_copy(folder: Path, size: int) -> float:
    """Return the seconds of processor time to copy one file."""
    source, target = folder / "raw", folder / "raw-copy"
    source.write_bytes(os.urandom(1 << 16) * (size >> 16) + bytes(size % (1 << 16)))
    began = time.process_time()
    shutil.copyfile(source, target)
    took = time.process_time() - began
    source.unlink()
    target.unlink()
    return took


def bars(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the bars."""
    sizes = figures["keys"]
    at = sizes.index(WANTED_KEYS)
    split, combined = figures[ComponentShape.SPLIT.value], figures[ComponentShape.COMBINED.value]
    instant = [each["pause_ms"] for each in split["instant"]]
    copies = [each["pause_ms"] for each in split["disruptive"]]
    label = f"{sizes[at]:,} keys"
    return (
        Bar.at_most(f"pause, instant by disruptive, {label}", 0.1, instant[at] / copies[at]),
        Bar.at_most(
            "growth of the pause with state, instant by disruptive",
            0.05,
            (instant[-1] - instant[0]) / (copies[-1] - copies[0]),
        ),
        *(
            Bar.at_least(
                f"disruptive, copy speed by raw speed, {shape.value}, {label}",
                0.5,
                row["disruptive"][at]["raw_processor_ms"] / row["disruptive"][at]["processor_ms"],
            )
            for shape, row in ((ComponentShape.SPLIT, split), (ComponentShape.COMBINED, combined))
        ),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw pauses over keys in a key group."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(10, 4), layout="constrained")
    for panel, shape in zip(drawing.subplots(1, 2, sharey=True), ComponentShape, strict=True):
        for name, rows in figures[shape.value].items():
            panel.plot(figures["keys"], [row["pause_ms"] for row in rows], "o-", label=name)
        panel.set(xscale="log", yscale="log", xlabel="keys in a key group", title=shape.value)
        panel.set_ylabel("pause, ms")
        panel.legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "migration",
    "a key group that moves instantly pauses a tenth as long as one that is copied, at any size",
    measure,
    plot,
)
