"""The time of a version by the number of shards: the price of room to grow.

Idea: one query in one process, fed the same batches, with more and more shards, in turn. Small
batches show the cost of a shard that has hardly anything to do, large ones what it adds to other
work. Wall-clock milliseconds include waiting for the disk, processor milliseconds do not.

Limits: one task runs all shards, on real files; several tasks run their parts at the same time.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.registry import Size
from bench.research.simulated_cluster.job import WindowJob
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings

MINUTE = 60_000_000
SHARDS = (2, 8, 16, 32, 64)
MEMORY = 512 << 20
#: batches not measured: files and tables grow in the first ones
WARM = 3


@dataclass(frozen=True)
class Batches:
    """The input of every query."""

    events: int
    keys: int
    #: measured batches
    count: int


CASES = {
    Size.SMALL: (Batches(1_000, 100, 5),),
    Size.FULL: (Batches(1_000, 100, 30), Batches(500_000, 50_000, 7)),
}


@dataclass
class _Run:
    """A query with some shards, and the times of its versions."""

    query: LocalQuery
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def feed(self, batch: pa.RecordBatch) -> None:
        half = batch.num_rows // 2
        began = time.perf_counter(), time.process_time()
        self.query.feed([[batch.slice(0, half)], [batch.slice(half)]])
        self.wall.append(time.perf_counter() - began[0])
        self.processor.append(time.process_time() - began[1])


def cost_of_shards(size: Size, folder: Path) -> list[dict[str, Any]]:
    """Return milliseconds of a version, by events in a batch and shards."""
    return [row for case in CASES[size] for row in _measured(case, folder / str(case.events))]


def per_shard(rows: list[dict[str, Any]], time: str) -> float:
    """Return what each further shard adds to the smallest batches, by `ms` or `processor_ms`."""
    fewest = min(row["events"] for row in rows)
    mine = sorted((row["shards"], row[time]) for row in rows if row["events"] == fewest)
    (few, least), (many, most) = mine[0], mine[-1]
    return float((most - least) / (many - few))


def _measured(case: Batches, folder: Path) -> list[dict[str, Any]]:
    plan = WindowJob((Windows(10 * MINUTE, MINUTE),), MINUTE, 256).combined
    runs = {}
    for shards in SHARDS:
        home = folder / str(shards)
        settings = Settings(f"{home}/checkpoint", f"{home}/local", MEMORY, shards, parallelism=1)
        runs[shards] = _Run(LocalQuery(plan, settings))
    dice = np.random.default_rng(5)
    for number in range(WARM + case.count):
        times = np.sort(
            dice.integers(number * MINUTE // 2, (number + 1) * MINUTE // 2, case.events)
        )
        batch = pa.record_batch(
            [
                pa.array(times).cast(plan.time),
                pa.array(np.zeros(case.events, dtype=np.int32)),
                pa.array(dice.integers(0, case.keys, case.events)),
                pa.array(dice.integers(0, 1_000, case.events)),
            ],
            schema=plan.batch_schema,
        )
        for run in runs.values():
            run.feed(batch)
    for run in runs.values():
        run.query.close()
    return [
        {
            "events": case.events,
            "keys": case.keys,
            "shards": shards,
            "ms": round(1e3 * statistics.median(run.wall[WARM:]), 2),
            "processor_ms": round(1e3 * statistics.median(run.processor[WARM:]), 2),
        }
        for shards, run in runs.items()
    ]
