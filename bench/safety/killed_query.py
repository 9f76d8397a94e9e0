"""The program that is killed: a window query on Spark that continues where its last run ended.

Idea: it reads one file per batch, writes Parquet through Spark's file sink, stores late events, and
at the end lists everything that a reader of its output sees.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import icestream as ice


def run(folder: Path, name: str) -> None:
    """Run the query over `folder`/in to its end; state and output are in `folder`/`name`."""
    own = folder / name
    spark = ice.local_session("killed", memory="1g")
    events = (
        spark.readStream.schema("ts timestamp, key string, value double")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "in"))
    )
    totals = (
        ice.stream(events, time="ts", slack="3 seconds")
        .window("1 minute", slide="5 seconds")
        .groupBy("key")
        .agg(
            ice.count().alias("n"),
            ice.sum("value").alias("total"),
            ice.min("value").alias("least"),
            ice.max("value").alias("most"),
        )
    )
    query = (
        totals.writeStream.format("parquet")
        .option("path", str(own / "out"))
        .option("checkpointLocation", str(own / "checkpoint"))
        .option("localDir", str(own / "local"))
        .option("lateEvents", str(own / "late"))
        .option("flush", True)
        .shards(2)
        .memory("64 MB")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seen = [
        f"{part} {row}"
        for part in ("out", "late")
        for row in spark.read.parquet(str(own / part)).collect()
    ]
    (own / "seen.txt").write_text("\n".join(sorted(seen)), encoding="utf-8")


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    run(Path(asked["folder"]), asked["name"])
