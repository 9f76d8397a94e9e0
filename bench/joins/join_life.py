"""Joins that defer results, left on: thousands of versions of steady arrivals in little memory.

Idea: two streams arrive at a constant rate and are joined in a tenth of the memory that their rows
would take: once within a window, where rows end, and once forever, with keys that move on. What was
spilled must be cleaned up in turn while rows flow, what has ended must leave the log and its index,
and the share of results that come at once must not fall. The windowed join also runs with each
`onPressure`, in 9 and 20 MB and in enough, for its processor time. Another join goes on with enough
memory after most of its rows were spilled and cleaned up: its results must come at once again.

Limits: one process; times are those of the bench's rows.

References: `Bench` in `registry`.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMAS = tuple(
    pa.schema([(f"k{name}", pa.int64()), (f"v{name}", pa.int64())]) for name in ("a", "b")
)
#: bytes that a row takes in memory, about: itself, its key, its place in the index
ROW_BYTES = 120
#: part of that which the query gets
PART = 10
LEAST_BUDGET = 5 << 18

WINDOWED, FOREVER = "windowed", "forever"
LEAST_EARLY = 0.9
#: share of results that come at once in so many versions after what was spilled is back in memory
LEAST_RECOVERED, AFTERWARDS = 0.95, 5
#: processor time of `auto` for that of the better of the others
MOST_TIME = 1.1
#: megabytes in which they are compared; the last are enough
BUDGETS = (9, 20, 64)
MOST_VERSIONS = 200
#: bytes of the log for a byte of live rows, and bytes of the index for a byte of the log
MOST_LOG = 3.0
MOST_INDEX = 0.05


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run."""

    versions: int
    #: rows of each stream in a version
    rows: int
    #: versions for which a row of the windowed join lives
    window: int


SCALES = {Size.SMALL: Scale(400, 1_500, 40), Size.FULL: Scale(5_000, 1_500, 100)}


def flow_of(kind: str, scale: Scale, pressure: str = "defer") -> Dataflow:
    """Return the join of two streams."""
    from icestream.api.events import Events  # noqa: PLC0415 - listing benches needs no Spark

    a, b = (Events(FromSource(schema, source=n), {}) for n, schema in enumerate(SCHEMAS))
    if kind == WINDOWED:
        within = (scale.window - 1) * SECOND
        made = a.join(b, on=[("ka", "kb")], within=within, onPressure=pressure)
    else:
        made = a.forever().join(b.forever(), on=[("ka", "kb")], onPressure=pressure)
    sources = (Source("a", 0), Source("b", 0))
    return compiled(((made._node, "append"),), {0: 0, 1: 1}, sources, SCHEMAS, TIME)


def batch_of(flow: Dataflow, version: int, scale: Scale, dice: np.random.Generator) -> Any:
    """Return the rows of a version, one batch for each stream; keys move on with time."""
    batches = []
    newest = (version + scale.window) * scale.rows
    for number in range(2):
        keys = pa.array(dice.integers(version * scale.rows, newest, scale.rows))
        times = pa.array(np.full(scale.rows, version * SECOND)).cast(TIME)
        mine = [keys, pa.array(np.arange(scale.rows))]
        others = [pa.nulls(scale.rows, pa.int64())] * 2
        columns = [*mine, *others] if number == 0 else [*others, *mine]
        source = pa.array(np.full(scale.rows, number, dtype=np.int32))
        batches.append(
            pa.RecordBatch.from_arrays([times, source, *columns], schema=flow.batch_schema)
        )
    return [batches]


