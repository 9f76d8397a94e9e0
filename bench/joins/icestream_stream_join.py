"""Measure Icestream's join of two streams with a bound on time.

Run as `python -m bench.joins.icestream_stream_join PLAN`; prints one JSON line per run of
the plan.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

import icestream as ice
from bench.cold import keyed_rows
from bench.query_runs import icestream_session, measured, run_all, run_to_the_end
from icestream.api.events import Events


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""

    def side(name: str) -> Events:
        files = ice.files(
            spark,
            plan[name],
            "parquet",
            schema=keyed_rows.SPARK_SCHEMA,
            maxFilesPerTrigger=plan["files_per_trigger"],
        )
        stream = ice.stream(files, time="ts", slack=plan["slack"])
        return stream.events().select("key", f"id AS {name}_id")

    pairs = side("left").join(side("right"), on="key", how=plan["how"], within=plan["within"])
    query = run_to_the_end(pairs.writeStream.option("flush", True), plan)
    return measured(query, plan, phases=True)


if __name__ == "__main__":
    run_all(icestream_session, run)
