"""The cost of windows with a row for every event that are started together, on Spark.

Idea: turnover and volume of 100 symbols over the last 1 to 2 minutes of each event, for one window
and for eight of different lengths, started together as one query with a sink for each. Trades are
written to the log once for all, for as long as the longest window needs them. The bytes logged by
eight windows are compared with those of the longest window alone.

Limits: bytes that shards write, including snapshots; result rows are not counted. The sinks drop
their rows, which the query has written and synced by then.

References: section 4 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.processes import results
from bench.registry import Size
from bench.steady import steady_rate
from bench.windows.shared_slides import SCHEMA, trades

WINDOWS = (1, 8)
SHORTEST, LONGEST = 60, 120
LIMIT = 900.0
#: seconds of event time in a file
FILE_SECONDS = 20


def measure(size: Size, folder: Path) -> dict[str, dict[str, float]]:
    """Return bytes logged and events per second of one window and of eight."""
    source = folder / "trades"
    source.mkdir(parents=True, exist_ok=True)
    for number in range(9 if size is Size.SMALL else 36):
        path = source / f"{number:04d}.parquet"
        pq.write_table(trades(number * FILE_SECONDS, FILE_SECONDS), path)
        os.utime(path, (number + 1, number + 1))
    found = {}
    for windows in WINDOWS:
        asked = {"windows": windows, "input": str(source), "work": str(folder / f"w{windows}")}
        command = [sys.executable, "-m", "bench.windows.shared_frames"]
        (told,) = results(command, asked, limit=LIMIT)
        found[f"{windows} windows per event"] = told
    shutil.rmtree(folder)
    return found


def ranges(windows: int) -> list[int]:
    """Return lengths in seconds, the longest first."""
    return [int(each) for each in np.linspace(LONGEST, SHORTEST, windows)]


def run(asked: dict[str, Any]) -> dict[str, float]:
    """Run several windows as one query."""
    import icestream as ice  # noqa: PLC0415 - only the measured process needs Spark

    spark = ice.local_session("shared-frames", cores=2)
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(asked["input"])
    stream = ice.stream(files, time="ts")
    writers = [
        stream.window(f"{length} seconds", slide="event")
        .groupBy("symbol")
        .agg(ice.sum("turnover").alias("turnover"), ice.sum("volume").alias("volume"))
        .writeStream.format("noop")
        for length in ranges(asked["windows"])
    ]
    query = ice.start(
        *writers, checkpointLocation=asked["work"], memory="512 MB", trigger={"availableNow": True}
    )
    query.awaitTermination()
    told = query.recentProgress
    spark.stop()
    return {
        "logged_bytes": sum(sum(each["icestream"]["shards"]["writtenBytes"]) for each in told),
        "events": sum(each["numInputRows"] for each in told),
        "result_rows": sum(each["icestream"]["resultRows"] for each in told),
        "eps": steady_rate(told, 2),
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
