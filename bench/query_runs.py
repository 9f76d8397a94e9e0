"""Queries on Spark that are measured one after the other in a process of their own.

Idea: a measured system is a module with a function that runs one query of a plan; everything they
have in common (reading the plan, the session, the JSON line for each run) is here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import icestream as ice
from bench.steady import steady_rate
from icestream.api.writer import StreamWriter

Plan = dict[str, Any]


def icestream_session(cores: int) -> SparkSession:
    """Start Spark with the settings for measuring Icestream."""
    return ice.local_session(
        "icestream-bench", cores=cores, conf={"spark.sql.session.timeZone": "UTC"}
    )


def run_to_the_end(writer: StreamWriter, plan: Plan) -> Any:
    """Run a query over all its files, to Parquet, and return it once it has ended."""
    query = (
        writer.format("parquet")
        .option("path", plan["output"])
        .option("checkpointLocation", plan["checkpoint"])
        .memory(plan["memory"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def measured(query: Any, plan: Plan, *, phases: bool = False) -> dict[str, Any]:
    """Return the rate of a query that has ended, its batches, and where their time went."""
    reports = query.recentProgress
    found = {
        "name": plan["name"],
        "eps": steady_rate(reports, plan["skip"]),
        "batches": [(r["numInputRows"], r["durationMs"]["triggerExecution"]) for r in reports],
    }
    return found | ({"phases": [r["durationMs"] for r in reports]} if phases else {})


def run_all(
    session: Callable[[int], SparkSession],
    run: Callable[[SparkSession, Plan], dict[str, Any]],
) -> None:
    """Run every query of the plan that the process received, one after the other."""
    plan = json.loads(sys.argv[1])
    spark = session(plan["cores"])
    for one in plan["runs"]:
        print(json.dumps(run(spark, one)), flush=True)
    spark.stop()
