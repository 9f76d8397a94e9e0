"""Measure Flink SQL's regular joins of five streams; needs apache-flink, nothing of Icestream.

Run as `python flink_multi_join.py PLAN`; prints one JSON line per run of the plan.

Idea: from sequences of numbers SQL computes exactly the rows of `bench.multi_join_rows`; the joins
are written as a user would, without a bound on time. The job ends when the sequences end. Progress
is measured by the results that are out, since rows that were read may wait in buffers; the rate is
that of the rows after warm-up, until the last result. Results go to a sink that drops them, or, for
comparison, to CSV files.

Limits: each reader gets half of the number range; even and odd rows go to different readers, so
both move through the rows together. The five streams advance only roughly together. A job that ends
within seconds is measured cold.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib import metadata
from typing import Any

from flink_jobs import configured, counter, free_port  # type: ignore[import-not-found]
from pyflink.common import Types, WatermarkStrategy  # type: ignore[import-not-found]
from pyflink.datastream import StreamExecutionEnvironment  # type: ignore[import-not-found]
from pyflink.datastream.connectors.number_seq import (  # type: ignore[import-not-found]
    NumberSequenceSource,
)
from pyflink.table import Schema, StreamTableEnvironment  # type: ignore[import-not-found]

#: fraction of the results after which the rate is measured
WARM = 0.25
#: seconds between two reads of the counters
LOOK = 0.25

JOINS = (
    "SELECT a_id, b_id, c_id, d_id, e_id FROM a JOIN b ON a1 = b1 JOIN c ON b1 = c1 "
    "JOIN d ON c2 = d1 JOIN e ON d2 = e1"
)
RESULT = ", ".join(f"{name}_id BIGINT" for name in "abcde")


def stream(
    environment: StreamExecutionEnvironment,
    tables: StreamTableEnvironment,
    constants: dict[str, Any],
    told: dict[str, Any],
    rows: int,
) -> None:
    """Define the view of one stream over its first `rows` rows."""
    half, name = rows // 2, told["name"]
    numbers = environment.from_source(
        NumberSequenceSource(0, rows - 1),
        WatermarkStrategy.no_watermarks(),
        f"numbers of {name}",
        Types.LONG(),
    )
    # MOD has the type of its divisor: an INT literal there would make x * x overflow
    c = {key: f"CAST({value} AS BIGINT)" for key, value in constants.items()}
    schema = (
        Schema.new_builder()
        .column("f0", "BIGINT NOT NULL")
        .column_by_expression(
            "i", f"(CASE WHEN f0 < {half} THEN f0 * 2 ELSE (f0 - {half}) * 2 + 1 END)"
        )
        .build()
    )
    tables.create_temporary_view(f"numbers_{name}", tables.from_data_stream(numbers, schema))
    x = f"MOD(i * {c['a']} + CAST({told['seed']} AS BIGINT), {c['p']})"
    h = f"MOD({x} * {x}, {c['p']})"
    columns = []
    for place, keys in enumerate(told["keys"], start=1):
        many = f"CAST({keys} AS BIGINT)"
        columns.append(f"i / {c['range']} * {many} + MOD({h}, {many}) AS {name}{place}")
        h = f"MOD({h} * {c['mix']}, {c['p']})"
    tables.execute_sql(
        f"CREATE TEMPORARY VIEW {name} AS SELECT {', '.join(columns)}, i AS {name}_id "
        f"FROM numbers_{name}"
    )


def joined(run: dict[str, Any], plan: dict[str, Any]) -> float:
    """Run the joins to their end; return rows per second once warm."""
    port = free_port()
    with tempfile.TemporaryDirectory() as checkpoints:
        environment = StreamExecutionEnvironment.get_execution_environment(
            configured(run, port, checkpoints)
        )
        tables = StreamTableEnvironment.create(environment)
        for told in plan["streams"]:
            stream(environment, tables, plan["constants"], told, run["rows"])
        sink = (
            f"'connector' = 'filesystem', 'path' = 'file://{run['output']}', 'format' = 'csv'"
            if run.get("output")
            else "'connector' = 'blackhole'"
        )
        tables.execute_sql(f"CREATE TEMPORARY TABLE results ({RESULT}) WITH ({sink})")
        begun, part = time.monotonic(), 0.0
        result = tables.execute_sql(f"INSERT INTO results {JOINS}")
        job = str(result.get_job_client().get_job_id())
        if not run.get("output"):
            begun, part = warm(port, job, run["results"], begun)
        result.wait()
        rows = run["rows"] * len(plan["streams"])
        return float((1 - part) * rows / (time.monotonic() - begun))


def warm(port: int, job: str, results: int, begun: float) -> tuple[float, float]:
    """Wait until a job is warm; return when that was, and the fraction of its results then out."""
    try:
        read = counter(port, job, "results[", "Writer.numRecordsIn")
        while (out := read()) < WARM * results:
            time.sleep(LOOK)
    except OSError:
        # the job has ended already
        return begun, 0.0
    return time.monotonic(), out / results


def main() -> None:
    """Run every job of the plan, one after the other."""
    plan = json.loads(sys.argv[1])
    version = metadata.version("apache-flink")
    for run in plan["runs"]:
        eps = joined(run, plan)
        print(json.dumps({"name": run["name"], "version": version, "eps": eps}), flush=True)


if __name__ == "__main__":
    main()
