"""Measure Icestream's own window query through its public interface.

Run as `python -m bench.windows.icestream_window PLAN`; prints one JSON line per run of
the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

import icestream as ice
from bench import rows
from bench.query_runs import icestream_session, measured, run_all, run_to_the_end
from icestream.api.functions import AggregateExpression

#: aggregates of a window by the names of their columns
AGGREGATES: dict[str, Callable[[], AggregateExpression]] = {
    "n": ice.count,
    "s": partial(ice.sum, "value"),
    "a": partial(ice.avg, "value"),
    "lo": partial(ice.min, "value"),
    "hi": partial(ice.max, "value"),
}


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""
    files = ice.files(
        spark,
        plan["input"],
        plan.get("format", "parquet"),
        schema=rows.SPARK_SCHEMA,
        maxFilesPerTrigger=plan["files_per_trigger"],
    )
    writer = (
        ice.stream(files, time="ts", slack=plan["slack"])
        .window(plan["range"], slide=plan["slide"])
        .groupBy("key")
        .agg(*(AGGREGATES[name]().alias(name) for name in plan.get("aggregates", AGGREGATES)))
        .writeStream.option("input", plan.get("reading", "auto"))
    )
    query = run_to_the_end(writer, plan)
    return measured(query, plan, phases=True)


if __name__ == "__main__":
    run_all(icestream_session, run)
