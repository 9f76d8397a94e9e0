"""A join and an aggregate by the same key on Spark: in one component, and in two.

Idea: what groups by the keys of a join runs inside its component, and its sums are computed from
both sides, without pairs. `repartition()` between the two sends the pairs over an exchange, as
every group did before, to a component of its own. Both queries read the same files in the same
batches, in turn; rates are of the events of both streams, by the median of whole batches, once
warm. One event in ten meets another, or each meets one or four: pairs are what the one component
saves.

Limits: rows go to no table. The fewer events a batch has, the more its jobs weigh.
"""

from __future__ import annotations

import os
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import icestream as ice
from bench.registry import Size

SECOND = 1_000_000
#: events of each stream in a batch
EVENTS = {Size.SMALL: (2_000,), Size.FULL: (2_000, 50_000)}
#: events of the other stream that an event meets
PARTNERS = (0.1, 1, 4)
#: rounds, batches of each, and how many of them warm up
ROUNDS = {Size.SMALL: (1, 10, 4), Size.FULL: (3, 24, 8)}
FUSED, PARTED = "one component", "two components"


def join_then_aggregate(size: Size, folder: Path) -> dict[str, dict[str, float]]:
    """Return the events per second of both queries, and their ratio, by events of a batch."""
    rounds, batches, warm = ROUNDS[size]
    spark = ice.local_session("fusion", cores=2)
    found: dict[str, dict[str, float]] = {}
    for events, partners in product(EVENTS[size], PARTNERS):
        home = folder / f"{events}-{partners}"
        for number, side in enumerate("ab"):
            _write(home / side, side, batches, events, partners, number)
        took: dict[str, list[float]] = {FUSED: [], PARTED: []}
        for number in range(rounds):
            for name in took:
                parted = name == PARTED
                took[name] += _batches(spark, home, f"{name}-{number}", parted=parted)[warm:]
        rates = {name: 2_000 * events / statistics.median(each) for name, each in took.items()}
        name = f"{events:,} events" + (f", {partners:g} partners" if partners != 1 else "")
        found[name] = {**rates, "ratio": rates[FUSED] / rates[PARTED]}
    spark.stop()
    return found


def _write(folder: Path, side: str, files: int, events: int, partners: float, seed: int) -> None:
    """Write a stream whose events meet about so many of the other."""
    folder.mkdir(parents=True)
    dice = np.random.default_rng(seed)
    for number in range(files):
        times = np.sort(dice.integers(0, 5 * SECOND, events)) + number * 5 * SECOND
        table = {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "user": dice.integers(0, round(events / partners), events),
            side: dice.integers(0, 100, events),
        }
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.table(table), path)
        os.utime(path, (1e9 + number, 1e9 + number))


def _batches(spark: Any, folder: Path, name: str, *, parted: bool) -> list[float]:
    """Return the milliseconds of each batch."""
    events = []
    for side in "ab":
        reader = spark.readStream.schema(f"ts timestamp, user bigint, {side} bigint")
        frame = reader.option("maxFilesPerTrigger", 1).parquet(str(folder / side))
        stream = ice.stream(frame, time="ts", slack="1 second").events()
        events.append(stream.select("user", side).alterLifetime("5 seconds"))
    pairs = events[0].join(events[1], on="user")
    pairs = pairs.repartition() if parted else pairs
    answers = ice.count().alias("n"), ice.sum("a").alias("total")
    totals = pairs.groupApply("user", lambda group: group.agg(*answers))
    query = (
        totals.writeStream.format("noop")
        .option("checkpointLocation", str(folder / name))
        .memory("1 GB")
        .shards(2)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