def run(kind: str, scale: Scale, folder: Path) -> dict[str, Any]:
    """Run a join for all versions; return what it held and emitted in each fifth."""
    flow = flow_of(kind, scale)
    live = 2 * scale.rows * (scale.window if kind == WINDOWED else scale.versions)
    budget = max(LEAST_BUDGET, live * ROW_BYTES // PART)
    settings = Settings(
        root=f"{folder}/checkpoint", local=f"{folder}/local", budget=budget, shards=1
    )
    query = LocalQuery(flow, settings)
    dice = np.random.default_rng(28)
    fifths: list[Counter[str]] = [Counter() for _ in range(5)]
    turns = Turns()
    recent: deque[list[pa.RecordBatch]] = deque(maxlen=scale.window)
    for version in range(scale.versions):
        (split,) = batch = batch_of(flow, version, scale, dice)
        recent.append(split)
        (delivery,) = query.driver.batch(version, batch)
        assert delivery.progress is not None
        facts = delivery.progress["icestream"]
        (join,) = facts["joins"]
        fifth = fifths[5 * version // scale.versions]
        fifth["early"] += join["earlyRows"]
        fifth["results"] += pairs_of(recent)
        fifth["log"] = max(fifth["log"], facts["logBytes"])
        fifth["index"] = max(fifth["index"], join["indexBytes"])
        turns.note(delivery.commit.decisions["joins"]["turnEnded"])
    query.close()
    return {
        "budget": budget,
        "live_bytes": live * ROW_BYTES,
        "early_share": [each["early"] / max(1, each["results"]) for each in fifths],
        "log_bytes": [each["log"] for each in fifths],
        "index_bytes": [each["index"] for each in fifths],
        "longest_round": turns.longest,
    }


def recovered(folder: Path) -> dict[str, float]:
    """Return the share of results that come at once after a spill, a restart and a clean-up."""
    scale = SCALES[Size.SMALL]
    flow, dice = flow_of(FOREVER, scale), np.random.default_rng(29)
    recent: deque[list[pa.RecordBatch]] = deque(maxlen=scale.window)
    early = results = spilled = 0
    for budget, versions in (
        (LEAST_BUDGET, range(scale.window)),
        (BUDGETS[-1] << 20, range(scale.window, scale.window + AFTERWARDS)),
    ):
        settings = Settings(
            root=f"{folder}/checkpoint", local=f"{folder}/local", budget=budget, shards=1
        )
        query = LocalQuery(flow, settings)
        query.clean_up()
        early = results = 0
        for version in versions:
            (split,) = batch = batch_of(flow, version, scale, dice)
            recent.append(split)
            (delivery,) = query.driver.batch(version, batch)
            assert delivery.progress is not None
            (join,) = delivery.progress["icestream"]["joins"]
            early, results = early + join["earlyRows"], results + pairs_of(recent)
            spilled += join["bytesSpilled"]
        query.close()
    return {"early_share": early / results, "bytes_spilled": spilled}


def pairs_of(recent: Sequence[Sequence[pa.RecordBatch]]) -> int:
    """Return the number of pairs with a row of the last version; older rows have other keys."""
    columns = [[split[number].column(2 + 2 * number) for split in recent] for number in range(2)]
    keys = [[np.asarray(each) for each in side] for side in columns]
    found = 0
    for one, other in ((0, recent), (1, list(recent)[:-1])):
        stored = np.sort(np.concatenate([[0], *keys[1 - one][: len(other)]]))
        ends = [np.searchsorted(stored, keys[one][-1], side) for side in ("right", "left")]
        found += int((ends[0] - ends[1]).sum())
    return found


def processor_times(scale: Scale, folder: Path) -> dict[str, dict[str, float]]:
    """Return seconds of processor time of a windowed join, its last clean-up included."""
    found: dict[str, dict[str, float]] = {}
    for megabytes in BUDGETS:
        name = f"{megabytes} MB"
        for pressure in ("fetch", "defer", "auto"):
            flow = flow_of(WINDOWED, scale, pressure)
            root = folder / pressure / name
            settings = Settings(
                root=f"{root}/c", local=f"{root}/l", budget=megabytes << 20, shards=1
            )
            query, dice = LocalQuery(flow, settings), np.random.default_rng(28)
            seconds = 0.0
            for version in range(2 * scale.window):
                batch = batch_of(flow, version, scale, dice)
                seconds -= time.process_time()
                query.driver.batch(version, batch)
                seconds += time.process_time()
            seconds -= time.process_time()
            query.clean_up()
            found.setdefault(name, {})[pressure] = seconds + time.process_time()
            query.close()
    return found


class Turns:
    """How many versions it takes to clean up all partitions that owe results, in turn."""

    def __init__(self) -> None:
        """Start before the first turn."""
        self.longest = self._versions = 0
        self._last = [-1, -1]

    def note(self, ended: Sequence[int]) -> None:
        """Take the partition that was cleaned up last, after a version."""
        self._versions += 1
        if list(ended) < self._last:
            self.longest = max(self.longest, self._versions)
            self._versions = 0
        self._last = list(ended)
        if self._last == [-1, -1]:
            self._versions = 0


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run both joins."""
    scale, work = SCALES[size], scratch(workspace(), "join_life")
    progress.plan(4)
    figures: dict[str, Any] = {}
    for kind in (WINDOWED, FOREVER):
        progress.step(kind)
        figures[kind] = run(kind, scale, work / kind)
    progress.step("processor times")
    figures["seconds"] = processor_times(scale, work / "seconds")
    progress.step("after a spill")
    figures["recovered"] = recovered(work / "recovered")
    return Measurement(figures, judge(figures))


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    bars: list[Bar] = []
    for name, seconds in figures.get("seconds", {}).items():
        best = min(seconds["fetch"], seconds["defer"])
        bars.append(Bar.at_most(f"{name}: auto to the best", MOST_TIME, seconds["auto"] / best))
    if "recovered" in figures:
        share = figures["recovered"]["early_share"]
        bars.append(Bar.at_least("early share after a spill", LEAST_RECOVERED, share))
    for kind in (each for each in (WINDOWED, FOREVER) if each in figures):
        each = figures[kind]
        second, last = each["early_share"][1], each["early_share"][4]
        log, index = each["log_bytes"][4], each["index_bytes"][4]
        bars += [
            Bar.at_least(f"{kind}: early share, last to second fifth", LEAST_EARLY, last / second),
            Bar.at_most(f"{kind}: log to live bytes", MOST_LOG, log / each["live_bytes"]),
            Bar.at_most(f"{kind}: index to log", MOST_INDEX, index / log),
            Bar.at_most(f"{kind}: versions of a round", MOST_VERSIONS, each["longest_round"]),
        ]
    return tuple(bars)


def plot(figures: Figures, target: Path) -> None:
    """Draw early shares, log and index by fifths of the run."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(9, 2.8), layout="constrained")
    axes = drawing.subplots(1, 3)
    names = ("early_share", "log_bytes", "index_bytes")
    for axis, name in zip(axes, names, strict=True):
        for kind in (WINDOWED, FOREVER):
            each = figures[kind]
            axis.plot(range(1, 6), each[name], marker="o", label=kind)
        axis.set(xlabel="fifth of the run", title=name.replace("_", " "), ylim=(0, None))
    axes[0].legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


BENCH = Bench(
    "join-life",
    "deferring joins stay on in a tenth of the memory: log, index and early results hold steady",
    measure,
    plot,
)
