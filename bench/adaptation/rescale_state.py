"""Rescaling with much state: new shards are prepared beside the old ones, whatever there is.

Idea: a query first reads large files, so that it has the state of many keys, then small ones in
real time. Meanwhile its shards change again and again, each time once the last change is over and
a few batches went by. The pause of a change is the longer excess of the two batches around it
(`rescale`): of the one that ends with snapshots of all shards, and of the one that begins with
the others. The same with a tenth of the state shows whether pauses grow with it.

Limits: preparing takes processor time from the batches meanwhile, which is not a pause, and is
reported as the seconds of a change.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import icestream as ice
from bench.adaptation.rescale import component_ms
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size

#: bytes of an event of the loading phase in the state, about
EVENT = 100
#: events of a file while state is loaded, and later
LOADED, LATER = 500_000, 2_000
#: seconds from file to file, and the most that a change may take
STEP, PATIENCE = 0.4, 240.0
#: batches between two changes, and shards
CALM = 6
COURSE = (8, 32, 5, 2)
SHARDS = 2
SECOND = 1_000_000
MOST_PAUSE, MOST_GROWTH = 150.0, 1.5


@dataclass(frozen=True)
class State:
    """How much state there is, and how often shards change."""

    name: str
    bytes: int
    changes: int
    memory: str


CASES = {
    Size.SMALL: (State("20 MB", 20_000_000, 3, "512 MB"), State("60 MB", 60_000_000, 3, "512 MB")),
    Size.FULL: (State("100 MB", 100_000_000, 10, "2 GB"), State("1 GB", 1_000_000_000, 10, "2 GB")),
}


def _windows(events: Any) -> Any:
    windows = events.window("2 hours", slide="1 hour")
    return windows.groupBy("key").agg(ice.count().alias("n"), ice.sum("value").alias("total"))


def _sessions(events: Any) -> Any:
    sessions = events.session("2 hours")
    return sessions.groupBy("key").agg(ice.count().alias("n"), ice.sum("value").alias("total"))


def _groups(events: Any) -> Any:
    lasting = events.events().alterLifetime("2 hours")
    return lasting.groupApply("key", lambda g: g.agg(ice.sum("value").alias("total")))


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "windows of panes": _windows,
    "sessions": _sessions,
    "groups: aggregate": _groups,
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Change the shards of each kind of query, with less and more state."""
    less, more = CASES[size]
    progress.plan(2 * len(KINDS))
    spark = ice.local_session("rescale-state", cores=2)
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for kind, query in KINDS.items():
        rows = {}
        for state in (less, more):
            progress.step(f"{kind}, {state.name}")
            folder = scratch(workspace(), "rescale-state")
            rows[state.name] = _measured(spark, folder, query, state)
            shutil.rmtree(folder, ignore_errors=True)
        figures[kind] = rows
        least, most = (rows[state.name]["pause_ms"] for state in (less, more))
        bars += [
            Bar.at_least(f"{kind}: changes of shards", more.changes, rows[more.name]["changes"]),
            Bar.at_least(f"{kind}: bytes of state", more.bytes, rows[more.name]["state_bytes"]),
            Bar.at_most(f"{kind}: ms of a pause with {more.name}", MOST_PAUSE, most),
            Bar.at_most(
                f"{kind}: pause with {more.name} by that with {less.name}",
                MOST_GROWTH,
                most / max(least, MOST_PAUSE / 10),
            ),
        ]
    spark.stop()
    return Measurement(figures, tuple(bars))


