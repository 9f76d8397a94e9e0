"""Rescaling while a query runs: the rows stay the same, and batches are hardly delayed.

Idea: a query for every operator with state runs twice over the same files, undisturbed and with
another number of shards and tasks after random batches (8, 32, 5, 2, again and again), while more
input waits than a batch takes; in local mode, and on a cluster of two executors. Rows are compared
by count and by the sum of their hashes; those of an update stream, which depend on the time
available to a batch, by the last row of each key.

    shards     2     2     2     8     8     8        the pause of a change is the longer excess of
    batch ms  90    90   130   160   110   110        the two batches around it over the median of
                            40    50                  batches with as many shards: here 50

The batch before a change may end with snapshots of all shards, the one after it begins with what
the new shards have not read yet. The cost of having many shards is measured apart (`shard_cost`),
as are pauses with much state (`rescale_state`).

Limits: one machine; the executors of the cluster have folders of their own. Batches are short, so
that a pause would be visible.
"""

from __future__ import annotations

import random
import shutil
import statistics
from dataclasses import dataclass, field
from itertools import accumulate, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import icestream as ice
from bench.adaptation.operators_of_state import OPERATORS, SCHEMA, StatefulQuery
from bench.adaptation.shard_cost import cost_of_shards, per_shard
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.rows import write_batches

if TYPE_CHECKING:
    from collections.abc import Mapping

#: micro-batches, events in each, keys
CASES = {Size.SMALL: (24, 20_000, 2_000), Size.FULL: (44, 60_000, 6_000)}
COURSE = (8, 32, 5, 2)
#: mean number of batches between two rescales, and the most tasks
EVERY = 3
TASKS = 8
WARM = 4
SHARDS = 2
WORKERS = 2
FURTHER_SHARD = "ms of a version for each further shard"
FURTHER_SHARD_WORK = "processor ms of a version for each further shard"
MOST_PER_SHARD = 1.0
LOCAL, CLUSTER = "local mode", "cluster"
#: the longest pause in local mode, in milliseconds, and on the cluster, in batches
MOST_PAUSE, MOST_OF_BATCH = 150.0, 0.5


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
    def calm(self) -> list[int]:
        """Return the times of batches away from a change."""
        return [took for place, (took, _) in self._warm if place not in self._near]

    def pauses(self) -> list[float]:
        """Return the milliseconds by which each change held up a batch, beyond normal ones."""
        return [
            max(self._excess(place - 1), self._excess(place))
            for place in self._changes
            if place >= WARM
        ]

    def _excess(self, place: int) -> float:
        took, shards = self.batches[place]
        alike = [ms for at, (ms, many) in self._warm if many == shards and at not in self._near]
        return took - statistics.median(alike or self.calm or [took])

    @property
    def _warm(self) -> list[tuple[int, tuple[int, int]]]:
        return list(enumerate(self.batches))[WARM:]

    @property
    def _changes(self) -> list[int]:
        """Return the places of batches with other shards than the one before."""
        many = [shards for _, shards in self.batches]
        return [place for place in range(1, len(many)) if many[place] != many[place - 1]]

    @property
    def _near(self) -> set[int]:
        return {place + beside for place in self._changes for beside in (-1, 0)}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run each kind of query with and without rescaling, in local mode and on a cluster."""
    batches, events, keys = CASES[size]
    folder = scratch(workspace(), "rescale")
    write_batches(folder / "in", batches, events, keys=keys, span=4_000_000, seed=11)
    progress.plan(1 + 4 * len(OPERATORS))
    progress.step("versions by shards")
    cost = cost_of_shards(size, folder / "cost")
    figures: dict[str, Any] = {
        "events": batches * events,
        "keys": keys,
        "shards": SHARDS,
        "shard cost": cost,
        FURTHER_SHARD: per_shard(cost, "ms"),
        FURTHER_SHARD_WORK: per_shard(cost, "processor_ms"),
    }
    bars = [Bar.at_most(FURTHER_SHARD, MOST_PER_SHARD, figures[FURTHER_SHARD])]
    spark = ice.local_session("rescale", cores=2)
    figures[LOCAL] = _of_all_kinds(spark, folder, progress, LOCAL)
    spark.stop()
    from tests.fixtures.cluster import Cluster  # noqa: PLC0415 - needs Spark

    with Cluster(WORKERS) as cluster:
        spark = cluster.session("rescale")
        apart = {"localDir": "arenas"}
        figures[CLUSTER] = _of_all_kinds(spark, folder, progress, CLUSTER, apart)
        spark.stop()
    for kind in OPERATORS:
        here, there = figures[LOCAL][kind], figures[CLUSTER][kind]
        bars += [
            Bar.at_most(f"{kind}: runs with other rows", 0, here["wrong"] + there["wrong"]),
            Bar.at_most(f"{kind}: ms of a pause, {LOCAL}", MOST_PAUSE, here["pause_ms"]),
            Bar.at_most(
                f"{kind}: pause by a batch, {CLUSTER}",
                MOST_OF_BATCH,
                there["pause_ms"] / there["batch_ms"],
            ),
        ]
    return Measurement(figures, tuple(bars))


def _of_all_kinds(
    spark: Any,
    folder: Path,
    progress: ProgressLog,
    where: str,
    options: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the figures of each kind of query."""
    found: dict[str, dict[str, Any]] = {}
    for kind, kept in OPERATORS.items():
        progress.step(f"{kind}, {where}, undisturbed")
        calm = _run(spark, kept, folder, options or {}, rescaling=False)
        progress.step(f"{kind}, {where}, rescaled")
        moved = _run(spark, kept, folder, options or {}, rescaling=True)
        pauses = moved.pauses()
        found[kind] = {
            "batch_ms": statistics.median(moved.calm),
            "undisturbed_ms": statistics.median(calm.calm),
            "pause_ms": statistics.median(pauses),
            "longest_pause_ms": max(pauses),
            "rescales": len(pauses),
            "rows": calm.rows,
            "wrong": int(calm.told != moved.told or not calm.rows),
            "timeline": moved.batches,
        }
    return found


def _run(
    spark: Any, kept: StatefulQuery, folder: Path, options: Mapping[str, str], *, rescaling: bool
) -> RescaleRun:
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
        .options(checkpointLocation=str(checkpoint), rebalance="off", **kept.options, **options)
        .memory("512 MB")
        .shards(SHARDS)
        .parallelism(2)
        .trigger(availableNow=True)
    )
    running.append(writer.start())
    running[0].awaitTermination()
    found.batches = [
        (component_ms(report["durationMs"]), report["icestream"]["shardsOfComponent"])
        for report in running[0].recentProgress
    ]
    return found


def component_ms(phases: dict[str, int]) -> int:
    """Return the milliseconds of all components of a batch."""
    return sum(took for phase, took in phases.items() if phase.startswith("component"))


def plot(figures: Figures, target: Path) -> None:
    """Draw the times of batches over the run, and the number of shards, in local mode."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - measuring needs no plots

    kinds = [kind for kind in OPERATORS if kind in figures[LOCAL]]
    chart, panels = plt.subplots(
        -(-len(kinds) // 4), 4, figsize=(14, 0.6 * (len(kinds) + 3)), squeeze=False
    )
    for axes, kind in zip(np.ravel(panels), kinds, strict=False):
        took, tasks = zip(*figures[LOCAL][kind]["timeline"], strict=True)
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
