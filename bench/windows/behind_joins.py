"""Sliding windows behind a join at one cost, whatever their overlap: processor time of one process.

Idea: pairs of two streams within ten seconds are aggregated by group in windows that slide by ten
seconds, of 1, 60 and 360 times that length. Only the range differs, so the time of an event must
not. The second half of the batches counts, when the longest windows are full. All windows together
count every pair range/slide times, which is checked. Mode `append` emits a row when its window
closes; mode `now` emits the rows of all open windows that a batch changed, which are range/slide
for each group, so only `append` has a bar.

Limits: no exchange over a network and no Spark, whose cost for a batch does not depend on windows.
"""

from __future__ import annotations

import gc
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings

SECOND = 1_000_000
SLIDE = 10 * SECOND
OVERLAPS = (1, 60, 360)
MODES = ("append", "now")
INSTANT = pa.timestamp("us", "UTC")
SCHEMAS = (
    pa.schema([("item", pa.int64()), ("shop", pa.int64()), ("price", pa.float64())]),
    pa.schema([("item", pa.int64())]),
)
AGGREGATES = (("count", (), "n"), ("sum", ("price",), "total"), ("max", ("price",), "most"))
GROUPS = 100
MEMORY = 256 << 20
#: the most that the processor time of an event may grow
FLAT = 1.3


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run: events per second of event time and stream, and batches of 200 seconds."""

    rate: int
    batches: int = 40


SCALES = {Size.SMALL: Scale(50), Size.FULL: Scale(1_000)}
BATCH_SECONDS = 200


def query_of(overlap: int, mode: str = "append") -> Dataflow:
    """Return pairs within ten seconds, aggregated in windows of so many slides."""
    # these import Spark, which listing benches does not
    from icestream.api.events import Events  # noqa: PLC0415
    from icestream.api.functions import AggregateExpression  # noqa: PLC0415
    from icestream.api.window_rows import rows_of_windows  # noqa: PLC0415

    part = cast("Any", SimpleNamespace(time_type=INSTANT, zone="UTC"))
    prices, asks = (
        Events(FromSource(schema, source=number), {number: part})
        for number, schema in enumerate(SCHEMAS)
    )
    pairs = prices.join(asks, on="item", within="10 seconds")
    rows = rows_of_windows(
        pairs._final() if mode == "append" else pairs,
        Windows(overlap * SLIDE, SLIDE),
        ["shop"],
        None,
        [
            AggregateExpression(function, cast("Any", columns), name=name)
            for function, columns, name in AGGREGATES
        ],
    )
    sources = tuple(Source(name, 5 * SECOND) for name in ("prices", "asks"))
    shown = rows._final() if mode == "append" else rows
    return compiled(((shown._node, mode),), {0: 0, 1: 1}, sources, SCHEMAS, INSTANT)


def events_of(flow: Dataflow, rate: int, batch: int) -> list[list[pa.RecordBatch]]:
    """Return a batch of both streams: an item is in each about once in ten seconds."""
    dice = np.random.default_rng(batch)
    count = 2 * rate * BATCH_SECONDS
    times = (
        np.sort(dice.integers(0, BATCH_SECONDS * SECOND, count)) + batch * BATCH_SECONDS * SECOND
    )
    source = dice.integers(0, 2, count)
    of = [pa.array(source != number) for number in (0, 1)]
    items, shops = dice.integers(0, 10 * rate, count), dice.integers(0, GROUPS, count)
    columns = [
        pa.array(times, INSTANT),
        pa.array(source.astype(np.int32)),
        pa.array(items, mask=np.asarray(of[0])),
        pa.array(shops, mask=np.asarray(of[0])),
        pa.array(dice.integers(1, 1_000, count) / 8, mask=np.asarray(of[0])),
        pa.array(items, mask=np.asarray(of[1])),
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)
    half = count // 2
    return [[whole.slice(0, half)], [whole.slice(half)]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What an event costs in microseconds of processor time, and what windows counted."""

    microseconds: float
    #: the pairs in all windows, over range/slide
    pairs: float
    rows_by_event: float


def cost_of(overlap: int, mode: str, scale: Scale) -> Cost:
    """Return what an event costs in the second half of the batches."""
    flow = query_of(overlap, mode)
    taken: list[float] = []
    rows: list[pa.Table] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(root=f"{folder}/checkpoint", local=folder, budget=MEMORY)
        query = LocalQuery(flow, settings)
        gc.collect()
        gc.freeze()
        for batch in range(scale.batches):
            splits = events_of(flow, scale.rate, batch)
            before = time.process_time()
            rows.append(query.feed(splits))
            taken.append(time.process_time() - before)
        if mode == "append":
            rows.append(query.flush())
        query.close()
    half = scale.batches // 2
    events = 2 * scale.rate * BATCH_SECONDS * (scale.batches - half)
    emitted = sum(each.num_rows for each in rows[half : scale.batches])
    return Cost(sum(taken[half:]) / events * 1e6, _counted(rows) / overlap, emitted / events)


def _counted(rows: list[pa.Table]) -> int:
    """Return what windows count in their last row."""
    whole = pa.concat_tables(rows)
    keys = [pc.struct_field(whole.column("window"), "start"), whole.column("shop")]
    flat = pa.table([*keys, whole.column("n")], names=["start", "shop", "n"])
    last = flat.group_by(["start", "shop"], use_threads=False).aggregate([("n", "last")])
    return cast("int", pc.sum(last.column("n_last")).as_py())


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Measure the cost of an event for each mode and overlap."""
    progress.plan(1 + len(MODES) * len(OVERLAPS))
    progress.step("warming up")
    for mode in MODES:
        cost_of(1, mode, Scale(10, 3))
    found = {}
    for mode in MODES:
        for overlap in OVERLAPS:
            progress.step(f"{mode}, range / slide = {overlap}")
            found[mode, overlap] = cost_of(overlap, mode, SCALES[size])
    counted = {each.pairs for each in found.values()}
    if len(counted) != 1:
        msg = f"windows of different overlap count different pairs: {sorted(counted)}"
        raise AssertionError(msg)
    figures: dict[str, Any] = {"pairs": counted.pop()}
    for (mode, overlap), cost in found.items():
        figures[f"{mode}: us at {overlap}"] = cost.microseconds
        figures[f"{mode}: rows an event at {overlap}"] = cost.rows_by_event
        figures[f"{mode}: {overlap} / 1"] = cost.microseconds / found[mode, 1].microseconds
    bars = tuple(
        Bar.at_most(f"processor time at {each} / 1", FLAT, figures[f"append: {each} / 1"])
        for each in OVERLAPS[1:]
    )
    return Measurement(figures, bars)


def plot(figures: Figures, target: Path) -> None:
    """Draw the cost of an event by the overlap of windows."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(6, 3), layout="constrained")
    axes = drawing.subplots()
    for number, mode in enumerate(MODES):
        places = [at + 0.4 * (number - 0.5) for at in range(len(OVERLAPS))]
        costs = [figures[f"{mode}: us at {each}"] for each in OVERLAPS]
        axes.bar_label(axes.bar(places, costs, 0.38, label=mode), fmt="%.2f")
    axes.set_xticks(range(len(OVERLAPS)), [str(each) for each in OVERLAPS])
    axes.set_xlabel("range / slide of windows behind a join")
    axes.set_ylabel("microseconds of processor time an event")
    axes.legend()
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


BENCH = Bench(
    "windows-behind-joins",
    "sliding windows behind a join cost the same whatever their overlap",
    measure,
    plot,
)
