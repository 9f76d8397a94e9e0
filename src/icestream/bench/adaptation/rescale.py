"""Rescaling while a query runs: the rows stay the same, and a batch hardly notices.

Idea: a query of every kind runs twice over the same files, undisturbed and with another number of
tasks after random batches (2, 8, 3, 1, again and again). Rows are compared by count and by the sum
of their hashes; of an update stream, whose rows depend on the time a batch has, by the last row of
each key. The pause of a rescale is what the batch after it takes beyond the median of the batches
that follow no rescale.

Limits: one machine, so a shard that changes its task finds its arena; on another machine it would
be rebuilt from the log, which the tests do between any two batches and nothing times. Batches are
short, so that a pause would show.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import numpy as np

import icestream as ice
from icestream.bench.harness import scratch, workspace
from icestream.bench.registry import Bar, Bench, Figures, Measurement, Progress, Size
from icestream.bench.rows import write_batches

#: micro-batches, events in each, keys
CASES = {Size.SMALL: (18, 20_000, 2_000), Size.FULL: (60, 200_000, 20_000)}
COURSE = (8, 3, 1, 2)
#: batches from one rescale to the next, on average
EVERY = 3
WARM = 4
SHARDS = 8


@dataclass
class Run:
    """Sums of the rows of a query, and what its batches took."""

    rows: int = 0
    hashes: int = 0
    #: what the last row of each key says, of an update stream
    last: dict[int, int] = field(default_factory=dict)
    #: milliseconds and tasks of each batch
    batches: list[tuple[int, int]] = field(default_factory=list)

    @property
    def told(self) -> tuple[Any, ...]:
        """Return what must not depend on tasks."""
        return (self.last,) if self.last else (self.rows, self.hashes)

    @property
    def rescaled(self) -> list[int]:
        """Return what batches took that had another number of tasks than the one before."""
        return [now[0] for before, now in self._pairs if before[1] != now[1]]

    @property
    def calm(self) -> list[int]:
        """Return what the others took."""
        return [now[0] for before, now in self._pairs if before[1] == now[1]]

    @property
    def _pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return list(zip(self.batches, self.batches[1:], strict=False))[WARM:]


def measure(size: Size, progress: Progress) -> Measurement:
    """Run each kind of query with and without rescaling."""
    batches, events, keys = CASES[size]
    folder = scratch(workspace(), "rescale")
    write_batches(folder / "in", batches, events, keys=keys, span=4_000_000, seed=11)
    progress.plan(2 * len(KINDS))
    spark = ice.local_session("rescale", cores=2)
    figures: dict[str, Any] = {"events": batches * events, "keys": keys, "shards": SHARDS}
    bars = []
    for kind, result in KINDS.items():
        progress.step(f"{kind}, undisturbed")
        calm = _run(spark, result, folder, f"{kind}-undisturbed", rescaling=False)
        progress.step(f"{kind}, rescaled")
        moved = _run(spark, result, folder, f"{kind}-rescaled", rescaling=True)
        wrong = int(calm.told != moved.told)
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


def _run(
    spark: Any, result: Callable[[Any], Any], folder: Path, name: str, *, rescaling: bool
) -> Run:
    """Run a query to the end of its files."""
    course, found, dice = cycle(COURSE), Run(), random.Random(17)
    turns = set(accumulate(dice.randrange(1, 2 * EVERY) for _ in range(1_000)))
    running: list[Any] = []

    def take(rows: Any, version: int) -> None:
        if result is _updates:
            table = rows.toArrow()
            found.last |= zip(*(table[name].to_pylist() for name in ("key", "value")), strict=True)
            found.rows += table.num_rows
        else:
            texts = ("count(*)", "coalesce(sum(xxhash64(*) % 1000003), 0)")
            count, hashes = rows.selectExpr(*texts).first()
            found.rows += count
            found.hashes += hashes
        if rescaling and running and version in turns:
            running[0].rescale(next(course))

    query = result(_stream(spark, folder))
    writer = (
        query.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder / name))
        .option("rebalance", "off")
        .memory("512 MB")
        .shards(SHARDS)
        .parallelism(2)
        .trigger(availableNow=True)
    )
    running.append(writer.start())
    running[0].awaitTermination()
    found.batches = [
        (_component_ms(report["durationMs"]), report["icestream"]["parallelism"])
        for report in running[0].recentProgress
    ]
    return found


def _component_ms(phases: dict[str, int]) -> int:
    """Return the milliseconds of all components of a batch."""
    return sum(took for phase, took in phases.items() if phase.startswith("component"))


def _windows(stream: Any) -> Any:
    windows = ice.stream(stream, time="ts", slack="1 second").window("1 minute", slide="2 seconds")
    return windows.groupBy("key").agg(ice.count().alias("n"), ice.max("value").alias("top"))


def _groups(stream: Any) -> Any:
    events = ice.stream(stream, time="ts", slack="1 second").events().window("10 seconds")
    return events.groupApply("key", lambda g: g.agg(ice.sum("value").alias("total")))


def _sessions(stream: Any) -> Any:
    sessions = ice.stream(stream, time="ts", slack="1 second").session("1 second")
    return sessions.groupBy("key").agg(ice.count().alias("n"), ice.sum("value").alias("total"))


def _join(stream: Any) -> Any:
    events = ice.stream(stream, time="ts", slack="1 second").events()
    thirds = [
        events.where(f"value % 3 = {third}").select("key", f"value AS value{third}")
        for third in range(3)
    ]
    return ice.join(*thirds, on="key", within="300 milliseconds", onPressure="defer")


def _same(rows: Any) -> Any:
    return rows.select(["key", "value"])


def _updates(stream: Any) -> Any:
    values = ice.stream(stream, time="ts").latestBy("key")
    return values.apply(_same, "key bigint, value bigint")


def _added(state: dict[str, Any], tuples: Any) -> list[Any]:
    return [state["n"] + tuples.sizes, state["total"] + tuples.reduce(np.add, "value")]


def _merged(partials: Any) -> list[Any]:
    return [partials.reduce(np.add, "n"), partials.reduce(np.add, "total")]


def _job(stream: Any) -> Any:
    tuples = ice.job(ice.stream(stream, time="ts", slack="1 second"))
    partials = tuples.compute(
        _added, key="key", initial={"n": 0, "total": 0}, window="2 seconds", vectorised=True
    )
    return partials.consolidate(_merged, windows=("6 seconds", "10 seconds"), vectorised=True)


#: a query of every kind of state
KINDS: dict[str, Callable[[Any], Any]] = {
    "windows": _windows,
    "sessions": _sessions,
    "groups": _groups,
    "join": _join,
    "updates": _updates,
    "job": _job,
}


def _stream(spark: Any, folder: Path) -> Any:
    reader = spark.readStream.schema("ts timestamp, key bigint, value bigint")
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def plot(figures: Figures, target: Path) -> None:
    """Draw what batches took over the run, and the number of tasks."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - measuring needs no plots

    kinds = [kind for kind in KINDS if kind in figures]
    chart, panels = plt.subplots(-(-len(kinds) // 2), 2, figsize=(9, 1.6 * (len(kinds) + 1)))
    for axes, kind in zip(np.ravel(panels), kinds, strict=False):
        took, tasks = zip(*figures[kind]["timeline"], strict=True)
        axes.plot(took, lw=1.2)
        axes.set(title=kind, xlabel="batch", ylabel="component ms")
        axes.set_ylim(bottom=0)
        other = axes.twinx()
        other.step(range(len(tasks)), tasks, where="mid", color="tab:orange", lw=1)
        other.set(ylabel="tasks", ylim=(0, SHARDS + 1))
    chart.tight_layout()
    chart.savefig(target, dpi=120)
    plt.close(chart)


BENCH = Bench(
    "rescale",
    "a running query changes its number of tasks, and not a row of its results",
    measure,
    plot,
)
