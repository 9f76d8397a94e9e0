"""The cost of more queries with results per slide: 2 to 32 windows over one stream, on Spark.

Idea: turnover and volume of 100 symbols over windows of 1 to 2 hours, every 10 seconds, started
together as one query with a sink for each. Events are read, folded and logged once for all; each
window only adds, removes and emits its own rows. The rate of N queries is compared with two.

Limits: the sinks drop their rows, which the query has written and synced by then.

References: section 5.4 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.processes import results
from bench.registry import Size
from bench.steady import steady_rate

SECOND = 1_000_000
RATE = 5_000
SYMBOLS = 100
QUERIES = (2, 4, 8, 16, 32)
LIMIT = 900.0
#: seconds of event time in a file: five million trades
FILE_SECONDS = 1_000
SCHEMA = "ts timestamp, symbol int, turnover bigint, volume int"


def measure(size: Size, folder: Path) -> dict[str, float]:
    """Return the events per second of each number of queries, each in a process of its own."""
    files = 4 if size is Size.SMALL else 12
    source = folder / "trades"
    source.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        path = source / f"{number:04d}.parquet"
        pq.write_table(trades(number * FILE_SECONDS, FILE_SECONDS), path)
        os.utime(path, (number + 1, number + 1))
    rates = {}
    for queries in QUERIES:
        asked = {"queries": queries, "input": str(source), "work": str(folder / f"q{queries}")}
        (found,) = results(
            [sys.executable, "-m", "bench.windows.shared_slides"], asked, limit=LIMIT
        )
        rates[f"{queries} queries per slide"] = float(found["eps"])
    shutil.rmtree(folder)
    return rates


def trades(first: int, seconds: int) -> pa.Table:
    """Return the trades of some seconds: symbols in turn, prices in cents."""
    number = np.arange(first * RATE, (first + seconds) * RATE)
    volume = number * 104_729 % 1_000 + 1
    return pa.table(
        {
            "ts": pa.array(number * SECOND // RATE).cast(pa.timestamp("us", "UTC")),
            "symbol": pa.array((number % SYMBOLS).astype(np.int32)),
            "turnover": pa.array((number * 7919 % 10_000 + 1) * volume),
            "volume": pa.array(volume.astype(np.int32)),
        }
    )


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Run several queries as one."""
    import icestream as ice  # noqa: PLC0415 - only the measured process needs Spark

    spark = ice.local_session("shared-slides", cores=2)
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(asked["input"])
    stream = ice.stream(files, time="ts")
    ranges = np.linspace(3600, 7200, asked["queries"]).astype(int) // 10 * 10
    writers = [
        stream.window(f"{length} seconds", slide="10 seconds")
        .groupBy("symbol")
        .agg(ice.sum("turnover").alias("turnover"), ice.sum("volume").alias("volume"))
        .writeStream.format("noop")
        for length in ranges.tolist()
    ]
    query = ice.start(
        *writers, checkpointLocation=asked["work"], memory="512 MB", trigger={"availableNow": True}
    )
    query.awaitTermination()
    rate = steady_rate(query.recentProgress, 2)
    spark.stop()
    return {"eps": rate}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
