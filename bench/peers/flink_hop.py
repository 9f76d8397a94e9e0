"""Measure Flink SQL `HOP` through PyFlink's Table API; needs apache-flink, nothing of Icestream.

Run as `python flink_hop.py PLAN`; prints one JSON line per run of the plan.

Idea: Flink's package has no Parquet reader, and its CSV reader is slower than its sequence of
numbers; from that sequence SQL computes exactly the rows of `bench.rows`. The job never ends by
itself: Flink's REST interface reports how many events have left the source, rates are measured from
the end of warm-up to the end of the run, then the job is cancelled. So neither its start nor the
closing of all windows at once counts.

Limits: each reader gets half of the number range; even and odd rows go to different readers, so
both move through event time together. Results go to a sink that drops them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib import metadata
from itertools import pairwise
from typing import Any

from flink_jobs import configured, counter, free_port  # type: ignore[import-not-found]
from pyflink.common import Types, WatermarkStrategy  # type: ignore[import-not-found]
from pyflink.datastream import StreamExecutionEnvironment  # type: ignore[import-not-found]
from pyflink.datastream.connectors.number_seq import (  # type: ignore[import-not-found]
    NumberSequenceSource,
)
from pyflink.table import Schema, StreamTableEnvironment  # type: ignore[import-not-found]

#: rows of a run that is stopped by time: more than any run can read
ENDLESS = 1 << 32
SOURCE = "numbers"
SCAN = ("ts TIMESTAMP_LTZ(3), k BIGINT, v DOUBLE", "SELECT ts, `key`, `value` FROM events")
#: aggregates of a window: name, type and definition of each
ALL = {
    "n": ("BIGINT", "COUNT(*)"),
    "s": ("DOUBLE", "SUM(`value`)"),
    "a": ("DOUBLE", "AVG(`value`)"),
    "lo": ("DOUBLE", "MIN(`value`)"),
    "hi": ("DOUBLE", "MAX(`value`)"),
}


def events(
    environment: StreamExecutionEnvironment,
    tables: StreamTableEnvironment,
    constants: dict[str, int],
    rows: int,
) -> None:
    """Define the view `events(ts, key, value)` over the first `rows` rows."""
    half = rows // 2
    # MOD has the type of its divisor: an INT literal there would make x * x overflow
    c = {name: f"CAST({value} AS BIGINT)" for name, value in constants.items()}
    numbers = environment.from_source(
        NumberSequenceSource(0, rows - 1), WatermarkStrategy.no_watermarks(), SOURCE, Types.LONG()
    )
    i = f"(CASE WHEN f0 < {half} THEN f0 * 2 ELSE (f0 - {half}) * 2 + 1 END)"
    x = f"MOD({i} * {c['a']} + {c['seed']}, {c['p']})"
    h = f"MOD({x} * {x}, {c['p']})"
    late = f"MOD({h} / {c['keys']}, {c['disorder']})"
    schema = (
        Schema.new_builder()
        .column("f0", "BIGINT NOT NULL")
        .column_by_expression("h", h)
        .column_by_expression(
            "ts",
            f"TO_TIMESTAMP_LTZ({c['start']} + {i} / {c['per_tick']} * {c['tick']} - {late}, 3)",
        )
        .watermark("ts", "ts - INTERVAL '5' SECOND")
        .build()
    )
    tables.create_temporary_view("generated", tables.from_data_stream(numbers, schema))
    tables.execute_sql(
        f"CREATE TEMPORARY VIEW events AS SELECT ts, MOD(h, {c['keys']}) AS `key`, "
        f"CAST(h / ({c['keys']} * {c['disorder']}) AS DOUBLE) / 8 AS `value` FROM generated"
    )


def hop(run: dict[str, Any]) -> str:
    """Return the window query, with all aggregates or those that the run lists."""
    chosen = ", ".join(f"{ALL[name][1]} AS {name}" for name in run.get("aggregates", ALL))
    return (
        f"SELECT window_start, window_end, `key`, {chosen} "
        f"FROM TABLE(HOP(TABLE events, DESCRIPTOR(ts), {run['slide']}, {run['range']})) "
        "GROUP BY window_start, window_end, `key`"
    )


def result_columns(run: dict[str, Any]) -> str:
    """List the columns of the window query with their types."""
    chosen = ", ".join(f"{name} {ALL[name][0]}" for name in run.get("aggregates", ALL))
    return f"ws TIMESTAMP(3), we TIMESTAMP(3), k BIGINT, {chosen}"


def quarters(run: dict[str, Any], constants: dict[str, int]) -> list[float]:
    """Events per second that leave the source once warm, in each quarter of the measurement."""
    port = free_port()
    with tempfile.TemporaryDirectory() as checkpoints:
        tables = prepared(run, constants, ENDLESS, port, checkpoints)
        if run["kind"] == "query":
            columns, query = run["columns"], run["query"]
        else:
            columns, query = SCAN if run["kind"] == "scan" else (result_columns(run), hop(run))
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE nowhere ({columns}) WITH ('connector' = 'blackhole')"
        )
        job = tables.execute_sql(f"INSERT INTO nowhere {query}").get_job_client()
        try:
            read = counter(port, str(job.get_job_id()), f"Source__{SOURCE}.", ".numRecordsOut")
            time.sleep(run["warm"])
            looks = [(time.monotonic(), read())]
            for _ in range(4):
                time.sleep(run["measure"] / 4)
                looks.append((time.monotonic(), read()))
        finally:
            job.cancel().result()
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(looks)]


def totals(run: dict[str, Any], constants: dict[str, int]) -> dict[str, float]:
    """Add up all windows of a prefix of the rows that end by a given time."""
    with tempfile.TemporaryDirectory() as checkpoints:
        tables = prepared(run, constants, run["rows"], free_port(), checkpoints)
        closed = (
            f"SELECT n, s, a, lo, hi FROM ({hop(run)}) "
            f"WHERE window_end <= TIMESTAMP '{run['until']}'"
        )
        with tables.execute_sql(closed).collect() as found:
            results = [tuple(row) for row in found]
    n, s, a, lo, hi = (sum(column) for column in zip(*results, strict=True))
    return {
        "windows": len(results), "events": n, "total": s, "average": a, "least": lo, "most": hi,
    }  # fmt: skip


def prepared(
    run: dict[str, Any], constants: dict[str, int], rows: int, port: int, checkpoints: str
) -> StreamTableEnvironment:
    """Create an environment for one job, with the view `events` in it."""
    environment = StreamExecutionEnvironment.get_execution_environment(
        configured(run, port, checkpoints)
    )
    tables = StreamTableEnvironment.create(environment)
    events(environment, tables, constants, rows)
    return tables


def main() -> None:
    """Run every job of the plan, one after the other."""
    plan = json.loads(sys.argv[1])
    version = metadata.version("apache-flink")
    for run in plan["runs"]:
        result: dict[str, Any] = {"name": run["name"], "version": version}
        if run["kind"] == "totals":
            result["totals"] = totals(run, plan["constants"])
        else:
            result["quarters"] = quarters(run, plan["constants"])
            result["eps"] = sum(result["quarters"]) / 4
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
