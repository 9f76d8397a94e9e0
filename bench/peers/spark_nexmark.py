"""Nexmark's statements by Structured Streaming alone, where it can express them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.nexmark.nexmark import read_by
from bench.nexmark.running import files, registered, statement
from bench.query_runs import icestream_session, run_all
from bench.steady import steady_rate

#: statements that Spark reads as they are, with the output mode that it supports for them
MODES = {
    **dict.fromkeys(("q0", "q1", "q2", "q10", "q14", "q21", "q22", "q3", "q20"), "append"),
    "q17": "update",
}


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one statement over all files; return its rate."""
    registered(spark)
    for name in read_by(statement(plan["name"])):
        frame = files(spark, Path(plan["input"]), name)
        frame.withWatermark("dateTime", "2 seconds").createOrReplaceTempView(name)
    mode = MODES[plan["name"]]
    writer = spark.sql(statement(plan["name"])).writeStream.outputMode(mode)
    # file sinks take final rows only
    writer = writer.format("parquet" if mode == "append" else "noop")
    writer = writer.option("path", f"{plan['output']}/out")
    writer = writer.option("checkpointLocation", f"{plan['output']}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    state = Path(plan["output"]) / "checkpoint" / "state"
    held = sum(each.stat().st_size for each in state.rglob("*") if each.is_file())
    eps = steady_rate(query.recentProgress, plan["skip"])
    return {"name": plan["name"], "eps": eps, "state_bytes": held}


if __name__ == "__main__":
    run_all(icestream_session, run)
