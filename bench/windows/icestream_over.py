"""Measure Icestream's columns over frames through its public interface.

Run as `python -m bench.windows.icestream_over PLAN`; prints one JSON line per run of the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from bench import rows
from bench.query_runs import icestream_session, measured, run_all, run_to_the_end
from bench.windows.over import KEYS, SLACK
from icestream.api.functions import AggregateExpression
from icestream.operators.frames.tuples import SETTLED
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import VersionStore
from icestream.state.versions.live_segments import live_at

FUNCTIONS: dict[str, Callable[[], AggregateExpression]] = {
    "count": ice.count,
    "sum": partial(ice.sum, "value"),
    "avg": partial(ice.avg, "value"),
}


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run the query over all its files."""
    files = ice.files(
        spark,
        plan["input"],
        "parquet",
        schema=rows.SPARK_SCHEMA,
        maxFilesPerTrigger=plan["files_per_trigger"],
    )
    events = ice.stream(files, time="ts", slack=SLACK).events()
    for name, text in KEYS.items():
        events = events.withColumn(name, sf.expr(text))
    for key in plan["keys"]:
        for number, (length, function) in enumerate(plan["windows"]):
            feature = FUNCTIONS[function]().alias(f"{key}_{number}")
            events = events.over(feature, partitionBy=key, range=length)
    query = run_to_the_end(events.writeStream, plan)
    last = query.recentProgress[-1]["icestream"]
    store = VersionStore(LocalFiles(), f"{plan['checkpoint']}/icestream")
    live = live_at(store, query.recentProgress[-1]["version"])
    return measured(query, plan) | {
        "state_bytes": last["logBytes"],
        "peak_bytes": last["peakMemoryBytes"],
        "tuple_bytes": sum(each.info.bytes for each in live if each.lifetime == SETTLED),
    }


if __name__ == "__main__":
    run_all(icestream_session, run)
