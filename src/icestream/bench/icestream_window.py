"""Measure Icestream's own window query through its public interface.

Run as `python -m icestream.bench.icestream_window PLAN`; prints one JSON line per run of the plan.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import icestream as ice
from icestream.bench import rows
from icestream.bench.steady import steady_rate


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""
    files = (
        spark.readStream.schema(rows.SPARK_SCHEMA)
        .option("maxFilesPerTrigger", plan["files_per_trigger"])
        .parquet(plan["input"])
    )
    query = (
        ice.stream(files, time="ts", slack=plan["slack"])
        .window(plan["range"], slide=plan["slide"])
        .groupBy("key")
        .agg(
            ice.count().alias("n"),
            ice.sum("value").alias("s"),
            ice.avg("value").alias("a"),
            ice.min("value").alias("lo"),
            ice.max("value").alias("hi"),
        )
        .writeStream.format("parquet")
        .option("path", plan["output"])
        .option("checkpointLocation", plan["checkpoint"])
        .memory(plan["memory"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [
        (batch["numInputRows"], batch["durationMs"]["triggerExecution"])
        for batch in query.recentProgress
    ]
    eps = steady_rate(query.recentProgress, plan["skip"])
    return {"name": plan["name"], "eps": eps, "batches": batches}


def main() -> None:
    """Run every query of the plan, one after the other."""
    plan = json.loads(sys.argv[1])
    spark = ice.local_session(
        "icestream-bench", cores=plan["cores"], conf={"spark.sql.session.timeZone": "UTC"}
    )
    for one in plan["runs"]:
        print(json.dumps(run(spark, one)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
