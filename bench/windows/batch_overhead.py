"""The cost of a tiny micro-batch compared with the two bare Spark jobs it consists of.

Idea: the same stream of small files is read twice. The bare query runs one `mapInArrow` job and one
job on cached handles and stores nothing. Icestream reads rows from the JVM too, runs the same two
jobs, and also folds, logs, syncs, moves windows and commits. The ratio of the medians is the price
of exactly-once state.

Limits: the sink is left out on both sides.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import icestream as ice
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size

#: micro-batches of each query, and how many of them warm up
CASES = {Size.SMALL: (24, 8), Size.FULL: (80, 16)}
ROUNDS = {Size.SMALL: 1, Size.FULL: 3}
ROWS = 100
KEYS = 10
SHARDS = 2


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run both queries in turn and compare their medians."""
    batches, warm = CASES[size]
    rounds = ROUNDS[size]
    progress.plan(2 * rounds)
    folder = scratch(workspace(), "batch-overhead")
    write_files(folder / "in", batches)
    spark = ice.local_session("batch-overhead", cores=2)
    bare: list[float] = []
    ours: list[float] = []
    for number in range(rounds):
        progress.step(f"bare jobs, round {number + 1}")
        bare += bare_jobs(spark, folder, number)[warm:]
        progress.step(f"icestream, round {number + 1}")
        ours += tiny_batches(spark, folder, number)[warm:]
    figures = {
        "bare_ms": statistics.median(bare),
        "icestream_ms": statistics.median(ours),
        "icestream_p95_ms": float(np.percentile(ours, 95)),
        "batches": len(ours),
        "rows_per_batch": ROWS,
    }
    ratio = figures["icestream_ms"] / figures["bare_ms"]
    return Measurement(
        {**figures, "ratio": ratio}, (Bar.at_most("tiny batch against bare jobs", 1.5, ratio),)
    )


def write_files(folder: Path, count: int) -> None:
    """Write the input of tiny batches, a file each."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for number in range(count):
        times = (number * ROWS + np.arange(ROWS)) * 100_000
        table = pa.table(
            {
                "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "key": rng.integers(0, KEYS, ROWS),
                "value": rng.normal(size=ROWS),
            }
        )
        path = folder / f"{number:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1e9 + number, 1e9 + number))


def _stream(spark: Any, folder: Path) -> Any:
    return (
        spark.readStream.schema("ts timestamp, key bigint, value double")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "in"))
    )


def bare_jobs(spark: Any, folder: Path, number: int) -> list[float]:
    """Return the milliseconds of the two jobs alone, of each batch."""
    handles = spark.sparkContext.parallelize(range(SHARDS), SHARDS).map(lambda shard: shard).cache()
    handles.count()
    took: list[float] = []

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_arrays([pa.array([rows])], ["rows"])

    def batch(rows: Any, _: int) -> None:
        started = time.monotonic()
        rows.mapInArrow(count, "rows bigint").collect()
        handles.mapPartitionsWithIndex(lambda _, handle: list(handle)).collect()
        took.append(1000 * (time.monotonic() - started))

    query = (
        _stream(spark, folder)
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(folder / f"bare-{number}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    handles.unpersist()
    return took


def tiny_batches(
    spark: Any, folder: Path, number: int, options: Mapping[str, str] | None = None
) -> list[float]:
    """Return the milliseconds of each batch without Spark's own work and the sink."""
    query = (
        ice.stream(_stream(spark, folder), time="ts", slack="1 second")
        .window("1 minute", slide="10 seconds")
        .groupBy("key")
        .agg(ice.count().alias("n"), ice.sum("value").alias("total"), ice.max("value").alias("top"))
        .writeStream.format("noop")
        .options(**{"input": "rows", **(options or {})})
        .option("checkpointLocation", str(folder / f"icestream-{number}"))
        .memory("64 MB")
        .shards(SHARDS)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    phases = [entry["durationMs"] for entry in query.recentProgress]
    return [each["ingest"] + each["component"] + each["commit"] + each["tidy"] for each in phases]


def plot(figures: Figures, target: Path) -> None:
    """Draw both medians side by side."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - measuring needs no plots

    chart, axes = plt.subplots(figsize=(5, 3))
    axes.bar(["bare jobs", "icestream"], [figures["bare_ms"], figures["icestream_ms"]])
    axes.set_ylabel("milliseconds per tiny batch")
    axes.set_title(f"{figures['ratio']:.2f} times the bare jobs")
    chart.tight_layout()
    chart.savefig(target, dpi=120)
    plt.close(chart)


BENCH = Bench(
    "batch-overhead",
    "a tiny micro-batch costs at most 1.5 times its two bare Spark jobs",
    measure,
    plot,
)
