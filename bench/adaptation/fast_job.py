"""What fusing operators saves: the fast job with 0, 2, 3 and 4 fused, and the simple job.

Idea: the fast job is four operators in a row that aggregate over windows of 1, 5, 10 and 20 minutes
and forward every tuple at once. Each runs as a component of its own, or several share one, which
saves an exchange of all tuples and a job. The simple job builds windows from partial results of a
minute, in one component or in two. Tuples have the eight attributes of a loan.

Two times are measured per batch: that of the components, which fusing changes, and that of the
whole batch, which includes the same reading of the source and the same commit on both sides. The
source only loads the job, as another machine did in the original experiment: batches are large, so
that the fixed cost of a trigger does not hide the rest, and come from Arrow files, which need no
decoding.

Limits: one machine: an exchange is a file, not a network.

References: section 7.7 and figure 16 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import icestream as ice
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size

#: batches, how many of them warm up, and tuples of each
CASES = {Size.SMALL: (8, 3, 100_000), Size.FULL: (10, 3, 1_600_000)}
KEYS = 1_000
#: files of a batch, so that both cores read
FILES = 2
#: tuples read at once
RECORD_ROWS = 1 << 17
#: seconds of event time in a batch
SPAN = 60
WINDOWS = ("1 minute", "5 minutes", "10 minutes", "20 minutes")
NAMES = tuple(f"aggregate over {length}" for length in WINDOWS)
SIMPLE_WINDOWS = ("5 minutes", "10 minutes", "15 minutes", "20 minutes")
#: required speed-up of fusing all four
WANTED = 3.0

_SCHEMA = (
    "ts timestamp, user long, area string, approval boolean, amount double, "
    "back double, term int, income double"
)
#: seconds of a batch: all of it, and its components
Took = tuple[float, float]
Job = Callable[["ice.Tuples", int], "ice.Tuples"]

_ZERO = {"n": 0, "total": 0.0}


def aggregated(state: dict[str, Any], tuples: Any) -> list[Any]:
    """Count tuples and add up their amounts."""
    return [state["n"] + tuples.sizes, state["total"] + tuples.reduce(np.add, "amount")]


def merged(partials: Any) -> list[Any]:
    """Add up partial results."""
    return [partials.reduce(np.add, "n"), partials.reduce(np.add, "total")]


def fast_job(loans: ice.Tuples, fused: int) -> ice.Tuples:
    """Return the four operators in a row, `fused` of them fused."""
    last = len(WINDOWS) - 1
    for number, (name, length) in enumerate(zip(NAMES, WINDOWS, strict=True)):
        loans = loans.compute(
            aggregated,
            key="user",
            initial=_ZERO,
            window=length,
            emit="window" if number == last else "tuple",
            vectorised=True,
            name=name,
        )
    return loans.fused([NAMES[:fused]] if fused else "none")


def simple_job(loans: ice.Tuples, components: int) -> ice.Tuples:
    """Return windows built from partial results of a minute, in one or two components."""
    partials = loans.compute(
        aggregated, key="user", initial=_ZERO, window="1 minute", vectorised=True
    )
    windows = partials.consolidate(merged, windows=SIMPLE_WINDOWS, vectorised=True)
    return windows.fused("auto" if components == 1 else "none")


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run both jobs in all variants, one after the other."""
    batches, warm, rows = CASES[size]
    folder = scratch(workspace(), "fused-job")
    _write_files(folder / "in", batches, rows)
    spark = ice.local_session("fused-job", cores=2)
    ways: dict[str, tuple[Job, int]] = {
        f"{fused} fused": (fast_job, fused) for fused in (0, 2, 3, 4)
    }
    ways |= {f"simple, {count} components": (simple_job, count) for count in (1, 2)}
    progress.plan(1 + len(ways))
    progress.step("warming up")
    _run(spark, folder, fast_job, 4)
    seconds: dict[str, list[Took]] = {}
    for name, (job, how) in ways.items():
        progress.step(name)
        seconds[name] = _run(spark, folder, job, how)[warm:]
    whole, inside = (
        {name: statistics.median(took[place] for took in each) for name, each in seconds.items()}
        for place in (0, 1)
    )
    ratio = inside["0 fused"] / inside["4 fused"]
    ratio_whole = whole["0 fused"] / whole["4 fused"]
    simple = whole["simple, 2 components"] / whole["simple, 1 components"]
    figures = {
        "seconds_per_batch": whole,
        "component_seconds_per_batch": inside,
        "tuples_per_batch": rows,
        "fused_against_unfused": ratio,
        "fused_against_unfused_whole": ratio_whole,
        "one_component_against_two": simple,
    }
    shutil.rmtree(folder)
    return Measurement(
        figures,
        (
            Bar.at_least("fast job, four fused against none, components", WANTED, ratio),
            Bar.at_least("fast job, four fused against none, whole batches", WANTED, ratio_whole),
            Bar.at_least("simple job, one component against two", 1.1, simple),
        ),
    )


def _write_files(folder: Path, count: int, rows: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(16)
    areas = np.array([f"area {number:03d}" for number in range(200)])
    rows //= FILES
    for number in range(count * FILES):
        first = number // FILES * SPAN
        times = np.sort(rng.integers(first, first + SPAN, rows)) * 1_000_000
        table = pa.table(
            {
                "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "user": rng.integers(0, KEYS, rows),
                "area": areas[rng.integers(0, len(areas), rows)],
                "approval": rng.random(rows) < 0.7,
                "amount": rng.integers(1, 500, rows) * 100.0,
                "back": rng.integers(1, 600, rows) * 100.0,
                "term": rng.integers(6, 61, rows).astype(np.int32),
                "income": rng.integers(10, 200, rows) * 1000.0,
            }
        )
        path = folder / f"{number:05d}.arrow"
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, RECORD_ROWS)
        os.utime(path, (1e9 + number, 1e9 + number))


def _run(spark: Any, folder: Path, job: Job, how: int) -> list[Took]:
    """Return the seconds of each batch."""
    files = ice.files(spark, str(folder / "in"), "arrow", schema=_SCHEMA, maxFilesPerTrigger=FILES)
    result = job(ice.job(ice.stream(files, time="ts")), how)
    checkpoint = folder / "checkpoint"
    query = (
        result.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .memory("512 MB")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    reports: Sequence[Any] = query.recentProgress
    shutil.rmtree(checkpoint)
    return [_took(each["durationMs"]) for each in reports]


def _took(phases: Mapping[str, float]) -> Took:
    inside = sum(millis for name, millis in phases.items() if name.startswith("component "))
    return phases["triggerExecution"] / 1000, inside / 1000


def plot(figures: Figures, target: Path) -> None:
    """Draw the seconds of a batch for each variant."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - measuring needs no plots

    whole, inside = figures["seconds_per_batch"], figures["component_seconds_per_batch"]
    chart, axes = plt.subplots(figsize=(7, 3.4))
    axes.bar(list(whole), list(whole.values()), color="#c9d8ea", label="whole batch")
    axes.bar(list(inside), list(inside.values()), color="#4878b0", label="components")
    axes.legend()
    axes.set_ylabel(f"seconds per {figures['tuples_per_batch']:,} tuples")
    axes.set_title(f"four fused: {figures['fused_against_unfused']:.1f} times faster than none")
    axes.tick_params(axis="x", labelrotation=20)
    chart.tight_layout()
    chart.savefig(target, dpi=120)
    plt.close(chart)


BENCH = Bench(
    "fused-job",
    "four fused operators that send tuples along are at least 3 times faster than unfused ones",
    measure,
    plot,
)
