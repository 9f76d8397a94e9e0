"""Measure Icestream's query of three joins over five streams, whose results may be deferred.

Run as `python -m bench.joins.icestream_multi_join PLAN`; prints one JSON line per run of
the plan. The rate is that of the rows read once warm, including the time of clean-up at the end.
There are as many shards as cores, like the peer's shuffle partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

import icestream as ice
from bench.multi_join_rows import STREAMS, JoinStream
from bench.query_runs import icestream_session, measured, run_all, run_to_the_end
from icestream.api.events import Events


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""

    def events(stream: JoinStream) -> Events:
        files = ice.files(
            spark,
            plan["inputs"][stream.name],
            "parquet",
            schema=stream.spark_schema,
            maxFilesPerTrigger=plan["files_per_trigger"],
        )
        columns = ice.stream(files, time="ts").events().select(*stream.keys, stream.id)
        return columns.forever()

    a, b, c, d, e = map(events, STREAMS)
    abc = ice.join(a, b, c, on=[("a1", "b1", "c1")], onPressure="defer")
    abcd = abc.join(d, on=[("c2", "d1")], onPressure="defer")
    writer = (
        abcd.join(e, on=[("d2", "e1")], onPressure="defer")
        .select(*(stream.id for stream in STREAMS))
        .writeStream.option("flush", "true")
        .shards(plan["shards"])
    )
    query = run_to_the_end(writer, plan)
    return told(measured(query, plan, phases=True), query.recentProgress, plan["skip"])


def told(found: dict[str, Any], reports: Sequence[Mapping[str, Any]], skip: int) -> dict[str, Any]:
    """Add the time of clean-up to the rate, and the spill reports of the joins."""
    batches = [(rows, spent) for rows, spent in found["batches"] if rows][skip:]
    late = sum(spent for rows, spent in found["batches"] if not rows)
    spent = late + sum(spent for _, spent in batches)
    facts = [report["icestream"] for report in reports if "icestream" in report]
    return found | {
        "eps": 1_000 * sum(rows for rows, _ in batches) / spent if batches else None,
        "spilling": {
            "spills": max(each["spills"] for each in facts),
            "bytesSpilled": sum(each["bytesSpilled"] for each in facts),
            "lateRows": sum(join["lateRows"] for each in facts for join in each["joins"]),
            "clean_up_ms": late,
            "peakMemoryBytes": max(each["peakMemoryBytes"] for each in facts),
        },
    }


if __name__ == "__main__":
    run_all(icestream_session, run)
