"""Rescaling while a query runs: the rows stay the same, and batches are hardly delayed.

Idea: a query for every operator with state runs twice over the same files, undisturbed and with
another number of shards and tasks after random batches (2, 8, 32, 5, again and again), while more
input waits than a batch takes. Rows are compared by count and by the sum of their hashes; those of
an update stream, which depend on the time available to a batch, by the last row of each key. The
pause of a rescale is the excess of the time of the batch that begins with other shards over the
median of the others, to which the batch before it belongs, that ends with snapshots.
The cost of having many shards is measured separately (`shard_cost`).

Limits: one machine, so a shard that changes its task finds its arena; on another machine it would
be rebuilt from the log, which the tests do between any two batches and no bench times. Batches are
short, so that a pause would be visible.
"""

from __future__ import annotations

import random
import shutil
import statistics
from dataclasses import dataclass, field
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import numpy as np

import icestream as ice
from bench.adaptation.operators_of_state import OPERATORS, SCHEMA, StatefulQuery
from bench.adaptation.shard_cost import cost_of_shards, per_shard
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.rows import write_batches

#: micro-batches, events in each, keys
CASES = {Size.SMALL: (18, 20_000, 2_000), Size.FULL: (24, 60_000, 6_000)}
COURSE = (8, 32, 5, 2)
#: mean number of batches between two rescales, and the most tasks
EVERY = 3
TASKS = 8
WARM = 4
SHARDS = 2
FURTHER_SHARD = "processor ms of a version for each further shard"
MOST_PER_SHARD = 1.0


@dataclass
class RescaleRun:
    """Sums of the rows of a query, and the times of its batches."""

    rows: int = 0
    hashes: int = 0
    #: the last row of each key, of an update stream
    last: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    #: milliseconds and shards of each batch
    batches: list[tuple[int, int]] = field(default_factory=list)

    @property
    def told(self) -> tuple[Any, ...]:
        """Return the part of the rows that must not depend on tasks."""
        return (self.last,) if self.last else (self.rows, self.hashes)

    @property
    def rescaled(self) -> list[int]:
        """Return the times of batches with another number of shards than the one before."""
        return [now[0] for before, now in self._pairs if before[1] != now[1]]

    @property
    def calm(self) -> list[int]:
        """Return the times of the other batches."""
        return [now[0] for before, now in self._pairs if before[1] == now[1]]

    @property
    def _pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return list(zip(self.batches, self.batches[1:], strict=False))[WARM:]


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run each kind of query with and without rescaling."""
    batches, events, keys = CASES[size]
    folder = scratch(workspace(), "rescale")
    write_batches(folder / "in", batches, events, keys=keys, span=4_000_000, seed=11)
    progress.plan(1 + 2 * len(OPERATORS))
    progress.step("versions by shards")
    cost = cost_of_shards(size, folder / "cost")
    spark = ice.local_session("rescale", cores=2)
    figures: dict[str, Any] = {
        "events": batches * events,
        "keys": keys,
        "shards": SHARDS,
        "shard cost": cost,
        FURTHER_SHARD: per_shard(cost),
    }
    bars = [Bar.at_most(FURTHER_SHARD, MOST_PER_SHARD, figures[FURTHER_SHARD])]
    for kind, kept in OPERATORS.items():
        progress.step(f"{kind}, undisturbed")
        calm = _run(spark, kept, folder, rescaling=False)
        progress.step(f"{kind}, rescaled")
        moved = _run(spark, kept, folder, rescaling=True)
        wrong = int(calm.told != moved.told or not calm.rows or not moved.rescaled)
        figures[kind] = {
            "batch_ms": statistics.median(calm.calm),
            "pause_ms": statistics.median(moved.rescaled) - statistics.median(moved.calm),
            "longest_after_ms": max(moved.rescaled),
            "rescales": len(moved.rescaled),
            "rows": calm.rows,
            "timeline": moved.batches,
        }
        bars.append(Bar.at_most(f"{kind}: runs with other rows", 0, wrong))
    spark.stop()
    return Measurement(figures, tuple(bars))


def _run(spark: Any, kept: StatefulQuery, folder: Path, *, rescaling: bool) -> RescaleRun:
    """Run a query to the end of its files."""
    course, found, dice = cycle(COURSE), RescaleRun(), random.Random(17)
    turns = set(accumulate(dice.randrange(1, 2 * EVERY) for _ in range(1_000)))
    running: list[Any] = []

    def take(rows: Any, version: int) -> None:
        if kept.last_rows:
            values = [column.to_pylist() for column in rows.toArrow().columns]
            found.last |= {row[0]: row for row in zip(*values, strict=True)}
            found.rows += len(values[0])
        else:
            texts = ("count(*)", "coalesce(sum(xxhash64(*) % 1000003), 0)")
            count, hashes = rows.selectExpr(*texts).first()
            found.rows += count
            found.hashes += hashes
        if rescaling and running and version in turns:
            shards = next(course)
            running[0].rescale(min(shards, TASKS), shards=shards)

    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    query = kept.query(reader.parquet(str(folder / "in")))
    checkpoint = folder / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = (
        query.writeStream.foreachBatch(take)
        .options(checkpointLocation=str(checkpoint), rebalance="off", **kept.options)
        .memory("512 MB")
        .shards(SHARDS)
        .parallelism(2)
        .trigger(availableNow=True)
    )
    running.append(writer.start())
    running[0].awaitTermination()
    found.batches = [
        (_component_ms(report["durationMs"]), report["icestream"]["shardsOfComponent"])
        for report in running[0].recentProgress
    ]
    return found


def _component_ms(phases: dict[str, int]) -> int:
    """Return the milliseconds of all components of a batch."""
    return sum(took for phase, took in phases.items() if phase.startswith("component"))


def plot(figures: Figures, target: Path) -> None:
    """Draw the times of batches over the run, and the number of shards."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - measuring needs no plots

    kinds = [kind for kind in OPERATORS if kind in figures]
    chart, panels = plt.subplots(
        -(-len(kinds) // 4), 4, figsize=(14, 0.6 * (len(kinds) + 3)), squeeze=False
    )
    for axes, kind in zip(np.ravel(panels), kinds, strict=False):
        took, tasks = zip(*figures[kind]["timeline"], strict=True)
        axes.plot(took, lw=1.2)
        axes.set(title=kind, xlabel="batch", ylabel="component ms")
        axes.set_ylim(bottom=0)
        other = axes.twinx()
        other.step(range(len(tasks)), tasks, where="mid", color="tab:orange", lw=1)
        other.set(ylabel="shards", ylim=(0, max(COURSE) + 1))
    chart.tight_layout()
    chart.savefig(target, dpi=120)
    plt.close(chart)


BENCH = Bench(
    "rescale",
    "a running query changes its number of shards, and not a row of its results",
    measure,
    plot,
)