def _measured(
    spark: Any, folder: Path, query: Callable[[Any], Any], state: State
) -> dict[str, Any]:
    """Return the pauses of a query while it has this much state."""
    (folder / "in").mkdir(parents=True)
    events = state.bytes // EVENT
    files = max(1, events // LOADED)
    for number in range(files):
        _write(folder / "in", number, np.arange(number * LOADED, (number + 1) * LOADED))
    stream = spark.readStream.schema("ts timestamp, key bigint, value bigint")
    stream = stream.option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    running = (
        query(ice.stream(stream, time="ts", slack="1 second"))
        .writeStream.format("noop")
        .options(checkpointLocation=str(folder / "checkpoint"), rebalance="off")
        .memory(state.memory)
        .shards(SHARDS)
        .parallelism(2)
        .trigger(processingTime="0 seconds")
        .start()
    )
    running.processAllAvailable()
    reports: dict[int, Any] = {}
    changes: list[float] = []
    course, numbers = itertools.cycle(COURSE), itertools.count(files)
    asked, wanted, calm = 0.0, SHARDS, 0
    dice = np.random.default_rng(1)
    while len(changes) < state.changes or calm < CALM:
        began = time.monotonic()
        _write(folder / "in", next(numbers), dice.integers(0, events, LATER))
        running.processAllAvailable()
        reports |= {each["version"]: each for each in running.recentProgress}
        last = reports[max(reports)]["icestream"]
        if asked and last["shardsOfComponent"] == wanted:
            changes.append(time.monotonic() - asked)
            asked, calm = 0.0, 0
        elif asked and time.monotonic() - asked > PATIENCE:
            break
        elif not asked:
            calm += 1
            if calm >= CALM and len(changes) < state.changes:
                wanted, asked = next(course), time.monotonic()
                running.rescale(2, shards=wanted)
        time.sleep(max(0.0, began + STEP - time.monotonic()))
    running.stop()
    loading = files + 2
    timeline = [
        (component_ms(each["durationMs"]), each["icestream"]["shardsOfComponent"])
        for version, each in sorted(reports.items())
        if version > loading
    ]
    normal = statistics.median(took for took, _ in timeline)
    found = [
        (timeline[at - 1][0] - normal, timeline[at][0] - normal)
        for at in range(1, len(timeline))
        if timeline[at][1] != timeline[at - 1][1]
    ]
    return {
        "state_bytes": last["logBytes"],
        "memory_bytes": last["stateMemoryBytes"],
        "keys": files * LOADED,
        "batch_ms": normal,
        "changes": len(found),
        "pause_ms": statistics.median(max(both) for both in found) if found else PATIENCE * 1_000,
        "before_ms": statistics.median(before for before, _ in found) if found else None,
        "after_ms": statistics.median(after for _, after in found) if found else None,
        "seconds_of_a_change": statistics.median(changes) if changes else None,
        "not_prepared": last["shardsNotPrepared"],
        "timeline": timeline,
    }


def _write(folder: Path, number: int, keys: Any) -> None:
    """Write a file of a second of events, under its name once it is whole."""
    times = number * SECOND + np.arange(len(keys)) * SECOND // len(keys)
    table = {
        "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
        "key": keys,
        "value": keys % 1_000,
    }
    hidden = folder / f".{number:06d}.parquet"
    pq.write_table(pa.table(table), hidden)
    hidden.rename(folder / f"{number:06d}.parquet")


def plot(figures: Figures, target: Path) -> None:
    """Draw the times of batches, and the number of shards, with the larger state."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - measuring needs no plots

    chart, panels = plt.subplots(1, len(figures), figsize=(4 * len(figures), 3), squeeze=False)
    for axes, (kind, rows) in zip(panels[0], figures.items(), strict=True):
        name = list(rows)[-1]
        took, shards = zip(*rows[name]["timeline"], strict=True)
        axes.plot(took, lw=1.2)
        axes.set(title=f"{kind}, {name}", xlabel="batch", ylabel="component ms")
        axes.set_ylim(bottom=0)
        other = axes.twinx()
        other.step(range(len(shards)), shards, where="mid", color="tab:orange", lw=1)
        other.set(ylabel="shards", ylim=(0, max(COURSE) + 1))
    chart.tight_layout()
    chart.savefig(target, dpi=120)
    plt.close(chart)


BENCH = Bench(
    "rescale-state",
    "the pause of a change of shards does not grow with the state",
    measure,
    plot,
)
