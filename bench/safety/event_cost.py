"""Processor time of an event in little memory: batches of any size, aggregates that are objects.

Idea: the same events run through a query with a row per event in 8 MB, in batches of 100,000 and in
larger ones, up to one that has all of them. Then a percentile, a distinct count and the most
frequent value over 1 h / 10 min run for four grouping sets. One process each, without Spark.

Run as `python -m bench.safety.event_cost PLAN`; prints one JSON line.

Invariants:
1. All sizes of batches give as many rows (`test_batches_of_any_size_give_the_same_rows`).

Limits: the second half of the events counts for aggregates that are objects; for batches all do.
Sizes run in turn, and the median of their rounds counts: other programs make single runs dearer.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from bench.windows.frame_cost import INSTANT, vwap_events, vwap_plan
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings

MINUTE = 60_000_000
#: bytes of memory for batches, and for objects
LITTLE = 8 << 20
MEMORY = 64 << 20
#: rows of an Arrow batch, as Spark sends them
PIECE = 32_768
#: events in a second of event time
RATE = 100
#: how often each size of batches runs
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Events:
    """How many events there are, and sizes of batches."""

    batched: int
    sizes: tuple[int, ...]
    objects: int
    batch: int


def batch_costs(events: Events, folder: Path) -> dict[str, Any]:
    """Return microseconds of processor time an event by size of batch, and rows by size."""
    plan = vwap_plan()
    parts = [
        pa.record_batch(vwap_events(first, PIECE), schema=plan.batch_schema)
        for first in range(0, events.batched, PIECE)
    ]
    table = pa.Table.from_batches(parts).slice(0, events.batched)
    _batch_cost(table, events.sizes[0], folder)  # compiles
    # as in the workers of Spark: what was loaded is never garbage
    gc.collect()
    gc.freeze()
    costs: dict[str, list[float]] = {str(size): [] for size in events.sizes}
    rows = {}
    for _ in range(ROUNDS):
        for size in events.sizes:
            cost, rows[str(size)] = _batch_cost(table, size, folder)
            costs[str(size)].append(cost)
    middle = {size: median(each) for size, each in costs.items()}
    return {
        "microseconds": middle,
        "rows": rows,
        "ratio": max(middle.values()) / min(middle.values()),
    }


def _batch_cost(table: pa.Table, size: int, folder: Path) -> tuple[float, int]:
    """Return what an event costs in batches of a size, and how many rows there are."""
    query = LocalQuery(vwap_plan(), _settings(folder, LITTLE))
    begun, rows = time.process_time(), 0
    for number, first in enumerate(range(0, table.num_rows, size)):
        rows += _rows(query, number, table.slice(first, size).to_batches())
    query.close()
    cost = 1e6 * (time.process_time() - begun) / table.num_rows
    shutil.rmtree(folder)
    return cost, rows


def object_plan() -> Plan:
    """Return a percentile, a distinct count and the most frequent value for four grouping sets."""
    return Plan.of(
        windows=Windows(60 * MINUTE, 10 * MINUTE),
        keys=pa.schema([("region", pa.int64()), ("product", pa.int64())]),
        aggregates=(
            Aggregate("percentile", "x0", "p90", parameters=(0.9,)),
            Aggregate("count_distinct", "x1", "users"),
            Aggregate("mode", "x1", "most"),
        ),
        grouping_sets=((0, 1), (0,), (1,), ()),
        sources=(Source("events", 0),),
        inputs=pa.schema([("x0", pa.float64()), ("x1", pa.int64())]),
        expressions=("price", "user"),
        time=INSTANT,
    )


def object_rate(events: Events, folder: Path) -> dict[str, Any]:
    """Return the events of a second of processor time, and the rows."""
    query = LocalQuery(object_plan(), _settings(folder / "objects", MEMORY))
    schema, batches = query.plan.batch_schema, events.objects // events.batch
    seconds, rows = 0.0, 0
    for number in range(batches):
        batch = pa.record_batch(list(_object_events(number, events.batch)), schema=schema)
        begun = time.process_time()
        rows += _rows(query, number, [batch])
        seconds += (time.process_time() - begun) * (number >= batches // 2)
    query.close()
    return {
        "events_per_cpu_second": (batches - batches // 2) * events.batch / seconds,
        "rows": rows,
    }


def _object_events(number: int, count: int) -> Iterator[Any]:
    """Yield the columns of a batch."""
    dice = np.random.default_rng([3, number])
    place = np.arange(number * count, (number + 1) * count)
    yield pa.array(place * (1_000_000 // RATE)).cast(INSTANT)
    yield np.zeros(count, dtype=np.int32)
    yield dice.integers(0, 20, count)
    yield dice.integers(0, 10, count)
    yield np.round(dice.normal(100, 10, count), 1)
    yield dice.zipf(1.3, count) % 5_000


def _settings(folder: Path, budget: int) -> Settings:
    return Settings(str(folder / "checkpoint"), str(folder / "local"), budget, shards=2)


def _rows(query: LocalQuery, number: int, batches: Sequence[pa.RecordBatch]) -> int:
    deliveries = query.driver.batch(number, [batches])
    return sum(each.progress["icestream"]["resultRows"] for each in deliveries)


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    what = {"batches": batch_costs, "objects": object_rate}[plan["what"]]
    sizes = plan["events"].pop("sizes")
    print(json.dumps(what(Events(sizes=tuple(sizes), **plan["events"]), Path(plan["folder"]))))
